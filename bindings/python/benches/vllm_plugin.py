"""The plug-in for vLLM beside vLLM's own n-gram and suffix speculation and no drafts at all: times, tokens per step, acceptance, and whether
the outputs are equal.

    python bindings/python/benches/vllm_plugin.py MODEL_FOLDER [--tokens 48] [--runs 3] [--rows 8] [--batch 4] [--threads 2] [--wait]
    python bindings/python/benches/vllm_plugin.py MODEL_FOLDER --recorded FOLDER [--per-task 6]

Each way is a process of its own. All are started and warmed up first; with ``--wait`` the measurement begins when Enter is pressed, on a machine
that is quiet by then. The ways take turns request by request. Without ``--recorded`` the requests are about one note, each with other names per
run, one at a time and, as "all", ``--batch`` of them at once. ``--recorded`` takes the prompts of ``rag.jsonl``, ``reply.jsonl`` and so on in that
folder, one JSON object with a ``prompt`` a line, spread over each file; the model answers them itself, one at a time.

Times are means per batch, prompts included; ratios are sums of plain decoding's times over those of the way. Behind them the same without the step of
the prompt: milliseconds for each token behind the first. "text" drafts from a request's own text, as n-grams do; "Refrain" has a history too, as suffix
decoding has. "again": the requests a second time; "restarted": the same by a new process, which has the store of the one before; their ratios are to
the plain times of the first round. Suffix decoding is measured if arctic-inference is installed. Where an output differs from the plain one, the plain
engine says how far apart the two tokens are.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from plugins import TASKS, chat

from refrain.vllm import Proposer

NAMES = ("Nadia", "Milan", "Odile", "Pavel", "Runa", "Selma", "Tariq", "Ulla")
RECORDED = ("rag", "reply", "summary", "ui", "chat")
# Prompts of all kinds but screens of AndroidWorld, and with an output they fit the context of the engines below.
RECORDED_CHARACTERS_MAX = 4000
CONTEXT_LEN = 2048

PLAIN, SUFFIXES, OURS = "plain", "its suffixes", "Refrain"


def ways(rows: int, folder: Path, model: Path) -> dict[str, dict[str, Any]]:
    ours: dict[str, Any] = {
        "speculative_config": {"method": "custom_class", "model": "refrain.vllm.Proposer", "num_speculative_tokens": rows},
        "additional_config": {"refrain": {"store": str(folder), "tokenizer": str(model / "tokenizer.json")}},
    }
    found: dict[str, dict[str, Any]] = {
        PLAIN: {},
        "its n-grams": {
            "speculative_config": {"method": "ngram", "num_speculative_tokens": rows, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
        },
    }
    if importlib.util.find_spec("arctic_inference") is not None:
        found[SUFFIXES] = {"speculative_config": {"method": "suffix", "num_speculative_tokens": rows}}
    alone = {"speculative_config": {**ours["speculative_config"], "model": "vllm_plugin.TextOnly"}}
    return {**found, "Refrain, text": alone, OURS: ours}


class TextOnly(Proposer):
    """Drafts from the request's own text, as n-grams do."""

    def namespace_of(self, prompt: npt.NDArray[np.int32]) -> str | None:
        return None


