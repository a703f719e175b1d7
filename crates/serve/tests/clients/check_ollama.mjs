// Checks the server with Ollama's official JavaScript client.
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const headers = { Authorization: `Bearer ${process.env.REFRAIN_TOKEN}` };
const client = new Ollama({ host: process.env.REFRAIN_URL, headers });
const model = "fixture";
const question =
  "Answer the question from the notes.\n\n# Car repair\nThe repair of the car was given to Qulittus Works.\n\n" +
  "Question: Who takes care of the repair of the car?";
const base = { model, messages: [{ role: "user", content: question }], options: { temperature: 0, num_predict: 64 } };

const { models } = await client.list();
assert.equal(models[0].name, model);
assert.ok((await client.show({ model })).capabilities.includes("completion"));
assert.equal((await client.pull({ model })).status, "success");

const answer = await client.chat(base);
assert.match(answer.message.content, /Qulittus/);
assert.equal((await client.ps()).models[0].name, model);
let streamed = "";
let last = null;
for await (const part of await client.chat({ ...base, stream: true })) {
  streamed += part.message.content;
  last = part;
}
assert.equal(streamed, answer.message.content);
assert.ok(last.done && last.eval_count === answer.eval_count);

// A client that goes away.
const gone = await client.chat({ ...base, stream: true, options: { temperature: 1, num_predict: 4000 } });
try {
  for await (const part of gone) {
    assert.ok(part.message);
    gone.abort();
  }
} catch (error) {
  // Unless the answer had ended.
  assert.equal(error.name, "AbortError");
}

const format = { type: "object", properties: { is_big: { type: "boolean" } }, required: ["is_big"], additionalProperties: false };
assert.equal(typeof JSON.parse((await client.chat({ ...base, format })).message.content).is_big, "boolean");
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", description: "The weather.", parameters } }];
assert.ok((await client.chat({ ...base, tools })).done);
const generated = await client.generate({ model, prompt: question, options: base.options });
assert.equal(generated.response, answer.message.content);
const vectors = await client.embed({ model: models[1].name, input: ["a", "b"] });
assert.deepEqual((await client.embeddings({ model: models[1].name, prompt: "b" })).embedding, vectors.embeddings[1]);

await assert.rejects(client.chat({ ...base, model: "other" }), (error) => error.status_code === 404);
await assert.rejects(client.chat({ ...base, options: { mirostat: 2 } }), (error) => error.status_code === 400);

console.log("Ollama's JavaScript client: passed");
