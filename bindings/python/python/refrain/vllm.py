"""Drafts for vLLM: a proposer for its method ``custom_class``.

    from vllm import LLM

    llm = LLM(
        "model",
        speculative_config={"method": "custom_class", "model": "refrain.vllm.Proposer", "num_speculative_tokens": 8},
        additional_config={"refrain": {"store": "drafts", "tokenizer": "model/tokenizer.json"}},
    )
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Mapping
from importlib import import_module
from multiprocessing import util
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from refrain._native import Tokenizer
from refrain._plugins import finish_or_warn
from refrain.draft import Drafter, Sequence
from refrain.errors import OptionError, StoreError, TokenOutOfRangeError

__all__ = ["Proposer"]

_log = logging.getLogger(__name__)

# Steps for which a request may be out of the batch before its output goes to the store. The scheduler leaves a request out while longer
# prompts take its tokens; one that stays away longer was preempted or has ended, which a proposer cannot tell apart.
_ABSENT_STEPS_MAX = 16

# Seconds without a step after which all requests have ended, as far as the store is concerned: an engine that waits for requests takes no steps,
# and may be killed while it waits.
_IDLE_S = 5.0

# What further rows of a pass cost, by default: 5 % of it each. With rows for nothing, a step proposes all that any source has.
_ROW_US: Final = {1: 1000.0, 64: 4150.0}

# Ended requests after which the store is made durable and its files are merged.
_MAINTAIN_EVERY = 64

# Tokens that are none, such as the negative ones that stand for something else.
_STRANGE = (TokenOutOfRangeError, OverflowError)

_OPTIONS = ("store", "namespace", "model", "fingerprint", "row_us", "tokenizer")


class Proposer:
    """Proposes the continuation of each request of a batch, from its own tokens and from earlier outputs of its namespace.

    vLLM makes it from ``speculative_config``, and verifies what it proposes by its own rejection rule. It passes no ids of requests, so a
    request is recognised by its tokens: it is the one whose known tokens stand at the beginning of a row, followed by at most one step's.
    Rows may move; a request may be left out of steps, preempted, computed again, or taken from a cached prefix.

    An output goes to the store when its request has been left out of 16 steps or of one that has none of the known requests, when there was no
    step for five seconds, and when the process ends. A request that comes back after that goes on like a prompt.

    Options are in ``additional_config["refrain"]``: ``store``, ``namespace``, ``model``, ``fingerprint`` and ``row_us`` of
    :class:`~refrain.draft.Drafter`, and ``tokenizer``, the path of a ``tokenizer.json``, which gives the fingerprint that a store needs.
    Without ``row_us`` each row is taken to cost 5 % of a pass; ``None``: rows are free.

    Tenants: a subclass that defines :meth:`namespace_of`, named in ``speculative_config["model"]``, keeps their outputs apart.

    What fails in a step costs drafts and is logged: an output that cannot be kept, or a request with tokens outside the vocabulary. So is a
    vLLM whose own rule for sampled drafts is wrong on CPUs, as that of 0.32.0 is: with any proposer it changes what is sampled, greedy outputs not.

    Raises:
        OptionError: an option is unknown, or an option or ``num_speculative_tokens`` is outside its range.
        StoreError, FingerprintError: as :class:`~refrain.draft.Drafter`.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._k: int = vllm_config.speculative_config.num_speculative_tokens
        if not 1 <= self._k <= 63:
            error = OptionError(f"num_speculative_tokens is {self._k}, outside 1..=63")
            error.option, error.given = "num_speculative_tokens", self._k
            raise error
        self._max_model_len: int = vllm_config.model_config.max_model_len
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        options = _checked((vllm_config.additional_config or {}).get("refrain", {}))
        self._namespace: str = options.pop("namespace", "default")
        tokenizer = options.pop("tokenizer", None)
        if tokenizer is not None:
            options.setdefault("fingerprint", Tokenizer.from_file(tokenizer).fingerprint)
        self._options = {"row_us": _ROW_US, **options}
        self._drafters: dict[str | None, Drafter] = {}
        # Tells wrong options now, instead of in the first step.
        self._first = self._drafter(self._namespace)
        # By their rows in the newest step that sampled for them.
        self._rows: list[_Request | None] = []
        self._step = self._n_ended = 0
        self._stepped_at = time.monotonic()
        self._maintaining = threading.Thread()
        # Held by steps and by what ends requests between them. (A subclass may call `finish` within a step.)
        self._lock = threading.RLock()
        threading.Thread(target=_watch, args=(weakref.ref(self),), name="refrain-idle", daemon=True).start()
        # vLLM ends proposers by ending their process, mostly a child for which `atexit` does not run.
        util.Finalize(self, _finish, args=(weakref.ref(self),), exitpriority=0)
        if not _samples_right():
            _log.warning(
                "this vLLM verifies drafts with wrong temperatures on CPUs, whoever proposes them: "
                "greedy outputs are right, sampled ones are not drawn from the model's distribution"
            )

    def namespace_of(self, prompt: npt.NDArray[np.int32]) -> str | None:
        """The namespace of a request that begins: a tenant never gets drafts from the outputs of another.

        Args:
            prompt: the tokens of its prompt, ``[n]``. (vLLM passes nothing else about a request.)

        Returns:
            The name; ``None``: its output is not kept, and it drafts from its own text only. The default is the option ``namespace``.
        """
        return self._namespace

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Called by vLLM after each step.

        Args:
            sampled_token_ids: the tokens that the step committed for each row; none for a row whose prompt is not complete.
            num_tokens_no_spec: number of tokens of each row, those included.
            token_ids_cpu: the tokens, ``[n_rows, max_model_len]``.
            slot_mappings: not used.

        Returns:
            At most ``num_speculative_tokens`` tokens for each row.
        """
        with self._lock:
            return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Called by vLLM; there is no model."""

    def finish(self) -> None:
        """Ends all requests: their outputs go to the store, which is made durable. Called when the engine is idle and when the process ends."""
        with self._lock:
            self._end_all()
        self._maintain()

    def _propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
    ) -> list[list[int]]:
        self._step += 1
        self._stepped_at = time.monotonic()
        proposals: list[list[int]] = [[] for _ in sampled_token_ids]
        rows = [row for row, sampled in enumerate(sampled_token_ids) if sampled]
        texts = [token_ids_cpu[row, : num_tokens_no_spec[row]] for row in rows]
        requests = self._recognise(rows, texts, sampled_token_ids)
        for request, text in zip(requests, texts):
            request.follow(text, self._step)
        self._end_the_absent()
        # The model's own token comes behind the accepted ones.
        n_rooms = [min(self._k, self._max_model_len - len(text) - 1) for text in texts]
        drafting = [
            (row, n_room, request.sequence)
            for row, n_room, request in zip(rows, n_rooms, requests)
            if n_room > 0 and request.sequence is not None
        ]
        proposed = self._first.propose([sequence for _, _, sequence in drafting], self._k)
        for (row, n_room, _), proposal in zip(drafting, proposed):
            proposals[row] = list(proposal.tokens[:n_room])
        return proposals

    def _recognise(
        self, rows: list[int], texts: list[npt.NDArray[np.int32]], sampled_token_ids: list[list[int]]
    ) -> list[_Request]:
        """The request of each row, known or new. `self._rows` has them at these rows afterwards, and the absent ones behind."""
        others = dict(enumerate(self._rows))
        found: list[_Request | None] = [None] * len(rows)
        for i, (row, text) in enumerate(zip(rows, texts)):
            request = others.get(row)
            if request is not None and request.goes_on(text, self._k):
                found[i] = request
                del others[row]
        left = [request for request in others.values() if request is not None]
        for i, text in enumerate(texts):
            if found[i] is None:
                at = next((at for at, request in enumerate(left) if request.goes_on(text, self._k)), None)
                found[i] = left.pop(at) if at is not None else None
        if rows and not any(found):
            # No step leaves out all requests that run. What has ended is there for those that begin.
            self._end_all()
            left = []
        requests = [
            request or self._begin(text, len(sampled_token_ids[row])) for request, row, text in zip(found, rows, texts)
        ]
        at_rows: list[_Request | None] = [None] * len(sampled_token_ids)
        for row, request in zip(rows, requests):
            at_rows[row] = request
        self._rows = [*at_rows, *left]
        return requests

    def _begin(self, text: npt.NDArray[np.int32], n_sampled: int) -> _Request:
        prompt = text[: len(text) - n_sampled]
        namespace = self.namespace_of(prompt)
        return _Request(self._drafter(namespace), prompt, is_kept=namespace is not None)

    def _end_the_absent(self) -> None:
        """Ends the requests that have been away for long."""
        for row, request in enumerate(self._rows):
            if request is not None and self._step - request.step > _ABSENT_STEPS_MAX:
                self._rows[row] = None
                self._end(request)

    def _end_all(self) -> None:
        requests, self._rows = self._rows, []
        for request in requests:
            if request is not None:
                self._end(request)

    def _end_if_idle(self) -> None:
        with self._lock:
            if time.monotonic() - self._stepped_at < _IDLE_S or not any(self._rows):
                return
            self._end_all()
        self._maintain()

    def _end(self, request: _Request) -> None:
        if not request.is_kept or request.sequence is None:
            return
        finish_or_warn(request.sequence, _log)
        self._n_ended += 1
        if self._n_ended % _MAINTAIN_EVERY == 0 and not self._maintaining.is_alive():
            # It may merge files, which no step waits for.
            self._maintaining = threading.Thread(target=self._maintain, name="refrain-maintain", daemon=True)
            self._maintaining.start()

    def _maintain(self) -> None:
        for drafter in list(self._drafters.values()):
            try:
                drafter.maintain()
            except StoreError as error:
                _log.warning("the store was not made durable: %s", error)

    def _drafter(self, namespace: str | None) -> Drafter:
        drafter = self._drafters.get(namespace)
        if drafter is None:
            options = self._options if namespace is not None else {"row_us": self._options["row_us"]}
            drafter = Drafter(self._vocab_size, tree=False, namespace=namespace or "default", **options)
            self._drafters[namespace] = drafter
        return drafter


