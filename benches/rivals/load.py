#!/usr/bin/env python3
"""Sends chat requests of several clients at once to servers of the OpenAI API, one server after the other, and compares them.

    load.py ROWS.jsonl... --server refrain=http://127.0.0.1:8080 --server llama=http://127.0.0.1:8081 [options]
    load.py ROWS.jsonl... --mistral MODEL.gguf [options]

The files have the rows of `refrain-bench replay` (docs/measure/benchmarks.md). Each of `--clients` clients sends the next request as soon as its last
one has ended, at temperature 0, until `--requests` have been answered. The prompts are the same for all servers and behind a line that is new in
each round, so that no server has them in its cache. Rounds go through all servers; the first one changes with every round.

The table has, for each number of clients and server: answered requests per second; the median and 99th percentile of the time to the first text, of
the tokens per second of a stream after it (here the first percentile, the slow end), and of the longest pause within a stream. Percentiles are over
all requests of all rounds.

`--mistral` loads the file in this process instead (the package `mistralrs`, which has no server), and asks from as many threads; a piece of text
counts as a token there.
"""

import argparse
import json
import statistics
import sys
import threading
import time

from rivals import Server, rows_of


class Mistral:
    name = "mistral.rs, in process"

    def __init__(self, path):
        import pathlib

        from mistralrs import Runner, Which

        path = pathlib.Path(path).resolve()
        self.lock = threading.Lock()  # The runner refuses two calls at once; its streams run side by side.
        self.runner = Runner(which=Which.GGUF(tok_model_id=None, quantized_model_id=str(path.parent), quantized_filename=path.name))

    def wait(self):
        pass

    def times(self, prompt, max_tokens):
        from mistralrs import ChatCompletionRequest

        messages = [{"role": "user", "content": prompt}]
        request = ChatCompletionRequest(model="default", messages=messages, max_tokens=max_tokens, temperature=0.0, stream=True)
        since = time.perf_counter()
        with self.lock:
            pieces = self.runner.send_chat_completion_request(request)
        times = [time.perf_counter() for _ in pieces]
        return since, times, len(times)


class Remote(Server):
    def times(self, prompt, max_tokens):
        return self.stream([{"role": "user", "content": prompt}], max_tokens)


def work(server, prompts, n_clients, max_tokens):
    """Sends all prompts from so many clients: seconds in all, and of each request first text, tokens per second and longest pause."""
    left, lock, results, problems = list(reversed(prompts)), threading.Lock(), [], []

    def client():
        while True:
            with lock:
                if not left:
                    return
                prompt = left.pop()
            try:
                since, times, n_tokens = server.times(prompt, max_tokens)
            except BaseException as problem:  # Also SystemExit, which a thread would swallow.
                problems.append(problem)
                return
            if not times:
                continue
            seconds = times[-1] - times[0]
            rate = (n_tokens - 1) / seconds if n_tokens >= 8 and seconds > 0 else None
            pause = max((b - a for a, b in zip(times, times[1:])), default=None)
            with lock:
                results.append((times[0] - since, rate, pause))

    threads = [threading.Thread(target=client) for _ in range(n_clients)]
    since = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        sys.exit(f"{server.name}: {problems[0]}")
    return time.perf_counter() - since, results


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--server", action="append", default=[], type=Remote, dest="servers")
    parser.add_argument("--mistral", help="a GGUF file that mistral.rs loads in this process")
    parser.add_argument("--clients", default="1,4,8")
    parser.add_argument("--requests", type=int, default=24, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--prompt-bytes", type=int, default=3000)
    parser.add_argument("--json", help="all single results")
    options = parser.parse_args()
    servers = options.servers + ([Mistral(options.mistral)] if options.mistral else [])
    if not servers:
        parser.error("--server or --mistral is missing")
    for server in servers:
        server.wait()
        server.times("Hello.", 8)

    n_each = -(-options.requests // len(options.files))
    rows = [row for rows in zip(*(rows_of(path, n_each, options.prompt_bytes) for path in options.files)) for row in rows][: options.requests]
    cells, single = {}, []
    for n_clients in map(int, options.clients.split(",")):
        for round_number in range(options.rounds):
            shift = round_number % len(servers)
            for server in servers[shift:] + servers[:shift]:
                prompts = [f"({n_clients}/{round_number})\n{row['prompt']}" for row in rows]
                seconds, results = work(server, prompts, n_clients, options.max_tokens)
                cell = cells.setdefault((n_clients, server.name), ([], []))
                cell[0].append(len(results) / seconds)
                cell[1].extend(results)
                single.append([n_clients, round_number, server.name, seconds, results])
                print(f"{n_clients} {round_number} {server.name}: {seconds:.1f} s", file=sys.stderr)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(single, file)

    print("| clients | server | requests/s | first text, ms | p99 | tokens/s | p1 | longest pause, ms | p99 |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for (n_clients, name), (per_second, results) in cells.items():
        firsts = [1000 * first for first, _, _ in results]
        rates = [rate for _, rate, _ in results if rate]
        pauses = [1000 * pause for _, _, pause in results if pause is not None]
        shown = [
            f"{statistics.mean(per_second):.2f}",
            f"{statistics.median(firsts):.0f}",
            f"{percentile(firsts, 0.99):.0f}",
            f"{statistics.median(rates):.1f}" if rates else "",
            f"{percentile(rates, 0.01):.1f}" if rates else "",
            f"{statistics.median(pauses):.0f}" if pauses else "",
            f"{percentile(pauses, 0.99):.0f}" if pauses else "",
        ]
        print(f"| {n_clients} | {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
