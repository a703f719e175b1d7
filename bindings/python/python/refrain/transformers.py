"""Drafts for transformers: assisted generation whose candidates come from text.

    from refrain.draft import Drafter
    from refrain.transformers import Assistant

    assistant = Assistant(Drafter(model.config.vocab_size, tree=False))
    output = model.generate(**inputs, custom_generate=assistant)
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers.generation.utils import GenerationMixin

from refrain._plugins import finish_or_warn
from refrain.draft import N_LIKELIEST, Drafter, Sequence, check_chain

__all__ = ["Assistant"]

_log = logging.getLogger(__name__)


class Assistant:
    """A decoding method for ``model.generate(custom_generate=...)``: the library's assisted generation with a drafter's candidates.

    Greedy output equals the model's own. With ``do_sample=True`` each token is drawn from the model's distribution, from other random
    numbers than without it. Options of ``generate`` count as in assisted generation: one sequence at a time, with a dynamic cache. The
    library passes no ``streamer`` to a decoding method of this kind. Threads may share an assistant.

    Args:
        drafter: made with ``tree=False``: the library verifies a chain. With its ``row_us`` the number of candidates follows their
            expected gain; otherwise ``max_rows`` are proposed wherever a source has as many.
        max_rows: maximum candidates of a step, 1 to 63.
        logits: whether the drafter learns from the model's logits of each step (:meth:`Sequence.observe_logits`). They are those that the
            model chooses from, after processors such as temperature. It saves steps, and takes time for the likeliest tokens of a row.

    Raises:
        OptionError: the drafter proposes trees.
    """

    def __init__(self, drafter: Drafter, max_rows: int = 10, *, logits: bool = False) -> None:
        self._drafter = check_chain(drafter)
        self._max_rows = max_rows
        self._logits = logits

    def __call__(self, model: Any, input_ids: torch.LongTensor, *, generation_config: Any, **options: Any) -> Any:
        """Decodes; called by ``generate``. The output is added to the drafter's store, even if the call fails on the way. If it cannot be kept, a
        warning is logged.

        Raises:
            TokenOutOfRangeError: a token is not in the drafter's vocabulary.
            ValueError: of the library, such as for several sequences at once.
        """
        sequence = self._drafter.sequence(input_ids[0].tolist())
        candidates = _Candidates(sequence, self._max_rows, generation_config, self._logits)
        try:
            return GenerationMixin._assisted_decoding(
                _Assisted(model, candidates), input_ids, generation_config=generation_config, **options
            )
        finally:
            finish_or_warn(sequence, _log)


class _Candidates:
    """The library's `CandidateGenerator`, for one sequence."""

    requires_model_outputs = False

    def __init__(self, sequence: Sequence, max_rows: int, generation_config: Any, logits: bool) -> None:
        self._sequence = sequence
        self._max_rows = max_rows
        self._logits = logits
        # Whether the newest step's rows are those of a proposal.
        self._is_proposed = False
        self._max_length: int = generation_config.max_length
        eos = getattr(generation_config, "_eos_token_tensor", None)
        self._eos: set[int] = set() if eos is None else set(eos.flatten().tolist())

    def get_candidates(self, input_ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        self._take(input_ids)
        self._is_proposed = False
        # The step commits the model's own token too.
        n_room = self._max_length - input_ids.shape[1] - 1
        if n_room <= 0:
            return input_ids, None
        tokens = self._sequence.propose(min(self._max_rows, n_room)).tokens
        self._is_proposed = True
        # Nothing follows an end token.
        n = next((i for i, token in enumerate(tokens) if token in self._eos), len(tokens))
        candidates = torch.tensor([tokens[:n]], dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat((input_ids, candidates), dim=1), None

    def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int) -> None:
        if self._logits and self._is_proposed:
            rows = torch.log_softmax(scores[0], dim=-1).topk(min(N_LIKELIEST, scores.shape[-1]))
            self._sequence.observe_logits(rows.indices.tolist(), rows.values.tolist(), kind="log_probabilities")
        self._take(input_ids)

    def _take(self, input_ids: torch.Tensor) -> None:
        """Observes the tokens that are new."""
        self._sequence.observe(input_ids[0, len(self._sequence) :].tolist())


class _Assisted:
    """The model, with another way to candidates: the library asks the model for them."""

    def __init__(self, model: Any, candidates: _Candidates) -> None:
        self._model = model
        self._candidates = candidates

    def _get_candidate_generator(self, **_: Any) -> _Candidates:
        return self._candidates

    def __call__(self, **inputs: Any) -> Any:
        return self._model(**inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
