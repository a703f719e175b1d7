// Conversations: what is kept, changed, attached, rendered and deleted.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { Server, ask, asked, checkAccessible, checkWidth, closeBrowser, hacked, openBrowser, release, say, script, soon, withPage } from "./support.mjs";

const QUESTION = "Which company takes care of the roof repair?";
const titles = (page) => page.locator("#chats a").allTextContents();
const options = (page) => page.locator(".composer").getByRole("button", { name: "Options" });
const messages = (request) => request.messages.map(({ role, content }) => [role, content]);

/** Everything that the browser keeps for the page, as text. */
const stored = (page) =>
  page.evaluate(
    () =>
      new Promise((resolve, reject) => {
        const request = indexedDB.open("refrain");
        request.onerror = () => reject(request.error);
        request.onsuccess = () => {
          const all = request.result.transaction(["heads", "chats"]);
          const [heads, chats] = ["heads", "chats"].map((name) => all.objectStore(name).getAll());
          all.oncomplete = () => {
            request.result.close();
            resolve(JSON.stringify([heads.result, chats.result, localStorage]));
          };
        };
      }),
  );

/** Waits until the browser keeps a text. */
async function isKept(page, text) {
  for (let n = 0; !(await stored(page)).includes(text); n += 1) {
    assert.ok(n < 100, `${text} is kept`);
    await page.waitForTimeout(100);
  }
}

