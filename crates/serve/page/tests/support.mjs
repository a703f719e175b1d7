// A server with sample notes, and a browser.
import assert from "node:assert/strict";
import { spawn, execFileSync } from "node:child_process";
import { accessSync, constants, cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../../..");
const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

const isExecutable = (file) => {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
};

const inPath = (name) => (process.env.PATH ?? "").split(":").map((folder) => path.join(folder, name));

/** The browser: $CHROMIUM, or the first one of the usual names. */
export const browserFile = [process.env.CHROMIUM, ...["chromium", "chromium-browser", "google-chrome"].flatMap(inPath)].find(
  (file) => file && isExecutable(file),
);
/** The program: $REFRAIN, or the one that `cargo build` has made. */
const program = process.env.REFRAIN ?? path.join(root, "target/debug/refrain");

/** With REFRAIN_PAGE=dist, the browser gets the files of dist/ in place of those in the program, so that a change needs no build. */
const dist = process.env.REFRAIN_PAGE === "dist" && path.join(root, "crates/serve/page/dist");

/**
 * With REFRAIN_PAGE_SLOW=MS, each request and each use of the browser's storage takes up to MS milliseconds more, at random. Tests that
 * pass only on a fast machine fail then.
 */
const slow = Number(process.env.REFRAIN_PAGE_SLOW ?? 0);

function slowDown(most) {
  const later = () => new Promise((resolve) => setTimeout(resolve, Math.random() * most));
  // (The order of transactions stays: pages rely on it.)
  let before = Promise.resolve();
  const { fetch } = window;
  window.fetch = (...request) => later().then(() => fetch(...request));
  const event = Object.getOwnPropertyDescriptor(IDBTransaction.prototype, "oncomplete");
  Object.defineProperty(IDBTransaction.prototype, "oncomplete", {
    ...event,
    set(listener) {
      event.set.call(this, () => (before = before.then(later).then(listener)));
    },
  });
}

/**
 * `assert`, for what the page shows within the next 30 seconds: the first argument of each function is read again until the assertion holds.
 * After a click or a key, the page and the browser's storage have still to act.
 */
export const soon = Object.fromEntries(
  ["ok", "equal", "deepEqual", "match", "doesNotMatch"].map((name) => [
    name,
    async (read, ...expected) => {
      const end = Date.now() + 30_000;
      for (;;) {
        const value = await read();
        try {
          return assert[name](value, ...expected);
        } catch (failure) {
          if (Date.now() > end) throw failure;
        }
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    },
  ]),
);

/** A note that tries to be markup. */
export const HOSTILE = {
  title: "<b>Shed</b> <img src=x onerror=alert(1)>",
  text:
    "The key of the shed </script><script>window.hacked = 1</script> was given to Eladus Works " +
    '<img src=x onerror="window.hacked = 2"> and hangs <svg onload="window.hacked = 3"> there.',
};

/** A server with an index of the sample notes, in a folder of its own. */
export class Server {
  static async start({ token, notes = true } = {}) {
    if (!isExecutable(program)) throw new Error(`no program at ${program}: build it with \`cargo build\`, or set REFRAIN`);
    const server = new Server();
    server.folder = mkdtempSync(path.join(os.tmpdir(), "refrain-page-"));
    const env = { ...process.env, HOME: server.folder, XDG_DATA_HOME: server.folder, XDG_CONFIG_HOME: server.folder, XDG_CACHE_HOME: server.folder };
    if (token) env.REFRAIN_TOKEN = token;
    // Drafts at any cost: whether an answer of a few tokens would pay for them depends on the clock.
    const args = ["serve", "--listen", "0", "--drafting", "rows=8"];
    if (notes) {
      const samples = path.join(server.folder, "notes");
      const index = path.join(server.folder, "index");
      cpSync(path.join(root, "fixtures/notes"), samples, { recursive: true });
      writeFileSync(path.join(samples, "hostile.md"), `# ${HOSTILE.title}\n\n${HOSTILE.text}\n`);
      execFileSync(program, ["index", "add", samples, "--index", index], { env, stdio: "pipe" });
      args.push(`--notes=${index}`);
    }
    server.process = spawn(program, args, { env, stdio: ["ignore", "pipe", "pipe"] });
    server.output = "";
    server.process.stderr.on("data", (data) => (server.output += data));
    server.url = await new Promise((resolve, reject) => {
      let shown = "";
      server.process.stdout.on("data", (data) => {
        shown += data;
        const address = /(http:\/\/\S+)\n/.exec(shown);
        if (address) resolve(address[1]);
      });
      server.process.once("exit", () => reject(new Error(`the server has ended: ${server.output}`)));
    });
    // A token that the server has made is in the address that it prints.
    server.query = new URL(server.url).search;
    server.url = new URL(server.url).origin;
    return server;
  }

  async stop() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill("SIGTERM");
    await ended;
    rmSync(this.folder, { recursive: true, force: true });
  }
}

let browser;

export async function openBrowser() {
  browser = await chromium.launch({ executablePath: browserFile, args: ["--no-sandbox"] });
}

export async function closeBrowser() {
  await browser?.close();
}

/** Runs `test` with a new page, and fails on any message of the browser: errors of scripts, refused by the policy, missing files. */
export async function withPage(server, test, { width = 1200, height = 800, scheme = "light", hash = "", allow = [] } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, reducedMotion: "reduce" });
  context.setDefaultTimeout(60_000);
  await context.addInitScript({ path: axe });
  if (slow > 0) await context.addInitScript(slowDown, slow);
  if (dist) {
    await context.route(/\/(page\/(page\.js|page\.css|icon\.svg))?(\?.*)?$/, async (route) => {
      const name = path.basename(new URL(route.request().url()).pathname) || "index.html";
      await route.fulfill({ response: await route.fetch(), body: readFileSync(path.join(dist, name)) });
    });
  }
  const page = await context.newPage();
  const problems = [];
  page.on("console", (message) => {
    if (message.type() !== "log" && !allow.some((allowed) => message.text().includes(allowed))) problems.push(message.text());
  });
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("dialog", (dialog) => {
    problems.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(server.url)) problems.push(`a request to ${request.url()}`);
  });
  try {
    await page.goto(`${server.url}/${server.query}${hash}`);
    await test(page);
    if (problems.length > 0) throw new Error(problems.join("\n"));
  } finally {
    await context.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
  }
}

