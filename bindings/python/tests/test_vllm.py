"""The plug-in for vLLM: replayed scheduler traces, which need no vLLM; and the real engine on a CPU, which `check --vllm` installs."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import importlib.util
import json
import logging
import math
import multiprocessing
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from refrain import errors
from refrain.vllm import Proposer

VOCABULARY = 700
MAX_LEN = 256
K = 6

kept_alive: Engine | None = None


def config(k: int = K, max_len: int = MAX_LEN, **refrain: Any) -> Any:
    """What the proposer reads of a `VllmConfig`."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=k),
        model_config=SimpleNamespace(max_model_len=max_len, get_vocab_size=lambda: VOCABULARY),
        additional_config={"refrain": refrain},
    )


class Tenants(Proposer):
    """The first token of a prompt names the tenant; 0 keeps nothing."""

    def namespace_of(self, prompt: npt.NDArray[np.int32]) -> str | None:
        return f"tenant {prompt[0]}" if prompt[0] else None


class Request:
    """What the engine knows of a request: it will output exactly `output`."""

    def __init__(self, prompt: list[int], output: list[int]) -> None:
        self.prompt, self.output = prompt, output
        self.n_out = 0
        self.draft: list[int] = []
        self.n_drafted = self.n_accepted = 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output[: self.n_out]

    @property
    def is_done(self) -> bool:
        return self.n_out == len(self.output)

    def verify(self) -> list[int]:
        """The tokens that a step commits: drafts that are right, then the model's own."""
        rest = self.output[self.n_out :]
        n = 0
        while n < len(self.draft) and n < len(rest) and self.draft[n] == rest[n]:
            n += 1
        self.n_drafted += len(self.draft)
        self.n_accepted += n
        return rest[: n + 1]


