"""The drafter alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import refrain
from refrain import errors
from refrain.draft import Drafter, Proposal, Sequence

VOCABULARY = 5000


def decode(sequence: Sequence, output: list[int], max_rows: int) -> tuple[int, int]:
    """Commits `output` as an engine would that chooses exactly these tokens. Returns its steps, and the tokens that were proposed."""
    n_steps = n_accepted = at = 0
    while at < len(output):
        proposal = sequence.propose(max_rows)
        check(proposal, max_rows)
        # The engine verifies: it follows the tree while its own choice is in it.
        node, n, is_proposed = -1, 0, True
        while is_proposed and at + n < len(output):
            edge = (node, output[at + n])
            children = [i for i, known in enumerate(zip(proposal.parents, proposal.tokens)) if known == edge]
            is_proposed = children != []
            node = children[0] if is_proposed else node
            n += 1
        n_proposed = n if is_proposed else n - 1
        assert sequence.observe(output[at : at + n]) == n_proposed
        n_accepted += n_proposed
        n_steps += 1
        at += n
    return n_steps, n_accepted


def check(proposal: Proposal, max_rows: int) -> None:
    n = len(proposal)
    assert n <= max_rows
    assert len(proposal.tokens) == len(proposal.parents) == len(proposal.probabilities) == len(proposal.origins) == n
    for i, (parent, probability) in enumerate(zip(proposal.parents, proposal.probabilities)):
        assert -1 <= parent < i
        assert 0 < probability <= (proposal.probabilities[parent] if parent >= 0 else 1)
    siblings = list(zip(proposal.parents, proposal.tokens))
    assert len(set(siblings)) == len(siblings)
    assert set(proposal.origins) <= {"context", "history"}


@pytest.mark.parametrize("tree", [True, False])
def test_a_repeated_text_takes_few_steps(tree: bool) -> None:
    rng = random.Random(1)
    passage = [rng.randrange(VOCABULARY) for _ in range(200)]
    drafter = Drafter(VOCABULARY, tree=tree)
    sequence = drafter.sequence(passage + passage[:10])
    n_steps, n_accepted = decode(sequence, passage[10:], max_rows=16)
    assert n_steps < 40 and n_accepted > 150
    assert sequence.tokens == passage * 2
    if not tree:
        for _ in range(5):
            assert sequence.propose(16).is_chain


def test_earlier_outputs_are_proposed_in_their_namespace_only(tmp_path: Path) -> None:
    rng = random.Random(2)
    output = [rng.randrange(VOCABULARY) for _ in range(100)]
    for store in (None, tmp_path):
        drafters = {name: Drafter(VOCABULARY, store=store, fingerprint=1, namespace=name) for name in ("one", "two")}
        first = drafters["one"].sequence([1, 2, 3])
        n_steps, n_accepted = decode(first, output, 16)
        assert n_accepted < 10
        first.finish()
        again = drafters["one"].sequence([4, 5])
        assert decode(again, output, 16)[0] < n_steps / 2
        assert decode(drafters["two"].sequence([4, 5]), output, 16)[1] < 10
        drafters["one"].forget()
        assert decode(drafters["one"].sequence([4, 5]), output, 16)[1] < 10


def test_a_store_outlives_its_process(tmp_path: Path) -> None:
    output = list(range(100, 160))
    drafter = Drafter(VOCABULARY, store=tmp_path, fingerprint=7)
    sequence = drafter.sequence([1])
    sequence.observe(output)
    sequence.finish()
    drafter.maintain()
    del drafter, sequence
    reopened = Drafter(VOCABULARY, store=tmp_path, fingerprint=7).sequence([9])
    # Behind a prompt it proposes how answers began, and within an answer how it goes on.
    assert reopened.propose(8).tokens[:2] == tuple(output[:2])
    reopened.observe(output[:4])
    proposal = reopened.propose(8)
    assert proposal.tokens[0] == output[4] and set(proposal.origins) == {"history"}


def test_many_processes_share_a_store(tmp_path: Path) -> None:
    program = """
