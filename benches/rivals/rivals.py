#!/usr/bin/env python3
"""Sends the same chat requests to several servers of the OpenAI API, in turns, and compares their times.

    rivals.py ROWS.jsonl... --server refrain=http://127.0.0.1:8080 --server llama=http://127.0.0.1:8081 [options]

The files have the rows of `refrain-bench replay` (docs/measure/benchmarks.md). `--rows` rows of each file are asked, evenly spaced among those whose
prompts have at most `--prompt-bytes`. Each row is a conversation of three requests, at temperature 0:

    cold    the prompt, behind a line that is new in each round, so that no server has it in its cache
    again   the same request once more
    next    the conversation with the answer and a second question

For each request all servers are asked one after the other; the first one changes with every row. A server named with `+prediction` at the end gets
the context of the row as `prediction` (Refrain's and OpenAI's field), where the row has a context; the other rows are not sent to it.

The table has, for each task, request and server: the time to the first text (from sending the request), tokens per second after it, and the
ratio to the first server, as the median over rows and rounds with the least and greatest. Tokens are those of `usage`, so an engine whose text
ends earlier is not favoured. A ratio above 1 means that the first server is faster. `*` marks cells where it loses by more than `NOISE`.

Exit code 1: a server refused a request, or the servers counted different prompts for the same request (more than 2 % apart).
"""

import argparse
import http.client
import json
import statistics
import sys
import time
import urllib.parse

NOISE = 0.03
NEXT = "Now say the same in one sentence."


