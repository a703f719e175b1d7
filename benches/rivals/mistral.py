#!/usr/bin/env python3
"""Times of mistral.rs in its own process: milliseconds to the first text, and tokens per second after it.

Usage: pip install mistralrs && benches/rivals/mistral.py MODEL.gguf [--tokens 98 --tokens 264 --tokens 392] [--max-tokens 64]

Each prompt is sent twice, `cold` and `again`. Prompts are plain text of about the given number of tokens, so that the lengths are those of the
recorded tasks in `rivals.py`.
"""

import argparse
import pathlib
import time

from mistralrs import ChatCompletionRequest, Runner, Which

SENTENCE = "The train leaves at noon and the boats in the harbour wait for the wind. "
BYTES_PER_TOKEN = 4.2


def ask(runner, text, max_tokens):
    since, first, n_pieces = time.perf_counter(), None, 0
    message = {"role": "user", "content": text}
    request = ChatCompletionRequest(model="default", messages=[message], max_tokens=max_tokens, temperature=0.0, stream=True)
    for _ in runner.send_chat_completion_request(request):
        first = first or time.perf_counter()
        n_pieces += 1
    return (first - since) * 1e3, (n_pieces - 1) / (time.perf_counter() - first)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    folder = str(options.model.parent.resolve())
    runner = Runner(which=Which.GGUF(tok_model_id=None, quantized_model_id=folder, quantized_filename=options.model.name))
    ask(runner, "Hello", 4)
    print("| prompt | request | first text, ms | tokens/s |\n| ---: | --- | ---: | ---: |")
    for n_tokens in options.tokens or [98, 264, 392]:
        text = f"{n_tokens}: " + (SENTENCE * n_tokens)[: int(n_tokens * BYTES_PER_TOKEN)]
        for kind in ("cold", "again"):
            first, rate = ask(runner, text, options.max_tokens)
            print(f"| {n_tokens} | {kind} | {first:.0f} | {rate:.1f} |", flush=True)


if __name__ == "__main__":
    main()