describe("conversations", () => {
  let server;
  before(async () => {
    await openBrowser();
    server = await Server.start();
  });
  after(async () => {
    await closeBrowser();
    await server?.stop();
  });

  test("a conversation is kept, found, named, exported and deleted", () =>
    withPage(server, async (page) => {
      const turn = await ask(page, QUESTION);
      const [text, legend] = [await turn.locator(".text").textContent(), await turn.locator(".legend").textContent()];
      const drafted = await turn.locator(".tok[data-src]").allTextContents();
      await soon.deepEqual(() => titles(page), [QUESTION]);
      // A new one, and back.
      await page.getByRole("button", { name: "New conversation" }).click();
      await page.locator(".empty").waitFor();
      await soon.match(() => page.evaluate(() => document.activeElement.tagName), /TEXTAREA/);
      await script(page, [{ text: "The boats leave at eight." }]);
      await say(page, "When do the boats leave?");
      await isKept(page, "leave at eight");
      await soon.deepEqual(() => titles(page), ["When do the boats leave?", QUESTION]);
      await page.reload();
      await soon.match(() => page.locator(".turn .text").textContent(), /The boats leave at eight/);
      await page.getByRole("link", { name: QUESTION }).click();
      await page.locator(".passages").waitFor();
      await soon.deepEqual(async () => [await page.locator(".turn .text").textContent(), await page.locator(".turn .legend").textContent()], [text, legend]);
      await soon.deepEqual(() => page.locator(".tok[data-src]").allTextContents(), drafted);
      await soon.match(() => page.locator(".numbers").textContent(), /\d+ tokens? in \d+ steps?/);
      await page.locator(".copied").first().click();
      await page.locator("aside mark").waitFor();
      await page.keyboard.press("Escape");
      await page.goBack();
      await page.getByText("The boats leave at eight").waitFor();
      // Words of answers are found too.
      await page.getByLabel("Search conversations").fill("eladus");
      await page.waitForFunction(() => document.querySelectorAll("#chats a").length === 1);
      await page.keyboard.press("Enter");
      await page.locator(".passages").waitFor();
      await page.getByLabel("Search conversations").fill("");
      await options(page).click();
      await page.getByLabel("Name", { exact: true }).fill("The roof");
      const exported = async (name) => {
        const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name }).click()]);
        return [download.suggestedFilename(), await readFile(await download.path(), "utf8")];
      };
      const [mdName, md] = await exported("Export Markdown");
      assert.equal(mdName, "The-roof.md");
      assert.ok(md.startsWith("# The roof\n\n## Question\n\n") && md.includes(text.trim()) && md.includes("repair-roof.md"), md);
      const [jsonName, json] = await exported("Export JSON");
      const chat = JSON.parse(json);
      assert.deepEqual([jsonName, chat.format, chat.title, chat.turns[0].asked], ["The-roof.json", "refrain-conversation", "The roof", QUESTION]);
      await page.getByRole("button", { name: "Done" }).click();
      await page.waitForFunction(() => document.querySelector("#chats a")?.textContent === "The roof");
      await page.getByRole("button", { name: "Options of “When do the boats leave?”" }).click();
      await page.getByRole("button", { name: "Delete…" }).click();
      await page.getByRole("button", { name: "Delete", exact: true }).click();
      await page.waitForFunction(() => document.querySelectorAll("#chats a").length === 1);
      await soon.deepEqual(() => titles(page), ["The roof"]);
      await options(page).click();
      await page.getByRole("button", { name: "Delete…" }).click();
      await page.getByRole("button", { name: "Delete", exact: true }).click();
      await page.locator(".empty").waitFor();
      assert.doesNotMatch(await stored(page), /roof|boats/);
    }));

  test("the model sees the conversation, and an answer can be made again, a message changed and taken back", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, [{ text: "One." }, { text: "Two." }, { text: "Two again." }, { text: "Other." }]);
      await say(page, "first");
      await say(page, "second");
      await page.locator(".turn").nth(1).getByRole("button", { name: "Regenerate" }).click();
      await page.getByText("Two again.").waitFor();
      await page.getByRole("button", { name: "Regenerate" }).nth(1).waitFor();
      // The message before the last one: what follows is dropped, until it is taken back.
      await page.locator(".turn").first().getByRole("button", { name: "Edit the message" }).click();
      await page.getByLabel("New text of the message").fill("changed");
      await page.keyboard.press("Enter");
      await page.getByText("Other.").waitFor();
      await soon.equal(() => page.locator(".turn").count(), 1);
      const requests = await asked(page);
      assert.deepEqual(messages(requests[1]), [["user", "first"], ["assistant", "One."], ["user", "second"]]);
      assert.deepEqual(messages(requests[2]), messages(requests[1]));
      assert.deepEqual(messages(requests[3]), [["user", "changed"]]);
      await page.getByRole("button", { name: "Undo" }).click();
      await page.getByText("Two again.").waitFor();
      await soon.doesNotMatch(() => stored(page), /Other\./);
      await page.reload();
      await page.getByText("Two again.").waitFor();
      await soon.deepEqual(() => page.locator(".question").allTextContents(), ["first", "second"]);
    }));

  test("a conversation that is left while its first answer is written is behind the back button", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, [{ text: "These are many words that take a while", isHeld: true }]);
      await page.getByText("Notes", { exact: true }).click();
      await page.getByLabel("Message", { exact: true }).fill("Write.");
      await page.keyboard.press("Enter");
      await page.getByText("These are").waitFor();
      assert.match(await page.evaluate(() => location.hash), /^#ask\/./);
      await page.getByRole("button", { name: "New conversation" }).click();
      await page.locator(".empty").waitFor();
      // It is kept meanwhile, or is about to be.
      await release(page);
      await page.goBack();
      await page.getByText("take a while").waitFor();
      await soon.deepEqual(() => page.locator(".question").allTextContents(), ["Write."]);
    }));

  test("a reload while the first answer is written finds the question", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, [{ text: "These are many words that take a while", isHeld: true }]);
      await page.getByText("Notes", { exact: true }).click();
      await page.getByLabel("Message", { exact: true }).fill("Write.");
      await page.keyboard.press("Enter");
      await page.getByText("These are").waitFor();
      await isKept(page, "Write.");
      await page.reload();
      await page.getByRole("button", { name: "Try again" }).waitFor();
      await soon.deepEqual(() => page.locator(".question").allTextContents(), ["Write."]);
      await script(page, [{ text: "Done." }]);
      await page.getByRole("button", { name: "Try again" }).click();
      await page.getByText("Done.").waitFor();
      await soon.deepEqual(() => page.locator(".question").allTextContents(), ["Write."]);
    }));

  test("of two conversations that are opened, the later one is shown, and of two addresses", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, []);
      for (const message of ["one", "two", "three"]) {
        await say(page, message);
        await isKept(page, message);
        if (message !== "three") await page.getByRole("button", { name: "New conversation" }).click();
      }
      const id = async (title) => (await page.locator(`#chats a[title^="${title}"]`).getAttribute("href")).slice("#ask/".length);
      const [one, two, three] = [await id("one"), await id("two"), await id("three")];
      const shows = async (title, id) => {
        await soon.deepEqual(() => page.locator(".question").allTextContents(), [title]);
        await soon.equal(() => page.evaluate(() => location.hash), `#ask/${id}`);
      };
      // The first read of the storage from now on ends after `addresses` were opened.
      const open = (addresses) =>
        page.evaluate(async (addresses) => {
          const event = Object.getOwnPropertyDescriptor(IDBTransaction.prototype, "oncomplete");
          let late;
          const isOpened = new Promise((resolve) => {
            Object.defineProperty(IDBTransaction.prototype, "oncomplete", {
              ...event,
              set(listener) {
                Object.defineProperty(IDBTransaction.prototype, "oncomplete", event);
                event.set.call(this, () => ((late = listener), resolve()));
              },
            });
          });
          const [first, ...others] = addresses;
          location.hash = first;
          await isOpened;
          for (const address of others) {
            const isThere = new Promise((resolve) => window.addEventListener("hashchange", resolve, { once: true }));
            location.hash = address;
            await isThere;
          }
          late();
        }, addresses.map((id) => `#ask/${id}`));
      await open([one, two]);
      await shows("two", two);
      await open([three, two]);
      await shows("two", two);
      await open([one, three, one]);
      await shows("one", one);
    }));

  test("an answer is stopped while it is written, kept, and continued", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, [{ text: "These are many words that take a while to write", isHeld: true }, { text: " and their end." }, { text: "Cut", finish: "length" }]);
      await page.getByText("Notes", { exact: true }).click();
      await page.getByLabel("Message", { exact: true }).fill("Write.");
      await page.keyboard.press("Enter");
      await page.getByText("These are many").waitFor();
      await page.keyboard.press("Escape");
      await page.getByText("Stopped.", { exact: true }).waitFor();
      const begun = await page.locator(".turn .text").textContent();
      assert.ok("These are many words that take a while to write".startsWith(begun) && begun.length < 40, begun);
      await isKept(page, "These are");
      await page.reload();
      await script(page, [{ text: " and their end." }, { text: "Cut", finish: "length" }]);
      await page.getByRole("button", { name: "Continue" }).click();
      await page.getByText("and their end.").waitFor();
      await soon.equal(() => page.locator(".turn .text").textContent(), `${begun} and their end.`);
      const [request] = await asked(page);
      assert.deepEqual(messages(request), [["user", "Write."], ["assistant", begun]]);
      assert.deepEqual([request.continue_final_message, request.add_generation_prompt], [true, false]);
      await soon.equal(() => page.getByRole("button", { name: "Continue" }).count(), 0);
      const cut = await say(page, "More.");
      await cut.getByRole("button", { name: "Continue" }).waitFor();
    }));

  test("an answer from the notes that was cut goes on from the same passages", () =>
    withPage(server, async (page) => {
      const whole = await (await ask(page, QUESTION)).locator(".text").textContent();
      await options(page).click();
      await page.getByLabel("Token limit").fill("3");
      await page.getByRole("button", { name: "Done" }).click();
      const turn = await ask(page, QUESTION);
      await soon.match(() => turn.locator(".numbers").textContent(), /^3 tokens/);
      await options(page).click();
      await page.getByLabel("Token limit").fill("");
      await page.getByRole("button", { name: "Done" }).click();
      await turn.getByRole("button", { name: "Continue" }).click();
      await turn.getByRole("button", { name: "Continue" }).waitFor({ state: "detached" });
      await turn.locator(".numbers").waitFor();
      await soon.equal(async () => (await turn.locator(".text").textContent()).trim(), whole.trim());
      await soon.equal(() => turn.locator(".passages").count(), 1);
    }));

  test("text files are attached, within limits, and the model sees them", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, [{ text: "It is about boats." }]);
      const input = page.locator("input[type=file]");
      const file = (name, text) => ({ name, mimeType: "text/plain", buffer: Buffer.from(text) });
      await input.setInputFiles([file("big.txt", "x".repeat(257 << 10)), file("photo.txt", Buffer.from([0xff, 0xd8, 0, 1])), file("boats.md", "The ```boats``` leave.\n"), file("other.md", "Other.")]);
      await page.getByText("big.txt has 257 KB: at most 256 KB can be attached.").waitFor();
      await page.getByText("photo.txt is not a text in UTF-8.").waitFor();
      await page.getByRole("button", { name: "Do not attach other.md" }).click();
      await soon.ok(() => page.getByRole("switch", { name: "Notes" }).isDisabled(), "a message with files does not ask the notes");
      await checkAccessible(page, "files");
      await page.getByLabel("Message", { exact: true }).fill("What is it about?");
      await page.keyboard.press("Enter");
      await page.getByText("It is about boats.").waitFor();
      const [request] = await asked(page);
      assert.deepEqual(messages(request), [["user", "boats.md:\n````\nThe ```boats``` leave.\n````\n\nWhat is it about?"]]);
      await page.locator(".files summary").click();
      await soon.equal(() => page.locator(".files pre").textContent(), "The ```boats``` leave.\n");
      // Files can be dropped, too.
      await page.locator(".view").evaluate((view) => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File(["Dropped."], "dropped.txt"));
        view.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
      });
      await page.getByText("dropped.txt").waitFor();
    }));

  test("a conversation has a system prompt, sampling and colours of its own", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await options(page).click();
      await checkAccessible(page, "options");
      await page.getByLabel("System prompt").fill("You are terse.");
      for (const [name, value] of [["Temperature", "0.7"], ["Token limit", "40"], ["Top-p", "0.9"], ["Top-k", "40"], ["Min-p", "0.05"], ["Seed", "7"]]) {
        await page.getByLabel(name).fill(value);
      }
      await page.getByText("Colour drafted text").click();
      await page.getByRole("button", { name: "Done" }).click();
      await script(page, [{ text: "Yes and no and yes." }, { text: "Plain." }]);
      await page.locator(".choice").getByText("Without drafts").click();
      const turn = await say(page, "Is it?");
      await soon.equal(() => turn.locator(".tok[data-src]").first().evaluate((token) => getComputedStyle(token).backgroundColor), "rgba(0, 0, 0, 0)");
      const expected = { temperature: 0.7, max_tokens: 40, top_p: 0.9, top_k: 40, min_p: 0.05, seed: 7, drafts: false };
      const [request] = await asked(page);
      assert.deepEqual(messages(request), [["system", "You are terse."], ["user", "Is it?"]]);
      for (const [name, value] of Object.entries(expected)) assert.equal(request[name], value, name);
      await page.getByRole("button", { name: "New conversation" }).click();
      await say(page, "Is it?");
      const other = (await asked(page))[1];
      assert.deepEqual(messages(other), [["user", "Is it?"]]);
      assert.deepEqual([other.temperature, other.drafts, "top_p" in other, "seed" in other], [0, true, false, false]);
      // It is as it was, after a reload too.
      await isKept(page, "Plain.");
      await page.goBack();
      await page.getByText("Yes and no and yes.").waitFor();
      await page.reload();
      await page.getByText("Yes and no and yes.").waitFor();
      await soon.ok(() => page.getByLabel("Without drafts").isChecked());
      await options(page).click();
      await soon.equal(() => page.getByLabel("System prompt").inputValue(), "You are terse.");
    }));

  test("both ways of decoding write the same message, and are compared", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await page.locator(".choice").getByText("Compare").click();
      const turn = await say(page, "Which company takes care of the roof repair?");
      await soon.match(() => turn.locator(".verdict").textContent(), /Both texts are equal/);
      const steps = (await turn.locator(".numbers").allTextContents()).map((numbers) => /^(\d+) tokens? in (\d+) steps?/.exec(numbers).slice(1).map(Number));
      assert.equal(steps[0][0], steps[0][1], "without drafts, a step per token");
      assert.ok(steps[1][1] < steps[1][0], "with drafts, fewer");
      const drafted = await turn.locator(".column .tok[data-src]").count();
      assert.ok(drafted > 0);
      await soon.equal(() => turn.locator(".column").first().locator(".tok[data-src]").count(), 0);
      await isKept(page, "times as fast");
      await page.reload();
      await page.getByText(/Both texts are equal, .* times as fast/).waitFor();
      await soon.equal(() => page.locator(".tok[data-src]").count(), drafted);
    }));

  const MARKDOWN = [
    "# Title",
    "Some **bold *both***, *it*alic, ~~gone~~, `a *b* c`, 2 * 3 * 4, snake_case_name, \\*kept\\*.",
    "Line two of [a link](https://example.org/a_(b)?c=1&d=2 \"t\") and https://example.org/x.",
    "",
    "1. one",
    "   - nested",
    "   - more",
    "2. two",
    "",
    "| Name | Count |",
    "|:--|--:|",
    "| a \\| b | 1 |",
    "| `x|y` | 2 |",
    "",
    "```js",
    "const x = `**not bold**`;",
    "  // <b>indented</b>",
    "```",
    "",
    "> quoted",
    "> twice",
    "",
    "---",
    "",
    '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>',
  ].join("\n");

  test("an answer is Markdown, with code to copy, tables, lists and links; reasoning and calls are folded", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await page.context().grantPermissions(["clipboard-read", "clipboard-write"], { origin: server.url });
      const calls = [{ name: "weather", arguments: '{"at": "sea"}' }];
      await script(page, [{ text: MARKDOWN, reasoning: "Let me think.", calls }]);
      const turn = await say(page, "Format.");
      const text = turn.locator(".text");
      const all = (selector) => text.locator(selector).allTextContents();
      await soon.deepEqual(() => all("h3"), ["Title"]);
      await soon.deepEqual(() => all("strong"), ["bold both"]);
      await soon.deepEqual(() => all("em"), ["both", "it"]);
      await soon.deepEqual(() => all("s"), ["gone"]);
      await soon.deepEqual(() => all("p code"), ["a *b* c"]);
      await soon.match(async () => (await all("p"))[0], /2 \* 3 \* 4, snake_case_name, \*kept\*\.\nLine two/);
      await soon.deepEqual(() => text.locator("a").evaluateAll((links) => links.map(({ href, textContent, rel, target }) => [href, textContent, rel, target])), [
        ["https://example.org/a_(b)?c=1&d=2", "a link", "noopener noreferrer", "_blank"],
        ["https://example.org/x", "https://example.org/x", "noopener noreferrer", "_blank"],
      ]);
      await soon.deepEqual(() => all("ol > li > ul > li"), ["nested", "more"]);
      await soon.equal(() => text.locator("ol > li").count(), 2);
      await soon.deepEqual(() => all("td"), ["a | b", "1", "x|y", "2"]);
      await soon.equal(() => text.locator("td.right").count(), 2);
      await soon.deepEqual(() => all("blockquote"), ["quoted\ntwice"]);
      await soon.equal(() => text.locator("hr").count(), 1);
      const code = "const x = `**not bold**`;\n  // <b>indented</b>";
      await soon.deepEqual(() => all("pre code"), [code]);
      const written = await text.innerHTML();
      await text.getByRole("button", { name: "Copy the code" }).click();
      await soon.equal(() => page.evaluate(() => navigator.clipboard.readText()), code);
      await turn.getByRole("button", { name: "Copy the answer" }).click();
      await soon.equal(() => page.evaluate(() => navigator.clipboard.readText()), MARKDOWN);
      const folded = await turn.locator("details.reasoning").evaluateAll((all) => all.map((details) => [details.open, details.querySelector("summary").textContent, details.textContent]));
      assert.deepEqual(folded, [
        [false, "Reasoning", "ReasoningLet me think."],
        [false, "Tool call: search", 'Tool call: search{"name": "search", "arguments": {"q": "x"}}'.replace("{", '<tool_call>{').concat("</tool_call>")],
        [false, "Tool call: weather", 'Tool call: weather{"at": "sea"}'],
      ]);
      // The colours of the drafts are inside the formatting.
      await soon.ok(async () => (await text.locator("td .tok[data-src], pre .tok[data-src], li .tok[data-src]").count()) > 3);
      // A kept answer looks as one that was just written.
      await isKept(page, "Format.");
      await page.reload();
      await page.locator(".turn .text h3").waitFor();
      const shape = (html) => html.replace(/ data-us="\d+"| id="[^"]*"/g, "");
      await soon.equal(async () => shape(await page.locator(".turn .text").innerHTML()), shape(written));
    }));

  test("an answer cannot be markup, a script, a picture or a foreign address", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      const hostile = [
        "<script>window.hacked = 1</script> <img src=x onerror='window.hacked = 2'> <svg onload='window.hacked = 3'>",
        "[a](javascript:window.hacked=4) [b](JaVaScRiPt:alert(1)) [c](data:text/html,<script>1</script>) [d](/page/forget) [e](vbscript:x) [f](&#106;avascript:alert(1)) [g](\u0001javascript:alert(1))",
        "![pixel](https://example.org/pixel.png) <https://example.org/\"onclick=\"window.hacked=5>",
        "<a href='javascript:alert(1)'>x</a> <iframe src='https://example.org'></iframe>",
        "```\"><script>window.hacked = 6</script>\n</code><script>window.hacked = 7</script>\n```",
        `${"[".repeat(3000)}${"*a _b ".repeat(2000)}${"`".repeat(50)} ${"> ".repeat(400)}x`,
      ].join("\n\n");
      await script(page, [{ text: hostile, reasoning: "<script>window.hacked = 8</script>" }]);
      const turn = await say(page, "<script>window.hacked = 9</script>");
      assert.equal(await hacked(page), undefined);
      assert.equal(await turn.locator("script, img, svg, iframe, object, embed, style, form").count(), 0);
      const links = await turn.locator("a").evaluateAll((all) => all.map(({ href }) => href));
      assert.ok(links.length > 0 && links.every((href) => href.startsWith("https://example.org/")), links.join(" "));
      assert.equal(await turn.locator("[onclick], [onerror], [onload], [style]").count(), 0);
      const text = await turn.locator(".text").textContent();
      await isKept(page, "window.hacked = 9");
      for (const part of ["<script>window.hacked = 1</script>", "[a](javascript:window.hacked=4)", "[d](/page/forget)"]) assert.ok(text.includes(part), part);
      await page.reload();
      await page.locator(".turn .text").waitFor();
      assert.equal(await hacked(page), undefined);
      assert.equal(await page.locator("main script, main img, main iframe").count(), 0);
    }));

  test("the keyboard finds, starts, edits and stops", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, [{ text: "Four." }, { text: "Six." }]);
      await say(page, "two and two");
      await page.keyboard.press("ArrowUp");
      await soon.equal(() => page.getByLabel("New text of the message").inputValue(), "two and two");
      await page.keyboard.press("Escape");
      await soon.equal(() => page.getByLabel("New text of the message").count(), 0);
      await soon.match(() => page.evaluate(() => document.activeElement.placeholder), /Message/);
      await page.keyboard.press("ArrowUp");
      await page.keyboard.press("End");
      await page.keyboard.type(" and two");
      await page.keyboard.press("Enter");
      await page.getByText("Six.").waitFor();
      await page.getByRole("button", { name: "Regenerate" }).waitFor();
      await page.keyboard.type("line");
      await page.keyboard.press("Shift+Enter");
      await page.keyboard.type("two");
      await soon.equal(() => page.getByLabel("Message", { exact: true }).inputValue(), "line\ntwo");
      await page.keyboard.press("Control+k");
      await soon.equal(() => page.evaluate(() => document.activeElement.type), "search");
      await page.keyboard.press("Enter");
      await page.locator(".empty").waitFor();
      await page.getByRole("link", { name: "Settings" }).click();
      await page.locator(".settings").waitFor();
      await page.keyboard.press("Meta+k");
      await page.waitForFunction(() => document.activeElement.type === "search");
      await page.keyboard.type("two and");
      await page.waitForFunction(() => document.querySelectorAll("#chats a").length === 1);
      await page.keyboard.press("Enter");
      await page.getByText("Six.").waitFor();
      // What was typed and not sent is still there.
      await soon.equal(() => page.getByRole("textbox", { name: /Message|Question/ }).inputValue(), "line\ntwo");
    }));

  for (const scheme of ["light", "dark"]) {
    for (const [width, height] of [[1280, 800], [360, 740]]) {
      test(`axe-core finds nothing in a conversation, and nothing is too wide: ${scheme}, ${width} pixels`, () =>
        withPage(
          server,
          async (page) => {
            const check = async (where) => {
              await checkAccessible(page, where);
              await checkWidth(page, where);
            };
            await page.locator(".composer").waitFor();
            const long = `\`\`\`\n${"a long line of code ".repeat(20)}\n\`\`\`\n\n| ${"wide column | ".repeat(12)}\n|${"---|".repeat(12)}\n| ${"cell | ".repeat(12)}\n\n${"unbroken".repeat(40)}`;
            await script(page, [{ text: MARKDOWN, reasoning: "Let me think.", calls: [{ name: "weather", arguments: "{}" }] }, { text: long, finish: "length" }]);
            await say(page, `A question with ${"unbroken".repeat(20)} words`);
            await say(page, "Long.");
            await check("conversation");
            await page.locator(".turn").first().getByRole("button", { name: "Edit the message" }).click();
            await check("editing");
            await page.keyboard.press("Escape");
            if (width < 1024) {
              await soon.equal(() => page.locator("#chats").isVisible(), false);
              await page.getByRole("button", { name: "Conversations" }).click();
              await page.getByLabel("Search conversations").waitFor();
              await check("list");
              await page.keyboard.press("Escape");
              await soon.equal(() => page.locator("#chats").isVisible(), false);
              await soon.equal(() => page.evaluate(() => document.activeElement.id), "chats-toggle");
              await page.getByRole("button", { name: "Conversations" }).click();
              await page.locator("#chats a").first().click();
              await soon.equal(() => page.locator("#chats").isVisible(), false);
            }
            await options(page).click();
            await check("options");
          },
          { scheme, width, height },
        ));
    }
  }

  test("a conversation of 200 turns stays usable, and what does not fit the context is left out", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, [{ text: MARKDOWN }]);
      await say(page, "Format.");
      await isKept(page, "Format.");
      // The answer, 200 times.
      await page.evaluate(
        () =>
          new Promise((resolve) => {
            const request = indexedDB.open("refrain");
            request.onsuccess = () => {
              const all = request.result.transaction(["heads", "chats"], "readwrite");
              const chats = all.objectStore("chats").getAll();
              chats.onsuccess = () => {
                const [chat] = chats.result;
                const [turn] = chat.turns;
                chat.turns = Array.from({ length: 200 }, (_, index) => ({ ...turn, asked: `Question ${index + 1}` }));
                all.objectStore("chats").put(chat);
              };
              all.oncomplete = () => {
                request.result.close();
                resolve();
              };
            };
          }),
      );
      await page.reload();
      await page.locator(".turn").nth(199).waitFor();
      await soon.equal(() => page.locator(".turn").count(), 200);
      // What is out of sight is not laid out.
      const isLaidOut = (n) => page.locator(".turn .text").nth(n).evaluate((text) => text.checkVisibility({ contentVisibilityAuto: true }));
      await soon.deepEqual(async () => [await isLaidOut(0), await isLaidOut(100), await isLaidOut(199)], [false, false, true]);
      // The server's own model, whose context has room for few of them.
      const turn = await say(page, "Are you still there?");
      await turn.getByText(/The oldest \d+ turns did not fit the context/).waitFor();
      const n = Number(/oldest (\d+) turns/.exec(await turn.textContent())[1]);
      assert.ok(n > 150 && n < 200, `${n} left out`);
      await turn.locator(".numbers").waitFor();
      await isKept(page, "Are you still there?");
      await page.reload();
      await page.locator(".turn").nth(200).waitFor();
    }));

  test("two tabs show one list, take over each other's turns, and lose none", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, [{ text: "One." }, { text: "Three, here." }, { text: "Four." }]);
      await say(page, "first");
      await isKept(page, "One.");
      const other = await page.context().newPage();
      await other.goto(`${server.url}/${server.query}${await page.evaluate(() => location.hash)}`);
      await other.getByText("One.").waitFor();
      await script(other, [{ text: "Two." }, { text: "Three, there." }]);
      await say(other, "second");
      await page.getByText("Two.").waitFor();
      await soon.deepEqual(() => page.locator(".question").allTextContents(), ["first", "second"]);
      // Both go on at once: the later one is kept as a copy.
      await page.evaluate(() => (window.scripted.answers[0].isHeld = true));
      await page.getByLabel("Message", { exact: true }).fill("third, here");
      await page.keyboard.press("Enter");
      await page.locator(".turn").nth(2).waitFor();
      await say(other, "third, there");
      await isKept(other, "Three, there.");
      await page.getByText("Three,").waitFor();
      await release(page);
      await page.getByText("Yours is kept as a copy.").waitFor();
      await page.waitForFunction(() => document.querySelectorAll("#chats a").length === 2);
      await other.waitForFunction(() => document.querySelectorAll("#chats a").length === 2);
      await soon.deepEqual(async () => (await titles(other)).sort(), ["first", "first (copy)"]);
      await soon.deepEqual(() => page.locator(".question").allTextContents(), ["first", "second", "third, here"]);
      await soon.deepEqual(() => other.locator(".question").allTextContents(), ["first", "second", "third, there"]);
      // A deletion reaches the other tab.
      const id = (await page.evaluate(() => location.hash)).split("/")[1];
      await other.evaluate((id) => (location.hash = `#ask/${id}`), id);
      await other.getByText("Three, here.").waitFor();
      await options(other).click();
      await other.getByRole("button", { name: "Delete…" }).click();
      await other.getByRole("button", { name: "Delete", exact: true }).click();
      await page.getByText("The conversation was deleted in another tab.").waitFor();
      await soon.equal(() => page.locator(".turn").count(), 0);
    }));

  test("a browser without room says so, and nothing on the screen is lost", () =>
    withPage(
      server,
      async (page) => {
        await page.locator(".composer").waitFor();
        const session = await page.context().newCDPSession(page);
        await session.send("Storage.overrideQuotaForOrigin", { origin: server.url, quotaSize: 700_000 });
        await page.reload();
        await page.locator(".composer").waitFor();
        await script(page, [{ text: "Kept." }, { text: `A long answer. ${"x".repeat(900_000)}` }, { text: "Short." }]);
        await say(page, "first");
        await say(page, "second");
        await page.getByText("The browser has no room for this conversation.").waitFor();
        await soon.match(() => page.locator(".turn").nth(1).locator(".text").textContent(), /^A long answer/);
        // It can be left, found again and exported.
        await page.getByRole("button", { name: "New conversation" }).click();
        await page.getByRole("link", { name: "first" }).click();
        await soon.equal(() => page.locator(".turn").count(), 2);
        await options(page).click();
        const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export JSON" }).click()]);
        assert.equal(JSON.parse(await readFile(await download.path(), "utf8")).turns.length, 2);
        // Where the long answer is gone, the rest is kept.
        await page.getByRole("button", { name: "Done" }).click();
        await page.locator(".turn").nth(1).getByRole("button", { name: "Regenerate" }).click();
        await isKept(page, "Short.");
        await page.waitForFunction(() => document.querySelector(".notices .error").textContent === "");
        await page.reload();
        await page.getByText("Short.").waitFor();
        await soon.deepEqual(() => page.locator(".question").allTextContents(), ["first", "second"]);
      },
    ));

  test("a question that the notes do not cover can be answered without them", () =>
    withPage(server, async (page) => {
      await page.locator(".composer").waitFor();
      await script(page, [{ text: "A made-up word." }]);
      const turn = await ask(page, "xyzzy");
      await turn.getByRole("button", { name: "Answer without notes" }).click();
      await page.getByText("A made-up word.").waitFor();
      await soon.deepEqual(async () => (await asked(page)).map(messages), [[["user", "xyzzy"]]]);
      await soon.equal(() => page.locator(".turn").count(), 1);
    }));

  test("switched off, conversations last as long as the tab", () =>
    withPage(
      server,
      async (page) => {
        await page.getByText("Keep conversations").click();
        await page.getByRole("link", { name: "Ask" }).click();
        await ask(page, QUESTION);
        await soon.deepEqual(() => titles(page), [QUESTION]);
        assert.doesNotMatch(await stored(page), /roof/);
        await page.reload();
        await page.getByText("This browser does not have this conversation.").waitFor();
        await page.getByText("Conversations are kept in this browser.").waitFor();
        assert.deepEqual(await titles(page), []);
      },
      { hash: "#settings" },
    ));
});

