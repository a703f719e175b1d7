"""Drafts for llama-cpp-python: a draft model for ``llama_cpp.Llama``.

    from llama_cpp import Llama
    from refrain.draft import Drafter
    from refrain.llama_cpp import DraftModel

    llama = Llama("model.gguf", draft_model=None)
    llama.draft_model = DraftModel(Drafter(llama.n_vocab(), tree=False))
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp.llama_speculative import LlamaDraftModel

from refrain._plugins import finish_or_warn
from refrain.draft import N_LIKELIEST, Drafter, Sequence, check_chain
from refrain.errors import OptionError

__all__ = ["DraftModel"]

_log = logging.getLogger(__name__)

# A token whose logit is further below the largest is less likely than e⁻⁷, and not used.
_LOGITS_BELOW_MAX = 7.0


class DraftModel(LlamaDraftModel):
    """Proposes the continuation of a request's tokens, from these tokens and from earlier outputs of the drafter's store.

    It serves one ``Llama``, whose requests follow one another. A request's output is added to the store when the next one begins (if it cannot be
    kept, a warning is logged), or by :meth:`finish`.

    Args:
        drafter: made with ``tree=False``: the engine verifies a chain.
        max_rows: maximum tokens of a proposal, 1 to 63.
        logits_of: the ``Llama`` itself, if the drafter shall learn from its logits (:meth:`Sequence.observe_logits`): those of the prompt,
            and those of each step. It saves steps, and takes time for the likeliest tokens of a row. Must be made with
            ``logits_all=True``.

    Raises:
        OptionError: the drafter proposes trees, or the ``Llama`` keeps no logits.
    """

    def __init__(self, drafter: Drafter, max_rows: int = 10, *, logits_of: Any = None) -> None:
        self._drafter = check_chain(drafter)
        self._max_rows = max_rows
        if logits_of is not None and not logits_of._logits_all:
            error = OptionError("logits_of keeps no logits: make it with logits_all=True")
            error.option, error.given = "logits_of", repr(logits_of)
            raise error
        self._logits_of = logits_of
        self._sequence: Sequence | None = None
        self._known: npt.NDArray[np.intc] = np.empty(0, np.intc)
        # Proposed tokens of the newest call.
        self._n_proposed = 0

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        n_known = len(self._known)
        # A step commits accepted tokens and one of the engine's own; anything else is another request.
        goes_on = 0 < len(input_ids) - n_known <= self._n_proposed + 1 and np.array_equal(input_ids[:n_known], self._known)
        if self._sequence is None or not goes_on:
            if self._sequence is not None:
                finish_or_warn(self._sequence, _log)
            self._sequence = self._drafter.sequence(input_ids.tolist())
            # The newest token has not been computed.
            self._learn(0, len(input_ids) - 1, position=0)
        else:
            self._learn(n_known - 1, n_known + self._n_proposed)
            self._sequence.observe(input_ids[n_known:].tolist())
        # (The engine reuses the memory of its tokens.)
        self._known = input_ids.copy()
        proposal = self._sequence.propose(self._max_rows)
        self._n_proposed = len(proposal)
        return np.asarray(proposal.tokens, dtype=np.intc)

    def _learn(self, first: int, last: int, position: int | None = None) -> None:
        """Gives the drafter the logits after the tokens at positions `first` to `last`, which is left out."""
        if self._logits_of is None or self._sequence is None:
            return
        tokens: list[list[int]] = []
        values: list[list[float]] = []
        for row in self._logits_of.scores[first:last]:
            most = row.max()
            # The few that are not hopeless: looking for the likeliest of all takes thirty times as long.
            near = np.flatnonzero(row >= most - _LOGITS_BELOW_MAX)
            if len(near) > N_LIKELIEST:
                near = near[np.argpartition(row[near], -N_LIKELIEST)[-N_LIKELIEST:]]
            total = most + np.log(np.exp(row - most).sum())
            tokens.append(near.tolist())
            values.append((row[near] - total).tolist())
        self._sequence.observe_logits(tokens, values, kind="log_probabilities", position=position)

    def finish(self) -> None:
        """Adds the newest request's output to the drafter's store. Its last step's tokens are missing: the engine does not pass them.

        Raises:
            StoreError: the output could not be kept. The call may be repeated.
        """
        if self._sequence is not None:
            self._sequence.finish()
            self._sequence = None
