"""Checks the server with the official Python client. Responses that differ from its types are errors."""

import json
import math
from typing import Literal

import openai
from pydantic import BaseModel

client = openai.OpenAI(_strict_response_validation=True, max_retries=0, timeout=120)
MODEL = "fixture"
QUESTION = (
    "Answer the question from the notes.\n\n# Car repair\nThe repair of the car was given to Qulittus Works.\n\n"
    "Question: Who takes care of the repair of the car?"
)
MESSAGES = [{"role": "user", "content": QUESTION}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bergen"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}}
n_checks = 0


def check(condition, what):
    global n_checks
    n_checks += 1
    if not condition:
        raise SystemExit(f"failed: {what}")


def refused(param, call, error=openai.BadRequestError):
    try:
        call()
    except error as refusal:
        check(param is None or refusal.param == param, f"{refusal.param} in place of {param}")
    else:
        check(False, f"{param} is not refused")


def chat(**fields):
    return client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 64, **fields})


# Models.
check(client.models.list().data[0].id == MODEL, "the list of models")
check(client.models.retrieve(MODEL).object == "model", "a model")
refused("model", lambda: client.models.retrieve("other"), openai.NotFoundError)

# Chat, whole and streamed.
answer = chat()
text = answer.choices[0].message.content
check("Qulittus" in text and answer.choices[0].finish_reason == "stop", text)
check(answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens, "the usage")
check(chat().usage.prompt_tokens_details.cached_tokens > 0, "a kept prompt")
chunks = list(chat(stream=True, stream_options={"include_usage": True}))
check(chunks[0].choices[0].delta.role == "assistant", "the role comes first")
check("".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text, "the stream")
check([c.choices[0].finish_reason for c in chunks if c.choices].count("stop") == 1, "one reason of the end")
check(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == answer.usage.completion_tokens, "usage last")
with client.chat.completions.stream(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=64) as stream:
    for _ in stream:
        pass
    check(stream.get_final_completion().choices[0].message.content == text, "the client's own accumulation")

# Sampling.
sampled = [chat(temperature=1, seed=5, n=2, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5) for _ in range(2)]
check(sampled[0].choices == sampled[1].choices and len(sampled[0].choices) == 2, "a seed repeats outputs")
check(text.startswith(chat(stop=[" Qulittus"]).choices[0].message.content), "a stop string")
check(chat(max_completion_tokens=2).choices[0].finish_reason == "length", "a length")
check(chat(logit_bias={"0": -100}, user="u", metadata={"a": "b"}, store=False, service_tier="flex").choices, "other fields")
entries = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
check(b"".join(bytes(e.bytes) for e in entries).decode() == text, "the bytes of tokens")
check(all(len(e.top_logprobs) == 3 and e.logprob <= 0 for e in entries), "probabilities")

# Predictions and documents.
predicted = chat(prediction={"type": "content", "content": text})
check(predicted.choices[0].message.content == text, "a prediction changes nothing")
details = predicted.usage.completion_tokens_details
check(details.accepted_prediction_tokens + details.rejected_prediction_tokens >= 0, "counts of the prediction")
cited = chat(
    messages=[{"role": "user", "content": "Who takes care of the repair of the car?"}],
    extra_body={"documents": [{"title": "Car", "text": "The repair of the car was given to Qulittus Works."}]},
)
citation = cited.choices[0].message.annotations[0].url_citation
check(cited.choices[0].message.content[citation.start_index : citation.end_index] in "The repair of the car was given to Qulittus Works.", "a citation")

# Formats.
check(chat(response_format={"type": "json_object"}, max_tokens=200).choices[0].message.content[0] == "{", "JSON")
schema = {"name": "city", "schema": WEATHER, "strict": True}
value = chat(response_format={"type": "json_schema", "json_schema": schema}).choices[0].message.content
check(json.loads(value)["city"] in ("Oslo", "Bergen"), value)


class City(BaseModel):
    name: Literal["Oslo", "Bergen"]
    is_big: bool


parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=City)
check(isinstance(parsed.choices[0].message.parsed, City), "a parsed object")

# Tools.
for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
    called = chat(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    call = called.choices[0].message.tool_calls[0]
    check(json.loads(call.function.arguments)["city"] in ("Oslo", "Bergen"), call.function.arguments)
    check(called.choices[0].finish_reason == "tool_calls", "the reason of the end")
with client.chat.completions.stream(
    model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=64
) as stream:
    for _ in stream:
        pass
    check(stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments == call.function.arguments, "a streamed call")
check(chat(tools=[TOOL]).choices[0].message.content, "auto")
check(chat(tools=[TOOL], tool_choice="none").choices[0].message.content == text, "none")
result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
check(chat(messages=[*MESSAGES, called.choices[0].message, result], tools=[TOOL], tool_choice="none").choices, "a result")

# Completions.
plain = client.completions.create(model=MODEL, prompt="Answer the question", max_tokens=8, temperature=0, logprobs=2)
check("".join(plain.choices[0].logprobs.tokens) == plain.choices[0].text, "tokens of a completion")
# The client's type of a completion has a reason of the end in every chunk. No stream can have it, nor has OpenAI's own.
lenient = openai.OpenAI(max_retries=0, timeout=120)
stream = lenient.completions.create(model=MODEL, prompt="Answer the question", max_tokens=8, temperature=0, stream=True)
check("".join(c.choices[0].text for c in stream) == plain.choices[0].text, "a streamed completion")
check(len(client.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=2).choices) == 4, "prompts times n")

# Responses.
response = client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=64)
check(response.output_text == text and response.status == "completed", response.output_text)
with client.responses.stream(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=64) as stream:
    kinds = [event.type for event in stream]
    check(stream.get_final_response().output_text == text, "a streamed response")
check(kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds)
flat = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
response = client.responses.create(model=MODEL, input=QUESTION, tools=[flat], tool_choice="required", parallel_tool_calls=False, max_output_tokens=99)
check(response.output[0].type == "function_call", "a call")
items = [{"role": "user", "content": QUESTION}, response.output[0], {"type": "function_call_output", "call_id": response.output[0].call_id, "output": "Rain."}]
check(client.responses.create(model=MODEL, input=items, tools=[flat], tool_choice="none", max_output_tokens=32).output_text, "after a result")
parsed = client.responses.parse(model=MODEL, input=QUESTION, text_format=City)
check(isinstance(parsed.output_parsed, City), "a parsed response")
check(client.responses.create(model=MODEL, input=QUESTION, include=["message.output_text.logprobs"], top_logprobs=2, temperature=0, max_output_tokens=64).output[0].content[0].logprobs, "probabilities")

# Embeddings. The client asks for base64 itself, and its own type then has no text; so that one is read without strict types.
name = client.models.list().data[1].id
packed = lenient.embeddings.create(model=name, input=["a", "b"]).data[1].embedding
floats = client.embeddings.create(model=name, input="b", encoding_format="float").data[0].embedding
check(packed == floats and math.isclose(math.hypot(*floats), 1, rel_tol=1e-5), "vectors")

# Refusals.
refused("temperature", lambda: chat(temperature=3))
refused("top_logprobs", lambda: chat(logprobs=True, top_logprobs=21))
refused("modalities", lambda: chat(modalities=["text", "audio"]))
refused("messages[0].content[0]", lambda: chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]))
raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, max_tokens=2, extra_body={"unheard_of": 1})
check(raw.headers["x-refrain-ignored"] == "unheard_of", "an ignored field")
refused("typical_p", lambda: chat(extra_body={"typical_p": 0.5}))
refused("previous_response_id", lambda: client.responses.create(model=MODEL, input="a", previous_response_id="resp_1"))
refused(None, lambda: openai.OpenAI(api_key="wrong-token-of-some-length", max_retries=0).models.list(), openai.AuthenticationError)

print(f"Python client {openai.__version__}: {n_checks} checks passed")