describe("forgetting conversations", () => {
  before(openBrowser);
  after(closeBrowser);

  test("what is forgotten leaves the browser too", async () => {
    const server = await Server.start();
    try {
      await withPage(server, async (page) => {
        const forget = async (button) => {
          await button.click();
          await page.getByRole("button", { name: "Forget", exact: true }).click();
          await page.getByRole("heading", { name: "Forgotten" }).waitFor();
          await page.getByRole("button", { name: "Close", exact: true }).click();
        };
        await ask(page, "How many guests are invited to Stiafin Nornini's party?");
        await ask(page, QUESTION);
        await script(page, [{ text: "It was about a slate." }]);
        await say(page, "What was that about?");
        await isKept(page, "slate");
        // From the first turn on that showed the note.
        await page.getByRole("link", { name: "History" }).click();
        await forget(page.getByRole("button", { name: "Forget the note Repair: roof" }).first());
        await page.getByRole("link", { name: "Ask" }).click();
        const left = await stored(page);
        assert.doesNotMatch(left, /repair-roof|slate/);
        // Not in the answer of the first turn, but perhaps among its passages: then it goes too.
        await soon.equal(() => page.locator(".turn").count(), (JSON.parse(left)[1][0]?.turns ?? []).length);
        await page.getByRole("button", { name: "New conversation" }).click();
        await script(page, [{ text: "A heron." }]);
        await say(page, "Which bird?");
        await isKept(page, "heron");
        await page.getByRole("link", { name: "History" }).click();
        await forget(page.getByRole("button", { name: "Forget all answers…" }));
        assert.doesNotMatch(await stored(page), /heron|guests/);
        await page.getByRole("link", { name: "Ask" }).click();
        await soon.deepEqual(() => titles(page), []);
        await page.getByText("Conversations are kept in this browser.").waitFor();
        await script(page, [{ text: "A stork." }]);
        await say(page, "And now?");
        await isKept(page, "stork");
        await page.getByRole("link", { name: "History" }).click();
        await forget(page.getByRole("button", { name: "Forget everything…" }));
        assert.doesNotMatch(await stored(page), /stork/);
      });
    } finally {
      await server.stop();
    }
  });

  test("a deletion reaches other tabs, also one that writes and one that keeps nothing", async () => {
    const server = await Server.start();
    try {
      await withPage(server, async (page) => {
        await ask(page, QUESTION);
        await isKept(page, "Eladus");
        const tab = async (hash) => {
          const other = await page.context().newPage();
          await other.goto(`${server.url}/${server.query}${hash}`);
          await other.getByRole("link", { name: "Ask" }).waitFor();
          return other;
        };
        const writing = await tab(await page.evaluate(() => location.hash));
        await writing.locator(".passages").waitFor();
        await script(writing, [{ text: "It is about a slate that is missing from the roof", isHeld: true }]);
        const unkept = await tab("#settings");
        await unkept.getByText("Keep conversations").click();
        await unkept.getByRole("link", { name: "Ask" }).click();
        await ask(unkept, QUESTION);
        await writing.getByText("Notes", { exact: true }).click();
        await writing.getByLabel("Message", { exact: true }).fill("What is it about?");
        await writing.keyboard.press("Enter");
        await writing.getByText("It is about").waitFor();
        const begun = await tab("");
        await script(begun, [{ text: "A heron stands in the pond behind the house", isHeld: true }]);
        await begun.getByText("Notes", { exact: true }).click();
        await begun.getByLabel("Message", { exact: true }).fill("Which bird?");
        await begun.keyboard.press("Enter");
        await begun.getByText("A heron").waitFor();
        // A tab behind others is slow on a busy machine.
        await page.bringToFront();
        await page.getByRole("link", { name: "History" }).click();
        await page.getByRole("button", { name: "Forget everything…" }).click();
        await page.getByRole("button", { name: "Forget", exact: true }).click();
        await page.getByRole("heading", { name: "Forgotten" }).waitFor();
        await writing.getByText("deleted in another tab").waitFor();
        for (const other of [writing, unkept, begun]) {
          await other.locator(".empty").waitFor();
          await soon.deepEqual(() => titles(other), []);
        }
        await soon.doesNotMatch(() => stored(page), /slate|roof|heron|bird/);
      });
    } finally {
      await server.stop();
    }
  });
});