import sys
from refrain.draft import Drafter

store, number = sys.argv[1], int(sys.argv[2])
drafter = Drafter(5000, store=store, fingerprint=7, namespace="all")
print("ready", flush=True)
for command in sys.stdin:
    drafter.maintain()
    if command == "finish\\n":
        sequence = drafter.sequence([number])
        sequence.observe(range(100 * number, 100 * number + 40))
        sequence.finish()
        print("finished", flush=True)
    else:
        starts = [100 * other for other in range(1, 5)]
        proposals = [drafter.sequence([9, start, start + 1, start + 2]).propose(4) for start in starts]
        print([proposal.tokens[:1] == (start + 3,) for start, proposal in zip(starts, proposals)], flush=True)
"""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(1, 5)
    ]

    def ask(worker: subprocess.Popen[str], command: str) -> str:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(command + "\n")
        worker.stdin.flush()
        return worker.stdout.readline().strip()

    try:
        for worker in workers:
            assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
        assert [ask(worker, "finish") for worker in workers] == ["finished"] * 4
        # Each has the outputs of all as soon as it maintains; and still, when one after the other is killed.
        while workers:
            assert [ask(worker, "propose") for worker in workers] == [str([True] * 4)] * len(workers)
            killed = workers.pop(0)
            killed.kill()
            killed.communicate()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_another_tokenizers_store_is_refused(engine: refrain.Engine, tmp_path: Path) -> None:
    tokenizer = engine.tokenizer
    sequence = Drafter(tokenizer, store=tmp_path).sequence([1, 2])
    sequence.observe([3, 4])
    sequence.finish()
    del sequence
    with pytest.raises(errors.FingerprintError) as raised:
        Drafter(VOCABULARY, store=tmp_path, fingerprint=5)
    assert (raised.value.expected, raised.value.found) == (5, tokenizer.fingerprint)
    # Another model of the same tokenizer has outputs of its own.
    proposal = Drafter(tokenizer, store=tmp_path, model=1).sequence([1, 2, 3]).propose(4)
    assert "history" not in proposal.origins
    with pytest.raises(errors.OptionError, match="fingerprint"):
        Drafter(VOCABULARY, store=tmp_path)


def test_bad_input(tmp_path: Path) -> None:
    drafter = Drafter(VOCABULARY)
    with pytest.raises(errors.TokenOutOfRangeError) as raised:
        drafter.sequence([1, VOCABULARY])
    assert (raised.value.token, raised.value.vocab_size) == (VOCABULARY, VOCABULARY)
    sequence = drafter.sequence([1, 2])
    for call in (sequence.observe, sequence.follow):
        with pytest.raises(errors.TokenOutOfRangeError):
            call([1, 2, 4_000_000_000])
        with pytest.raises(OverflowError):
            call([-1])
    assert sequence.tokens == [1, 2]
    for rows in (0, 64, 1 << 40):
        with pytest.raises(errors.OptionError):
            sequence.propose(rows)
        with pytest.raises(errors.OptionError):
            drafter.propose([sequence], rows)
    sequence.finish()
    calls: list[Any] = [lambda: sequence.propose(4), lambda: sequence.observe([1]), lambda: sequence.follow([1]), sequence.finish]
    for end in [*calls, lambda: drafter.propose([sequence], 4)]:
        with pytest.raises(errors.SequenceEndedError):
            end()
    assert repr(sequence) == "Sequence(2 tokens, ended)"
    assert len(drafter.sequence().propose(4)) == 0
    for size in (0, 1 << 40):
        with pytest.raises(errors.OptionError):
            Drafter(size)
    with pytest.raises(TypeError, match="expected a Tokenizer or the size of a vocabulary, got str"):
        Drafter("tokenizer.json")  # type: ignore[arg-type]
    costs: list[dict[int, float]] = [{}, {0: 1.0}, {65: 1.0}, {1: 0.0}, {1: float("nan")}, {1: -1.0}]
    for row_us in costs:
        with pytest.raises(errors.OptionError, match="row_us"):
            Drafter(VOCABULARY, row_us=row_us)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.StoreError) as store:
        Drafter(VOCABULARY, store=tmp_path / "file", fingerprint=1)
    assert isinstance(store.value.__cause__, OSError)
    with pytest.raises(errors.StoreError):
        named = Drafter(VOCABULARY, store=tmp_path / "store", fingerprint=1, namespace="x" * 100).sequence([1])
        named.observe([2])
        named.finish()


def test_following_a_whole_text_takes_tokens_back(tmp_path: Path) -> None:
    sequence = Drafter(VOCABULARY).sequence([1, 2, 3, 4, 1, 2])
    assert sequence.propose(4).tokens[:2] == (3, 4)
    assert sequence.follow([1, 2, 3, 4, 1, 2, 3, 9]) == 1
    assert sequence.follow([1, 2, 3, 4, 1, 2, 3]) == 0
    assert sequence.tokens == [1, 2, 3, 4, 1, 2, 3]
    assert sequence.propose(1).tokens == (4,)
    assert sequence.follow([]) == 0 and sequence.tokens == []


def test_costs_shorten_a_proposal() -> None:
    text = list(range(40)) * 3
    free = Drafter(VOCABULARY, tree=False).sequence(text).propose(32)
    dear = Drafter(VOCABULARY, tree=False, row_us={1: 100.0, 32: 100_000.0}).sequence(text).propose(32)
    assert len(dear) < len(free)


def test_a_batch_proposes_what_each_would(tmp_path: Path) -> None:
    rng = random.Random(3)
    drafter = Drafter(VOCABULARY)
    texts = [[rng.randrange(20) for _ in range(200)] for _ in range(64)]
    batch = drafter.propose([drafter.sequence(text) for text in texts], 8)
    for text, proposal in zip(texts, batch):
        alone = drafter.sequence(text).propose(8)
        assert (proposal.tokens, proposal.parents, proposal.probabilities) == (alone.tokens, alone.parents, alone.probabilities)
    assert drafter.propose([], 8) == []


def test_batches_of_many_threads() -> None:
    """Batches that share helpers and sequences, with sequences of other drafters and one twice, propose what each sequence would."""
    rng = random.Random(4)
    drafters = [Drafter(VOCABULARY), Drafter(VOCABULARY, tree=False)]
    sequences = [drafters[i % 2].sequence([rng.randrange(20) for _ in range(100)]) for i in range(40)]
    expected = [sequence.propose(8).tokens for sequence in sequences]

    def work(seed: int) -> bool:
        rng = random.Random(seed)
        for _ in range(50):
            chosen = rng.choices(range(len(sequences)), k=rng.choice([1, 7, 16, 100]))
            proposals = rng.choice(drafters).propose([sequences[i] for i in chosen], 8)
            if [proposal.tokens for proposal in proposals] != [expected[i] for i in chosen]:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_a_batch_with_a_sequence_that_has_ended() -> None:
    drafter = Drafter(VOCABULARY)
    sequences = [drafter.sequence([1, 2, 1]) for _ in range(64)]
    sequences[40].finish()
    with pytest.raises(errors.SequenceEndedError):
        drafter.propose(sequences, 4)
    assert len(drafter.propose(sequences[:40], 4)) == 40


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_forked_child_is_refused() -> None:
    drafter = Drafter(VOCABULARY)
    sequence = drafter.sequence([1, 2, 3])
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: drafter.sequence([1]), lambda: sequence.propose(2), lambda: drafter.propose([], 2)):
            try:
                call()
            except errors.ForkedError:
                refused += 1
        # A drafter of its own works, in threads too.
        own = Drafter(VOCABULARY)
        n = len(own.propose([own.sequence([1, 2, 1]) for _ in range(32)], 4))
        os._exit(0 if (refused, n) == (3, 32) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
