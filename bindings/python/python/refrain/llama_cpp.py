"""Drafts for llama-cpp-python: a draft model for ``llama_cpp.Llama``.

    from llama_cpp import Llama
    from refrain.draft import Drafter
    from refrain.llama_cpp import DraftModel

    llama = Llama("model.gguf", draft_model=None)
    llama.draft_model = DraftModel(Drafter(llama.n_vocab(), tree=False))
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp.llama_speculative import LlamaDraftModel

from refrain.draft import Drafter, Sequence, check_chain

__all__ = ["DraftModel"]


class DraftModel(LlamaDraftModel):
    """Proposes the continuation of a request's tokens, from these tokens and from earlier outputs of the drafter's store.

    It serves one ``Llama``, whose requests follow one another. A request's output is added to the store when the next one begins, or by
    :meth:`finish`.

    Args:
        drafter: made with ``tree=False``: the engine verifies a chain.
        max_rows: maximum tokens of a proposal, 1 to 63.

    Raises:
        OptionError: the drafter proposes trees.
    """

    def __init__(self, drafter: Drafter, max_rows: int = 10) -> None:
        self._drafter = check_chain(drafter)
        self._max_rows = max_rows
        self._sequence: Sequence | None = None
        self._known: npt.NDArray[np.intc] = np.empty(0, np.intc)
        # Proposed tokens of the newest call.
        self._n_proposed = 0

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        n_known = len(self._known)
        # A step commits accepted tokens and one of the engine's own; anything else is another request.
        goes_on = 0 < len(input_ids) - n_known <= self._n_proposed + 1 and np.array_equal(input_ids[:n_known], self._known)
        if self._sequence is None or not goes_on:
            self.finish()
            self._sequence = self._drafter.sequence(input_ids.tolist())
        else:
            self._sequence.observe(input_ids[n_known:].tolist())
        # (The engine reuses the memory of its tokens.)
        self._known = input_ids.copy()
        proposal = self._sequence.propose(self._max_rows)
        self._n_proposed = len(proposal)
        return np.asarray(proposal.tokens, dtype=np.intc)

    def finish(self) -> None:
        """Adds the newest request's output to the drafter's store. Its last step's tokens are missing: the engine does not pass them.

        Raises:
            StoreError: the output could not be kept.
        """
        sequence, self._sequence = self._sequence, None
        if sequence is not None:
            sequence.finish()
