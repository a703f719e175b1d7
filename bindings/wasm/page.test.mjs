// The page of the examples in Chromium, and the bits of the engine there. `check` runs it, and names the browser, Playwright and the native bits.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

const { REFRAIN_CHROMIUM: executablePath, REFRAIN_PLAYWRIGHT: playwright, REFRAIN_BITS: bits } = process.env;
const root = fileURLToPath(new URL("../..", import.meta.url));
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".wasm": "application/wasm" };

let server;
let browser;
let page;

before(async () => {
  server = createServer(async (request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://x").pathname));
    try {
      const body = await readFile(join(root, path));
      response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "application/octet-stream" }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { chromium } = await import(pathToFileURL(join(playwright, "index.mjs")));
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${server.address().port}/examples/browser/index.html`);
  await page.locator("#button:enabled").waitFor({ timeout: 60_000 });
});

after(async () => {
  await browser?.close();
  server?.close();
});

const numbers = () => page.locator("#numbers").textContent();

async function ask() {
  await page.locator("#button").click();
  await page.locator("#button", { hasText: "Ask" }).waitFor({ timeout: 60_000 });
  return page.locator("#answer").textContent();
}

test("the page answers, with and without drafts the same", async () => {
  assert.match(await numbers(), /^simd128; module \d+ ms, download \d+ ms, load \d+ ms$/);
  const drafted = await ask();
  assert.match(drafted, /KX-4471/);
  // Whether drafts are worth their rows depends on the machine; the bits below are compared with drafts.
  assert.match(await numbers(), /^\d+ tokens in \d+ steps, \d+ tokens per second$/);
  console.log(`with drafts: ${await numbers()}`);
  await page.locator("[name=drafts]").uncheck();
  assert.equal(await ask(), drafted);
  assert.equal(await page.locator("#answer [data-source]").count(), 0);
  console.log(`without drafts: ${await numbers()}`);
});

test("an answer is stopped", async () => {
  await page.evaluate(() => {
    const { postMessage } = Worker.prototype;
    Worker.prototype.postMessage = function (message) {
      postMessage.call(this, message.call === "ask" ? { ...message, options: { max_tokens: 900, temperature: 100 } } : message);
    };
  });
  await page.locator("#button").click();
  await page.locator("#answer span").first().waitFor();
  await page.locator("#button", { hasText: "Stop" }).click();
  await page.locator("#button", { hasText: "Ask" }).waitFor();
  assert.ok(Number(/^(\d+) tokens/.exec(await numbers())[1]) < 900);
});

test("a file that is no model is an error with its kind", async () => {
  const error = await page.evaluate(async () => {
    const { default: init, Engine } = await import("./pkg/refrain_wasm.js");
    await init();
    try {
      new Engine(new Uint8Array([1, 2, 3]));
    } catch (error) {
      return { message: error.message, code: error.code, kind: error.kind, file: error.file };
    }
  });
  assert.deepEqual({ ...error, message: "" }, { message: "", code: 3, kind: "damaged", file: "model" });
  assert.ok(error.message.length > 0);
});

test("tokens, log-probabilities and logits have the bits of the native run", { timeout: 300_000 }, async () => {
  const lines = await page.evaluate(() => {
    // In a worker, as apps run it.
    const script = `
      import init, { bits } from "${new URL("pkg/refrain_wasm.js", location)}";
      const read = async (name) => new Uint8Array(await (await fetch(\`${location.origin}/fixtures/\${name}.gguf\`)).arrayBuffer());
      await init();
      postMessage(bits(await read("target"), await read("draft")));`;
    const worker = new Worker(URL.createObjectURL(new Blob([script], { type: "text/javascript" })), { type: "module" });
    return new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = ({ message }) => reject(new Error(message || "the worker cannot be loaded"));
    });
  });
  const native = (await readFile(bits, "utf8")).trimEnd();
  for (const [got, expected] of lines.split("\n").map((line, i) => [line, native.split("\n")[i]])) {
    assert.deepEqual(JSON.parse(got), JSON.parse(expected));
  }
  assert.equal(lines.split("\n").length, native.split("\n").length);
});