class Engine:
    """A scheduler: rows that requests enter, leave and change, steps of some of them, and the call of the proposer after each step."""

    def __init__(self, proposer: Proposer, n_rows: int = 8) -> None:
        self.proposer = proposer
        self.rows: list[Request] = []
        # Rows of requests that have left keep their old tokens, as in the engine.
        self.token_ids = np.zeros((n_rows, proposer._max_model_len), np.int32)
        self.n_steps = 0

    def step(self, prefilling: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """One step of all rows; those in `prefilling` sample nothing."""
        n_tokens = np.zeros(len(self.token_ids), np.int32)
        sampled: list[list[int]] = []
        for row, request in enumerate(self.rows):
            new = [] if row in prefilling else request.verify()
            request.n_out += len(new)
            sampled.append(new)
            tokens = request.tokens
            self.token_ids[row, : len(tokens)] = tokens
            # Drafts of the step stay behind the tokens.
            self.token_ids[row, len(tokens) : len(tokens) + 3] = 7
            n_tokens[row] = len(tokens)
        drafts = self.proposer.propose(sampled, n_tokens, self.token_ids, slot_mappings=None)
        assert len(drafts) == len(self.rows)
        for request, new, draft in zip(self.rows, sampled, drafts):
            assert len(draft) <= max(0, min(K, self.proposer._max_model_len - len(request.tokens) - 1))
            assert new or not draft
            request.draft = draft
        self.n_steps += 1

    def run(self, *requests: Request) -> int:
        """Steps until all are done."""
        self.rows = list(requests)
        before = self.n_steps
        while self.rows:
            self.step()
            self.rows = [request for request in self.rows if not request.is_done]
        return self.n_steps - before

    def idle(self, n: int) -> None:
        for _ in range(n):
            self.proposer.propose([], np.zeros(8, np.int32), self.token_ids)


def phrases(seed: int, n: int) -> list[int]:
    """Text of repeated phrases."""
    rng = random.Random(seed)
    known = [[rng.randrange(10, VOCABULARY) for _ in range(12)] for _ in range(6)]
    return [token for _ in range(n) for token in rng.choice(known)]


def known(proposer: Proposer) -> list[list[int]]:
    return [request.sequence.tokens for request in proposer._rows if request is not None and request.sequence is not None]


def test_drafts_save_steps_and_later_requests_more() -> None:
    proposer = Proposer(config())
    engine = Engine(proposer)
    rng = random.Random(1)
    output = [rng.randrange(10, VOCABULARY) for _ in range(80)]
    first = engine.run(Request([3, 4], output))
    engine.idle(20)
    again = engine.run(Request([5, 6, 7], output))
    assert first > 60 and again < first / 2
    repeats = engine.run(Request([3], phrases(2, 15)))
    assert repeats < 120


@pytest.mark.parametrize("seed", range(6))
def test_scheduler_traces(seed: int) -> None:
    """Requests come, wait for their prompt, are left out, preempted and moved at random. Each keeps one sequence with exactly its tokens,
    its output reaches its tenant's history once, and a tenant's words are never proposed to another."""
    rng = random.Random(seed)
    proposer = Tenants(config())
    engine = Engine(proposer)
    # Each tenant has words of its own, and each request four that nobody else has.
    words = {tenant: list(range(50 + 100 * tenant, 150 + 100 * tenant)) for tenant in range(4)}

    def request(number: int) -> Request:
        tenant = number % 4
        known = [[rng.choice(words[tenant]) for _ in range(8)] for _ in range(4)]
        text = [token for _ in range(rng.randrange(1, 12)) for token in rng.choice(known)]
        return Request([tenant, *text[: rng.randrange(len(text))]], text + list(range(460 + 4 * number, 464 + 4 * number)))

    waiting = [request(number) for number in range(40)]
    own = {tenant: {tenant, *words[tenant]} for tenant in range(4)}
    for each in waiting:
        own[each.prompt[0]].update(each.output)
    running: list[Request] = []
    preempted: list[tuple[int, Request]] = []
    done: list[Request] = []
    while waiting or running or preempted:
        while len(running) < 8 and (waiting or preempted) and rng.random() < 0.7:
            back = [entry for entry in preempted if entry[0] <= engine.n_steps]
            if back and rng.random() < 0.6:
                preempted.remove(back[0])
                running.append(back[0][1])
            elif waiting:
                running.append(waiting.pop())
            else:
                break
        if len(running) > 1 and rng.random() < 0.2:
            i, j = rng.sample(range(len(running)), 2)
            running[i], running[j] = running[j], running[i]
        # One that is away may be kept in two outputs, of which the second has all its last words.
        may_leave = [each for each in running if len(each.output) - each.n_out > 5]
        if may_leave and rng.random() < 0.1:
            gone = rng.choice(may_leave)
            running.remove(gone)
            gone.draft = []
            preempted.append((engine.n_steps + rng.choice([1, 3, 40]), gone))
        left_out = {row for row, each in enumerate(running) if each in may_leave and rng.random() < 0.1}
        for row in left_out:
            running[row].draft = []
        engine.rows = list(running)
        engine.step(prefilling=left_out)
        for row, each in enumerate(running):
            if row not in left_out:
                at_row = proposer._rows[row]
                assert at_row is not None and at_row.sequence is not None and at_row.sequence.tokens == each.tokens
            assert set(each.draft) <= own[each.prompt[0]]
        done += [each for each in running if each.is_done]
        running = [each for each in running if not each.is_done]
        assert engine.n_steps < 10_000
    assert sum(each.n_accepted for each in done) > 100
    engine.idle(20)
    assert known(proposer) == []
    # Every kept output is in its tenant's history, and in no other.
    for each in done:
        for tenant in range(4):
            drafter = proposer._drafter(f"tenant {tenant}" if tenant else None)
            proposal = drafter.sequence([1, *each.output[-4:-1]]).propose(1)
            is_known = proposal.tokens == (each.output[-1],) and proposal.origins == ("history",)
            assert is_known == (tenant == each.prompt[0] != 0)


def test_a_request_that_is_left_out_or_preempted_goes_on() -> None:
    engine = Engine(Proposer(config()))
    one, two = Request([1, 2, 3], phrases(1, 10)), Request([4, 5, 6], phrases(2, 10))
    engine.rows = [one, two]
    engine.step()
    engine.step()
    first = engine.proposer._rows[0]
    # Row 0 is left out of a step, then preempted for some.
    one.draft = []
    engine.step(prefilling={0})
    engine.rows = [two]
    for _ in range(10):
        engine.step()
    engine.rows = [two, one]
    engine.step()
    assert engine.proposer._rows[1] is first
    # Away for long: its output so far is kept, and it goes on as a new request whose prompt is all its text.
    one.draft = []
    engine.rows = [two]
    n_before = one.n_out
    two.output += phrases(3, 10)
    for _ in range(18):
        engine.step()
    assert [tokens[:3] for tokens in known(engine.proposer)] == [[4, 5, 6]]
    probe = engine.proposer._drafter("default").sequence([9, *one.output[: n_before - 1][-5:]])
    assert probe.propose(1).origins == ("history",)
    engine.rows = [two, one]
    engine.step()
    again = engine.proposer._rows[1]
    assert again is not first and again is not None and again.sequence is not None and again.sequence.tokens == one.tokens


def test_equal_requests_have_sequences_of_their_own() -> None:
    engine = Engine(Proposer(config()))
    output = phrases(4, 6)
    requests = [Request([1, 2], list(output)) for _ in range(3)] + [Request([1, 2], output[:10] + phrases(5, 5))]
    engine.rows = requests
    while not all(each.is_done for each in requests):
        engine.rows = [each for each in requests if not each.is_done]
        engine.step()
        assert known(engine.proposer)[: len(engine.rows)] == [each.tokens for each in engine.rows]


def test_the_next_turn_of_a_chat_is_another_request() -> None:
    engine = Engine(Proposer(config()))
    first = Request([1, 2, 3], phrases(6, 4))
    engine.run(first)
    second = Request(first.tokens + list(range(20, 40)), phrases(7, 2))
    engine.rows = [second]
    engine.step()
    at_row = engine.proposer._rows[0]
    assert at_row is not None and at_row.sequence is not None and at_row.sequence.tokens == second.tokens
    engine.idle(17)
    # Its prompt is no output.
    probe = engine.proposer._drafter("default").sequence([9, *range(20, 25)])
    assert 25 not in probe.propose(8).tokens


def test_the_end_of_the_models_context() -> None:
    engine = Engine(Proposer(config(max_len=64)))
    request = Request([1, 2, 3, 4], [5, 6] * 30)
    engine.run(request)
    assert len(request.tokens) == 64 and request.n_accepted > 20


def test_a_store_outlives_the_engine(tmp_path: Path) -> None:
    output = phrases(8, 1)
    options: dict[str, Any] = {"store": str(tmp_path / "drafts"), "fingerprint": 3, "namespace": "mail", "row_us": {"1": 100.0, "8": 120.0}}
    first = Engine(Proposer(config(**options)))
    first.run(Request([1], output))
    first.proposer.finish()
    assert known(first.proposer) == []
    del first
    again = Request([2, *output[:4]], output[4:])
    assert Engine(Proposer(config(**options))).run(again) <= 3
    other = Request([2, *output[:4]], output[4:])
    options["namespace"] = "other"
    Engine(Proposer(config(**options))).run(other)
    assert other.n_accepted == 0


def test_a_request_drafts_from_the_one_before_it_at_once() -> None:
    engine = Engine(Proposer(config()))
    rng = random.Random(2)
    output = [rng.randrange(10, VOCABULARY) for _ in range(40)]
    engine.run(Request([1, 2], output))
    # No idle steps: only the first token comes before the history is asked.
    again = Request([3, *output[:4]], output[4:])
    assert engine.run(again) <= 8 and again.n_accepted > 25


def test_rows_cost_something_unless_they_are_free() -> None:
    rng = random.Random(3)
    # Two tokens of three are as in the text before, so long proposals mostly fail.
    text = phrases(14, 12)
    output = [token if rng.random() < 0.67 else rng.randrange(10, VOCABULARY) for token in phrases(14, 6)]
    n_drafted: list[int] = []
    free: dict[str, Any] = {"row_us": None}
    for options in ({}, free):
        request = Request(text, list(output))
        Engine(Proposer(config(**options))).run(request)
        n_drafted.append(request.n_drafted)
    assert 0 < n_drafted[0] < n_drafted[1]


def test_an_idle_engine_keeps_its_outputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("refrain.vllm._IDLE_S", 0.1)
    options: dict[str, Any] = {"store": str(tmp_path), "fingerprint": 3}
    output = phrases(11, 2)
    engine = Engine(Proposer(config(**options)))
    engine.run(Request([1], output))
    for _ in range(400):
        with engine.proposer._lock:
            if not known(engine.proposer):
                break
        time.sleep(0.02)
    assert known(engine.proposer) == []
    # Another worker of the host reads it.
    again = Request([2, *output[:4]], output[4:])
    Engine(Proposer(config(**options))).run(again)
    assert again.n_accepted > 10
    # The engine goes on, also with a request that was thought to have ended.
    more = Request([1, *output], phrases(12, 2))
    engine.run(more)
    assert more.is_done


def _run_and_end(store: str, output: list[int]) -> None:
    """A worker's process that ends without another word."""
    global kept_alive
    kept_alive = Engine(Proposer(config(store=store, fingerprint=3)))
    kept_alive.run(Request([1], output))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_process_that_ends_keeps_its_outputs(method: str, tmp_path: Path) -> None:
    output = phrases(13, 2)
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=_run_and_end, args=(str(tmp_path), output))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    again = Request([2, *output[:4]], output[4:])
    Engine(Proposer(config(store=str(tmp_path), fingerprint=3))).run(again)
    assert again.n_accepted > 10


