"""The fixture models, and the option that runs the long tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import refrain

# Threads of the plug-ins' engines (OpenMP) wait awake for one another. Beside four builds, tests took six times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

FIXTURES = Path(os.environ.get("REFRAIN_FIXTURES", Path(__file__).resolve().parents[3] / "fixtures"))
MODEL = FIXTURES / "target.gguf"

# A question about a note: the answer repeats words of the note, so drafts are accepted.
QUESTION = (
    "Answer the question from the notes.\n\n# Trip to Aniarda\nNadia and Tomas come along. The train leaves at 08:15.\n\n"
    "Who comes along?"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        skip = pytest.mark.skip(reason="takes minutes: run with --long")
        for item in items:
            if "long" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture model with a context for outputs and prompts that take seconds. (It was trained for 1,024 tokens.)"""
    data = bytearray(MODEL.read_bytes())
    key = b"llama.context_length"
    # Behind the key: the type of the value, and the value.
    at = data.index(key) + len(key) + 4
    data[at : at + 4] = (1 << 18).to_bytes(4, "little")
    path = tmp_path_factory.mktemp("long") / "long.gguf"
    path.write_bytes(data)
    return path


@pytest.fixture(scope="session")
def long_engine(long_model: Path) -> refrain.Engine:
    return refrain.Engine(long_model, threads=2, measure_time=0)


@pytest.fixture(scope="session")
def engine() -> refrain.Engine:
    """One engine for the tests that change nothing in it."""
    return refrain.Engine(MODEL, threads=2, measure_time=0)


@pytest.fixture
def asked(engine: refrain.Engine) -> refrain.Session:
    """A session with a question that has not been answered. It drafts whatever rows cost on this machine."""
    session = engine.session(history=False, draft_rows=8)
    session.append_turn("user", QUESTION)
    return session
