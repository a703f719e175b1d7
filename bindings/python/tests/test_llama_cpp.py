"""The plug-in for llama-cpp-python, with the real package and the fixture model: `check --plugins` installs it."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any

import pytest

from conftest import MODEL, QUESTION
from refrain import errors
from refrain.draft import Drafter

llama_cpp: Any = pytest.importorskip("llama_cpp")


@pytest.fixture(scope="module")
def llama() -> Any:
    # Of passes of several rows too: the engine's threads wait awake, which on a busy machine takes twenty times as long.
    return llama_cpp.Llama(str(MODEL), n_ctx=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False, seed=1)


class Counted:
    """A draft model whose calls (the passes after the first) and tokens are counted, proposed ones and those that stand in the output."""

    def __init__(self, draft_model: Any) -> None:
        self._draft_model = draft_model
        self.n_calls = self.n_proposed = self.n_accepted = 0
        self._known: list[int] = []
        self._proposed: list[int] = []

    def __call__(self, input_ids: Any, /, **options: Any) -> Any:
        tokens = input_ids.tolist()
        if tokens[: len(self._known)] == self._known:
            for proposed, token in zip(self._proposed, tokens[len(self._known) :]):
                if proposed != token:
                    break
                self.n_accepted += 1
        proposed = self._draft_model(input_ids, **options)
        self.n_calls += 1
        self.n_proposed += len(proposed)
        self._known, self._proposed = tokens, proposed.tolist()
        return proposed


def draft_model(llama: Any, logits: bool = False, **options: Any) -> Any:
    from refrain.llama_cpp import DraftModel

    return DraftModel(Drafter(llama.n_vocab(), tree=False, **options), max_rows=8, logits_of=llama if logits else None)


def decode(llama: Any, text: str, n: int, draft_model: Any = None) -> list[int]:
    """Greedy output of at most `n` tokens."""
    llama.reset()
    llama.draft_model = draft_model
    output: list[int] = []
    for token in llama.generate(llama.tokenize(text.encode()), temp=0.0, repeat_penalty=1.0):
        output.append(token)
        if len(output) == n or token == llama.token_eos():
            break
    llama.draft_model = None
    return output


TEXTS = [QUESTION, "The train leaves at 08:15. The train leaves at 08:15. The train", "x"]


@pytest.mark.parametrize("logits", [False, True])
def test_greedy_outputs_are_the_engines_own(llama: Any, logits: bool) -> None:
    drafted = draft_model(llama, logits)
    for text in TEXTS * 2:
        for n in (1, 2, 60):
            assert decode(llama, text, n, drafted) == decode(llama, text, n)


def test_drafts_save_passes_and_later_outputs_more(llama: Any) -> None:
    drafted = draft_model(llama)
    expected = decode(llama, TEXTS[1], 60)
    passes: list[int] = []
    for _ in range(2):
        counted = Counted(drafted)
        assert decode(llama, TEXTS[1], 60, counted) == expected
        assert counted.n_proposed > 0
        passes.append(counted.n_calls)
    assert passes[1] <= passes[0] < len(expected)


class Draws:
    """What the engine's own sampler draws from rows of logits: one number of its seed for each token."""

    def __init__(self, llama: Any, **options: Any) -> None:
        self._sampler = llama._init_sampler(**options)
        self._candidates = (llama_cpp.llama_token_data * llama.n_vocab())()

    def draw(self, logits: Any) -> int:
        for token, logit in enumerate(logits.tolist()):
            self._candidates[token] = llama_cpp.llama_token_data(token, logit, 0.0)
        row = llama_cpp.llama_token_data_array(self._candidates, len(self._candidates), -1, False)
        llama_cpp.llama_sampler_apply(self._sampler.sampler, ctypes.byref(row))
        token = int(row.data[row.selected].id)
        self._sampler.accept(token)
        return token


