"""Events, statistics, and what is made of them. The native half calls `stats`, `completion`, `Summary` and `AsyncEvents`."""

from __future__ import annotations

import asyncio
import html
import json
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from refrain._native import Generation, Token

Finish: TypeAlias = Literal["end_token", "stop", "max_tokens", "context_full", "cancelled"]
"""Why a generation ended. ``"stop"``: by a stop string or a stop token."""

Segment: TypeAlias = tuple[Literal["reasoning", "answer"], str]
"""A kind of text, and the text."""


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


def _read(cls: type[_T], values: dict[str, Any]) -> _T:
    """A dataclass from an object with its fields, and perhaps others."""
    return cls(**{f.name: values[f.name] for f in fields(cast(Any, cls))})


def stats(text: str) -> Stats:
    """The statistics in the engine's JSON."""
    values: dict[str, Any] = json.loads(text)
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


def completion(tokens: list[Token], text: str, summary: Summary | None) -> Completion:
    """The output of `Generation.run`."""
    return Completion(text + (summary.text if summary else ""), tuple(tokens), summary)


class AsyncEvents:
    """Events of a generation for ``async for``. Steps are computed in the event loop's executor, and their events are taken in the loop.

    A task that is cancelled while it waits for a step closes the generation: the session keeps exactly the tokens that the task has got.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> Event:
        loop, generation = asyncio.get_running_loop(), self._generation
        while (event := generation._ready()) is None:  # pyright: ignore[reportPrivateUsage]
            try:
                is_running = await loop.run_in_executor(None, generation._step)  # pyright: ignore[reportPrivateUsage]
            except asyncio.CancelledError:
                # The step that runs ends before its next layer.
                generation.cancel()
                await asyncio.shield(loop.run_in_executor(None, generation.close))
                raise
            if not is_running:
                raise StopAsyncIteration
        return event
