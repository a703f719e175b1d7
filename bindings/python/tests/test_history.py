"""Outputs on disk: shared by engines, drafters, processes and hosts; and disks that are full or read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import refrain
from conftest import FIXTURES, MODEL, QUESTION
from refrain import errors
from refrain.draft import Drafter

ROOT = Path(__file__).resolve().parents[3]
VOCABULARY = 5000


def answer(engine: refrain.Engine, history: refrain.History | bool) -> refrain.Completion:
    # Drafts whatever rows cost on this machine.
    session = engine.session(history=history, draft_rows=8)
    session.append_turn("user", QUESTION)
    return session.generate(max_tokens=40).run()


def accepted(completion: refrain.Completion, source: str = "history") -> int:
    assert completion.summary is not None
    return sum(stats.accepted for stats in completion.summary.stats.sources if stats.name == source)


@pytest.fixture
def free_engine() -> refrain.Engine:
    return refrain.Engine(MODEL, threads=1, measure_time=0)


def test_an_engine_drafts_from_a_folder(free_engine: refrain.Engine, tmp_path: Path) -> None:
    plain = answer(free_engine, False)
    history = refrain.History(free_engine, tmp_path, namespace="mail")
    first = answer(free_engine, history)
    assert accepted(first) == 0
    history.append(first)
    history.maintain()
    assert repr(history) == 'History(namespace="mail")' and history.namespace == "mail"
    del history
    again = answer(free_engine, refrain.History(free_engine, tmp_path, namespace="mail"))
    assert accepted(again) > 0
    other = answer(free_engine, refrain.History(free_engine, tmp_path, namespace="other"))
    assert accepted(other) == 0
    assert plain.text == first.text == again.text == other.text
    history = refrain.History(free_engine, tmp_path, namespace="mail")
    history.forget()
    assert accepted(answer(free_engine, history)) == 0


def test_bad_histories(free_engine: refrain.Engine, tmp_path: Path) -> None:
    history = refrain.History(free_engine, tmp_path / "one")
    with pytest.raises(errors.TokenOutOfRangeError):
        history.append([1, 1 << 30])
    history.append([])
    with pytest.raises(TypeError, match="expected a Completion or token ids, got int"):
        history.append(5)  # type: ignore[arg-type]
    small = refrain.Engine(FIXTURES / "draft.gguf", measure_time=0)
    with pytest.raises((errors.OptionError, errors.FingerprintError)):
        small.session(history=history)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.StoreError):
        refrain.History(free_engine, tmp_path / "file")


def test_workers_share_an_engines_history(free_engine: refrain.Engine, tmp_path: Path) -> None:
    """A worker that was killed after `append` has lost nothing, and the others draft from it after their next `maintain`."""
    program = f"""
import os, refrain
engine = refrain.Engine({str(MODEL)!r}, threads=1, measure_time=0)
history = refrain.History(engine, {str(tmp_path)!r})
session = engine.session(history=history)
session.append_turn("user", {QUESTION!r})
history.append(session.generate(max_tokens=40).run())
os.kill(os.getpid(), 9)
"""
    history = refrain.History(free_engine, tmp_path)
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == -9
    history.maintain()
    assert accepted(answer(free_engine, history)) > 0


@pytest.fixture
def program() -> str:
    """The program `refrain-fleet`, which publishes and pulls."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = os.environ.get("REFRAIN_FLEET") or next((str(p) for p in (target / "debug/refrain-fleet", target / "release/refrain-fleet") if p.exists()), None)
    if found is None:
        pytest.skip("needs the program: cargo build, or REFRAIN_FLEET=PATH")
    return found


