"""Draft sources written in Python: in the engine and in the drafter."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import refrain
from conftest import QUESTION
from refrain import errors
from refrain.draft import Drafter

VOCABULARY = 5000
Proposed = Iterable["int | tuple[int, float]"]


class Oracle:
    """Proposes the known output."""

    name = "oracle"

    def __init__(self, output: list[int], n_prompt: int) -> None:
        self._output, self._n_prompt = output, n_prompt
        self.n_calls = 0

    def propose(self, tokens: list[int], /) -> list[int | tuple[int, float]]:
        self.n_calls += 1
        return list(self._output[len(tokens) - self._n_prompt :])


class Noise:
    """Proposes other tokens in every run, some with probabilities."""

    def __init__(self, vocabulary: int) -> None:
        self._rng, self._vocabulary = random.Random(), vocabulary

    def propose(self, tokens: list[int], /) -> Iterator[int | tuple[int, float]]:
        tokens.clear()  # its own copy
        while True:
            token = self._rng.randrange(self._vocabulary)
            yield token if self._rng.random() < 0.5 else (token, self._rng.random())


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What reaches `sys.unraisablehook`."""
    seen: list[BaseException] = []

    def hook(unraisable: Any) -> None:
        seen.append(unraisable.exc_value)

    monkeypatch.setattr(sys, "unraisablehook", hook)
    return seen


def asked(engine: refrain.Engine, **options: Any) -> refrain.Session:
    # Drafts whatever rows cost on this machine.
    session = engine.session(history=False, draft_rows=8, **options)
    session.append_turn("user", QUESTION)
    return session


def output(session: refrain.Session, **options: Any) -> list[int]:
    options.setdefault("max_tokens", 40)
    return [event.id for event in session.generate(**options) if isinstance(event, refrain.Token)]


def test_a_source_that_knows_the_output_saves_steps(engine: refrain.Engine) -> None:
    plain = asked(engine, drafting="off")
    expected = output(plain)
    n_prompt = len(plain.tokens) - len(expected)
    oracle = Oracle(expected, n_prompt)
    session = asked(engine, sources=[oracle])
    completion = session.generate(max_tokens=40).run()
    assert [token.id for token in completion.tokens] == expected
    stats = session_stats(completion)
    assert stats.steps < len(expected) and 0 < oracle.n_calls <= stats.steps
    accepted = {source.name: source.accepted for source in stats.sources}
    assert accepted["oracle"] > 0
    assert "oracle" in {token.origin for token in completion.tokens}


def session_stats(completion: refrain.Completion) -> refrain.Stats:
    assert completion.summary is not None
    return completion.summary.stats


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}, {"temperature": 1.2, "top_k": 30, "repetition_penalty": 1.3, "seed": 8}])
def test_whatever_is_proposed_the_output_is_the_same(engine: refrain.Engine, options: dict[str, Any]) -> None:
    expected = output(asked(engine, drafting="off"), **options)
    oracle = Oracle(expected, 0)
    for _ in range(3):
        for sources in ([Noise(engine.tokenizer.vocab_size)], [Noise(engine.tokenizer.vocab_size), oracle]):
            assert output(asked(engine, sources=sources), **options) == expected


def test_a_source_that_raises_is_left_out_and_reported(engine: refrain.Engine, reported: list[BaseException]) -> None:
    expected = output(asked(engine, drafting="off"))
    vocab_size = engine.tokenizer.vocab_size

    class Failing:
        def __init__(self, result: Any, after: int) -> None:
            self._result, self._after = result, after
            self.n_calls = 0

        def propose(self, tokens: list[int], /) -> Any:
            self.n_calls += 1
            if self.n_calls <= self._after:
                return []
            if isinstance(self._result, BaseException):
                raise self._result
            return self._result() if callable(self._result) else self._result

    def broken() -> Iterator[int]:
        yield 1
        raise LookupError("half-way")

    bad: list[tuple[Any, type[BaseException]]] = [
        (ZeroDivisionError("no"), ZeroDivisionError),
        (SystemExit(3), SystemExit),
        (None, TypeError),
        (["a"], TypeError),
        ([1.5], TypeError),
        ([(1, 2, 3)], ValueError),
        ([(1, "x")], TypeError),
        ([-1], OverflowError),
        ([vocab_size], errors.TokenOutOfRangeError),
        ([(1, 1.5)], errors.OptionError),
        ([(1, float("nan"))], errors.OptionError),
        (broken, LookupError),
    ]
    for result, cause in bad:
        for after in (0, 2):
            reported.clear()
            failing = Failing(result, after)
            session = asked(engine, sources=[failing])
            assert output(session) == expected
            (error,) = reported
            assert isinstance(error, errors.SourceError) and error.source == "Failing", error
            assert isinstance(error.__cause__, cause), (result, error.__cause__)
            assert failing.n_calls == after + 1
            # It stays off for the session.
            session.append_turn("user", QUESTION)
            output(session, max_tokens=5)
            assert failing.n_calls == after + 1 and len(reported) == 1


def test_a_source_in_the_drafter(reported: list[BaseException]) -> None:
    text = list(range(100, 160))

    class Known:
        name = "known"

        def propose(self, tokens: list[int], /) -> Proposed:
            assert type(tokens) is list
            return [(token, 0.9) for token in text[len(tokens) :]]

    class Failing:
        def propose(self, tokens: list[int], /) -> Proposed:
            raise RuntimeError("always")

    drafter = Drafter(VOCABULARY, sources=[Known(), Failing()])
    sequences = [drafter.sequence(text[:n]) for n in range(3, 40)]
    for sequence, proposal in zip(sequences, drafter.propose(sequences, 4)):
        n = len(sequence)
        assert proposal.tokens == tuple(text[n : n + 4]) and set(proposal.origins) == {"known"}
        assert sequence.observe(text[n : n + 4]) == 4
    # Each sequence has reported once.
    assert len(reported) == len(sequences)
    drafter.propose(sequences, 4)
    assert len(reported) == len(sequences)
    assert isinstance(reported[0], errors.SourceError) and isinstance(reported[0].__cause__, RuntimeError)