def test_a_store_that_fails_costs_drafts_only(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    # A namespace whose name is too long is refused when an output is kept.
    engine = Engine(Proposer(config(store=str(tmp_path), fingerprint=1, namespace="x" * 100)))
    request = Request([1, 2], phrases(9, 10))
    with caplog.at_level(logging.WARNING):
        engine.run(request)
        engine.idle(20)
    assert request.is_done and request.n_accepted > 0
    assert [record.name for record in caplog.records] == ["refrain.vllm"]
    assert engine.run(Request([1, 2], phrases(9, 10))) > 0


def test_the_store_is_maintained_on_the_way(tmp_path: Path) -> None:
    engine = Engine(Proposer(config(store=str(tmp_path), fingerprint=1)))
    for i in range(70):
        engine.run(Request([1, i], [i, i + 1, i + 2]))
    engine.idle(20)
    engine.proposer._maintaining.join()
    assert engine.proposer._maintaining.name == "refrain-maintain"


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(errors.OptionError) as unknown:
        Proposer(config(stroe="x"))
    assert (unknown.value.option, unknown.value.given) == ("additional_config", "stroe")
    with pytest.raises(errors.OptionError, match="fingerprint"):
        Proposer(config(store=str(tmp_path)))
    with pytest.raises(errors.OptionError, match="row_us"):
        Proposer(config(row_us={"0": 1.0}))
    with pytest.raises(FileNotFoundError):
        Proposer(config(tokenizer=str(tmp_path / "none.json")))
    without = config()
    without.additional_config = None
    assert Engine(Proposer(without)).run(Request([1], [5, 6, 7])) == 3
    for k in (0, 64):
        with pytest.raises(errors.OptionError, match="num_speculative_tokens"):
            Proposer(config(k=k))


def test_tokens_outside_the_vocabulary_cost_drafts_only(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(Proposer(config()))
    output = phrases(10, 12)
    strange = [Request([1, VOCABULARY + 7], list(output)), Request([1], [*output[:5], -1, *output[5:]])]
    usual = Request([1, 2], list(output))
    with caplog.at_level(logging.WARNING):
        engine.run(*strange, usual)
        engine.idle(20)
    assert all(each.is_done for each in [*strange, usual])
    assert usual.n_accepted > 0 and strange[0].n_accepted == 0
    assert len(caplog.records) == 2 and known(engine.proposer) == []


REAL = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: check --vllm")

PROGRAM = '''
import json, logging, os, sys
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
import torch
from vllm import LLM, SamplingParams
from vllm.v1.sample import rejection_sampler
import refrain.vllm

given = json.loads(sys.stdin.read())
calls = {"n": 0, "drafted": 0}
real = refrain.vllm.Proposer.propose


def counted(self, sampled_token_ids, *arguments, **options):
    proposals = real(self, sampled_token_ids, *arguments, **options)
    calls["n"] += 1
    calls["drafted"] += sum(map(len, proposals))
    return proposals


refrain.vllm.Proposer.propose = counted


warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("refrain.vllm").addHandler(handler)


def expand(values, ends, n, replace_from=0, replace_to=0):
    """What vLLM means: each request's value for each of its drafts. Its kernel for CPUs writes to a copy."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).long()
    return torch.where(values == replace_from, replace_to, values).to(values.dtype).repeat_interleave(counts)


llm = LLM(given["model"], skip_tokenizer_init=True, enforce_eager=True, dtype="float32", disable_log_stats=False, **given["options"])
values, ends = torch.tensor([0.5, 0.25]), torch.tensor([20, 50], dtype=torch.int32)
is_right = torch.equal(rejection_sampler.expand_batch_to_tokens(values, ends, 50), expand(values, ends, 50))
if given.get("mended"):
    rejection_sampler.expand_batch_to_tokens = expand
outputs = []
for prompts in given["rounds"]:
    sampling = SamplingParams(detokenize=False, ignore_eos=True, **given["sampling"])
    done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
    outputs.append([list(output.outputs[0].token_ids) for output in done])
metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
print("\\n" + json.dumps({"outputs": outputs, "calls": calls, "metrics": metrics, "warnings": warnings, "is_right": is_right}))
'''


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights, whose greedy outputs run in circles."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(3)
    shape = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    folder = tmp_path_factory.mktemp("vllm") / "model"
    transformers.LlamaForCausalLM(shape).save_pretrained(folder)
    return folder


def generate(model: Path, rounds: list[list[list[int]]], *, is_drafted: bool, **given: Any) -> dict[str, Any]:
    """Runs vLLM in a process of its own."""
    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, **given.pop("options", {})}
    if is_drafted:
        options["speculative_config"] = {"method": "custom_class", "model": "refrain.vllm.Proposer", "num_speculative_tokens": K}
    task = {"model": str(model), "rounds": rounds, "options": options, "sampling": {"temperature": 0, "max_tokens": 60}, **given}
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=json.dumps(task), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def prompts(n: int, length: int) -> list[list[int]]:
    rng = random.Random(n)
    return [[rng.randrange(3, 256) for _ in range(length)] for _ in range(n)]


SCHEDULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cached prefixes": {"enable_prefix_caching": True, "block_size": 32},
    # Prompts in parts, beside rows that decode.
    "chunks": {"max_num_batched_tokens": 32, "enable_chunked_prefill": True},
    # Four requests do not fit: some are preempted and computed again.
    "preemption": {"num_gpu_blocks_override": 10, "block_size": 32, "enable_prefix_caching": False},
}


