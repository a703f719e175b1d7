"""Runs the code of the guides, docs/python, and the example of the package's first page, as they are printed."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import FIXTURES, MODEL

ROOT = Path(__file__).resolve().parents[3]

PAGES = {
    "docs/python/engine.md": (),
    "docs/python/assistant.md": (),
    "bindings/python/README.md": (),
    "docs/python/transformers.md": ("transformers", "torch"),
    "docs/python/llama-cpp.md": ("llama_cpp",),
    "docs/python/vllm.md": ("vllm",),
}


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


def make_model(folder: Path) -> None:
    """A small random model with a tokenizer and a chat template, in a folder as a hub has it."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(5)
    shape = transformers.LlamaConfig(
        vocab_size=384,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=383,
    )
    transformers.LlamaForCausalLM(shape).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "tests" / "golden" / "llama" / name, folder)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_runs(page: str, tmp_path: Path) -> None:
    needed = PAGES[page]
    if any(importlib.util.find_spec(name) is None for name in needed):
        pytest.skip(f"needs {' and '.join(needed)}")
    shutil.copy(MODEL, tmp_path / "model.gguf")
    shutil.copy(FIXTURES / "draft.gguf", tmp_path / "small.gguf")
    if needed and needed != ("llama_cpp",):
        make_model(tmp_path / "model")
    code = blocks(ROOT / page)
    assert code
    (tmp_path / "page.py").write_text("\n\n".join(code))
    # In a process of its own: the engines leave threads and environment behind.
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout
