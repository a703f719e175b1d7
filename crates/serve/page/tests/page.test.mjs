// The page in a real browser, with the real server and the model inside the program.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { HOSTILE, Server, ask, browserFile, checkAccessible, checkWidth, closeBrowser, hacked, openBrowser, soon, withPage } from "./support.mjs";

const QUESTION = "Which company takes care of the roof repair?";
const TOKEN = "a-token-of-at-least-16-bytes";
const TEXT = "Dear Ada,\n\nthe plumber comes on Friday at noon 🙂. Please leave the key with Mr Okafor.\n\nBest wishes";
const mode = (page, name) => page.locator(".view .choice").getByText(name, { exact: true }).first().click();

assert.ok(browserFile, "no Chromium: install it, or set CHROMIUM");

describe("the page", () => {
  let server;
  before(async () => {
    await openBrowser();
    server = await Server.start();
  });
  after(async () => {
    await closeBrowser();
    await server?.stop();
  });

  test("an answer has coloured tokens, a legend and numbers", () =>
    withPage(server, async (page) => {
      const turn = await ask(page, QUESTION);
      await soon.match(() => turn.locator(".text").textContent(), /Eladus Works/);
      await soon.ok(async () => (await turn.locator(".tok[data-src]").count()) > 0);
      await soon.match(() => turn.locator(".legend").textContent(), /model itself/);
      await soon.match(() => turn.locator(".numbers").textContent(), /\d+ tokens? in \d+ steps?/);
      // Every source in the text is in the legend, with a pattern and a name.
      const sources = await turn.locator(".text [data-src]").evaluateAll((all) => all.map((element) => element.dataset.src));
      const named = await turn.locator(".legend [data-src]").evaluateAll((all) => all.map((element) => element.dataset.src));
      assert.deepEqual([...new Set(sources)].filter((source) => !named.includes(source)), []);
      const charts = await page.locator(".meter svg").evaluateAll((all) => all.map((chart) => chart.getAttribute("aria-label")));
      assert.equal(charts.length, 3);
      assert.match(charts.join("; "), /tokens per second; .* tokens per step; \d+ % of the newest prompt/);
    }));

  test("a copied span opens its source at the place", () =>
    withPage(server, async (page) => {
      const turn = await ask(page, QUESTION);
      const span = turn.locator(".copied").first();
      const copied = await span.textContent();
      await span.click();
      const mark = page.locator("aside mark");
      await mark.waitFor();
      await soon.equal(() => mark.textContent(), copied);
      await soon.match(() => page.locator("aside").textContent(), /repair-roof\.md/);
      await soon.ok(() => mark.isVisible());
      await page.keyboard.press("Escape");
      await soon.equal(() => page.locator("aside").isVisible(), false);
      await soon.ok(() => span.evaluate((element) => element === document.activeElement));
    }));

  test("without drafts the text is the same, in more steps", () =>
    withPage(server, async (page) => {
      const drafted = await ask(page, QUESTION);
      await mode(page, "Without drafts");
      const plain = await ask(page, QUESTION);
      assert.equal(await plain.locator(".text").textContent(), await drafted.locator(".text").textContent());
      await soon.equal(() => plain.locator(".tok[data-src]").count(), 0);
      const steps = async (turn) => Number(/in (\d+) step/.exec(await turn.locator(".numbers").textContent())[1]);
      await soon.ok(async () => (await steps(plain)) > (await steps(drafted)));
    }));

  test("comparing proves both texts equal, also when they are drawn", () =>
    withPage(server, async (page) => {
      await page.evaluate(() => localStorage.setItem("refrain.settings", JSON.stringify({ mode: "compare", temperature: 1.2 })));
      await page.reload();
      const turn = await ask(page, QUESTION);
      await soon.match(() => turn.locator(".verdict").textContent(), /Both texts are equal/);
      const [first, second] = await turn.locator(".column .text").allTextContents();
      assert.equal(first, second);
      await soon.match(() => turn.locator(".race").getAttribute("aria-label"), /with drafts: \d+ tokens/);
      await turn.getByRole("button", { name: "Replay slowly" }).click();
      await turn.locator(".column .text .later").first().waitFor({ state: "attached" });
      await turn.locator(".column .text .later").first().waitFor({ state: "detached" });
      assert.equal(await turn.locator(".column .text").nth(1).textContent(), second);
    }));

  test("an edit shows changes that give the new text, and can be accepted and taken back", () =>
    withPage(
      server,
      async (page) => {
        await page.getByLabel("Text", { exact: true }).fill(TEXT);
        await page.getByLabel("What to change").fill("Change Friday to Monday.");
        let events = "";
        await page.route("**/page/edit", async (route) => {
          const response = await route.fetch();
          events = await response.text();
          await route.fulfill({ response, body: events });
        });
        await page.keyboard.press("Enter");
        await page.getByRole("button", { name: "Accept" }).waitFor();
        const done = events.split("\n\n").find((event) => event.startsWith("event: done"));
        const { text } = JSON.parse(done.split("data: ")[1]);
        // The old text is what is kept and deleted, the new one what is kept and inserted.
        const parts = await page.locator(".diff").evaluate((diff) => [...diff.childNodes].map((node) => [node.nodeName, node.textContent]));
        const joined = (without) => parts.filter(([name]) => name !== without).map(([, part]) => part).join("");
        assert.equal(joined("INS"), TEXT);
        assert.equal(joined("DEL"), text);
        await page.getByRole("button", { name: "Accept" }).click();
        await soon.equal(() => page.getByLabel("Text", { exact: true }).inputValue(), text);
        await page.getByRole("button", { name: "Undo the accepted edit" }).click();
        await soon.equal(() => page.getByLabel("Text", { exact: true }).inputValue(), TEXT);
      },
      { hash: "#edit" },
    ));

  test("a note cannot be markup", () =>
    withPage(server, async (page) => {
      const turn = await ask(page, "<img src=x onerror=alert(2)> Who was given the key of the shed?");
      await soon.match(() => turn.locator(".question").textContent(), /^<img src=x/);
      await turn.locator(".passage", { hasText: "<b>Shed</b>" }).click();
      await page.locator("aside mark").waitFor();
      await soon.equal(() => page.locator("aside h2").textContent(), HOSTILE.title);
      await soon.ok(async () => (await page.locator("aside .note-text").textContent()).includes(HOSTILE.text));
      assert.equal(await page.locator("aside img, aside script, aside svg, aside b, main .turn img").count(), 0);
      assert.equal(await hacked(page), undefined);
      await page.getByRole("link", { name: "History" }).click();
      await page.locator(".entry").first().waitFor();
      assert.equal(await page.locator(".entry img, .entry script, .entry b").count(), 0);
    }));

  test("stopping ends the job and says so", () =>
    withPage(server, async (page) => {
      // The answer ends sooner than anybody can stop it, so the server's stream is held back here.
      await page.route("**/page/ask", () => undefined);
      await page.getByLabel("Question about your notes").fill(QUESTION);
      await page.keyboard.press("Enter");
      await page.getByRole("button", { name: "Stop" }).click();
      await page.getByText("Stopped. Nothing was kept.").waitFor();
      await page.unroute("**/page/ask");
      await ask(page, QUESTION);
    }));

  test("errors are shown in words", () =>
    withPage(
      server,
      async (page) => {
        await page.getByLabel("Question about your notes").fill("xyzzy");
        await page.keyboard.press("Enter");
        await page.getByText("Not in your notes.").last().waitFor();
        await page.route("**/page/ask", (route) => route.abort());
        await page.getByLabel("Question about your notes").fill("xyzzy");
        await page.keyboard.press("Enter");
        await page.getByText("The server cannot be reached.").waitFor();
      },
      { allow: ["net::ERR_FAILED"] },
    ));

  test("settings are kept by the browser and used", () =>
    withPage(
      server,
      async (page) => {
        await page.getByLabel("Maximum tokens of an answer").fill("3");
        await page.getByText("Dark", { exact: true }).click();
        await page.reload();
        await soon.equal(() => page.evaluate(() => document.documentElement.dataset.theme), "dark");
        await page.getByRole("link", { name: "Ask" }).click();
        const turn = await ask(page, QUESTION);
        await turn.getByText("The answer was cut at the limit of tokens").waitFor();
        await soon.match(() => turn.locator(".numbers").textContent(), /^3 tokens/);
      },
      { hash: "#settings" },
    ));

  test("the keyboard is enough", () =>
    withPage(server, async (page) => {
      const focused = () => page.evaluate(() => `${document.activeElement.className} ${document.activeElement.textContent}`);
      const tabTo = async (what, key = "Tab") => {
        for (let i = 0; i < 60; i += 1) {
          if ((await focused()).includes(what)) return;
          await page.keyboard.press(key);
        }
        throw new Error(`the keyboard does not reach ${what}`);
      };
      await page.locator(".composer").waitFor();
      await page.keyboard.press("Tab");
      await soon.match(() => focused(), /Skip to the content/);
      await page.keyboard.press("Enter");
      await page.keyboard.press("Tab");
      await page.keyboard.type(QUESTION);
      await page.keyboard.press("Enter");
      await page.locator(".turn .passages").waitFor();
      // The focus is in the question field again, and the answer before it.
      await tabTo("copied", "Shift+Tab");
      const copied = await page.evaluate(() => document.activeElement.textContent);
      await page.keyboard.press("Enter");
      await page.locator("aside mark").waitFor();
      await soon.equal(() => page.locator("aside mark").textContent(), copied);
      await soon.match(() => focused(), /Repair: roof/);
      await page.keyboard.press("Escape");
      await soon.match(() => focused(), /^copied/);
      await tabTo("History", "Shift+Tab");
      await page.keyboard.press("Enter");
      await page.locator(".entry").first().waitFor();
      await tabTo("Forget all answers");
      await page.keyboard.press("Enter");
      await soon.equal(async () => (await focused()).trim(), "Keep");
      await page.keyboard.press("Escape");
      await page.locator("#confirm").waitFor({ state: "hidden" });
      await soon.match(() => focused(), /Forget all answers/);
      await tabTo("Settings", "Shift+Tab");
      await page.keyboard.press("Enter");
      await page.locator(".settings").waitFor();
    }));

  for (const scheme of ["light", "dark"]) {
    for (const [width, height] of [[1200, 800], [360, 740]]) {
      test(`axe-core finds nothing, and nothing is too wide: ${scheme}, ${width} pixels`, () =>
        withPage(
          server,
          async (page) => {
            const check = async (where) => {
              await checkAccessible(page, where);
              await checkWidth(page, where);
            };
            await page.locator(".composer").waitFor();
            await check("ask, empty");
            const turn = await ask(page, QUESTION);
            await check("ask");
            await turn.locator(".copied").first().click();
            await page.locator("aside mark").waitFor();
            await check("source");
            await page.keyboard.press("Escape");
            await ask(page, "<img src=x onerror=alert(3)> Who was given the key of the shed?");
            await check("ask, hostile");
            await mode(page, "Compare");
            const compared = await ask(page, "What is the capital of France, and how many guests has the party?");
            await compared.locator(".verdict").waitFor();
            await check("compare");
            await mode(page, "With drafts");
            await page.getByRole("link", { name: "Edit" }).click();
            await page.getByLabel("Text", { exact: true }).fill(TEXT);
            await page.getByLabel("What to change").fill("Change Friday to Monday.");
            await page.keyboard.press("Enter");
            await page.getByRole("button", { name: "Accept" }).waitFor();
            await check("edit");
            await mode(page, "Compare");
            await page.getByRole("button", { name: "Edit", exact: true }).click();
            await page.locator(".verdict").waitFor();
            await check("edit, compare");
            await page.getByRole("link", { name: "History" }).click();
            await page.locator(".entry").first().waitFor();
            await check("history");
            await page.getByRole("button", { name: "Forget everything…" }).click();
            await check("dialog");
            await page.keyboard.press("Escape");
            await page.getByRole("link", { name: "Settings" }).click();
            await page.locator(".settings").waitFor();
            await check("settings");
          },
          { scheme, width, height },
        ));
    }
  }
});

describe("forgetting", () => {
  before(openBrowser);
  after(closeBrowser);

  test("forgetting a note, all answers and everything empties what the page shows", async () => {
    const server = await Server.start();
    try {
      await withPage(server, async (page) => {
        const forget = async (button) => {
          await button.click();
          await page.getByRole("button", { name: "Forget", exact: true }).click();
          await page.getByRole("heading", { name: "Forgotten" }).waitFor();
          await page.getByRole("button", { name: "Close", exact: true }).click();
        };
        const history = async () => {
          await page.getByRole("link", { name: "History" }).click();
          await page.locator(".entry, .entries .hint").first().waitFor();
        };
        await ask(page, QUESTION);
        await ask(page, "How many guests are invited to Stiafin Nornini's party?");
        await history();
        await soon.equal(() => page.locator(".entry").count(), 2);
        await forget(page.getByRole("button", { name: "Forget the note Repair: roof" }).first());
        await page.waitForFunction(() => !document.body.textContent.includes("roof repair"));
        // The note has left the index: no answer can be made from it.
        await page.getByRole("link", { name: "Ask" }).click();
        await soon.equal(() => page.locator(".turn").count(), 0);
        await page.getByLabel("Question about your notes").fill("fuse");
        await page.keyboard.press("Enter");
        await page.getByText("Not in your notes.").last().waitFor();
        await ask(page, "Who helps with the shopping list of Toabran Kresfield?");
        await history();
        await forget(page.getByRole("button", { name: "Forget all answers…" }));
        await page.getByText("Nothing is kept in this list.").waitFor();
        await page.getByRole("link", { name: "Ask" }).click();
        await ask(page, "Who helps with the shopping list of Toabran Kresfield?");
        await history();
        await forget(page.getByRole("button", { name: "Forget everything…" }));
        await page.getByText("Nothing is kept in this list.").waitFor();
        await page.getByRole("link", { name: "Ask" }).click();
        await page.getByLabel("Question about your notes").fill(QUESTION);
        await page.keyboard.press("Enter");
        await page.getByText("Not in your notes.").last().waitFor();
      });
    } finally {
      await server.stop();
    }
  });
});

describe("signing in", () => {
  before(openBrowser);
  after(closeBrowser);

  test("a server with a token asks for it, and the tab alone keeps it", async () => {
    const server = await Server.start({ token: TOKEN });
    try {
      await withPage(
        server,
        async (page) => {
          await page.getByLabel("Token").fill("wrong");
          await page.keyboard.press("Enter");
          await page.getByText("The server does not accept this token.").waitFor();
          await checkAccessible(page, "sign in");
          await page.getByLabel("Token").fill(TOKEN);
          await page.keyboard.press("Enter");
          await ask(page, QUESTION);
          const kept = await page.evaluate(() => [JSON.stringify(localStorage), document.cookie, sessionStorage.getItem("refrain.token")]);
          assert.ok(!kept[0].includes(TOKEN) && kept[1] === "" && kept[2] === TOKEN);
          await page.reload();
          await page.locator(".composer").waitFor();
          await page.getByRole("link", { name: "Settings" }).click();
          await page.getByRole("button", { name: "Sign out" }).click();
          await page.locator(".signin").waitFor();
          assert.equal(await page.evaluate(() => sessionStorage.getItem("refrain.token")), null);
        },
        { allow: ["401"] },
      );
    } finally {
      await server.stop();
    }
  });

  test("the printed address signs in, and loses the token", async () => {
    const server = await Server.start();
    try {
      assert.match(server.query, /^\?token=[0-9a-f]{32}$/);
      const token = server.query.slice("?token=".length);
      await withPage(
        server,
        async (page) => {
          await page.locator(".composer").waitFor();
          const shown = await page.evaluate(() => [location.href, JSON.stringify(localStorage), document.cookie, sessionStorage.getItem("refrain.token")]);
          assert.deepEqual(shown, [`${server.url}/#ask`, shown[1], "", token]);
          assert.ok(!shown[1].includes(token));
          await soon.equal(() => page.evaluate(() => history.length), 2, "no entry has the token");
          await page.reload();
          await ask(page, QUESTION);
          // Another tab needs the address again, and a wrong token asks for the right one.
          await page.goto(`${server.url}/?token=wrong&a=b`);
          await page.getByText("The server does not accept this token.").waitFor();
          await soon.equal(() => page.evaluate(() => location.search), "?a=b");
        },
        { hash: "#ask", allow: ["401"] },
      );
    } finally {
      await server.stop();
    }
  });

  test("a server without notes says so, and edits", async () => {
    const server = await Server.start({ notes: false });
    try {
      await withPage(server, async (page) => {
        await page.getByText("The server has no notes.").waitFor();
        await page.getByRole("link", { name: "Edit" }).click();
        await page.getByLabel("Text", { exact: true }).fill(TEXT);
        await page.getByLabel("What to change").fill("Change Friday to Monday.");
        await page.keyboard.press("Enter");
        await page.getByRole("button", { name: "Accept" }).waitFor();
      });
    } finally {
      await server.stop();
    }
  });
});