/** Fails if axe-core finds something. */
export async function checkAccessible(page, where) {
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  if (violations.length > 0) {
    const found = violations.map(({ id, help, nodes }) => `${id}: ${help}\n    ${nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`).join("\n    ")}`);
    throw new Error(`${where}:\n  ${found.join("\n  ")}`);
  }
}

/** Fails if the page scrolls sideways. */
export async function checkWidth(page, where) {
  const excess = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (excess > 0) throw new Error(`${where}: the page is ${excess} pixels too wide`);
}

/** Asks a question, and waits for the end of the answer. */
export async function ask(page, question) {
  const turns = await page.locator(".turn").count();
  await page.getByLabel("Question about your notes").fill(question);
  await page.keyboard.press("Enter");
  const turn = page.locator(".turn").nth(turns);
  await turn.locator(".passages").waitFor();
  return turn;
}

/**
 * Answers messages in place of the model: each of `answers` is `{ text, reasoning, calls, finish, isHeld }`. What was asked is in `asked(page)`. One that
 * is held stops after some words, until `release(page)`.
 */
export async function script(page, answers) {
  const install = (answers) => {
    window.scripted ??= { asked: [], fetch: window.fetch.bind(window) };
    window.scripted.answers = answers;
    window.fetch = async (address, init) => {
      if (address !== "/v1/chat/completions") return window.scripted.fetch(address, init);
      window.scripted.asked.push(JSON.parse(init.body));
      const { text = "", reasoning, calls, finish = "stop", isHeld = false, status = 200, message } = window.scripted.answers.shift() ?? { text: "And so on." };
      if (status !== 200) return new Response(JSON.stringify({ error: { message } }), { status });
      const chunks = [{ choices: [], prompt_progress: { total: 8, processed: 8 } }];
      const delta = (delta, finish_reason = null) => chunks.push({ choices: [{ index: 0, delta, finish_reason }], usage: null });
      if (reasoning) delta({ reasoning_content: reasoning, origin: "target" });
      (text.match(/\s*\S+|\s+$/g) ?? []).forEach((content, index) => delta({ content, origin: index % 3 === 2 ? "context" : "target" }));
      (calls ?? []).forEach((call, index) => delta({ tool_calls: [{ index, function: call }] }));
      delta({}, finish);
      const n = chunks.length;
      chunks.push({
        choices: [],
        usage: { prompt_tokens: 8, completion_tokens: n },
        timings: { cache_n: 0, prompt_n: 8, prompt_ms: 4, predicted_n: n, predicted_ms: 9, n_steps: n - 1 },
      });
      const encoder = new TextEncoder();
      const body = new ReadableStream({
        async start(controller) {
          const fail = () => controller.error(new DOMException("Aborted", "AbortError"));
          init.signal?.addEventListener("abort", fail);
          try {
            for (const [n, chunk] of chunks.entries()) {
              controller.enqueue(encoder.encode(`data: ${JSON.stringify(chunk)}\n\n`));
              if (!isHeld || n !== chunks.length >> 1) continue;
              await new Promise((resolve) => {
                window.scripted.release = resolve;
                init.signal?.addEventListener("abort", resolve);
              });
            }
            controller.enqueue(encoder.encode("data: [DONE]\n\n"));
            controller.close();
          } catch {
            // The page has stopped reading.
          }
        },
      });
      return new Response(body, { headers: { "content-type": "text/event-stream" } });
    };
  };
  await page.evaluate(install, answers);
}

/** What a script that should not run has set, after the frames in which it could have. */
export async function hacked(page) {
  await page.waitForTimeout(200);
  return page.evaluate(() => window.hacked);
}

/** Lets the answer that is held go on. */
export const release = (page) => page.evaluate(() => window.scripted.release());

/** The requests of the messages that a script has answered. */
export const asked = (page) => page.evaluate(() => window.scripted.asked);

/** Sends a message that does not ask the notes, and waits for the end of the answer. */
export async function say(page, message) {
  const turns = await page.locator(".turn").count();
  const notes = page.locator(".composer").getByRole("switch", { name: "Notes" });
  if (await notes.isChecked()) await page.locator(".composer").getByText("Notes", { exact: true }).click();
  await page.getByLabel("Message", { exact: true }).fill(message);
  await page.keyboard.press("Enter");
  const turn = page.locator(".turn").nth(turns);
  await turn.getByRole("button", { name: /Regenerate|Try again/ }).waitFor();
  return turn;
}
