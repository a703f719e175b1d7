"""Checks the server with Ollama's official Python client, whose types read every response."""

import os

import ollama
from pydantic import BaseModel

client = ollama.Client(host=os.environ["REFRAIN_URL"], headers={"Authorization": "Bearer " + os.environ["REFRAIN_TOKEN"]}, timeout=120)
MODEL = "fixture"
QUESTION = (
    "Answer the question from the notes.\n\n# Car repair\nThe repair of the car was given to Qulittus Works.\n\n"
    "Question: Who takes care of the repair of the car?"
)
MESSAGES = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0, "num_predict": 64}
n_checks = 0


def check(condition, what):
    global n_checks
    n_checks += 1
    if not condition:
        raise SystemExit(f"failed: {what}")


def refused(status, call):
    try:
        call()
    except ollama.ResponseError as refusal:
        check(refusal.status_code == status and refusal.error, f"{refusal.status_code} in place of {status}")
    else:
        check(False, f"status {status} does not come")


# Models.
names = [model.model for model in client.list().models]
check(names[0] == MODEL, "the list of models")
check("completion" in client.show(MODEL).capabilities, "what a model can do")
check(client.generate(MODEL).done_reason == "load", "a model is loaded")
check(client.ps().models[0].model == MODEL, "a model in memory")
check(client.pull(MODEL).status == "success", "a model that is there")
check([step.status for step in client.pull(MODEL, stream=True)] == ["success"], "its progress")

# Chat, whole and streamed.
answer = client.chat(MODEL, MESSAGES, options=GREEDY)
text = answer.message.content
check("Qulittus" in text and answer.done and answer.done_reason == "stop", text)
check(answer.total_duration >= answer.eval_duration >= 0 and answer.eval_count > 0, "counts and times")
chunks = list(client.chat(MODEL, MESSAGES, options=GREEDY, stream=True))
check("".join(chunk.message.content for chunk in chunks) == text and [chunk.done for chunk in chunks].count(True) == 1, "the stream")
word = " " + text.split(" ")[2]
check(client.chat(MODEL, MESSAGES, options={**GREEDY, "stop": [word]}).message.content == text.split(word)[0], "a stop string")
check(client.chat(MODEL, MESSAGES, options={**GREEDY, "num_predict": 2}).done_reason == "length", "a length")
check(client.chat(MODEL, MESSAGES, options=GREEDY, think=False, keep_alive="5m").message.content == text, "further fields")
probable = client.chat(MODEL, MESSAGES, options=GREEDY, logprobs=True, top_logprobs=2)
check("".join(entry.token for entry in probable.logprobs) == text and len(probable.logprobs[0].top_logprobs) == 2, "probabilities")


class City(BaseModel):
    is_big: bool


value = client.chat(MODEL, MESSAGES, options=GREEDY, format=City.model_json_schema()).message.content
check(isinstance(City.model_validate_json(value), City), value)
# (The fixture model seldom ends a string that nothing limits.)
check(client.chat(MODEL, MESSAGES, options={**GREEDY, "num_predict": 200}, format="json").message.content[0] == "{", "JSON")


def weather(city: str) -> str:
    """The weather.

    Args:
      city: A city.
    """
    return city


called = client.chat(MODEL, MESSAGES, options=GREEDY, tools=[weather])
check(called.message.content or called.message.tool_calls, "auto")
result = [*MESSAGES, {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]}, {"role": "tool", "tool_name": "weather", "content": "Rain."}]
check(client.chat(MODEL, result, options=GREEDY, tools=[weather]).done, "a result")

# Generations and vectors.
generated = client.generate(MODEL, QUESTION, options=GREEDY)
check(generated.response == text, generated.response)
check("".join(chunk.response for chunk in client.generate(MODEL, QUESTION, options=GREEDY, stream=True)) == text, "a streamed generation")
check(client.generate(MODEL, "Answer", raw=True, options={**GREEDY, "num_predict": 4}).eval_count == 4, "a plain text")
vectors = client.embed(names[1], ["a", "b"]).embeddings
check(list(client.embeddings(names[1], "b").embedding) == list(vectors[1]), "vectors")

# Refusals.
refused(404, lambda: client.chat("other", MESSAGES))
refused(400, lambda: client.chat(MODEL, [{"role": "user", "content": "a", "images": [b"GIF"]}]))
refused(400, lambda: client.chat(MODEL, MESSAGES, options={"mirostat": 2}))
refused(400, lambda: client.generate(MODEL, "a", suffix="b"))
refused(404, lambda: client.pull("other"))
refused(401, lambda: ollama.Client(host=os.environ["REFRAIN_URL"]).list())

print(f"Ollama's Python client: {n_checks} checks passed")
