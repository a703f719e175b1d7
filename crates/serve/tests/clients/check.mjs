// Checks the server with the official Node client.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0, timeout: 120_000 });
const model = "fixture";
const question =
  "Answer the question from the notes.\n\n# Car repair\nThe repair of the car was given to Qulittus Works.\n\n" +
  "Question: Who takes care of the repair of the car?";
const base = { model, messages: [{ role: "user", content: question }], temperature: 0, max_tokens: 64 };
const parameters = {
  type: "object",
  properties: { city: { enum: ["Oslo", "Bergen"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters, strict: true } }];
const chat = (fields) => client.chat.completions.create({ ...base, ...fields });

// Models.
const models = [];
for await (const entry of client.models.list()) models.push(entry.id);
assert.equal(models[0], model);
assert.equal((await client.models.retrieve(model)).object, "model");

// Chat.
const answer = await chat({});
const text = answer.choices[0].message.content;
assert.match(text, /Qulittus/);
let streamed = "";
let usage = null;
for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, answer.usage.completion_tokens);
const runner = client.chat.completions.stream(base);
assert.equal(await runner.finalContent(), text);
assert.equal((await chat({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content[0].top_logprobs.length, 2);
assert.equal((await chat({ prediction: { type: "content", content: text } })).choices[0].message.content, text);

// A client that goes away.
const gone = await chat({ stream: true, max_tokens: 4000 });
for await (const chunk of gone) {
  assert.ok(chunk.choices);
  gone.controller.abort();
  break;
}

// Formats and tools.
const response_format = { type: "json_schema", json_schema: { name: "city", schema: parameters, strict: true } };
assert.ok(["Oslo", "Bergen"].includes(JSON.parse((await chat({ response_format })).choices[0].message.content).city));
const called = await chat({ tools, tool_choice: "required", parallel_tool_calls: false });
const call = called.choices[0].message.tool_calls[0];
assert.ok(["Oslo", "Bergen"].includes(JSON.parse(call.function.arguments).city));
const toolRunner = client.chat.completions.stream({ ...base, tools, tool_choice: "required", parallel_tool_calls: false });
assert.equal((await toolRunner.finalMessage()).tool_calls[0].function.arguments, call.function.arguments);

// Completions, responses, embeddings.
const prompt = { model, prompt: "Answer the question", max_tokens: 8, temperature: 0 };
const plain = (await client.completions.create(prompt)).choices[0].text;
let continued = "";
for await (const chunk of await client.completions.create({ ...prompt, stream: true })) continued += chunk.choices[0].text;
assert.equal(continued, plain);
const input = { model, input: question, temperature: 0, max_output_tokens: 64 };
assert.equal((await client.responses.create(input)).output_text, text);
const events = [];
for await (const event of await client.responses.create({ ...input, stream: true })) events.push(event.type);
assert.equal(events[0], "response.created");
assert.equal(events.at(-1), "response.completed");
assert.equal((await client.responses.stream(input).finalResponse()).output_text, text);
const vectors = await client.embeddings.create({ model: models[1], input: ["a", "b"] });
const floats = await client.embeddings.create({ model: models[1], input: "b", encoding_format: "float" });
assert.deepEqual(vectors.data[1].embedding, floats.data[0].embedding);

// Refusals.
await assert.rejects(chat({ temperature: 3 }), (error) => error.status === 400 && error.param === "temperature");
assert.ok((await chat({ unheard_of: 1 })).choices);
await assert.rejects(chat({ typical_p: 0.5 }), (error) => error.status === 400 && error.param === "typical_p");
await assert.rejects(chat({ model: "other" }), (error) => error.status === 404);

console.log("Node client: passed");
