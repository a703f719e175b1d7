"""The plug-ins beside the engines' own prompt lookup and no drafts at all: time ratios, and whether the outputs are equal.

    python bindings/python/benches/plugins.py llama-cpp MODEL.gguf [--tokens 120] [--runs 3] [--rows 10] [--threads 2]
    python bindings/python/benches/plugins.py transformers MODEL.gguf

`transformers` computes the file's weights in f32. The ways take turns; a ratio is the median time of plain decoding over that of the way.
Each request is the prompt's pass and its output. The drafter knows the times of the engine's passes by their rows, measured at the beginning; without them ("free rows") it proposes as many
tokens as it has, as prompt lookup does. "again" is the second time that a drafter sees a request: its store has the first output. "logits": the
drafter learns from the engine's logits too. Transformers needs the packages gguf and accelerate for such a file.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from refrain.draft import Drafter

NOTE = """# Trip to Bergholm
Nadia, Tomas and Aniarda come along. The train leaves at 08:15 from platform 4 and arrives at 11:40.
The hotel is the Blue Heron, Harbour Street 12; breakfast is from 7 to 10.
On Saturday we hike to the lighthouse (9 km), on Sunday we visit the glass museum. Bring rain coats and good shoes.
"""
TASKS = {
    "correct": f"Repeat this note, with Saturday changed to Friday.\n\n{NOTE}",
    "list": f"Write the note's facts as a list.\n\n{NOTE}",
    "answer": f"Answer in one sentence from the note: who comes along, and when does the train leave?\n\n{NOTE}",
    "free": "Write a short story about a lighthouse keeper.",
}

# Generates greedily: request, maximum of tokens → output.
Way = Callable[[str, int], list[int]]


def chat(request: str) -> str:
    return f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n"


def median_us(measured: Callable[[], None]) -> float:
    times: list[float] = []
    for _ in range(7):
        started = time.perf_counter()
        measured()
        times.append((time.perf_counter() - started) * 1e6)
    return statistics.median(times)


def llama_cpp_ways(path: Path, rows: int, threads: int) -> tuple[Callable[[], dict[str, Way]], str]:
    from refrain.llama_cpp import DraftModel

    llama_cpp: Any = import_module("llama_cpp")
    speculative: Any = import_module("llama_cpp.llama_speculative")
    llama: Any = llama_cpp.Llama(str(path), n_ctx=1024, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False)

    context = llama.tokenize(TASKS["correct"].encode())
    llama.eval(context)

    def verify(n_rows: int) -> None:
        llama.eval(context[:n_rows])
        llama.n_tokens = len(context)

    row_us = {n_rows: median_us(lambda n_rows=n_rows: verify(n_rows)) for n_rows in (1, 2, 3, 4, 6, 8, rows + 1)}  # type: ignore[misc]

    def way(draft_model: Any) -> Way:
        def generate(request: str, n: int) -> list[int]:
            llama.reset()
            llama.draft_model = draft_model
            output: list[int] = []
            for token in llama.generate(llama.tokenize(chat(request).encode(), special=True), temp=0.0, repeat_penalty=1.0):
                output.append(token)
                if len(output) == n or token == llama.token_eos():
                    break
            return output

        return generate

    def ways() -> dict[str, Way]:
        def ours(row_us: Any = row_us, logits_of: Any = None) -> Way:
            drafter = Drafter(llama.n_vocab(), tree=False, row_us=row_us)
            return way(DraftModel(drafter, max_rows=rows, logits_of=logits_of))

        drafted = ours()
        lookup = way(speculative.LlamaPromptLookupDecoding(num_pred_tokens=rows))
        others = {"Refrain, logits": ours(logits_of=llama), "Refrain, free rows": ours(None)}
        return {"plain": way(None), "its prompt lookup": lookup, "Refrain": drafted, "Refrain again": drafted, **others}

    return ways, f"llama-cpp-python {llama_cpp.__version__}, {costs(row_us)}"


def costs(row_us: dict[int, float]) -> str:
    return "passes of " + ", ".join(f"{n_rows}: {us / 1e3:.1f}" for n_rows, us in row_us.items()) + " ms"


def transformers_ways(path: Path, rows: int, threads: int) -> tuple[Callable[[], dict[str, Way]], str]:
    from refrain.transformers import Assistant

    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    torch.set_num_threads(threads)
    folder = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(**folder, dtype=torch.float32).eval()

    def verify(past: Any, n_rows: int) -> None:
        model(torch.full((1, n_rows), 5), past_key_values=past, use_cache=True)
        past.crop(-n_rows)

    with torch.no_grad():
        context = tokenizer(TASKS["correct"], return_tensors="pt")["input_ids"]
        past = model(context, use_cache=True).past_key_values
        row_us = {n_rows: median_us(lambda n_rows=n_rows: verify(past, n_rows)) for n_rows in (1, 2, 3, 4, 6, 8, rows + 1)}  # type: ignore[misc]

    def way(**options: Any) -> Way:
        def generate(request: str, n: int) -> list[int]:
            inputs = tokenizer(chat(request), return_tensors="pt", add_special_tokens=False)
            output = model.generate(**inputs, max_new_tokens=n, do_sample=False, **options)
            tokens: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
            return tokens

        return generate

    def ways() -> dict[str, Way]:
        def ours(row_us: Any = row_us, logits: bool = False) -> Way:
            drafter = Drafter(model.config.vocab_size, tree=False, row_us=row_us)
            return way(custom_generate=Assistant(drafter, max_rows=rows, logits=logits))

        drafted = ours()
        lookup = way(prompt_lookup_num_tokens=rows)
        others = {"Refrain, logits": ours(logits=True), "Refrain, free rows": ours(None)}
        return {"plain": way(), "its prompt lookup": lookup, "Refrain": drafted, "Refrain again": drafted, **others}

    return ways, f"transformers {transformers.__version__}, torch {torch.__version__}, {costs(row_us)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=["llama-cpp", "transformers"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    prepare = llama_cpp_ways if arguments.engine == "llama-cpp" else transformers_ways
    ways, version = prepare(arguments.model, arguments.rows, arguments.threads)
    ways()["plain"]("Hello.", 4)  # the first pass allocates
    print(f"{version}, {arguments.model.name}, at most {arguments.tokens} tokens, {arguments.rows} rows, {arguments.threads} threads, {arguments.runs} runs")
    for task, request in TASKS.items():
        times: dict[str, list[float]] = {}
        outputs: dict[str, list[int]] = {}
        for _ in range(arguments.runs):
            # New drafters: a run sees nothing of the one before it.
            for name, generate in ways().items():
                started = time.perf_counter()
                outputs[name] = generate(request, arguments.tokens)
                times.setdefault(name, []).append(time.perf_counter() - started)
        plain = statistics.median(times["plain"])
        for name, values in times.items():
            n, equal = len(outputs[name]), "equal" if outputs[name] == outputs["plain"] else "DIFFERENT"
            took = statistics.median(values)
            print(f"{task:8} {name:18} {took:6.2f} s for {n:3} tokens, ratio {plain / took:5.2f}, {equal}", flush=True)


if __name__ == "__main__":
    main()
