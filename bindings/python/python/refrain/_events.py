"""Events, statistics, and what is made of them. The native half calls `stats`, `memory_estimate`, `completion`, `Summary` and `AsyncEvents`."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import weakref
from dataclasses import dataclass, field, fields
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from refrain._native import Token, _Steps  # pyright: ignore[reportPrivateUsage]

Finish: TypeAlias = Literal["end_token", "stop", "max_tokens", "context_full", "cancelled"]
"""Why a generation ended. ``"stop"``: by a stop string or a stop token."""

Segment: TypeAlias = tuple[Literal["reasoning", "answer"], str]
"""A kind of text, and the text."""


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory that a model and its sessions take, before it is loaded: upper bounds for full contexts, in bytes."""

    weights_bytes: int
    """The weights that stay in memory."""
    stream_bytes: int
    """Buffers of a streamed model; 0 for one in memory."""
    tokenizer_bytes: int
    """The tokenizer."""
    kv_bytes: int
    """Keys, values and recurrent states of all sessions."""
    batch_bytes: int
    """Buffers of a pass, of all sessions."""
    drafts_bytes: int
    """Draft sources of all sessions."""
    draft_model_bytes: int
    """The draft model with its sessions."""
    history_bytes: int
    """What the history in memory grows to; no part of the total."""
    total_bytes: int
    """All of it but the history."""
    fits: bool | None
    """Whether the system has that much to give now; ``None`` if it does not say."""


def memory_estimate(text: str) -> MemoryEstimate:
    """The estimate from the text of a JSON object."""
    return MemoryEstimate(**json.loads(text))


@dataclass(frozen=True)
class SourceStats:
    """Statistics of one draft source."""

    name: str
    """Its name."""
    evidence: str
    """The class of its claims."""
    drafted: int
    """Draft tokens in verification batches."""
    accepted: int
    """Draft tokens that the target accepted."""


@dataclass(frozen=True)
class RowStats:
    """Rows of the verification batches."""

    valid: int
    """Roots and accepted draft tokens: rows whose logits gave a token."""
    wasted: int
    """Rejected draft tokens."""
    padded: int
    """Rows without a token."""
    projected: int
    """Rows projected onto the vocabulary."""
    kept: int
    """Rows that the first layers left out, because these layers had drafted them."""


@dataclass(frozen=True)
class Rejections:
    """How rejected drafts align with the tokens that the target chose instead."""

    redundant: int
    missing: int
    synonym: int
    other: int


@dataclass(frozen=True)
class DraftingOffStats:
    """Steps that drafted nothing, by reason."""

    disabled: int
    """Drafting is off by option."""
    output_end: int
    """The output could have at most one more token."""
    no_candidate: int
    """No source proposed a continuation."""
    not_worth: int
    """Every draft cost more than its expected gain."""
    measured: int
    """A plain step was due, to compare its time with that of steps that draft."""
    short_output: int
    """The generation can output too few tokens."""
    high_temperature: int
    """The temperature is too high."""
    low_memory: int
    """The system has too little available memory."""
    below_floor: int
    """Acceptance was below the floor."""
    memory_pressure: int
    """The app reported critical memory pressure."""
    heat: int
    """The app reported a critical thermal state."""
    not_paid: int
    """Drafts had not saved enough time to pay for another one."""


@dataclass(frozen=True)
class PolicyStats:
    """Decisions of the policy besides turning drafting off."""

    heat_limited: int
    """Steps whose number of draft rows was limited by heat."""
    memory_limited: int
    """Steps whose number of draft rows was limited by memory pressure."""
    memory_reports: int
    """Memory pressure reports handled at the beginning of a step."""
    floor_falls: int
    """Number of times that acceptance fell below the floor."""
    rows_allowed: tuple[int, ...]
    """With a fixed number of rows: entry ``i`` counts the steps with at most ``i`` draft rows."""


@dataclass(frozen=True)
class StageTimes:
    """Microseconds per stage."""

    prefill: float
    """The prompt's passes."""
    calibrate: float
    """Listing the likeliest successors of the prompt's rows."""
    prime: float
    """Passing the prompt to the sources."""
    draft: float
    """Building draft trees."""
    forward: float
    """Passes over verification batches."""
    walk: float
    """Projection, sampling, and the walk."""
    commit: float
    """Compacting the KV cache."""
    observe: float
    """Updating sources, reliability and costs."""

    @property
    def decode(self) -> float:
        """All stages of decoding together."""
        return self.draft + self.forward + self.walk + self.commit + self.observe


