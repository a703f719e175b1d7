"""Scores, logits and hidden states as NumPy arrays. Only these functions need NumPy, and only for arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from refrain._native import Session

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Score:
    """How likely the model finds a text."""

    log_probabilities: tuple[float, ...] = field(repr=False)
    """Of each token after the first, given the tokens before it. Natural logarithms, ``[n_tokens - 1]``."""
    perplexity: float
    """``exp(-mean(log_probabilities))``."""
    logits: npt.NDArray[np.float32] | None = field(repr=False, compare=False)
    """For the token after each one, ``[n_tokens, vocab_size]``; ``None`` unless asked for."""


def score(session: Session, *, logits: bool = False) -> Score:
    """Scores the session's tokens, or those of its turns.

    All tokens are computed from the first; afterwards the KV cache holds them.

    Args:
        session: the session.
        logits: whether to return the logits: 4 bytes per token and entry of the vocabulary. Needs NumPy.

    Raises:
        EmptyPromptError, ContextOverflowError, ChatTemplateError: as :meth:`Session.generate`.
        AllocationError: there is no memory for the logits.
        KeyboardInterrupt: the session can be used again.
    """
    log_probabilities, perplexity, data = session._score(logits)  # pyright: ignore[reportPrivateUsage]
    array = None
    if logits:
        import numpy as np

        array = np.frombuffer(data, dtype=np.float32).reshape(len(log_probabilities) + 1, -1)
    return Score(tuple(log_probabilities), perplexity, array)


def last_hidden_state(session: Session) -> npt.NDArray[np.float32]:
    """The final hidden state of the session's newest token, ``[hidden_dim]``. Needs NumPy.

    Models for embeddings give the vector of a text there. Its length is not normalized.

    Raises:
        EmptyPromptError: the session has no token.
    """
    import numpy as np

    return np.frombuffer(session._last_hidden_state(), dtype=np.float32)  # pyright: ignore[reportPrivateUsage]
