"""Checks the server with Anthropic's official Python client. Responses that differ from its types are errors."""

import json
import os

import anthropic

client = anthropic.Anthropic(
    base_url=os.environ["REFRAIN_URL"], api_key=os.environ["REFRAIN_TOKEN"], _strict_response_validation=True, max_retries=0, timeout=120
)
MODEL = "fixture"
QUESTION = (
    "Answer the question from the notes.\n\n# Car repair\nThe repair of the car was given to Qulittus Works.\n\n"
    "Question: Who takes care of the repair of the car?"
)
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Bergen"]}}, "required": ["city"], "additionalProperties": False},
}
n_checks = 0


def check(condition, what):
    global n_checks
    n_checks += 1
    if not condition:
        raise SystemExit(f"failed: {what}")


def refused(error, call):
    try:
        call()
    except error as refusal:
        check(refusal.body["type"] == "error" and refusal.body["error"]["message"], refusal.body)
    else:
        check(False, f"{error.__name__} does not come")


def create(**fields):
    return client.messages.create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": 64, "extra_body": {"temperature": 0}, **fields})


# Models.
check([model.id for model in client.models.list()][0] == MODEL, "the list of models")
check(client.models.retrieve(MODEL).display_name == MODEL, "a model")

# Messages, whole and streamed.
answer = create()
text = answer.content[0].text
check("Qulittus" in text and answer.stop_reason == "end_turn", text)
counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
check(answer.usage.input_tokens + answer.usage.cache_read_input_tokens == counted, "the usage")
check(create().usage.cache_read_input_tokens > 0, "a kept prompt")
events = list(create(stream=True))
check(events[0].type == "message_start" and events[-1].type == "message_stop", "events")
with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=64, extra_body={"temperature": 0}) as stream:
    check("".join(stream.text_stream) == text, "the stream")
    final = stream.get_final_message()
check(final.content[0].text == text and final.usage.output_tokens == answer.usage.output_tokens, "the client's own accumulation")
word = " " + text.split(" ")[2]
stopped = create(stop_sequences=["unheard", word])
check(stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == word, stopped.stop_reason)
check(create(max_tokens=2).stop_reason == "max_tokens", "a length")
blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
check(create(system=blocks, metadata={"user_id": "a"}, thinking={"type": "disabled"}).content, "further fields")
begun = [*MESSAGES, {"role": "assistant", "content": text[:9]}]
check(not create(messages=begun).content[0].text.startswith(text[:9]), "an answer goes on")
schema = {"type": "json_schema", "schema": TOOL["input_schema"]}
check(json.loads(create(output_config={"format": schema}).content[0].text)["city"] in ("Oslo", "Bergen"), "a schema")

# Tools.
for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
    called = create(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
    call = called.content[0]
    check(call.type == "tool_use" and call.input["city"] in ("Oslo", "Bergen") and called.stop_reason == "tool_use", call)
with client.messages.stream(
    model=MODEL, messages=MESSAGES, max_tokens=64, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}, extra_body={"temperature": 0}
) as stream:
    for _ in stream:
        pass
    check(stream.get_final_message().content[0].input == call.input, "a streamed call")
check(create(tools=[TOOL]).content, "auto")
result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}]}
check(create(messages=[*MESSAGES, {"role": "assistant", "content": called.content}, result], tools=[TOOL], tool_choice={"type": "none"}).content, "a result")

# Refusals.
refused(anthropic.NotFoundError, lambda: create(model="other"))
refused(anthropic.BadRequestError, lambda: create(extra_body={"temperature": 9}))
refused(anthropic.BadRequestError, lambda: create(messages=[{"role": "user", "content": "word " * 20000}]))
refused(anthropic.BadRequestError, lambda: create(tools=[{"type": "web_search_20250305", "name": "web_search"}]))
picture = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "R0lG"}}
refused(anthropic.BadRequestError, lambda: create(messages=[{"role": "user", "content": [picture]}]))
stranger = anthropic.Anthropic(base_url=os.environ["REFRAIN_URL"], api_key="wrong-token-of-some-length", max_retries=0)
refused(anthropic.AuthenticationError, lambda: stranger.models.list())

print(f"Anthropic's Python client {anthropic.__version__}: {n_checks} checks passed")