def test_hosts_of_a_fleet(program: str, free_engine: refrain.Engine, tmp_path: Path) -> None:
    """What one host's program publishes, another host's Python drafts from after a pull: drafters and engines."""
    store = f"file://{tmp_path / 'objects'}"
    (tmp_path / "objects").mkdir()

    def fleet(command: str, host: str, *more: str) -> None:
        folder = str(tmp_path / host)
        done = subprocess.run(
            [program, command, store, "--host", host, "--history", folder, *more], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    output = list(range(100, 160))
    here = Drafter(VOCABULARY, store=tmp_path / "here", fingerprint=7, namespace="mail")
    sequence = here.sequence([1])
    sequence.observe(output)
    sequence.finish()
    here.maintain()
    told = refrain.History(free_engine, tmp_path / "here", namespace="mail")
    told.append(answer(free_engine, False))
    told.maintain()
    there = Drafter(VOCABULARY, store=tmp_path / "there", fingerprint=7, namespace="mail")
    kept = refrain.History(free_engine, tmp_path / "there", namespace="mail")
    for waiting in (there, kept):
        waiting.maintain()
    fleet("publish", "here")
    fleet("pull", "there", "--namespace", "mail")
    assert "history" not in there.sequence([9, *output[:4]]).propose(4).origins
    there.maintain()
    kept.maintain()
    proposal = there.sequence([9, *output[:4]]).propose(4)
    assert proposal.tokens[:1] == (output[4],) and set(proposal.origins) == {"history"}
    assert accepted(answer(free_engine, kept)) > 0
    # Deleted for real: at the next publish and pull.
    del here, told, sequence
    Drafter(VOCABULARY, store=tmp_path / "here", fingerprint=7, namespace="mail").forget()
    fleet("publish", "here")
    fleet("pull", "there", "--namespace", "mail")
    there.maintain()
    assert "history" not in there.sequence([9, *output[:4]]).propose(4).origins


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_a_read_only_folder_is_read(tmp_path: Path) -> None:
    store = tmp_path / "store"
    drafter = Drafter(VOCABULARY, store=store, fingerprint=7)
    sequence = drafter.sequence([1])
    sequence.observe(range(100, 140))
    sequence.finish()
    drafter.maintain()
    del drafter, sequence
    program = f"""
import os, sys
from refrain import errors
from refrain.draft import Drafter
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)  # permissions do not bind root
drafter = Drafter({VOCABULARY}, store={str(store)!r}, fingerprint=7)
sequence = drafter.sequence([9])
assert sequence.propose(4).tokens[:1] == (100,)
sequence.observe([100, 101, 102])
assert sequence.propose(4).tokens[:1] == (103,)
sequence.observe([103, 7])
for attempt in range(2):
    try:
        sequence.finish()
        sys.exit("kept")
    except errors.StoreError as error:
        print(type(error.__cause__).__name__, error)
assert drafter.sequence([9]).propose(4).tokens[:1] == (100,)
"""
    # Readable by others, and writable by nobody.
    for folder, _, files in os.walk(store):
        os.chmod(folder, 0o555)
        for file in files:
            os.chmod(Path(folder) / file, 0o444)
    for parent in tmp_path.parents:
        if parent.owner() == "root" and parent.name.startswith("pytest"):
            os.chmod(parent, 0o755)
    os.chmod(tmp_path, 0o755)
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd="/")
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert len(done.stdout.splitlines()) == 2
    finally:
        for folder, _, _ in os.walk(store):
            os.chmod(folder, 0o755)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if sys.platform != "linux" or os.getuid() != 0 or mount is None or umount is None:
        pytest.skip("needs the right to mount a file system")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run([umount, "-l", str(folder)], check=True)


def test_a_full_disk_costs_history_only(small_disk: Path, free_engine: refrain.Engine) -> None:
    drafter = Drafter(VOCABULARY, store=small_disk / "store", fingerprint=7)
    sequence = drafter.sequence([1])
    sequence.observe(range(100, 140))
    sequence.finish()
    history = refrain.History(free_engine, small_disk / "engine")
    with pytest.raises(OSError), open(small_disk / "ballast", "wb") as ballast:
        while True:
            ballast.write(bytes(4096))
            ballast.flush()
    late = drafter.sequence([9, 100, 101, 102])
    late.observe([103] * 2000)
    with pytest.raises(errors.StoreError) as full:
        while True:
            late.finish()
            late = drafter.sequence([9])
            late.observe([5] * 2000)
    assert isinstance(full.value.__cause__, OSError)
    # Drafts go on, and so does the engine.
    going_on = drafter.sequence([9])
    going_on.propose(4)
    going_on.observe([100, 101, 102])
    assert going_on.propose(4).tokens[:1] == (103,)
    done = answer(free_engine, history)
    with pytest.raises(errors.StoreError):
        history.append(list(range(1, 200)) * 40)
    assert answer(free_engine, history).text == done.text
    # The sequence that could not be kept can be, when there is room again.
    (small_disk / "ballast").unlink()
    late.finish()