def test_a_drafter_as_the_source_of_an_engine(engine: refrain.Engine) -> None:
    """A source may use other objects of the package: a drafter whose store has the output."""
    expected = output(asked(engine, drafting="off"))
    drafter = Drafter(engine.tokenizer, tree=False)
    past = drafter.sequence([1])
    past.observe(expected)
    past.finish()

    class Store:
        sequence = drafter.sequence([1])

        def propose(self, tokens: list[int], /) -> Proposed:
            self.sequence.follow(tokens)
            proposal = self.sequence.propose(16)
            return list(zip(proposal.tokens, proposal.probabilities))

    completion = asked(engine, sources=[Store()]).generate(max_tokens=40).run()
    assert [token.id for token in completion.tokens] == expected
    assert "Store" in {token.origin for token in completion.tokens}


def test_a_source_that_uses_what_waits_for_it_is_refused(engine: refrain.Engine, reported: list[BaseException]) -> None:
    """Instead of waiting for itself for ever."""
    expected = output(asked(engine, drafting="off"))

    class Curious:
        def __init__(self) -> None:
            self.use: Any = None

        def propose(self, tokens: list[int], /) -> Proposed:
            self.use()
            return []

    for name in ("text", "stats", "is_ended", "close", "run", "__next__", "tokens", "fork"):
        reported.clear()
        curious = Curious()
        session = asked(engine, sources=[curious])
        generation = session.generate(max_tokens=40)

        def use() -> None:
            found = getattr(session if name in ("tokens", "fork") else generation, name)
            if callable(found):
                found()

        curious.use = use
        assert [token.id for token in generation.run().tokens] == expected, name
        (error,) = reported
        assert isinstance(error.__cause__, errors.SessionBusyError), name
    # Cancelling is allowed.
    reported.clear()
    curious = Curious()
    generation = asked(engine, sources=[curious]).generate(max_tokens=40)
    curious.use = generation.cancel
    summary = generation.run().summary
    assert summary is not None and summary.finish == "cancelled" and reported == []

    curious = Curious()
    sequence = Drafter(VOCABULARY, sources=[curious]).sequence([1, 2])
    curious.use = lambda: sequence.tokens
    assert "Curious" not in sequence.propose(4).origins
    (error,) = reported
    assert isinstance(error.__cause__, errors.SessionBusyError)


def test_names(engine: refrain.Engine) -> None:
    class Named:
        def __init__(self, name: Any) -> None:
            self.name = name

        def propose(self, tokens: list[int], /) -> Proposed:
            return []

    for names in (["a", "a"], ["context"], ["history"]):
        with pytest.raises(errors.OptionError, match=names[0]) as of_session:
            engine.session(sources=[Named(name) for name in names])
        with pytest.raises(errors.OptionError, match=names[0]) as of_drafter:
            Drafter(VOCABULARY, sources=[Named(name) for name in names])
        assert of_session.value.option == of_drafter.value.option == "sources"
    bad: list[tuple[Any, type[Exception]]] = [(object(), AttributeError), (Named(3), TypeError), (3, AttributeError)]
    for source, error in bad:
        with pytest.raises(error):
            engine.session(sources=[source])

    class NotCallable:
        propose = 3

    with pytest.raises(TypeError, match="propose"):
        Drafter(VOCABULARY, sources=[NotCallable()])  # type: ignore[list-item]
    many = [Named(str(i)) for i in range(300)]
    with pytest.raises(errors.OptionError):
        Drafter(VOCABULARY, sources=many)
    with pytest.raises(errors.SessionError):
        engine.session(sources=many)


def test_a_fork_has_the_sources(engine: refrain.Engine) -> None:
    plain = asked(engine, drafting="off")
    expected = output(plain)
    oracle = Oracle(expected, len(plain.tokens) - len(expected))
    session = asked(engine, sources=[oracle])
    fork = session.fork()
    assert output(fork) == output(session) == expected
    n_calls = oracle.n_calls
    assert output(asked(engine)) == expected and oracle.n_calls == n_calls


def test_threads_share_a_source(engine: refrain.Engine) -> None:
    expected = output(asked(engine, drafting="off"))
    noise = Noise(engine.tokenizer.vocab_size)

    def work(_: int) -> list[int]:
        return output(asked(engine, sources=[noise]))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(32))) == [expected] * 32


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_during_a_proposal(long_engine: refrain.Engine, reported: list[BaseException]) -> None:
    """It is raised by the call that waits, and is no fault of the source."""
    started = threading.Event()

    class Slow:
        def propose(self, tokens: list[int], /) -> Proposed:
            started.set()
            for _ in range(20_000):
                pass
            return []

    session = long_engine.session(context_len=100_000, history=False, sources=[Slow()])
    session.append_text("Everything about the trip.")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press() -> None:
        started.wait()
        threading.Event().wait(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    try:
        generation = session.generate(max_tokens=100_000, ignore_eos=True)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            generation.run()
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
    assert reported == [] and generation.is_ended
    assert len(output(session, max_tokens=3, ignore_eos=True)) == 3
