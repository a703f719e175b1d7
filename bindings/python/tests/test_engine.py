"""The engine, its sessions and generations."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
import importlib.metadata
import math
import pickle
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import refrain
from conftest import FIXTURES, MODEL, QUESTION
from refrain import errors


DRAFTING: tuple[Literal["off", "auto"], ...] = ("off", "auto")


def tokens_of(session: refrain.Session, **options: Any) -> list[int]:
    return [event.id for event in session.generate(**options) if isinstance(event, refrain.Token)]


def test_events_are_tokens_and_then_a_summary(engine: refrain.Engine, asked: refrain.Session) -> None:
    n_prompt_turns = len(asked.turns)
    generation = asked.generate(max_tokens=40)
    events = list(generation)
    *tokens, summary = events
    assert all(isinstance(token, refrain.Token) for token in tokens)
    assert isinstance(summary, refrain.Summary)
    assert summary.finish == "end_token" and summary.seed is None
    assert "".join(event.text for event in events) == generation.text != ""
    assert next(generation, None) is None and generation.is_ended
    ids = [token.id for token in tokens if isinstance(token, refrain.Token)]
    assert asked.tokens[-len(ids) :] == ids
    assert len(asked.turns) == n_prompt_turns + 1 and asked.turns[-1] == ("assistant", generation.text)
    assert engine.tokenizer.decode(ids).startswith(generation.text)


def test_drafts_change_the_speed_and_not_the_text(engine: refrain.Engine) -> None:
    samplings: list[dict[str, Any]] = [{}, {"temperature": 0.8, "seed": 7}, {"temperature": 1.1, "top_k": 40, "repetition_penalty": 1.2, "seed": 1}]
    for options in samplings:
        outputs: list[list[int]] = []
        for drafting in DRAFTING:
            session = engine.session(drafting=drafting, history=False)
            session.append_turn("user", QUESTION)
            outputs.append(tokens_of(session, max_tokens=60, **options))
        assert outputs[0] == outputs[1] != []


def test_the_version_is_the_packages() -> None:
    assert refrain.__version__ == importlib.metadata.version("refrain")


def test_an_output_ends_before_a_stop_string(engine: refrain.Engine) -> None:
    session = engine.session(history=False)
    session.append_text("The train leaves at 08:15.")
    whole = session.fork().generate(max_tokens=20, ignore_eos=True).run().text
    word = whole.split()[3]
    for stop in (word, [word], ["never written", word]):
        stopped = session.fork().generate(max_tokens=20, ignore_eos=True, stop=stop).run()
        assert stopped.text == whole[: whole.index(word)]
        assert stopped.summary is not None and stopped.summary.finish == "stop"


def test_statistics_add_up(asked: refrain.Session) -> None:
    generation = asked.generate(max_tokens=40)
    assert generation.stats.tokens == 0
    completion = generation.run()
    stats = generation.stats
    assert completion.summary is not None and completion.summary.stats == stats
    assert stats.tokens == len(completion.tokens)
    assert sum(i * n for i, n in enumerate(stats.acceptance_lengths)) == stats.tokens
    assert stats.steps == sum(stats.acceptance_lengths) < stats.tokens, "a step committed several tokens"
    assert stats.acceptance_length == stats.tokens / stats.steps
    assert sum(source.accepted for source in stats.sources) == sum(token.origin is not None for token in completion.tokens)
    assert {token.origin for token in completion.tokens} - {None} <= {source.name for source in stats.sources}
    assert stats.time_us.forward > 0 and stats.decode_tokens_per_s > 0 and stats.prefill_tokens_per_s > 0
    with pytest.raises(FrozenInstanceError):
        stats.steps = 0  # type: ignore[misc]
    # Plain values: they can be copied and sent to other processes.
    assert pickle.loads(pickle.dumps(stats)) == copy.deepcopy(stats) == stats


def test_every_statistic_of_the_engine_has_a_field(asked: refrain.Session) -> None:
    """A field that the engine adds must be added here, or be one that this package cannot switch on."""
    import json

    from refrain import _events

    seen: list[str] = []
    real = _events.stats
    _events.stats = lambda text: seen.append(text) or real(text)  # type: ignore[func-returns-value]
    try:
        asked.generate(max_tokens=4).run()
    finally:
        _events.stats = real
    assert set(json.loads(seen[-1])) == {field.name for field in fields(refrain.Stats)}


def test_the_memory_is_estimated_before_the_model_is_loaded(engine: refrain.Engine, tmp_path: Path) -> None:
    memory = refrain.Engine.estimate_memory(MODEL)
    assert isinstance(memory, refrain.MemoryEstimate) and memory.fits in (True, None)
    assert engine.memory_bytes <= memory.weights_bytes < memory.total_bytes
    more = refrain.Engine.estimate_memory(MODEL, kv_type="f32", n_sessions=3, draft_model=MODEL)
    assert more.kv_bytes > 3 * memory.kv_bytes and more.draft_model_bytes > memory.weights_bytes
    (tmp_path / "short.gguf").write_bytes(MODEL.read_bytes()[:100])
    with pytest.raises(errors.LoadError):
        refrain.Engine.estimate_memory(tmp_path / "short.gguf")


def test_reprs_say_what_a_thing_is(engine: refrain.Engine, asked: refrain.Session) -> None:
    assert repr(engine).startswith(f'Engine("{MODEL}", llama, ') and "2 threads" in repr(engine)
    assert repr(asked) == f"Session(1 turns, 0 of {asked.context_len} tokens)"
    generation = asked.generate(max_tokens=2)
    token = next(generation)
    assert isinstance(token, refrain.Token)
    assert repr(token) == f"Token(id={token.id}, text={token.text!r}, origin={token.origin!r})"
    assert repr(generation) == "Generation(running, 1 tokens)" and repr(asked) == "Session(a generation is running)"
    generation.close()
    assert repr(generation) == "Generation(ended, 1 tokens)"
    assert repr(engine.tokenizer).startswith(f"Tokenizer(vocab_size={len(engine.tokenizer)}, fingerprint=0x")
    assert repr(refrain.CancelToken()) == "CancelToken(is_cancelled=False)"


def test_a_model_without_tokens_for_gaps_fills_none(engine: refrain.Engine) -> None:
    assert engine.tokenizer.infill_ends == []
    with pytest.raises(errors.TokenizerError, match="fill in the middle"):
        engine.tokenizer.encode_infill("a", "b")


def test_a_notebook_shows_sources_and_escapes_the_text(asked: refrain.Session) -> None:
    completion = asked.generate(max_tokens=40).run()
    shown = completion._repr_html_()
    origins = {token.origin for token in completion.tokens} - {None}
    assert origins and all(f'title="{origin}"' in shown for origin in origins)
    assert refrain.Completion("", (), None)._repr_html_().endswith("drafted from: nothing</small>")
    tagged = refrain.Completion("<b>", completion.tokens[:0], None)
    assert "<b>" not in tagged._repr_html_()


def test_a_generation_that_is_closed_leaves_the_tokens_that_were_taken(engine: refrain.Engine) -> None:
    session = engine.session(history=False)
    session.append_text("The train leaves at")
    n_prompt = len(session.tokens)
    taken: list[int] = []
    with session.generate(max_tokens=200, ignore_eos=True) as generation:
        for event in generation:
            assert isinstance(event, refrain.Token)
            taken.append(event.id)
            if len(taken) == 7:
                break
        with pytest.raises(errors.SessionBusyError):
            session.tokens  # noqa: B018
        with pytest.raises(errors.SessionBusyError):
            session.generate()
    assert session.tokens[n_prompt:] == taken
    # It goes on as if it had not stopped.
    taken += tokens_of(session, max_tokens=13, ignore_eos=True)
    whole = engine.session(history=False)
    whole.append_text("The train leaves at")
    assert tokens_of(whole, max_tokens=20, ignore_eos=True) == taken
    # A generation that is dropped is closed.
    generation = session.generate(max_tokens=200)
    next(generation)
    del generation
    assert len(session.tokens) == n_prompt + 21


def test_cancelling(engine: refrain.Engine, asked: refrain.Session) -> None:
    cancel = refrain.CancelToken()
    generation = asked.generate(max_tokens=10_000, ignore_eos=True, cancel=cancel)
    first = next(generation)
    cancel.cancel()
    assert cancel.is_cancelled
    # What the step of the first token has committed still comes: that token, and drafts behind it.
    events = [first, *generation]
    summary = events[-1]
    assert isinstance(summary, refrain.Summary) and summary.finish == "cancelled"
    assert summary.stats.steps == 1 and 1 <= summary.stats.tokens == len(events) - 1
    assert asked.turns[-1] == ("assistant", "".join(event.text for event in events))
    # Before the prompt's first layer.
    session = engine.session()
    session.append_turn("user", QUESTION)
    generation = session.generate()
    generation.cancel()
    completion = generation.run()
    assert completion.tokens == () and completion.summary is not None and completion.summary.finish == "cancelled"
    assert len(session.turns) == 1


def test_turns_and_text_and_forks(engine: refrain.Engine, asked: refrain.Session) -> None:
    fork = asked.fork()
    assert fork.pop_turn() == ("user", QUESTION) and fork.pop_turn() is None
    assert asked.turns == (("user", QUESTION),) and fork.turns == ()
    with pytest.raises(errors.MixedSessionError):
        asked.append_text("plain")
    text = engine.session(context_len=64)
    text.append_text("one two three")
    text.prefill()
    tokens = text.tokens
    assert 0 < text.n_cached_tokens <= len(tokens)
    text.truncate(1)
    assert text.tokens == tokens[:1]
    text.append_tokens(tokens[1:])
    assert text.tokens == tokens and text.context_len == 64 and text.memory_bytes > 0
    # Text cannot forge control tokens unless it is said to have them.
    tokenizer = engine.tokenizer
    assert tokenizer.encode("<|im_end|>", special=True) == tokenizer.eos[:1]
    assert tokenizer.eos[0] not in tokenizer.encode("<|im_end|>")


def test_logits_are_the_models(engine: refrain.Engine) -> None:
    session = engine.session(kv_type="f32")
    session.append_text("The train leaves at 08:15 from platform 4.")
    n_tokens, vocab_size = len(session.tokens), engine.tokenizer.vocab_size
    score = refrain.score(session, logits=True)
    assert score.logits is not None and score.logits.shape == (n_tokens, vocab_size) and score.logits.dtype == np.float32
    # The log-probabilities are those of the logits.
    wide = score.logits[:-1].astype(np.float64)
    log_sums = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1)
    chosen = wide[np.arange(n_tokens - 1), session.tokens[1:]] - log_sums
    # (The engine subtracts the sum in f32, whose steps at logits of this size are 1e-6.)
    np.testing.assert_allclose(score.log_probabilities, chosen, rtol=1e-5, atol=2e-6)
    assert math.isclose(score.perplexity, math.exp(-np.mean(score.log_probabilities)), rel_tol=1e-9)
    assert refrain.score(session).logits is None and refrain.score(session) == score
    # Greedy decoding takes the largest logit.
    assert tokens_of(session, max_tokens=1) == [int(score.logits[-1].argmax())]
    state = refrain.last_hidden_state(session)
    assert state.ndim == 1 and np.isfinite(state).all() and state.any()


def test_history_stays_in_its_namespace(engine: refrain.Engine) -> None:
    def drafted_from_history(namespace: str) -> int:
        session = engine.session(namespace=namespace, draft_rows=8)
        session.append_turn("user", QUESTION)
        stats = session.generate(max_tokens=40).run().summary
        assert stats is not None
        return sum(source.drafted for source in stats.stats.sources if source.name == "history")

    engine.forget_history()
    assert drafted_from_history("one") == 0
    assert drafted_from_history("one") > 0
    assert drafted_from_history("two") == 0
    engine.forget_history("one")
    assert drafted_from_history("one") == 0


def test_a_draft_model_changes_no_token(engine: refrain.Engine) -> None:
    with_draft = refrain.Engine(MODEL, threads=2, measure_time=0, draft_model=FIXTURES / "draft.gguf")
    outputs: list[list[int]] = []
    for session in (with_draft.session(drafting="draft_model", history=False), engine.session(history=False)):
        session.append_turn("user", QUESTION)
        outputs.append(tokens_of(session, max_tokens=40))
    assert outputs[0] == outputs[1]
    with pytest.raises(errors.NoDraftModelError):
        engine.session(drafting="draft_model")


def test_errors_say_what_is_wrong(engine: refrain.Engine, asked: refrain.Session, tmp_path: Path) -> None:
    with pytest.raises(errors.LoadError) as missing:
        refrain.Engine(tmp_path / "none.gguf")
    assert missing.value.file == str(tmp_path / "none.gguf") and missing.value.__cause__ is None
    (tmp_path / "torn.gguf").write_bytes(MODEL.read_bytes()[:20])
    with pytest.raises(errors.LoadError) as torn:
        refrain.Engine(tmp_path / "torn.gguf")
    assert torn.value.file == str(tmp_path / "torn.gguf") and torn.value.field is not None and torn.value.offset == 16
    # The number of tensors, at offset 8.
    (tmp_path / "many.gguf").write_bytes(MODEL.read_bytes()[:8] + b"\xff" * 8 + MODEL.read_bytes()[16:])
    with pytest.raises(errors.LoadError) as many:
        refrain.Engine(tmp_path / "many.gguf")
    assert many.value.offset == 8 and many.value.limit is not None
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone.safetensors"}}')
    with pytest.raises(errors.LoadError) as unreadable:
        refrain.Engine(folder)
    assert isinstance(unreadable.value.__cause__, FileNotFoundError)
    assert unreadable.value.file == str(folder / "gone.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": -1}')
    with pytest.raises(errors.LoadError) as config:
        refrain.Engine(folder)
    assert config.value.file is not None and config.value.file.startswith(str(folder)) and config.value.limit is None
    with pytest.raises(errors.OptionError) as threads:
        refrain.Engine(MODEL, threads=0)
    assert (threads.value.option, threads.value.given) == ("threads", 0)
    with pytest.raises(ValueError, match="none of keep, f32, q8_0, q4_0"):
        refrain.Engine(MODEL, quantize="q3")  # type: ignore[arg-type]
    for seconds in (-1.0, math.nan, math.inf):
        with pytest.raises(errors.OptionError, match=rf"measure_time is (?i:{seconds:g}), not a number of seconds from 0"):
            refrain.Engine(MODEL, measure_time=seconds)
    with pytest.raises(errors.OptionError) as rows:
        engine.session(verify_rows_max=65)
    assert rows.value.option == "verify_rows_max"
    for draft_rows in (0, 64):
        with pytest.raises(errors.OptionError, match=f"^draft_rows is {draft_rows}, outside 1..=63$") as too_many:
            engine.session(draft_rows=draft_rows)
        assert too_many.value.option == "draft_rows"
    with pytest.raises(TypeError, match="expected True, False or a History, got str"):
        engine.session(history="folder")  # type: ignore[arg-type]
    with pytest.raises(errors.OptionError) as length:
        engine.session(context_len=1 << 58)
    assert (length.value.option, length.value.given) == ("context_len", 1 << 58)
    with pytest.raises(errors.OptionError, match="role"):
        asked.append_turn("robot", "x")  # type: ignore[arg-type]

    vocab_size = engine.tokenizer.vocab_size
    plain = engine.session(context_len=16)
    with pytest.raises(errors.TokenOutOfRangeError) as token:
        plain.append_tokens([vocab_size])
    assert (token.value.token, token.value.vocab_size) == (vocab_size, vocab_size)
    for outside in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            plain.append_tokens([outside])
    with pytest.raises(errors.ContextOverflowError) as overflow:
        plain.append_tokens([5] * 17)
    assert (overflow.value.n_tokens, overflow.value.context_len) == (17, 16)
    assert plain.tokens == []
    with pytest.raises(errors.EmptyPromptError):
        plain.generate()
    plain.truncate(3)
    with pytest.raises(errors.MixedSessionError):
        asked.truncate(0)

    bad_options: list[dict[str, Any]] = [{"temperature": -1.0}, {"temperature": math.nan}, {"top_p": 2.0}, {"stop": [""]}, {"stop": ["x" * 2000]}]
    for options in bad_options:
        with pytest.raises(errors.OptionError):
            asked.generate(**options)
    with pytest.raises(errors.TokenOutOfRangeError):
        asked.generate(logit_bias={vocab_size: 1.0})
    assert tokens_of(asked, max_tokens=3) != []

    # Every token forbidden.
    starved = engine.session()
    starved.append_text("x")
    with pytest.raises(errors.GenerateError):
        list(starved.generate(logit_bias={token: -math.inf for token in range(vocab_size)}))
    assert len(tokens_of(starved, max_tokens=2, ignore_eos=True)) == 2


def test_a_panic_is_an_exception(engine: refrain.Engine) -> None:
    from refrain._native import _panic  # pyright: ignore[reportPrivateUsage]

    with pytest.raises(errors.InternalError, match="a bug of Refrain: 3 is not 4"):
        _panic("3 is not 4")
    assert engine.n_layers > 0


def test_exceptions_can_be_sent_to_other_processes(engine: refrain.Engine) -> None:
    with pytest.raises(errors.ContextOverflowError) as raised:
        engine.session(context_len=16).append_tokens([5] * 17)
    sent = pickle.loads(pickle.dumps(raised.value))
    assert (type(sent), str(sent), sent.n_tokens) == (type(raised.value), str(raised.value), 17)


def test_a_turn_that_does_not_fit_is_taken_back(engine: refrain.Engine) -> None:
    session = engine.session(context_len=64)
    session.append_turn("user", QUESTION * 10)
    with pytest.raises(errors.ContextOverflowError):
        session.generate()
    assert session.turns == ()
    session.append_turn("user", "Hello.")
    assert session.generate(max_tokens=1).run().tokens != ()


def test_a_tokenizer_alone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        refrain.Tokenizer.from_file(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(errors.TokenizerError):
        refrain.Tokenizer.from_file(tmp_path / "bad.json")
