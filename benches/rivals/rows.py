#!/usr/bin/env python3
"""What rows cost in four engines, on the same GGUF files, in turns: one row, each number of rows to 8, 16 and 32 behind 512 tokens, and prompts.

    rows.py --peer target/release/peer FILE.gguf... [--ik BUILD/bin] [--mistral] [--isa avx2] [--threads 2] [--rounds 3] [--kv f16] [--long] [--json OUT]

`peer` is the bench in `benches/peer`: Refrain and llama.cpp in one process (built with `--no-default-features`, Refrain alone). BUILD is a build of
ik_llama.cpp for the same instruction set, with the program `llama-sweep-bench`:

    cmake -B BUILD -DGGML_NATIVE=ON && cmake --build BUILD --target llama-sweep-bench

`--mistral` loads the file with the package `mistralrs`, which takes no batches of a caller: one row and a prompt only, and only if the file's tokenizer
is one that it knows (`peer make … --tokenizer-of`).

Each round runs the engines one after the other, each in a process of its own; ik_llama.cpp with weights repacked at load (`-rtr`) and without, llama.cpp
with its faster attention. All compute the logits of the last row alone. A cell of ik_llama.cpp is the median of the passes behind 448 to 504 tokens; of
its two settings the faster counts. Times are medians over the rounds, in milliseconds. The price of rows is their time over that of one row in the same
engine. A ratio above 1 means that Refrain is faster than the best of the others.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROWS = [2, 3, 4, 5, 6, 7, 8, 16, 32]
PRICED = ROWS[:7]
CONTEXTS = range(448, 512)
PREFILL, LONG_PREFILL = 512, 4096
OWN = "refrain"


def run(command, may_end=None):
    # In a folder that is thrown away: llama.cpp's programs write logs.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=folder)
    if done.returncode != 0 and (may_end is None or may_end not in done.stdout + done.stderr):
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def peer(args, file):
    """Refrain, and llama.cpp unless `peer` was built without it."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "peer.json"
        isa = ["--isa", args.isa] if args.isa else []
        run([args.peer, "run", file, "--threads", args.threads, "--kv", args.kv, *isa, "--only",
             "verify,prefill,long-prefill" if args.long else "verify,prefill", "--alternations", 1, "--no-memory", "--json", out])
        cells = json.loads(out.read_text())["files"][0]["cells"]
    engines = {}
    for cell in cells:
        (kind, of), = cell["cell"].items()
        name = f"pp{of['len']}" if kind == "Prefill" else of["rows"]
        if kind == "Verify" and of["all_logits"]:
            continue
        for engine in cell["times"]:
            times = engines.setdefault(OWN if engine["engine"] == OWN else "llama.cpp", {})
            times[name] = min(times.get(name, float("inf")), statistics.median(engine["turns_ms"]))
    return engines


def sweep(args, file, repack, rows, n_slots):
    # Its steps begin with the tokens generated one by one, `-n` of them. A last batch that is longer than the rest of the context ends it.
    lines = run([args.ik / "llama-sweep-bench", "-m", file, "-t", args.threads, "-c", n_slots, "-b", rows, "-ub", rows, "-n", min(rows, 4), "-ctk", args.kv,
                 "-ctv", args.kv, "--output-format", "jsonl", *(["-rtr"] if repack else [])], may_end="failed to decode the batch").splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"n_kv_max"')]


def ik(args, file, repack):
    times = {}
    for rows in ROWS:
        steps = [step for step in sweep(args, file, repack, rows, CONTEXTS.stop) if step["n_kv"] in CONTEXTS]
        times[rows] = statistics.median(step["t_pp"] for step in steps) * 1e3
        if rows == 8:
            times[1] = statistics.median(step["t_tg"] / step["tg"] for step in steps) * 1e3
    steps = [step["t_pp"] * 1e3 for step in sweep(args, file, repack, PREFILL, LONG_PREFILL if args.long else PREFILL)]
    times[f"pp{PREFILL}"] = steps[0]
    if args.long:
        times[f"pp{LONG_PREFILL}"] = sum(steps)
    return times


