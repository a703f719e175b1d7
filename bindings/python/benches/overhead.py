"""The overhead per token of the Python face: the same generations, iterated in Python and run within Rust.

    python bindings/python/benches/overhead.py [MODEL] [--tokens 400] [--runs 40] [--threads 1]

`run()` takes every token in Rust and enters Python once; its time per token is the baseline. The four ways take turns in an order that changes, so
that heat and other processes meet all of them. Numbers are medians over the runs; those over `run()` are of the differences within a run. In parentheses
the quartiles of the differences, and behind them the interval that contains their true median with a probability of 95 %. With one thread, other
processes disturb least.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import refrain

FIXTURE = Path(__file__).resolve().parents[3] / "fixtures" / "target.gguf"


def rust(generation: refrain.Generation) -> None:
    generation.run()


def iterate(generation: refrain.Generation) -> None:
    for _ in generation:
        pass


def read(generation: refrain.Generation) -> None:
    for event in generation:
        _ = event.text, event.segments
        if isinstance(event, refrain.Token):
            _ = event.id, event.origin


def iterate_async(generation: refrain.Generation) -> None:
    async def take() -> None:
        async for _ in generation:
            pass

    asyncio.run(take())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", type=Path, default=FIXTURE)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    n_tokens: int = arguments.tokens
    engine = refrain.Engine(arguments.model, threads=arguments.threads)
    prompt = engine.session(history=False, drafting="off")
    prompt.append_text("Everything about the trip to Bergholm.")
    prompt.prefill()

    def time_of(take: Callable[[refrain.Generation], None]) -> float:
        generation = prompt.fork().generate(max_tokens=n_tokens, ignore_eos=True)
        started = time.perf_counter()
        take(generation)
        return (time.perf_counter() - started) * 1e6 / n_tokens

    ways = {"run()": rust, "for": iterate, "for, every field read": read, "async for": iterate_async}
    times: dict[str, list[float]] = {name: [] for name in ways}
    rng = random.Random(1)
    for _ in range(arguments.runs):
        for name in rng.sample(list(ways), len(ways)):
            times[name].append(time_of(ways[name]))
    print(f"{engine!r}, {n_tokens} tokens, {arguments.runs} runs")
    for name, values in times.items():
        over = sorted(a - b for a, b in zip(values, times["run()"]))
        low, middle, high = statistics.quantiles(over, n=4)
        # How many of the differences are below their true median has a binomial distribution.
        rank = max(0, math.floor(len(over) / 2 - 0.98 * math.sqrt(len(over))))
        least, most = over[rank], over[len(over) - 1 - rank]
        print(
            f"{name:24} {statistics.median(values):8.2f} µs per token, {middle:+6.2f} over run() ({low:+.2f} to {high:+.2f}), "
            f"median within {least:+.2f} to {most:+.2f}"
        )


if __name__ == "__main__":
    main()