@REAL
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_real_engines_outputs_are_its_own(tiny_model: Path, schedule: str) -> None:
    """Greedy, in two rounds: the second has the first one's outputs in its history, and shares prefixes with it."""
    shared = prompts(1, 48)[0]
    some = [*prompts(6, 20), *([*shared, *tail] for tail in prompts(3, 8)), *prompts(2, 90)]
    rounds = [some, [*some[:6], *prompts(5, 30)]]
    plain, drafted = (
        generate(tiny_model, rounds, is_drafted=is_drafted, options=SCHEDULES[schedule]) for is_drafted in (False, True)
    )
    assert plain["outputs"] == drafted["outputs"]
    n_tokens = sum(len(output) for outputs in drafted["outputs"] for output in outputs)
    happened = {"cached prefixes": "vllm:prefix_cache_hits", "preemption": "vllm:num_preemptions"}.get(schedule)
    assert happened is None or drafted["metrics"][happened] > 0
    assert drafted["calls"]["drafted"] > 200
    # Up to four requests share a step.
    assert 0 < drafted["calls"]["n"] < n_tokens / 4


@REAL
def test_the_real_engine_samples_by_its_own_rule(tiny_model: Path) -> None:
    """Pairs of tokens come as often with drafts, accepted and rejected ones, as without: within 4 standard errors. vLLM's rule is its own; what its
    kernels for CPUs do not tell it, the temperature of each draft, is mended in the test."""
    n = 1200
    prompt = [[5, 6, 7, 5, 6, 7, 5, 6]]
    # The model's logits differ little, so this is not cold.
    given: dict[str, Any] = {"sampling": {"temperature": 0.03, "max_tokens": 3}, "options": {"max_num_seqs": 64}, "mended": True}
    rounds = [prompt * 100, prompt * n]

    def counts(answered: dict[str, Any]) -> dict[tuple[int, ...], int]:
        return dict(Counter(tuple(output[:2]) for output in answered["outputs"][1]))

    drafted = generate(tiny_model, rounds, is_drafted=True, **given)
    n_drafted, n_accepted = (drafted["metrics"][f"vllm:spec_decode_num_{name}_tokens"] for name in ("draft", "accepted"))
    assert n_accepted > 1000 and n_drafted - n_accepted > 1000
    plain, sampled = counts(generate(tiny_model, rounds, is_drafted=False, **given)), counts(drafted)
    assert len(plain) > 50 and max(plain.values()) > 100

    def differ(x: float, y: float) -> bool:
        mean = (x + y) / 2
        return abs(x - y) > 4 * math.sqrt(2 * mean * (1 - mean) / n)

    assert [pair for pair in set(plain) | set(sampled) if differ(plain.get(pair, 0) / n, sampled.get(pair, 0) / n)] == []


@REAL
def test_a_seed_repeats_the_real_engines_sampling(tiny_model: Path) -> None:
    """With the same drafts. (With other drafts, or none, vLLM draws other random numbers.)"""
    given: dict[str, Any] = {"sampling": {"temperature": 0.05, "top_k": 20, "top_p": 0.95, "max_tokens": 40, "seed": 9}, "mended": True}
    first, second = (generate(tiny_model, [prompts(4, 20)], is_drafted=True, **given) for _ in range(2))
    assert first["outputs"] == second["outputs"] and first["calls"] == second["calls"]
    assert first["calls"]["drafted"] > 50


@REAL
def test_a_vllm_that_samples_wrongly_is_told(tiny_model: Path) -> None:
    told = generate(tiny_model, [prompts(1, 8)], is_drafted=True)
    assert [("wrong temperatures" in warning) for warning in told["warnings"]] == ([] if told["is_right"] else [True])
