"""Microseconds of a proposal: one sequence, and 64 at once, with a million tokens of history.

    python bindings/python/benches/drafter.py [--history 1000000] [--sequences 64] [--rows 8] [--steps 200]

Outputs of the history are phrases of 20 tokens, drawn again and again; each sequence goes on with such phrases, one token a step, so that most
proposals come true. Each number is the median over the steps.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time

from refrain.draft import Drafter

VOCABULARY = 50_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    rng = random.Random(4)
    phrases = [[min(int(rng.paretovariate(0.6)), VOCABULARY - 1) for _ in range(20)] for _ in range(5000)]

    def text(n_phrases: int) -> list[int]:
        return [token for _ in range(n_phrases) for token in rng.choice(phrases)]

    drafter = Drafter(VOCABULARY)
    for _ in range(arguments.history // 2000):
        past = drafter.sequence([0])
        past.observe(text(100))
        past.finish()
    texts = [text(arguments.steps // 20 + 20) for _ in range(arguments.sequences)]
    sequences = [drafter.sequence(tokens[:207]) for tokens in texts]
    times: dict[str, list[float]] = {"propose": [], "observe": [], f"propose, {arguments.sequences} at once": []}
    n_proposed = n_accepted = 0
    n_steps = arguments.steps - 7
    for step in range(n_steps):
        # Steps take turns: all sequences at once, each for itself.
        if step % 2 == 0:
            started = time.perf_counter()
            proposals = drafter.propose(sequences, arguments.rows)
            times[f"propose, {arguments.sequences} at once"].append(time.perf_counter() - started)
            n_proposed += sum(map(len, proposals))
        for sequence, tokens in zip(sequences, texts):
            if step % 2 == 1:
                started = time.perf_counter()
                proposal = sequence.propose(arguments.rows)
                times["propose"].append(time.perf_counter() - started)
                n_proposed += len(proposal)
            started = time.perf_counter()
            n_accepted += sequence.observe([tokens[207 + step]])
            times["observe"].append(time.perf_counter() - started)
    n_proposals = n_steps * len(sequences)
    print(f"{arguments.history} tokens of history, {arguments.rows} rows, {os.cpu_count()} processors")
    print(f"{n_proposed / n_proposals:.1f} tokens a proposal; {n_accepted / n_proposals:.0%} of the committed tokens were proposed")
    for name, values in times.items():
        ordered = sorted(values)
        print(f"{name:24} {statistics.median(values) * 1e6:8.1f} µs, 99 % below {ordered[int(len(ordered) * 0.99)] * 1e6:8.1f} µs")


if __name__ == "__main__":
    main()
