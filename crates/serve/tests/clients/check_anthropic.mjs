// Checks the server with Anthropic's official JavaScript client.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.REFRAIN_URL, apiKey: process.env.REFRAIN_TOKEN, maxRetries: 0, timeout: 120_000 });
const model = "fixture";
const question =
  "Answer the question from the notes.\n\n# Car repair\nThe repair of the car was given to Qulittus Works.\n\n" +
  "Question: Who takes care of the repair of the car?";
const base = { model, messages: [{ role: "user", content: question }], temperature: 0, max_tokens: 64 };
const input_schema = { type: "object", properties: { city: { enum: ["Oslo", "Bergen"] } }, required: ["city"], additionalProperties: false };
const tools = [{ name: "weather", input_schema }];

const models = [];
for await (const entry of client.models.list()) models.push(entry.id);
assert.equal(models[0], model);

const answer = await client.messages.create(base);
assert.match(answer.content[0].text, /Qulittus/);
const events = [];
let text = "";
for await (const event of await client.messages.create({ ...base, stream: true })) {
  events.push(event.type);
  text += event.delta?.text ?? "";
}
assert.equal(text, answer.content[0].text);
assert.equal(events[0], "message_start");
assert.equal(events.at(-1), "message_stop");
const final = await client.messages.stream(base).finalMessage();
assert.equal(final.content[0].text, text);
assert.equal(final.usage.output_tokens, answer.usage.output_tokens);
const counted = await client.messages.countTokens({ model, messages: base.messages });
assert.equal(counted.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens);

// A client that goes away.
const gone = await client.messages.create({ ...base, max_tokens: 4000, stream: true });
for await (const event of gone) {
  assert.ok(event.type);
  gone.controller.abort();
  break;
}

const tool_choice = { type: "any", disable_parallel_tool_use: true };
const called = await client.messages.create({ ...base, tools, tool_choice });
const [call] = called.content;
assert.ok(["Oslo", "Bergen"].includes(call.input.city));
const streamedCall = await client.messages.stream({ ...base, tools, tool_choice }).finalMessage();
assert.deepEqual(streamedCall.content[0].input, call.input);
const result = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "Rain." }] };
const messages = [...base.messages, { role: "assistant", content: called.content }, result];
assert.ok((await client.messages.create({ ...base, messages, tools, tool_choice: { type: "none" } })).content.length);

await assert.rejects(client.messages.create({ ...base, model: "other" }), (error) => error.status === 404 && error.error.error.type === "not_found_error");
await assert.rejects(client.messages.create({ ...base, temperature: 9 }), (error) => error.status === 400);

console.log("Anthropic's JavaScript client: passed");