@dataclass(frozen=True)
class Stats:
    """Statistics of one generation."""

    prompt_tokens: int
    """Tokens of the prompt."""
    cached_tokens: int
    """Prompt tokens that were in the KV cache already."""
    prefilled_tokens: int
    """Prompt tokens that were run through the model before the first step."""
    tokens: int
    """Output tokens, end token included."""
    steps: int
    """Verification steps."""
    shared_steps: int
    """Steps whose pass had rows of other generations too."""
    acceptance_lengths: tuple[int, ...]
    """Entry ``i`` counts the steps that committed ``i`` tokens."""
    sources: tuple[SourceStats, ...]
    """Per draft source."""
    rows: RowStats
    rejections: Rejections
    drafting_off: DraftingOffStats
    policy: PolicyStats
    saved_us: float
    """Estimated microseconds that drafts have saved in decoding; negative: lost."""
    time_us: StageTimes

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per step, the target's own token included."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Output tokens per second of decoding."""
        return self.tokens * 1e6 / self.time_us.decode if self.time_us.decode else 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second of prefill; 0 if nothing was prefilled."""
        return self.prefilled_tokens * 1e6 / self.time_us.prefill if self.time_us.prefill else 0.0


@dataclass(frozen=True)
class Summary:
    """The last event of a generation."""

    finish: Finish
    """Why it ended."""
    text: str
    """Held-back text that belongs to the output. Empty unless the generation was cancelled."""
    segments: tuple[Segment, ...]
    """The rest of the output, split as in :attr:`Token.segments`."""
    seed: int | None
    """The seed of the random numbers, given or drawn. ``None`` at temperature 0."""
    stats: Stats = field(repr=False)
    """Counts and times."""


Event: TypeAlias = Token | Summary
"""A token of the output, or its end. Both have ``text``."""

# Colours that also differ in lightness, one per source in the order of appearance.
_COLOURS: Final = ("#b3e5c8", "#b9d7f7", "#f9d5a7", "#e2c5f0", "#f5c1c9", "#d9dd9f")


@dataclass(frozen=True)
class Completion:
    """A whole output. A notebook shows its text with the drafted tokens coloured by source, and a legend."""

    text: str
    """The text."""
    tokens: tuple[Token, ...] = field(repr=False)
    """The tokens that :meth:`Generation.run` took."""
    summary: Summary | None = field(repr=False)
    """The summary; ``None`` if it had been taken before."""

    def _repr_html_(self) -> str:
        sources = dict.fromkeys(token.origin for token in self.tokens if token.origin is not None)
        colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(sources)}

        def mark(text: str, origin: str | None) -> str:
            escaped = html.escape(text)
            if origin is None or not text:
                return escaped
            return f'<mark style="background:{colours[origin]}" title="{html.escape(origin)}">{escaped}</mark>'

        body = "".join(mark(token.text, token.origin) for token in self.tokens)
        legend = " ".join(mark(name, name) for name in sources)
        return f'<div style="white-space:pre-wrap">{body}</div><small>drafted from: {legend or "nothing"}</small>'


_T = TypeVar("_T")
E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


def _read(cls: type[_T], values: dict[str, Any]) -> _T:
    """A dataclass from an object with its fields, and perhaps others."""
    return cls(**{f.name: values[f.name] for f in fields(cast(Any, cls))})


def stats_of(values: dict[str, Any]) -> Stats:
    """The statistics in the engine's JSON."""
    policy = values["policy"]
    parts: dict[str, Any] = {
        "acceptance_lengths": tuple(values["acceptance_lengths"]),
        "sources": tuple(_read(SourceStats, source) for source in values["sources"]),
        "rows": _read(RowStats, values["rows"]),
        "rejections": _read(Rejections, values["rejections"]),
        "drafting_off": _read(DraftingOffStats, values["drafting_off"]),
        "policy": _read(PolicyStats, policy | {"rows_allowed": tuple(policy["rows_allowed"])}),
        "time_us": _read(StageTimes, values["time_us"]),
    }
    return _read(Stats, values | parts)


def stats(text: str) -> Stats:
    """As `stats_of`, of the text."""
    return stats_of(json.loads(text))


def completion(tokens: list[Token], text: str, summary: Summary | None) -> Completion:
    """The output of `Generation.run`."""
    return Completion(text + (summary.text if summary else ""), tuple(tokens), summary)


# A hand-over to a thread and back takes 30 to 120 µs, during which the loop may run others; steps that are not much longer are computed in the
# loop, which runs others after a millisecond of them.
IN_LOOP_US: Final = 1000
TURN_US: Final = 1000


class Stepped(Protocol[E_co]):
    """A generation, or a job."""

    def _steps(self, in_loop_us: int, turn_us: int) -> _Steps[E_co]: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...


class AsyncEvents(Generic[E]):
    """Events of a generation or a job for ``async for``. A thread of its own computes the steps, at most one ahead of the events that were taken,
    and wakes the event loop after each. Steps of a generation that take no longer than handing them over are computed in the loop.

    A task that is cancelled while it waits for a step closes the generation: the session keeps exactly the tokens that the task has got.
    """

    def __init__(self, stepped: Stepped[E]) -> None:
        self._stepped = stepped
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps: _Steps[E] | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def __aiter__(self) -> AsyncEvents[E]:
        return self

    async def __anext__(self) -> E:
        if self._loop is None:
            self._start(asyncio.get_running_loop())
        while True:
            if (steps := self._steps) is None:
                raise StopAsyncIteration
            try:
                event = steps.take()
            except BaseException:
                self._stop()
                raise
            if event is not None:
                return event
            try:
                if steps.turn():
                    await asyncio.sleep(0)
                else:
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiting)
                    await waiting
            except asyncio.CancelledError:
                # The step that runs ends before its next layer.
                self._stepped.cancel()
                self._stop()
                await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._stepped.close))
                raise

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._steps = loop, self._stepped._steps(IN_LOOP_US, TURN_US)  # pyright: ignore[reportPrivateUsage]
        reference: weakref.ref[AsyncEvents[Any]] = weakref.ref(self)
        loop.add_reader(self._steps, _wake, reference)

    def _stop(self) -> None:
        """No step is asked for any more."""
        if self._steps is not None and self._loop is not None:
            self._loop.remove_reader(self._steps)
            self._steps = None
            self._wake()

    def _wake(self) -> None:
        if self._steps is not None:
            self._steps.woken()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def __del__(self) -> None:
        # A loop that was left before the last event. The pipe stays open until the loop, perhaps of another thread, has let go of it.
        if self._steps is not None and self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.remove_reader, self._steps)


def _wake(reference: weakref.ref[AsyncEvents[Any]]) -> None:
    """Called by the event loop when a step is computed; the loop itself keeps no iterator alive."""
    events = reference()
    if events is not None:
        events._wake()  # pyright: ignore[reportPrivateUsage]
