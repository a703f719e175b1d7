"""The vectors that all languages share (``tests/vectors``), as far as this package has their calls.

It has no grammars, no limit of memory and no codes of errors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import refrain
from conftest import MODEL
from refrain.assistant import Assistant, Edit

VECTORS = Path(__file__).resolve().parents[3] / "tests" / "vectors"


def _vector(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


def test_a_conversation_is_that_of_other_languages() -> None:
    vector = _vector("conversation")
    engine = refrain.Engine(MODEL, threads=1, measure_time=0)
    session = engine.session(context_len=vector["session"]["context_len"])
    for step in vector["steps"]:
        if "append" in step:
            session.append_turn(step["append"]["role"], step["append"]["content"])
            continue
        completion = session.generate(**step["generate"]).run()
        expected = step["expect"]
        assert completion.text == expected["text"]
        assert completion.summary is not None
        assert (completion.summary.finish, completion.summary.seed) == (expected["finish"], expected["seed"])


def test_an_edit_is_that_of_other_languages() -> None:
    vector = _vector("edit")
    engine = refrain.Engine(MODEL, threads=1, measure_time=0)
    assistant = Assistant(engine, context_len=vector["session"]["context_len"])
    text = vector["task"]["text"]
    job = assistant.edit(text, vector["task"]["instruction"], max_tokens=vector["options"]["max_tokens"])
    edit = job.run()
    assert isinstance(edit, Edit)
    expected = vector["expect"]
    assert edit.text == expected["text"]

    def of_bytes(of: str, place: dict[str, int]) -> str:
        return of.encode()[place["start"] : place["end"]].decode()

    assert len(edit.changes) == len(expected["changes"])
    for change, known in zip(edit.changes, expected["changes"]):
        assert change.kind == known["kind"]
        assert text[change.old[0] : change.old[1]] == of_bytes(text, known["old"])
        if change.new is not None:
            assert edit.text[change.new[0] : change.new[1]] == of_bytes(edit.text, known["new"])
