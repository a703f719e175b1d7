"""Language models on a device's CPU, which draft the next tokens from text that the device already holds.

The output equals plain decoding, bit for bit, greedy or sampled::

    import refrain

    engine = refrain.Engine("model.gguf")
    session = engine.session()
    session.append_turn("user", "Summarize the notes. …")
    for event in session.generate(max_tokens=200):
        print(event.text, end="", flush=True)

An :class:`Engine` holds a model. A :class:`Session` is one conversation. A :class:`Generation` is one output, an iterator of
:class:`Token` that ends with a :class:`Summary`. Exceptions are in :mod:`refrain.errors`, the tasks of an assistant app in
:mod:`refrain.assistant`, the drafter without a model in :mod:`refrain.draft`.
"""

from __future__ import annotations

from refrain import errors
from refrain._events import (
    Completion,
    DraftingOffStats,
    Event,
    Finish,
    MemoryEstimate,
    PolicyStats,
    Rejections,
    RowStats,
    Segment,
    SourceStats,
    StageTimes,
    Stats,
    Summary,
)
from refrain._native import CancelToken, Engine, Generation, History, Session, Token, Tokenizer, __version__
from refrain._scores import Score, last_hidden_state, score
from refrain._sources import DraftSource
from refrain.errors import RefrainError

__all__ = [
    "CancelToken",
    "Completion",
    "DraftSource",
    "DraftingOffStats",
    "Engine",
    "Event",
    "Finish",
    "Generation",
    "History",
    "MemoryEstimate",
    "PolicyStats",
    "RefrainError",
    "Rejections",
    "RowStats",
    "Score",
    "Segment",
    "Session",
    "SourceStats",
    "StageTimes",
    "Stats",
    "Summary",
    "Token",
    "Tokenizer",
    "__version__",
    "errors",
    "last_hidden_state",
    "score",
]