def batches(arguments: argparse.Namespace) -> dict[str, list[list[str]]]:
    """The requests of each task: batches of requests that are asked at once."""
    if arguments.recorded is None:
        return {name: each for task in TASKS for name, each in note_batches(task, arguments.runs, arguments.batch).items()}
    found: dict[str, list[list[str]]] = {}
    for task in RECORDED:
        prompts = [json.loads(line)["prompt"] for line in (arguments.recorded / f"{task}.jsonl").read_text().splitlines()]
        fitting = [prompt for prompt in dict.fromkeys(prompts) if len(prompt) <= RECORDED_CHARACTERS_MAX]
        found[task] = [[prompt] for prompt in fitting[:: max(1, len(fitting) // arguments.per_task)][: arguments.per_task]]
    return found


def note_batches(task: str, runs: int, batch: int) -> dict[str, list[list[str]]]:
    # A history of this very answer is another way: each run has other names.
    told = [TASKS[task].replace("Tomas", NAMES[(run + 3) % len(NAMES)]) for run in range(runs)]
    copies = [[request.replace("Nadia", NAMES[i % len(NAMES)]) for i in range(batch)] for request in told]
    return {task: [[request] for request in told], f"{task}, all": copies}


def worker(model: Path, options: dict[str, Any], n_tokens: int, batch: int, threads: int) -> None:
    """Reads the arguments of `answer` or of `gap`, inside, as lines of JSON, and writes what comes of them."""
    # What the engine prints goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    vllm: Any = importlib.import_module("vllm")
    llm: Any = vllm.LLM(
        str(model),
        max_model_len=CONTEXT_LEN,
        max_num_seqs=batch,
        enable_prefix_caching=False,
        enforce_eager=True,
        # Where both are nearly equally likely, f32 chooses the same token more often.
        dtype="float32",
        disable_log_stats=False,
        **options,
    )
    sampling: Any = vllm.SamplingParams(temperature=0, max_tokens=n_tokens)
    n_steps = 0
    step = llm.llm_engine.step

    def counted() -> Any:
        nonlocal n_steps
        n_steps += 1
        return step()

    llm.llm_engine.step = counted

    def count(metric: str) -> int:
        return sum(int(each.value) for each in llm.get_metrics() if each.name == f"vllm:spec_decode_num_{metric}_tokens")

    prompts: dict[str, list[int]] = {}

    def answer(requests: list[str]) -> dict[str, Any]:
        before = n_steps, count("draft"), count("accepted")
        started = time.perf_counter()
        done = llm.generate([chat(request) for request in requests], sampling, use_tqdm=False)
        took = time.perf_counter() - started
        prompts.update((request, list(output.prompt_token_ids)) for request, output in zip(requests, done))
        outputs = [list(output.outputs[0].token_ids) for output in done]
        # From the first tokens to the last, of all requests together.
        decoded = max(each.metrics.last_token_ts for each in done) - min(each.metrics.first_token_ts for each in done)
        n_drafted, n_accepted = count("draft") - before[1], count("accepted") - before[2]
        counts = {"steps": n_steps - before[0], "drafted": n_drafted, "accepted": n_accepted}
        return {"seconds": took, "decoded": decoded, "outputs": outputs, **counts}

    def gap(request: str, output: list[int], other: int) -> float | None:
        """How much likelier the last token of `output` is than `other` is there, in logits; ``None``: `other` is none of the likeliest 20."""
        first = vllm.SamplingParams(temperature=0, max_tokens=1, logprobs=20)
        (done,) = llm.generate([{"prompt_token_ids": prompts[request] + output[:-1]}], first, use_tqdm=False)
        likeliest = done.outputs[0].logprobs[0]
        if other not in likeliest or output[-1] not in likeliest:
            return None
        return float(likeliest[output[-1]].logprob - likeliest[other].logprob)

    # The engine prepares itself for each number of rows when it first comes.
    for n in range(1, batch + 1):
        answer([f"Count from 1 to 20, three times, then say the word number {n}."] * n)
    print(json.dumps(vllm.__version__), file=answers, flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        print(json.dumps(answer(**asked) if "requests" in asked else gap(**asked)), file=answers, flush=True)
    drafter: Any = getattr(llm.llm_engine.model_executor.driver_worker.worker.model_runner, "drafter", None)
    if isinstance(drafter, Proposer):
        drafter.finish()


class Engine:
    """The process of a way."""

    def __init__(self, options: dict[str, Any]) -> None:
        command = [sys.executable, *sys.argv, "--worker", json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version: str = self.read()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        print(json.dumps(arguments), file=self.process.stdin, flush=True)
        return self.read()

    def end(self) -> None:
        self.process.communicate()


@dataclass
class Sums:
    """Of all batches of a task."""

    seconds: float = 0.0
    decoded: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    outputs: list[list[int]] = field(default_factory=list[list[int]])

    def add(self, answered: Any) -> None:
        self.seconds += answered["seconds"]
        self.decoded += answered["decoded"]
        self.steps += answered["steps"]
        self.drafted += answered["drafted"]
        self.accepted += answered["accepted"]
        self.outputs += answered["outputs"]

    def add_all(self, other: Sums) -> None:
        self.add(vars(other))

    def line(self, plain: Sums, n_batches: int) -> str:
        # Of all requests of the step together; the prompt's step counts too.
        n = sum(map(len, self.outputs))
        ms = self.decoded * 1e3 / max(1, n - len(self.outputs))
        accepted = f"{self.accepted / self.drafted:4.0%} of {self.drafted:5} accepted" if self.drafted else 23 * " "
        n_equal = sum(a == b for a, b in zip(self.outputs, plain.outputs))
        return (
            f"{self.seconds / n_batches:6.2f} s, ratio {plain.seconds / self.seconds:5.2f}, {ms:6.2f} ms per token, ratio "
            f"{plain.decoded / self.decoded:5.2f}, {n / self.steps:5.2f} tokens per step, {accepted}, {n_equal} of {len(plain.outputs)} equal"
        )


def differences(engine: Engine, requests: list[str], plain: Sums, other: Sums) -> Iterator[str]:
    """Where each output differs first from the plain one, and how nearly equal both tokens are there to the plain `engine`."""
    for request, expected, output in zip(requests, plain.outputs, other.outputs):
        at = next((at for at, (a, b) in enumerate(zip(expected, output)) if a != b), None)
        if at is not None:
            gap = engine.ask(request=request, output=expected[: at + 1], other=output[at])
            yield f"differs at token {at + 1} of {len(expected)}, " + (f"{gap:.3f} apart" if gap is not None else "FAR APART")
        elif expected != output:
            yield f"has {len(output)} of {len(expected)} tokens"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--per-task", type=int, default=6)
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.model, json.loads(arguments.worker), arguments.tokens, arguments.batch, arguments.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        all_ways = ways(arguments.rows, Path(folder), arguments.model)
        engines = {name: Engine(options) for name, options in all_ways.items()}
        if arguments.wait:
            input("ready: press Enter\n")
        print(
            f"vLLM {engines[PLAIN].version}, {arguments.model.name}, at most {arguments.tokens} tokens, {arguments.rows} rows, "
            f"{arguments.threads} threads"
        )
        tasks = batches(arguments)
        plain = measure(tasks, engines, engines[PLAIN], {})
        again = {f"{name}, again": engines[name] for name in (SUFFIXES, OURS) if name in engines}
        measure(tasks, again, engines[PLAIN], plain)
        for name, engine in engines.items():
            if name != PLAIN:
                engine.end()
        restarted = Engine(all_ways[OURS])
        measure(tasks, {f"{OURS}, restarted": restarted}, engines[PLAIN], plain)
        restarted.end()
        engines[PLAIN].end()


def measure(tasks: dict[str, list[list[str]]], engines: dict[str, Engine], plain_engine: Engine, plain: dict[str, Sums]) -> dict[str, Sums]:
    """Asks all engines in turns, and compares with `plain`, or with the engine of that name. Returns what that one took for each task."""
    plain = dict(plain)
    totals: dict[str, Sums] = {}
    for task, asked in tasks.items():
        sums = {name: Sums() for name in engines}
        for requests in asked:
            for name, engine in engines.items():
                sums[name].add(engine.ask(requests=requests))
        plain[task] = sums.get(PLAIN) or plain[task]
        for name, each in sums.items():
            totals.setdefault(name, Sums()).add_all(each)
            print(f"{task:12} {name:24} {each.line(plain[task], len(asked))}", flush=True)
            for difference in differences(plain_engine, [request for requests in asked for request in requests], plain[task], each):
                print(f"{'':12} {name:24} {difference}", flush=True)
    total = Sums()
    for task in tasks:
        total.add_all(plain[task])
    for name, each in totals.items():
        print(f"{'total':12} {name:24} {each.line(total, sum(map(len, tasks.values())))}", flush=True)
    return plain


if __name__ == "__main__":
    main()