# Run by Python in a process of its own, with its own clock. A prompt of one-token words has about as many tokens.
MISTRAL = """
import json, sys, time
from mistralrs import CompletionRequest, Runner, Which

folder, name, n_prompt = sys.argv[1], sys.argv[2], int(sys.argv[3])
runner = Runner(Which.GGUF(tok_model_id=None, quantized_model_id=folder, quantized_filename=name), prefix_cache_n=0)

def milliseconds(first, max_tokens):
    request = CompletionRequest(model="default", prompt=first + " the" * (n_prompt - 2), max_tokens=max_tokens, temperature=0)
    since = time.perf_counter()
    usage = runner.send_completion_request(request).usage
    return (time.perf_counter() - since) * 1e3, usage

milliseconds("0", 2)
prompt, usage = milliseconds("1", 1)
both, long = milliseconds("2", 33)
n = long.completion_tokens - 1
assert n >= 8, f"{n + 1} tokens only"
print(json.dumps({"row": (both - prompt) / n, "prompt": prompt * n_prompt / usage.prompt_tokens}))
"""


def mistral(args, file):
    environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads)}
    done = subprocess.run([sys.executable, "-c", MISTRAL, file.resolve().parent, file.name, str(PREFILL)], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"mistral.rs: {done.stderr[-2000:]}")
    times = json.loads(done.stdout.splitlines()[-1])
    return {1: times["row"], f"pp{PREFILL}": times["prompt"]}


def one_round(args, file):
    engines = peer(args, file)
    if args.ik:
        repacked, plain = ik(args, file, True), ik(args, file, False)
        engines["ik_llama.cpp"] = {cell: min(repacked[cell], plain[cell]) for cell in plain}
    if args.mistral:
        engines["mistral.rs"] = mistral(args, file)
    return engines


def milliseconds(time):
    return f"{time:.0f}" if time >= 1000 else f"{time:.4g}"


def table(columns, rows):
    print("\n| model | engine | " + " | ".join(columns) + " |\n" + "| --- " * (len(columns) + 2) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    resolved = lambda path: pathlib.Path(path).resolve()
    parser.add_argument("files", nargs="+", type=resolved)
    parser.add_argument("--peer", required=True, type=resolved)
    parser.add_argument("--ik", type=resolved)
    parser.add_argument("--mistral", action="store_true")
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--json", type=pathlib.Path, help="every round's times")
    args = parser.parse_args()
    cells = [1, *ROWS, f"pp{PREFILL}", *([f"pp{LONG_PREFILL}"] if args.long else [])]
    times, prices, raw = [], [], []
    for file in args.files:
        rounds = [one_round(args, file) for _ in range(args.rounds)]
        raw.append({"file": file.name, "rounds": rounds})
        medians = {
            engine: {cell: statistics.median(of[engine][cell] for of in rounds) for cell in cells if cell in rounds[0][engine]} for engine in rounds[0]
        }
        for engine, of in medians.items():
            times.append([file.stem, engine, *(milliseconds(of[cell]) if cell in of else "" for cell in cells)])
            if PRICED[0] in of:
                prices.append([file.stem, engine, *(f"{of[rows] / of[1]:.2f}" for rows in PRICED)])
        if len(medians) > 1:
            best = {cell: min(of[cell] for engine, of in medians.items() if engine != OWN and cell in of) for cell in cells}
            times.append([file.stem, "ratio", *(f"{best[cell] / medians[OWN][cell]:.2f}" for cell in cells)])
        print(f"{file.stem}: {len(rounds)} rounds", file=sys.stderr, flush=True)
    table(["1 row @ d512" if cell == 1 else str(cell) for cell in cells], times)
    table([str(rows) for rows in PRICED], prices)
    if args.json:
        args.json.write_text(json.dumps(raw, indent=1))


if __name__ == "__main__":
    main()
