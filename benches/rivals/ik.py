#!/usr/bin/env python3
"""Refrain beside ik_llama.cpp on the same GGUF files, in turns: milliseconds for few rows behind 512 tokens, and for prompts.

    ik.py --peer target/release/peer --ik BUILD/bin FILE.gguf... [--isa avx2] [--threads 2] [--rounds 3] [--kv f16] [--long]

`peer` is the bench in `benches/peer` (`--no-default-features` is enough); BUILD is a build of ik_llama.cpp for the same instruction set, with the
program `llama-sweep-bench`:

    cmake -B BUILD -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON && cmake --build BUILD --target llama-sweep-bench

Each round runs Refrain, then ik_llama.cpp with weights repacked at load (`-rtr`) and without, each in its own process. Both compute the logits of the
last row alone, and ik_llama.cpp takes prompts 512 tokens at a time; `--long` adds one of 4,096 tokens. A cell of ik_llama.cpp is the median of the
passes behind 448 to 504 tokens; the table has the faster of its two settings. Times are medians over the rounds; a ratio above 1 means that Refrain
is faster.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROWS = [8, 16, 32]
CONTEXTS = range(448, 512)
PREFILL, LONG_PREFILL = 512, 4096


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def refrain(args, file):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "peer.json"
        isa = ["--isa", args.isa] if args.isa else []
        run([args.peer, "run", file, "--threads", args.threads, "--kv", args.kv, *isa, "--only",
             "verify,prefill,long-prefill" if args.long else "verify,prefill", "--alternations", 1, "--no-memory", "--json", out])
        cells = json.loads(out.read_text())["files"][0]["cells"]
    times = {}
    for cell in cells:
        (kind, of), = cell["cell"].items()
        turns = next(engine["turns_ms"] for engine in cell["times"] if engine["engine"] == "refrain")
        if kind == "Prefill":
            times[f"prefill {of['len']}"] = statistics.median(turns)
        elif not of["all_logits"]:
            times[of["rows"]] = statistics.median(turns)
    return times


def sweep(args, file, repack, rows, n_slots):
    # Its steps begin with the tokens generated one by one, `-n` of them.
    lines = run([args.ik / "llama-sweep-bench", "-m", file, "-t", args.threads, "-c", n_slots, "-b", rows, "-ub", rows, "-n", 4,
                 "-ctk", args.kv, "-ctv", args.kv, "--output-format", "jsonl", *(["-rtr"] if repack else [])]).splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"n_kv_max"')]


def ik(args, file, repack):
    times = {}
    for rows in ROWS:
        steps = [step for step in sweep(args, file, repack, rows, CONTEXTS.stop) if step["n_kv"] in CONTEXTS]
        times[rows] = statistics.median(step["t_pp"] for step in steps) * 1e3
        if rows == ROWS[0]:
            times[1] = statistics.median(step["t_tg"] / step["tg"] for step in steps) * 1e3
    steps = [step["t_pp"] * 1e3 for step in sweep(args, file, repack, PREFILL, LONG_PREFILL if args.long else PREFILL)]
    times[f"prefill {PREFILL}"] = steps[0]
    if args.long:
        times[f"prefill {LONG_PREFILL}"] = sum(steps)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--peer", required=True, type=pathlib.Path)
    parser.add_argument("--ik", required=True, type=pathlib.Path)
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--long", action="store_true")
    args = parser.parse_args()
    cells = [1, *ROWS, f"prefill {PREFILL}", *([f"prefill {LONG_PREFILL}"] if args.long else [])]
    print("| file | | 1 row | " + " | ".join(map(str, cells[1:])) + " |")
    print("| --- " * (len(cells) + 2) + "|")
    for file in args.files:
        rounds = [(refrain(args, file), ik(args, file, True), ik(args, file, False)) for _ in range(args.rounds)]
        own, repacked, plain = ({cell: statistics.median(of[i][cell] for of in rounds) for cell in cells} for i in range(3))
        rival = {cell: min(repacked[cell], plain[cell]) for cell in cells}
        for name, times in (("refrain", own), ("ik_llama.cpp", rival)):
            print(f"| {file.stem} | {name} | " + " | ".join(f"{times[cell]:.1f}" for cell in cells) + " |")
        print("| | **ratio** | " + " | ".join(f"{rival[cell] / own[cell]:.2f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