class Server:
    def __init__(self, text):
        self.name, _, address = text.partition("=")
        if not address:
            sys.exit(f"--server NAME=ADDRESS is expected, not {text!r}")
        self.predicts = self.name.endswith("+prediction")
        self.host = urllib.parse.urlsplit(address).netloc

    def wait(self, seconds=60):
        """Until the server has loaded its model: all servers of this API answer `/health`."""
        until = time.monotonic() + seconds
        while True:
            try:
                connection = http.client.HTTPConnection(self.host, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > until:
                sys.exit(f"{self.name}: nothing answers at {self.host} after {seconds} s")
            time.sleep(0.5)

    def ask(self, messages, max_tokens, prediction=None):
        """Time to the first text in seconds, tokens per second after it, the text, its tokens, those of the prompt."""
        text = []
        since, times, n_tokens, n_prompt = self._read(messages, max_tokens, prediction, text)
        # The first text has one token, except where its characters need more; the end token has no text.
        rate = (n_tokens - 1) / (times[-1] - times[0]) if times and n_tokens >= 8 and times[-1] > times[0] else None
        return (times[0] - since if times else None), rate, "".join(text), n_tokens, n_prompt

    def stream(self, messages, max_tokens):
        """When the request was sent, when each piece of its text came, and the number of tokens."""
        return self._read(messages, max_tokens, None, [])[:3]

    def _read(self, messages, max_tokens, prediction, text):
        body = {
            "messages": messages,
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if prediction:
            body["prediction"] = {"type": "content", "content": prediction}
        connection = http.client.HTTPConnection(self.host, timeout=300)
        data = json.dumps(body)
        connection.connect()
        since = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"{self.name}: {response.status} {response.read().decode()}")
        usage, times = None, []
        for line in response:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", []):
                piece = choice.get("delta", {}).get("content")
                if piece:
                    times.append(time.perf_counter())
                    text.append(piece)
        connection.close()
        if not usage:
            sys.exit(f"{self.name}: no usage in the stream")
        return since, times, usage["completion_tokens"], usage["prompt_tokens"]


def rows_of(path, n_rows, prompt_bytes):
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rows = [row for row in rows if len(row["prompt"].encode()) <= prompt_bytes]
    return [rows[(2 * n + 1) * len(rows) // (2 * n_rows)] for n in range(n_rows)]


def context_of(row):
    context = row["context"]
    return context if isinstance(context, str) else "\n".join(context)


def middle(values):
    return statistics.median(values) if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--server", action="append", required=True, type=Server, dest="servers")
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--first-round", type=int, default=0, help="number of the first round: servers that were asked before need new ones")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--prompt-bytes", type=int, default=6000)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between requests: threads of the last server come to rest")
    parser.add_argument("--json", help="all single results")
    options = parser.parse_args()
    servers = options.servers

    for server in servers:
        server.wait()
        server.ask([{"role": "user", "content": "Hello."}], 8)
    # (task, request) -> server -> results in the order of rows and rounds
    results, single, differs = {}, [], 0
    n_conversations = 0
    for round_number in range(options.first_round, options.first_round + options.rounds):
        for path in options.files:
            for row in rows_of(path, options.rows, options.prompt_bytes):
                n_conversations += 1
                asked = [s for s in servers if not s.predicts or context_of(row).strip()]
                shift = n_conversations % len(asked)
                asked = asked[shift:] + asked[:shift]
                prompt = {"role": "user", "content": f"({round_number})\n{row['prompt']}"}
                conversations = {server.name: [prompt] for server in asked}
                for kind in ["cold", "again", "next"]:
                    counts = set()
                    for server in asked:
                        messages = conversations[server.name]
                        prediction = context_of(row) if server.predicts else None
                        time.sleep(options.pause)
                        result = server.ask(messages, options.max_tokens, prediction)
                        to_first, rate, text, n_tokens, n_prompt = result
                        cell = results.setdefault((row["task"], kind), {})
                        cell.setdefault(server.name, []).append((row["id"], round_number, to_first, rate, n_tokens, n_prompt))
                        single.append([row["id"], round_number, kind, server.name, to_first, rate, n_tokens, n_prompt, text])
                        if kind != "next":
                            counts.add(n_prompt)
                        if kind == "again":
                            answer = {"role": "assistant", "content": text}
                            conversations[server.name] = [prompt, answer, {"role": "user", "content": NEXT}]
                    differs += len(counts) > 1 and max(counts) > 1.02 * min(counts)
                print(f"{round_number} {row['id']}", file=sys.stderr)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(single, file)
    table(results, servers)
    if differs:
        sys.exit(f"the servers counted different prompts for {differs} requests")


def table(results, servers):
    base = servers[0].name
    print("| task | request | server | prompt | output | first text, ms | ratio | tokens/s | ratio |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    everything = {}
    for (task, kind), cell in results.items():
        own = {(row, number): (first, rate) for row, number, first, rate, _, _ in cell[base]}
        for server in servers:
            found = cell.get(server.name)
            if not found:
                continue
            firsts, rates = [], []
            for row, number, first, rate, _, _ in found:
                own_first, own_rate = own[(row, number)]
                if first and own_first:
                    firsts.append(first / own_first)
                if rate and own_rate:
                    rates.append(own_rate / rate)
            if server.name != base:
                everything.setdefault((kind, server.name), ([], []))
                everything[(kind, server.name)][0].extend(firsts)
                everything[(kind, server.name)][1].extend(rates)
            first_ms = middle([1000 * first for _, _, first, _, _, _ in found if first])
            rate = middle([rate for _, _, _, rate, _, _ in found if rate])
            n_tokens = middle([n for _, _, _, _, n, _ in found])
            n_prompt = middle([n for _, _, _, _, _, n in found])
            print(
                f"| {task} | {kind} | {server.name} | {n_prompt:.0f} | {n_tokens:.0f} | {first_ms:.0f} | {spread(firsts, server.name == base)} "
                f"| {rate:.1f} | {spread(rates, server.name == base)} |"
            )
    print("\nGeometric means over all rows and rounds:\n\n| request | server | first text | tokens/s |\n| --- | --- | ---: | ---: |")
    for (kind, name), (firsts, rates) in everything.items():
        means = [f"{statistics.geometric_mean(values):.2f}" if values else "" for values in (firsts, rates)]
        print(f"| {kind} | {name} | {means[0]} | {means[1]} |")


def spread(ratios, is_base):
    if is_base or not ratios:
        return ""
    mark = "*" if middle(ratios) < 1 - NOISE else ""
    return f"{middle(ratios):.2f}{mark} ({min(ratios):.2f}, {max(ratios):.2f})"


if __name__ == "__main__":
    main()
