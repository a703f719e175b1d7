"""The plug-in for vLLM beside vLLM's own n-gram (and suffix) speculation and no drafts at all: time ratios, and whether outputs are equal.

    python bindings/python/benches/vllm_plugin.py MODEL_FOLDER [--tokens 120] [--runs 3] [--rows 8] [--batch 4] [--threads 2]

Each way is a process of its own, which is warmed up and then answers the requests one at a time and, as "all", `--batch` copies of each request
with other names at once. A ratio is the median time of plain decoding over that of the way. "text" drafts from a request's own text, as n-grams do;
the next way has a history too, in which later runs find answers about other names; "again" opens the store that it has left. Suffix decoding is measured if arctic-inference is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from plugins import TASKS, chat

from refrain.vllm import Proposer

NAMES = ("Nadia", "Milan", "Odile", "Pavel", "Runa", "Selma", "Tariq", "Ulla")


def ways(rows: int, folder: Path, model: Path) -> dict[str, dict[str, Any]]:
    ours: dict[str, Any] = {
        "speculative_config": {"method": "custom_class", "model": "refrain.vllm.Proposer", "num_speculative_tokens": rows},
        "additional_config": {"refrain": {"store": str(folder), "tokenizer": str(model / "tokenizer.json")}},
    }
    found: dict[str, dict[str, Any]] = {
        "plain": {},
        "its n-grams": {
            "speculative_config": {"method": "ngram", "num_speculative_tokens": rows, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
        },
    }
    if importlib.util.find_spec("arctic_inference") is not None:
        found["its suffixes"] = {"speculative_config": {"method": "suffix", "num_speculative_tokens": rows}}
    alone = {"speculative_config": {**ours["speculative_config"], "model": "vllm_plugin.TextOnly"}}
    return {**found, "Refrain, text": alone, "Refrain": ours, "Refrain again": ours}


class TextOnly(Proposer):
    """Drafts from the request's own text, as n-grams do."""

    def namespace_of(self, prompt: npt.NDArray[np.int32]) -> str | None:
        return None


def worker(model: Path, options: dict[str, Any], n_tokens: int, runs: int, batch: int, threads: int) -> None:
    """Answers every request, and writes the times and outputs as JSON."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    vllm: Any = importlib.import_module("vllm")
    llm: Any = vllm.LLM(
        str(model),
        max_model_len=1024,
        max_num_seqs=batch,
        enable_prefix_caching=False,
        enforce_eager=True,
        # Where both are nearly equally likely, f32 chooses the same token more often.
        dtype="float32",
        disable_log_stats=True,
        **options,
    )
    sampling: Any = vllm.SamplingParams(temperature=0, max_tokens=n_tokens)

    def answer(requests: list[str]) -> tuple[float, list[list[int]]]:
        started = time.perf_counter()
        done = llm.generate([chat(request) for request in requests], sampling, use_tqdm=False)
        return time.perf_counter() - started, [list(output.outputs[0].token_ids) for output in done]

    n_steps = 0
    step = llm.llm_engine.step

    def counted() -> Any:
        nonlocal n_steps
        n_steps += 1
        return step()

    llm.llm_engine.step = counted
    answer(["Hello."] * batch)
    found: dict[str, Any] = {}
    for task, request in TASKS.items():
        copies = [request.replace("Nadia", NAMES[i % len(NAMES)]) for i in range(batch)]
        for name, requests in ((task, [request]), (f"{task}, all", copies)):
            for run in range(runs):
                # A history of this very answer is another way: each run has other names.
                told = [each.replace("Tomas", NAMES[(run + 3) % len(NAMES)]) for each in requests]
                before = n_steps
                took, outputs = answer(told)
                entry = found.setdefault(name, {"times": [], "outputs": [], "steps": 0})
                entry["steps"] += n_steps - before
                entry["times"].append(took)
                entry["outputs"].append(outputs)
    drafter: Any = getattr(llm.llm_engine.model_executor.driver_worker.worker.model_runner, "drafter", None)
    if hasattr(drafter, "finish"):
        drafter.finish()
    print("\n" + json.dumps({"version": vllm.__version__, "found": found}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        options: dict[str, Any] = json.loads(arguments.worker)
        worker(arguments.model, options, arguments.tokens, arguments.runs, arguments.batch, arguments.threads)
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in ways(arguments.rows, Path(folder), arguments.model).items():
            command = [sys.executable, *sys.argv, "--worker", json.dumps(options)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results[name] = json.loads(done.stdout.strip().splitlines()[-1])
    plain = results["plain"]
    print(
        f"vLLM {plain['version']}, {arguments.model.name}, at most {arguments.tokens} tokens, {arguments.rows} rows, "
        f"{arguments.batch} at once, {arguments.threads} threads, {arguments.runs} runs"
    )
    for task, of_plain in plain["found"].items():
        base = statistics.median(of_plain["times"])
        for name, result in results.items():
            entry = result["found"][task]
            took = statistics.median(entry["times"])
            n = sum(len(output) for outputs in entry["outputs"] for output in outputs)
            # Of all requests of the step together; the prompt's step counts too.
            per_step = n / entry["steps"]
            equal = "equal" if entry["outputs"] == of_plain["outputs"] else "DIFFERENT"
            print(f"{task:12} {name:14} {took:6.2f} s, ratio {base / took:5.2f}, {per_step:5.2f} tokens per step, {equal}")


if __name__ == "__main__":
    main()