class _Request:
    """A request that the proposer knows: its sequence, and the same tokens as an array."""

    def __init__(self, drafter: Drafter, prompt: npt.NDArray[np.int32], is_kept: bool) -> None:
        # `None`: it has tokens that the drafter does not know.
        self.sequence: Sequence | None = None
        try:
            self.sequence = drafter.sequence(prompt.tolist())
        except _STRANGE as error:
            _log.warning("a request is not drafted: %s", error)
        self.is_kept = is_kept
        # The newest step in which it was there.
        self.step = 0
        # `[capacity]`, of which the first `_n` are the tokens.
        self._tokens = np.empty(len(prompt) + 256, np.int32)
        self._tokens[: len(prompt)] = prompt
        self._n = len(prompt)

    def goes_on(self, text: npt.NDArray[np.int32], k: int) -> bool:
        """Whether `text` is this request's after one more step: at most `k` accepted tokens, and the model's own."""
        return 0 < len(text) - self._n <= k + 1 and np.array_equal(text[: self._n], self._tokens[: self._n])

    def follow(self, text: npt.NDArray[np.int32], step: int) -> None:
        """Observes the tokens that are new."""
        n = len(text)
        if n > len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * n)
        self._tokens[self._n : n] = text[self._n :]
        try:
            if self.sequence is not None:
                self.sequence.observe(text[self._n :].tolist())
        except _STRANGE as error:
            self.sequence = None
            _log.warning("a request is not drafted: %s", error)
        self._n, self.step = n, step


