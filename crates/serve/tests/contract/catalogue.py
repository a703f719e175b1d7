"""Checks the cases of crates/serve/tests/contract/catalogue.md against a running server, and that the page says what was found.

Usage: catalogue.py ADDRESS [--write]

The page goes through the tests of llama.cpp's server and of vLLM's OpenAI entrypoint. Each row has a verdict: `passes`, `refused` and `ignored` are
checked here, in our own words, by the function beside the row; a case without a meaning for this server has a reason. `--write` writes the
page. LLAMA_CPP=FOLDER (tools/server/tests/unit) and VLLM=FOLDER (tests/entrypoints/openai) also compare the rows with the tests in these
folders.
"""

import base64
import concurrent.futures
import json
import math
import os
import pathlib
import re
import struct
import sys
import time
import urllib.error
import urllib.request

ADDRESS = sys.argv[1].rstrip("/")
PAGE = pathlib.Path(__file__).resolve().with_name("catalogue.md")
# `contract` greets, and calls tools (crates/serve/tests/support/bigram.rs); `target` is the trained fixture, `draft` the embedder.
CALLER, WRITER, EMBEDDER = "contract", "target", "draft"
GREETING = "Hello🌍"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now"}}
FLAT = {"type": "function", "name": "weather", "parameters": CITY}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def request(method, path, body=None, headers=None):
    """Status, headers and text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **(headers or {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(ADDRESS + path, data, headers, method=method), timeout=120) as reply:
            return reply.status, reply.headers, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def ok(path, **body):
    status, _, text = request("POST", path, body)
    assert status == 200, (status, text[:300])
    return json.loads(text)


def user(text="Hello."):
    return [{"role": "user", "content": text}]


def chat(text="Hello.", **fields):
    return ok("/v1/chat/completions", **{"model": CALLER, "messages": user(text), "max_tokens": 200, **fields})


def content(answer):
    return answer["choices"][0]["message"]["content"]


def complete(prompt="Answer]", **fields):
    return ok("/v1/completions", **{"model": CALLER, "prompt": prompt, "max_tokens": 64, **fields})


def respond(given="Hello.", /, **fields):
    return ok("/v1/responses", **{"model": CALLER, "input": given, "max_output_tokens": 200, **fields})


def stream(path, **body):
    """The JSON of the events; the last event is [DONE]."""
    status, headers, text = request("POST", path, {**body, "stream": True})
    assert status == 200 and headers["content-type"] == "text/event-stream", text[:300]
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    return [json.loads(event) for event in events[:-1]]


def chat_stream(text="Hello.", **fields):
    return stream("/v1/chat/completions", **{"model": CALLER, "messages": user(text), "max_tokens": 200, **fields})


def respond_stream(given="Hello.", /, **fields):
    return stream("/v1/responses", **{"model": CALLER, "input": given, "max_output_tokens": 200, **fields})


def joined(chunks, field="content"):
    return "".join(chunk["choices"][0]["delta"].get(field) or "" for chunk in chunks if chunk["choices"])


def refusal(path, param, status=400, **body):
    """A check that these fields are refused, with the name of the field."""

    def check():
        given, _, text = request("POST", path, body)
        error = json.loads(text)["error"]
        assert (given, error["param"]) == (status, param), (given, text)
        assert error["message"] and error["type"], text

    return check


def chat_refusal(param, **fields):
    return refusal("/v1/chat/completions", param, **{"model": CALLER, "messages": user(), "max_tokens": 8, **fields})


def plain_refusal(param, **fields):
    return refusal("/v1/completions", param, **{"model": CALLER, "prompt": "Hello.", "max_tokens": 8, **fields})


def response_refusal(param, **fields):
    return refusal("/v1/responses", param, **{"model": CALLER, "input": "Hello.", "max_output_tokens": 8, **fields})


def ignores(path, name, **body):
    """A check that a field has no effect, and is named."""

    def check():
        status, headers, text = request("POST", path, body)
        assert status == 200, (status, text)
        assert name in headers["x-refrain-ignored"].split(", "), headers["x-refrain-ignored"]

    return check


def chat_ignores(name, **fields):
    return ignores("/v1/chat/completions", name, **{"model": CALLER, "messages": user(), "max_tokens": 8, **fields})


def plain_ignores(name, **fields):
    return ignores("/v1/completions", name, **{"model": CALLER, "prompt": "Hello.", "max_tokens": 8, **fields})


def response_ignores(name, **fields):
    return ignores("/v1/responses", name, **{"model": CALLER, "input": "Hello.", "max_output_tokens": 8, **fields})


def embedding_refusal(param, **fields):
    return refusal("/v1/embeddings", param, **{"model": EMBEDDER, "input": "Hello.", **fields})


def absent(method, path, status=404):
    def check():
        given, _, text = request(method, path, {} if method == "POST" else None)
        assert given == status, (given, text)

    return check


def every(*checks):
    return lambda: [check() for check in checks]


# --- the checks ---


def health():
    assert request("GET", "/health")[0] == 200


def scored_echo():
    given = complete("Answer]", echo=True, logprobs=1, max_tokens=1)["choices"][0]
    logprobs = given["logprobs"]
    assert "".join(logprobs["tokens"]) == given["text"] and given["text"].startswith("Answer]"), given
    assert all(value is None or value <= 0 for value in logprobs["token_logprobs"]), given


def props():
    status, _, text = request("GET", "/props")
    given = json.loads(text)
    assert status == 200 and given["default_generation_settings"]["n_ctx"] > 0 and given["total_slots"] == 4, text
    assert given["model_alias"] == CALLER, text


def slots():
    for _ in range(100):
        given = json.loads(request("GET", "/slots")[2])
        if not any(slot["is_processing"] for slot in given):
            break
        time.sleep(0.02)
    assert [slot["id"] for slot in given] == [0, 1, 2, 3] and not any(slot["is_processing"] for slot in given), given


def ranking():
    documents = ["A machine is a physical system", "Learning is the process", "Machine learning is a field of study"]
    given = ok("/v1/rerank", model=EMBEDDER, query=documents[2], documents=documents, top_n=2)
    assert given["results"][0]["index"] == 2 and len(given["results"]) == 2, given
    assert given["usage"]["total_tokens"] > 0, given
    refusal("/v1/rerank", "documents", model=EMBEDDER, query="a", documents=[])()


def models():
    listed = json.loads(request("GET", "/v1/models")[2])
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == [CALLER, WRITER, EMBEDDER]
    for model in listed["data"]:
        assert json.loads(request("GET", "/v1/models/" + model["id"])[2]) == model
    assert chat(model=WRITER)["model"] == WRITER


def page():
    status, headers, text = request("GET", "/")
    assert status == 200 and text.lower().startswith("<!doctype html>"), text[:80]
    for name in re.findall(r'(?:src|href)="(/[^"]+)"', text):
        assert request("GET", name)[0] == 200, name


def whole_chat():
    answer = chat(messages=[{"role": "system", "content": "Book"}, *user("Hey")], temperature=0)
    choice = answer["choices"][0]
    assert "cmpl" in answer["id"] and answer["system_fingerprint"] and answer["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant" and content(answer) == GREETING and choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"] and usage["completion_tokens"] > 0
    cut = chat(max_tokens=1)["choices"][0]
    assert cut["finish_reason"] == "length" and cut["message"]["content"] == "Hello"
    second = chat(messages=[*user("Hey"), choice["message"], *user("More")])
    assert content(second) == GREETING


def streamed_chat():
    whole = chat(temperature=0)
    chunks = chat_stream(temperature=0, stream_options={"include_usage": True})
    assert joined(chunks) == content(whole) and len({chunk["id"] for chunk in chunks}) == 1
    first, last = chunks[0]["choices"][0], chunks[-2]["choices"][0]
    assert first["delta"]["role"] == "assistant" and not first["delta"]["content"]
    assert not any("role" in chunk["choices"][0]["delta"] for chunk in chunks[1:-1])
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
    assert [end for end in ends if end] == ["stop"] and last["finish_reason"] == "stop" and "content" not in last["delta"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def stream_options():
    streamed_chat()
    assert all(chunk.get("usage") is None for chunk in chat_stream(stream_options={"include_usage": False}))
    chat_refusal("stream_options", stream_options={"include_usage": True})()
    chat_refusal("stream_options", stream_options={"include_usage": None})()


def cached_tokens():
    prompt = "Say it again: " + "one two three four " * 8
    first, second = (chat(prompt, model=WRITER, temperature=0) for _ in range(2))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, second["usage"]
    assert content(first) == content(second)
    changed = chat(prompt[:-5] + "nine", model=WRITER)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < changed < second["usage"]["prompt_tokens"]


def parts():
    split = [{"type": "text", "text": "Wh"}, {"type": "text", "text": "at?"}]
    split = chat(messages=[{"role": "user", "content": split}])
    assert split["usage"]["prompt_tokens"] == chat("What?")["usage"]["prompt_tokens"] and content(split) == GREETING


def continued():
    messages = [*user(), {"role": "assistant", "content": "So: Hi]"}]
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    answer = chat(messages=messages, **flags)
    assert content(answer) == GREETING
    split = [{"type": "text", "text": "So: "}, {"type": "text", "text": "Hi]"}]
    assert content(chat(messages=[*user(), {"role": "assistant", "content": split}], **flags)) == GREETING
    assert answer["usage"]["prompt_tokens"] < chat(messages=messages)["usage"]["prompt_tokens"]


both_flags = refusal(
    "/v1/chat/completions", "continue_final_message", model=CALLER,
    messages=[*user(), {"role": "assistant", "content": "Hi"}], continue_final_message=True, add_generation_prompt=True,
)


def formats():
    assert json.loads(content(chat(response_format={"type": "json_object"}))) == {}
    for given in ({"const": "42"}, {"const": "foooooo"}):
        for fmt in ({"type": "json_object", "schema": given}, {"type": "json_schema", "json_schema": {"schema": given}}):
            assert json.loads(content(chat(response_format=fmt))) == given["const"]
    items = {"type": "array", "items": {"type": "integer"}, "maxItems": 1}
    assert isinstance(json.loads(content(chat(response_format={"type": "json_object", "schema": items}))), list)
    chat_refusal("response_format.type", response_format={"type": "sound"})()
    chat_refusal("response_format.schema", response_format={"type": "json_object", "schema": 123})()
    chat_refusal("response_format.schema", response_format={"type": "json_object", "schema": {"type": 123}})()
    chat_refusal("response_format.schema", response_format={"type": "json_object", "schema": {"type": "hiccup"}})()


def json_schema():
    fmt = {"type": "json_schema", "json_schema": {"name": "foo_test", "schema": SCHEMA}}
    assert json.loads(content(chat(response_format=fmt))) == {"a": 7}
    value = json.loads(content(chat(model=WRITER, response_format=fmt, temperature=1, seed=3, max_tokens=200)))
    assert isinstance(value["a"], int)
    assert content(chat(response_format={"type": "text"})) == GREETING


def bad_schemas():
    wrong = {"type": "object", "properties": {"a": {"type": "hiccup"}}}
    chat_refusal("response_format.json_schema.schema", response_format={"type": "json_schema", "json_schema": {"schema": wrong}})()
    chat_refusal("response_format.json_schema", response_format={"type": "json_schema"})()
    chat_refusal("response_format.json_schema.schema", response_format={"type": "json_schema", "json_schema": {"name": "x"}})()


def bad_messages():
    for messages, param in [
        (None, "messages"), ("string", "messages"), ([123], "messages[0]"), ([{}], "messages[0].role"),
        ([{"role": 123}], "messages[0].role"), ([{"role": "system", "content": 123}], "messages[0].content"),
        ([{"role": "system", "content": "test"}, {}], "messages[1].role"), ([{"content": "hello"}], "messages[0].role"),
    ]:
        chat_refusal(param, messages=messages)()


def logprobs():
    answer = chat(model=WRITER, temperature=0, max_tokens=5, logprobs=True, top_logprobs=10)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == content(answer)
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 10 for entry in entries)
    chunks = chat_stream(model=WRITER, temperature=0, max_tokens=5, logprobs=True, top_logprobs=10)
    streamed = [entry for chunk in chunks for entry in ((chunk["choices"][0]["logprobs"] or {}).get("content") or [])]
    assert streamed == entries


def few_logprobs():
    assert chat(logprobs=False)["choices"][0]["logprobs"] is None
    for fields in ({"top_logprobs": 0}, {"top_logprobs": None}, {}):
        entries = chat(logprobs=True, **fields)["choices"][0]["logprobs"]["content"]
        assert entries and all(entry["top_logprobs"] == [] for entry in entries)
    entries = chat(logprobs=True, top_logprobs=5)["choices"][0]["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 5 for entry in entries)


def too_many_logprobs():
    for fields in ({"stream": True, "top_logprobs": 21}, {"top_logprobs": 30}, {"top_logprobs": -1}):
        chat_refusal("top_logprobs", logprobs=True, **fields)()
    chat()


def format_logprobs():
    fmt = {"type": "json_schema", "json_schema": {"schema": {"enum": ["Rust", "Go"]}}}
    answer = chat(response_format=fmt, logprobs=True, top_logprobs=5)
    assert json.loads(content(answer)) in ("Rust", "Go")
    assert all(top["logprob"] >= -9999 for entry in answer["choices"][0]["logprobs"]["content"] for top in entry["top_logprobs"])


def biases():
    tokens = ok("/tokenize", model=CALLER, content="{}")["tokens"]
    hello = 259
    answer = chat(logit_bias={str(token): -100 for token in [*tokens, hello]})
    assert "Hello" not in content(answer)
    for bad in ({"x": 1}, {"1": "a"}, {"1": 101}, {"1": -101}, {"999999": 1}, {"x": 1, "y": 2}, [1]):
        chat_refusal("logit_bias", logit_bias=bad)()


def long_prompt():
    for streams in (False, True):
        status, _, text = request("POST", "/v1/chat/completions", {"model": CALLER, "messages": user("word " * 2000) * 2, "stream": streams})
        error = json.loads(text)["error"]
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages"), text
    plain_refusal("prompt", prompt="I believe the meaning of life is " * 100)()


def full_context():
    body = {"model": WRITER, "prompt": "Once", "max_tokens": 100000, "temperature": 0, "logit_bias": {"0": -100, "1": -100, "2": -100}}
    answer = ok("/v1/completions", **body)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] in (1024, 1025), answer["usage"]
    chunks = stream("/v1/completions", **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == answer["choices"][0]["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def progress():
    for _ in range(2):
        chunks = chat_stream("This is a test " * 60, model=WRITER, return_progress=True)
        seen = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        assert seen and seen[-1]["processed"] == seen[-1]["total"]
        assert all(a["processed"] <= b["processed"] for a, b in zip(seen, seen[1:]))
    assert seen[0]["cache"] > 0


def several():
    base = chat(model=WRITER, n=3, seed=5, temperature=1)
    again = chat(model=WRITER, n=3, seed=5, temperature=1)
    assert [choice["index"] for choice in base["choices"]] == [0, 1, 2] and base["choices"] == again["choices"]
    assert len({choice["message"]["content"] for choice in base["choices"]}) > 1
    single = chat(model=WRITER, seed=5, temperature=1)
    assert single["choices"][0]["message"] == base["choices"][0]["message"] and len(chat(n=1)["choices"]) == 1
    texts = {}
    for chunk in chat_stream(model=WRITER, n=3, seed=5, temperature=1):
        choice = chunk["choices"][0]
        texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    assert texts == {choice["index"]: choice["message"]["content"] for choice in base["choices"]}


def bad_n():
    for n in (0, -1, 9, 10**18, 1.5, "2"):
        chat_refusal("n", n=n)()
    assert len(chat(n=8)["choices"]) == 8


def token_counts():
    messages = [{"role": "system", "content": "Book"}, *user("What is the best book")]
    counted = ok("/v1/chat/completions/input_tokens", model=CALLER, messages=messages)["input_tokens"]
    assert counted == chat(messages=messages)["usage"]["prompt_tokens"]
    counted = ok("/v1/responses/input_tokens", model=CALLER, input="Hello world")["input_tokens"]
    assert counted == respond("Hello world")["usage"]["input_tokens"]


def tokens():
    text = "What is the capital of France? 媽 🤗"
    given = ok("/tokenize", model=WRITER, content=text)["tokens"]
    assert ok("/detokenize", model=WRITER, tokens=given)["content"] == text
    pieces = ok("/tokenize", model=WRITER, content=text, with_pieces=True)["tokens"]
    assert [piece["id"] for piece in pieces] == given and all(piece["piece"] for piece in pieces)


def plain():
    answer = complete(temperature=0)
    assert answer["object"] == "text_completion" and answer["choices"][0]["text"] == GREETING and answer["system_fingerprint"]
    assert complete(max_tokens=1)["choices"][0]["finish_reason"] == "length"
    chunks = stream("/v1/completions", model=CALLER, prompt="Answer]", temperature=0)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == GREETING
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks].count("stop") == 1


def native():
    body = {"model": CALLER, "prompt": "Answer]", "temperature": 0}
    answer = json.loads(request("POST", "/completion", body)[2])
    assert answer["content"] == GREETING and answer["stop_type"] == "eos" and answer["truncated"] is False, answer
    timings = answer["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == answer["tokens_evaluated"], answer
    assert timings["predicted_n"] == answer["tokens_predicted"] and timings["predicted_per_second"] >= 0, answer
    # This form of a stream has no [DONE].
    lines = request("POST", "/completion", {**body, "stream": True})[2].splitlines()
    parts = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert "".join(part["content"] for part in parts) == GREETING and parts[-1]["stop"], parts


def plain_usage():
    chunks = stream("/v1/completions", model=CALLER, prompt="Answer]", stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == complete()["usage"] | {"prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]}
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    plain_refusal("stream_options", stream_options={"include_usage": True})()


def plain_stops():
    assert complete(stop=["🌍", "x"])["choices"][0]["text"] == "Hello"
    chunks = stream("/v1/completions", model=CALLER, prompt="Answer]", stop=["🌍"])
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello"


def seeds():
    def text(seed, **fields):
        return complete("Who?", model=WRITER, seed=seed, **{"temperature": 1, **fields})["choices"][0]["text"]

    assert len({text(42) for _ in range(4)}) == 1 and len({text(seed) for seed in range(4)}) > 1
    assert len({text(42, temperature=0) for _ in range(4)}) == 1
    assert text(42, cache_prompt=True) == text(42, cache_prompt=False)
    assert text(-(2**63)) and text(2**63 - 1)
    plain_refusal("seed", seed=2**63)()


def token_prompts():
    given = ok("/tokenize", model=CALLER, content="Answer]", add_special=True)["tokens"]
    assert complete(given)["choices"] == complete()["choices"]
    several = complete([given, "Answer]", given])["choices"]
    assert [choice["text"] for choice in several] == [GREETING] * 3


def batches():
    answer = complete(["Answer]", "Say]"], n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert {choice["text"] for choice in answer["choices"]} == {GREETING}
    texts = {}
    for chunk in stream("/v1/completions", model=CALLER, prompt=["Answer]", "Say]"], n=2):
        choice = chunk["choices"][0]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == dict.fromkeys(range(4), GREETING)


def plain_logprobs():
    assert complete()["choices"][0]["logprobs"] is None
    for n in (0, 5):
        answer = complete("Who takes care", model=WRITER, logprobs=n, max_tokens=5, temperature=0)["choices"][0]
        found = answer["logprobs"]
        assert "".join(found["tokens"]) == answer["text"] and all(value <= 0 for value in found["token_logprobs"])
        assert all(len(top) <= n for top in found["top_logprobs"]) and found["text_offset"][0] == 0
    for n in (21, -2, -1, "a", True):
        plain_refusal("logprobs", logprobs=n)()


def text_offsets():
    whole = complete("Who takes care", model=WRITER, logprobs=1, max_tokens=12, temperature=0, stop=["zzz"])["choices"][0]["logprobs"]
    chunks = stream("/v1/completions", model=WRITER, prompt="Who takes care", logprobs=1, max_tokens=12, temperature=0, stop=["zzz"])
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [offset for part in streamed for offset in part["text_offset"]] == whole["text_offset"]


def echo():
    assert complete(echo=True)["choices"][0]["text"] == "Answer]" + GREETING
    chunks = stream("/v1/completions", model=CALLER, prompt="Answer]", echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Answer]" + GREETING


def parallel():
    def one(n):
        return content(chat(f"Write a line about place {n}.", model=WRITER, temperature=1, seed=n))

    alone = [one(n) for n in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(one, range(6))) == alone


def auto_call():
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}):
        choice = chat("The weather?", tools=[TOOL], parallel_tool_calls=False, **fields)["choices"][0]
        call = choice["message"]["tool_calls"][0]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        assert call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"]) == {"city": "Paris"} and call["id"]
        chunks = chat_stream("The weather?", tools=[TOOL], parallel_tool_calls=False, **fields)
        deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
        assert deltas[0]["id"] and deltas[0]["function"]["name"] == "weather"
        assert all(delta["index"] == 0 for delta in deltas)
        assert "".join(delta["function"]["arguments"] for delta in deltas) == call["function"]["arguments"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls" and joined(chunks) == ""


def named_call():
    named = {"type": "function", "function": {"name": "now"}}
    choice = chat("The time?", tools=[TOOL, NOW], tool_choice=named)["choices"][0]
    assert [call["function"] for call in choice["message"]["tool_calls"]] == [{"name": "now", "arguments": "{}"}]
    strict = {"type": "function", "function": {"name": "check", "parameters": {"type": "object", "properties": {"success": {"const": True}}, "required": ["success"], "additionalProperties": False}}}
    choice = chat(model=WRITER, tools=[strict], tool_choice="required", parallel_tool_calls=False)["choices"][0]
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"success": True}


def no_call():
    for fields in ({}, {"tools": []}, {"tools": None}, {"tools": [TOOL], "tool_choice": "none"}, {"tool_choice": None}):
        message = chat("Answer.", **fields)["choices"][0]["message"]
        assert message["content"] == GREETING and "tool_calls" not in message
        assert all("tool_calls" not in chunk["choices"][0]["delta"] for chunk in chat_stream("Answer.", **fields))


def call_results():
    first = chat("The weather?", tools=[TOOL], parallel_tool_calls=False)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "Rain."}
    for message in (first, {**first, "content": ""}):
        assert content(chat(messages=[*user("The weather?"), message, result], tools=[TOOL])) == GREETING
    split = {**result, "content": [{"type": "text", "text": "Rain."}]}
    assert content(chat(messages=[*user("The weather?"), first, split], tools=[TOOL])) == GREETING


def bad_choices():
    chat_refusal("tool_choice", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "other"}})()
    chat_refusal("tool_choice", tool_choice="required")()
    chat_refusal("tool_choice", tool_choice={"type": "function", "function": {"name": "weather"}})()
    chat_refusal("tool_choice.function", tools=[TOOL], tool_choice={"type": "function"})()


def cut_call():
    choice = chat("The weather?", tools=[TOOL], tool_choice="required", max_tokens=1)["choices"][0]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"], choice


def format_and_tools():
    fmt = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    assert json.loads(content(chat("Answer plainly.", tools=[TOOL], response_format=fmt))) == {"a": 7}
    assert chat("The weather?", tools=[TOOL], response_format=fmt)["choices"][0]["finish_reason"] == "tool_calls"


def vectors(text, **fields):
    return [entry["embedding"] for entry in ok("/v1/embeddings", model=EMBEDDER, input=text, **fields)["data"]]


def embeddings():
    one = vectors("I believe the meaning of life is")[0]
    assert abs(math.hypot(*one) - 1) < 1e-5
    several = vectors(["I believe the meaning of life is", "This is a test", "I believe the meaning of life is"])
    assert several[0] == several[2] == one != several[1]
    packed = base64.b64decode(vectors("This is a test", encoding_format="base64")[0])
    assert list(struct.unpack(f"<{len(packed) // 4}f", packed)) == several[1]
    answer = ok("/v1/embeddings", model=EMBEDDER, input=["a b", "a b"])
    single = ok("/v1/embeddings", model=EMBEDDER, input="a b")["usage"]
    assert answer["usage"]["prompt_tokens"] == 2 * single["prompt_tokens"] == answer["usage"]["total_tokens"]


def embedding_inputs():
    ids = ok("/tokenize", model=WRITER, content="This is a test")["tokens"]
    assert vectors(ids) == vectors("This is a test") == vectors([ids]) == vectors(["This is a test"])
    mixed = vectors(["string1", ids])
    assert len(mixed) == 2 and mixed[1] == vectors(ids)[0]


def long_embeddings():
    many = vectors(["a " * n for n in (253, 254, 255, 256)])
    assert len({len(vector) for vector in many}) == 1
    status, _, text = request("POST", "/v1/embeddings", {"model": EMBEDDER, "input": "This is a test " * 512})
    assert status == 400 and json.loads(text)["error"]["code"] == "context_length_exceeded"


def metrics():
    def read():
        text = request("GET", "/metrics")[2]
        kinds = dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
        return text, kinds, {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and line[0] != "#"}

    _, _, before = read()
    used = sum(complete(max_tokens=n)["usage"]["completion_tokens"] for n in (1, 2, 4))
    text, kinds, after = read()
    # A request ends after its response, and one that was given up a moment later.
    for _ in range(100):
        if after["refrain_requests_running"] == 0:
            break
        time.sleep(0.02)
        text, kinds, after = read()
    assert kinds["refrain_output_tokens_total"] == "counter" and kinds["refrain_requests_running"] == "gauge"
    assert all(f"# HELP {name} " in text for name in kinds)
    name = "refrain_output_tokens_total"
    assert after[name] - before[name] == used and after["refrain_requests_running"] == 0
    assert after["refrain_requests_total"] - before["refrain_requests_total"] == 3


def preflight():
    headers = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization"}
    for origin in ("http://evil.com", "http://web.mydomain.fr", "http://notlocalhost", "http://localhost.evil.com", "http://localhost:3000"):
        status, found, _ = request("OPTIONS", "/v1/completions", None, {**headers, "Origin": origin})
        assert "Access-Control-Allow-Origin" not in found and status == 403, (origin, status)
    status, _, _ = request("OPTIONS", "/v1/completions", None, {**headers, "Origin": ADDRESS})
    assert status == 204


def responses():
    answer = respond([{"role": "system", "content": "Book"}, *user("Which?")])
    item = answer["output"][0]
    assert answer["id"].startswith("resp_") and item["id"].startswith("msg_") and answer["status"] == "completed"
    assert item["content"][0]["text"] == GREETING
    assert respond("Hi", instructions="Be brief.")["instructions"] == "Be brief."
    typed = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    assert respond(typed)["usage"]["input_tokens"] == respond("Hi")["usage"]["input_tokens"]


def stored_responses():
    first = respond("Hi")
    status, _, text = request("GET", f"/v1/responses/{first['id']}")
    assert status == 200 and json.loads(text) == first
    second = respond("And?", previous_response_id=first["id"])
    whole = respond([*user("Hi"), *first["output"], *user("And?")], store=False)
    assert second["previous_response_id"] == first["id"] and second["output"][0]["content"] == whole["output"][0]["content"]
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert request("DELETE", f"/v1/responses/{first['id']}")[0] == 200
    assert request("GET", f"/v1/responses/{first['id']}")[0] == 404


def streamed_responses():
    events = respond_stream("Hi")
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    final = events[-1]["response"]
    assert text == final["output"][0]["content"][0]["text"] == GREETING
    ids = {event.get("item_id") or event["item"]["id"] for event in events if "item_id" in event or "item" in event}
    assert ids == {final["output"][0]["id"]}
    stack = []
    for kind in kinds:
        if kind.endswith((".added", ".created")):
            stack.append(kind)
        if kind.endswith((".done", ".completed")) and kind != "response.output_text.done":
            stack.pop()
    assert stack == []
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def response_logprobs():
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    entries = respond("Hi", **fields)["output"][0]["content"][0]["logprobs"]
    assert entries and all(len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0 for entry in entries)
    events = respond_stream("Hi", **fields)
    streamed = [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    assert streamed == entries
    assert respond("Hi", include=["message.output_text.logprobs"], top_logprobs=None)["output"][0]["content"][0]["logprobs"]


def response_calls():
    for fields in ({}, {"tool_choice": "required"}, {"tool_choice": {"type": "function", "name": "weather"}}):
        answer = respond("The weather?", tools=[FLAT], parallel_tool_calls=False, **fields)
        call = answer["output"][0]
        assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "weather", {"city": "Paris"})
        events = respond_stream("The weather?", tools=[FLAT], parallel_tool_calls=False, **fields)
        deltas = "".join(event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta")
        done = next(event for event in events if event["type"] == "response.function_call_arguments.done")
        item = next(event["item"] for event in events if event["type"] == "response.output_item.done")
        assert deltas == done["arguments"] == item["arguments"] == call["arguments"] and done["name"] == item["name"]
        assert not any(event["type"] == "response.output_text.delta" for event in events)
        history = [*user("The weather?"), call, {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}]
        assert respond(history, tools=[FLAT])["output"][0]["content"][0]["text"] == GREETING
        assert respond([*history, *user("plainly")], tools=[FLAT])["output"][0]["type"] == "message"


def many_response_calls():
    city = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"], "additionalProperties": False}
    tools = [{"type": "function", "name": "weather", "parameters": city}, {"type": "function", "name": "now"}]
    fields = {"model": WRITER, "tools": tools, "tool_choice": "required", "temperature": 1.5, "max_output_tokens": 500}
    for seed in range(20):
        events = respond_stream("The weather?", seed=seed, **fields)
        added = [event for event in events if event["type"] == "response.output_item.added"]
        done = [event for event in events if event["type"] == "response.output_item.done"]
        assert [a["item"]["id"] for a in added] == [d["item"]["id"] for d in done]
        assert [a["output_index"] for a in added] == list(range(len(added)))
        if len(added) > 1:
            return
    raise AssertionError("no output had two calls")


def cut_response():
    answer = respond("Hi", max_output_tokens=1)
    assert answer["status"] == "incomplete" and answer["incomplete_details"]["reason"] == "max_output_tokens"
    assert answer["output"][-1]["status"] == "incomplete"
    assert respond_stream("Hi", max_output_tokens=1)[-1]["type"] == "response.incomplete"
    answer = respond("The weather?", tools=[FLAT], tool_choice="required", max_output_tokens=1)
    assert all(item["type"] != "function_call" for item in answer["output"]), answer["output"]


def response_formats():
    fmt = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}
    answer = respond("Hi", text=fmt)
    assert json.loads(answer["output"][0]["content"][0]["text"]) == {"a": 7} and answer["text"] == fmt
    assert respond_stream("Hi", text=fmt)[0]["response"]["text"] == fmt
    assert json.loads(respond("Hi", text={"format": {"type": "json_object"}})["output"][0]["content"][0]["text"]) == {}
    response_refusal("text.format.schema", text={"format": {"type": "json_schema", "name": "a", "schema": {"type": "hiccup"}}})()


def response_echoes():
    fields = {"prompt_cache_key": "k", "safety_identifier": "s", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9, "max_tool_calls": 3}
    answer = respond("Hi", **fields)
    assert {name: answer[name] for name in fields} == fields
    created = respond_stream("Hi", **fields)[0]["response"]
    assert {name: created[name] for name in fields} == fields
    assert respond("Hi")["safety_identifier"] is None


def response_sampling():
    fields = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 42}
    texts = {respond("Who?", model=WRITER, **fields)["output"][0]["content"][0]["text"] for _ in range(3)}
    assert len(texts) == 1
    response_refusal("seed", seed=2**63)()
    response_refusal("stop", stop="x")()


def harmless_phase():
    items = [{"type": "message", "role": "assistant", "phase": "commentary", "content": "So."}, *user("Hi")]
    assert respond(items)["status"] == "completed"


def reasoning_levels():
    base = chat()["usage"]["prompt_tokens"]
    for level in ("minimal", "low", "medium", "high"):
        assert chat(reasoning_effort=level)["usage"]["prompt_tokens"] == base + len(level) + 2
        assert respond("Hello.", reasoning={"effort": level})["usage"]["input_tokens"] == base + len(level) + 2
    assert chat(reasoning_effort="none")["usage"]["prompt_tokens"] == base
    assert chat(chat_template_kwargs={"reasoning_effort": "high"})["usage"]["prompt_tokens"] == base + 6
    assert chat(reasoning_effort="medium", model=WRITER)["choices"]
    chat_refusal("reasoning_effort", reasoning_effort="high", model=WRITER)()
    chat_refusal("reasoning_effort", reasoning_effort="most")()


def penalties():
    for fields in ({}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}):
        answer = respond("Hi", **fields)
        assert answer["presence_penalty"] == fields.get("presence_penalty", 0)
        assert answer["frequency_penalty"] == fields.get("frequency_penalty", 0)


def bad_bodies():
    for body in ("text", ["not", "an", "object"], 42, True):
        assert request("POST", "/v1/chat/completions", body)[0] == 400
    raw = urllib.request.Request(ADDRESS + "/v1/chat/completions", b"not JSON{{{", {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(raw)
        raise AssertionError("accepted")
    except urllib.error.HTTPError as error:
        assert error.code == 400


def document():
    paths = json.loads(request("GET", "/openapi.json")[2])["paths"]
    for path, methods in paths.items():
        for method in methods:
            known = respond("Hi")["id"] if "responses" in path else CALLER
            assert request(method.upper(), path.replace("{id}", known))[0] not in (404, 405), path


def emoji():
    chunks = chat_stream(logprobs=True)
    assert joined(chunks) == GREETING and all("\ufffd" not in json.dumps(chunk, ensure_ascii=False) for chunk in chunks if not (chunk["choices"][0]["logprobs"] or {}).get("content"))


def predictions():
    base = content(chat(model=WRITER, temperature=0))
    answer = chat(model=WRITER, temperature=0, prediction={"type": "content", "content": base})
    details = answer["usage"]["completion_tokens_details"]
    assert content(answer) == base and details["accepted_prediction_tokens"] >= 0 and details["rejected_prediction_tokens"] >= 0


def tests(*names):
    """A row that a module of the program `serve` checks."""

    def check():
        for name in names:
            assert (pathlib.Path(__file__).parents[1] / "serve" / name).exists(), name

    return check


IMAGES = "images, audio and video are refused by name"
exec((pathlib.Path(__file__).parent / "cases.py").read_text())


def rows_of(suite):
    return [row for row in CASES if row[0] == suite]


def run():
    """Runs each check once; the errors by function."""
    errors = {}
    for suite, file, names, _, verdict, check, _ in CASES:
        if check is None or check in errors:
            continue
        try:
            check()
            errors[check] = None
        except Exception as error:
            errors[check] = f"{type(error).__name__}: {error}"
            print(f"failed: {suite} {file} {names}: {errors[check]}")
    return errors


def page_text():
    lines = [INTRODUCTION]
    for suite, title in SUITES.items():
        lines += ["", f"## {title}", "", "| case | asks | here | |", "| --- | --- | --- | --- |"]
        for _, file, names, asks, verdict, _, why in rows_of(suite):
            lines.append(f"| `{file}`: {names} | {asks} | {verdict} | {why} |")
    return "\n".join(lines) + "\n"


def missing(suite, folder):
    """Tests of a folder that no row names."""
    named = {}
    for _, file, names, *_ in rows_of(suite):
        named.setdefault(file, "")
        named[file] += " " + names
    lost = []
    for path in sorted(pathlib.Path(folder).rglob("test_*.py")):
        file = path.relative_to(folder).as_posix()
        tests = set(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.M))
        tests -= {f"test_{name}" for name in re.findall(r"\w+", named.get(file, ""))}
        if tests and "all " not in named.get(file, "") and "others" not in named.get(file, ""):
            lost += [f"{file}: {name}" for name in sorted(tests)]
    return lost


def main():
    errors = run()
    n_failed = sum(error is not None for error in errors.values())
    text = page_text()
    for suite, variable in (("llama.cpp", "LLAMA_CPP"), ("vLLM", "VLLM")):
        if os.environ.get(variable):
            lost = missing(suite, os.environ[variable])
            n_failed += len(lost)
            print(f"{suite}: {len(lost)} tests have no row", *lost, sep="\n  ")
    if "--write" in sys.argv:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        print(f"{PAGE.name} differs; `--write` writes it")
        n_failed += 1
    n_cases = sum(row[5] is not None for row in CASES)
    print(f"catalogue: {len(CASES)} rows, {n_cases} checked by {len(errors)} functions, {n_failed} failed")
    sys.exit(1 if n_failed else 0)


main()
