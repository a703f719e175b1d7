"""Runs the code of the guide, docs/python.md, and the example of the package's first page, as they are printed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from conftest import FIXTURES, MODEL

ROOT = Path(__file__).resolve().parents[3]


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [ROOT / "docs" / "python.md", ROOT / "bindings" / "python" / "README.md"])
def test_the_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(MODEL, "model.gguf")
    shutil.copy(FIXTURES / "draft.gguf", "small.gguf")
    code = blocks(page)
    assert code
    names: dict[str, object] = {"__name__": "__guide__"}
    for block in code:
        exec(compile(block, str(page), "exec"), names)
    assert capsys.readouterr().out