# The engine's defaults, and every token with a penalty for those that were there.
SAMPLING: list[dict[str, float]] = [{}, {"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.1}]


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("options", SAMPLING)
def test_sampled_outputs_are_the_engines_own_draws(llama: Any, options: dict[str, float], logits: bool) -> None:
    """The engine draws every token from its row of logits, and accepts the drafts that it has drawn: drafts change no row and no draw.

    An output without drafts under the same seed may differ: rows of passes of several rows and of one differ, by 0.08 at most, which changed a draw in
    250. So each token is drawn again from the row that it came from, and the rows are compared with those of a pass over the whole text.
    """
    drafted = Counted(draft_model(llama, logits))
    outputs: set[tuple[int, ...]] = set()
    for seed in range(1, 9):
        for text in TEXTS[:2]:
            prompt = llama.tokenize(text.encode())
            llama.reset()
            llama.set_seed(seed)
            llama.draft_model = drafted
            draws = Draws(llama, **options)
            output: list[int] = []
            rows: list[Any] = []
            for token in llama.generate(prompt, **options):
                rows.append(llama.scores[len(prompt) + len(output) - 1].copy())
                assert token == draws.draw(rows[-1]), (seed, text, output)
                output.append(token)
                if len(output) == 24 or token == llama.token_eos():
                    break
            llama.draft_model = None
            llama.reset()
            llama.eval([*prompt, *output])
            for row, plain in zip(rows, llama.scores[len(prompt) - 1 :]):
                assert abs(row - plain).max() < 0.25, (seed, text, output)
            outputs.add(tuple(output))
    assert len(outputs) > 8
    assert 20 < drafted.n_accepted < drafted.n_proposed - 20


def test_the_drafter_gets_the_logits_of_prompt_and_proposals(llama: Any) -> None:
    """Those of the prompt's positions first, then a row more than tokens were proposed; each row's likeliest token is what follows."""
    import numpy as np

    from refrain.llama_cpp import DraftModel

    drafter = Drafter(llama.n_vocab(), tree=False)
    calls: list[tuple[Any, Any, int | None, int]] = []

    class Recording:
        tree = False

        def sequence(self, tokens: list[int]) -> Any:
            sequence = drafter.sequence(tokens)

            class Recorded:
                def observe_logits(self, tokens: Any, values: Any, *, kind: str, position: int | None) -> None:
                    calls.append((tokens, values, position, len(sequence)))
                    sequence.observe_logits(tokens, values, kind="log_probabilities", position=position)

                def __getattr__(self, name: str) -> Any:
                    return getattr(sequence, name)

            return Recorded()

    n_prompt = len(llama.tokenize(TEXTS[1].encode()))
    output = decode(llama, TEXTS[1], 40, DraftModel(Recording(), 8, logits_of=llama))  # type: ignore[arg-type]
    assert output == decode(llama, TEXTS[1], 40)
    whole = [*llama.tokenize(TEXTS[1].encode()), *output]
    (tokens, values, position, n) = calls[0]
    assert (len(tokens), position, n) == (n_prompt, 0, n_prompt + 1)
    assert tokens[-1][np.argmax(values[-1])] == output[0]
    assert len(calls) > 2
    for tokens, values, position, n in calls[1:]:
        assert position is None
        for row, logs in zip(tokens, values):
            assert len(row) == len(logs) <= 8 and max(logs) <= 1e-6 and np.exp(logs).sum() <= 1 + 1e-5
        # What follows the newest committed token is the next one.
        assert tokens[0][np.argmax(values[0])] == whole[n]
    assert max(len(tokens) for tokens, *_ in calls[1:]) > 2


def test_an_output_near_the_end_of_the_context(llama: Any) -> None:
    small = llama_cpp.Llama(str(MODEL), n_ctx=64, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
    n_prompt = len(small.tokenize(TEXTS[1].encode()))
    n = 63 - n_prompt
    for logits in (False, True):
        assert decode(small, TEXTS[1], n, draft_model(small, logits)) == decode(small, TEXTS[1], n)


def test_requests_are_told_apart(llama: Any) -> None:
    """A request that extends the text of the one before it is another one: its prompt is not output."""
    import numpy as np

    drafter = Drafter(llama.n_vocab(), tree=False)
    from refrain.llama_cpp import DraftModel

    drafted = DraftModel(drafter)
    text = list(range(10, 40))
    drafted(np.array(text, dtype=np.intc))
    # One token by the engine, then a whole turn.
    drafted(np.array([*text, 50], dtype=np.intc))
    turn = [*text, 50, *range(60, 90)]
    drafted(np.array(turn, dtype=np.intc))
    drafted(np.array([*turn, 51], dtype=np.intc))
    drafted.finish()
    drafted.finish()
    # The turn is no output.
    probe = drafter.sequence([3, 60, 61, 62])
    assert 63 not in probe.propose(8).tokens


def test_a_store_that_fails_costs_drafts_only(llama: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # A namespace whose name is too long is refused when an output is kept.
    drafted = draft_model(llama, store=tmp_path, fingerprint=1, namespace="x" * 100)
    with caplog.at_level(logging.WARNING):
        for text in TEXTS:
            assert decode(llama, text, 24, drafted) == decode(llama, text, 24)
    assert {record.name for record in caplog.records} == {"refrain.llama_cpp"}
    with pytest.raises(errors.StoreError):
        drafted.finish()


def test_bad_input(llama: Any) -> None:
    from refrain.llama_cpp import DraftModel

    with pytest.raises(errors.OptionError):
        DraftModel(Drafter(llama.n_vocab()))
    with pytest.raises(errors.TokenOutOfRangeError):
        decode(llama, QUESTION, 5, DraftModel(Drafter(10, tree=False)))
    without = llama_cpp.Llama(str(MODEL), n_ctx=64, n_threads=1, verbose=False)
    with pytest.raises(errors.OptionError) as logits:
        draft_model(without, logits=True)
    assert logits.value.option == "logits_of"