def _finish(proposer: weakref.ref[Proposer]) -> None:
    there = proposer()
    if there is not None:
        there.finish()


def _watch(proposer: weakref.ref[Proposer]) -> None:
    """Ends the requests of an idle engine, as long as there is a proposer."""
    while True:
        time.sleep(_IDLE_S / 5)
        there = proposer()
        if there is None:
            return
        there._end_if_idle()
        del there


def _samples_right() -> bool:
    """Whether vLLM gives each drafted row its request's temperature. Its kernels for CPUs, as of 0.32.0, leave uninitialised memory there, with
    which drafts are then accepted or rejected."""
    try:
        torch: Any = import_module("torch")
        if not import_module("vllm.platforms").current_platform.is_cpu():
            return True
        n_drafts = 3
        expand: Any = import_module("vllm.v1.sample.rejection_sampler").expand_batch_to_tokens
        temperatures = expand(torch.tensor([0.75]), torch.tensor([n_drafts], dtype=torch.int32), n_drafts)
        return bool(temperatures.tolist() == [0.75] * n_drafts)
    except Exception:
        # No vLLM, or one whose inner functions are others: nothing is known.
        return True


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a drafter, of which JSON has the numbers of rows as strings.

    Raises:
        OptionError: one is unknown.
    """
    checked = dict(options)
    for name in checked:
        if name not in _OPTIONS:
            error = OptionError(f"additional_config[\"refrain\"] has {name!r}, none of {', '.join(_OPTIONS)}")
            error.option, error.given = "additional_config", name
            raise error
    if checked.get("row_us") is not None:
        checked["row_us"] = {int(rows): us for rows, us in checked["row_us"].items()}
    return checked
