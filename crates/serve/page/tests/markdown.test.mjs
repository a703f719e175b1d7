// Markdown from random and from hostile texts, without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import path from "node:path";
import esbuild from "esbuild";

/** As much of a document as the page's elements need. */
class Node {
  children = [];
  constructor(name, text = "") {
    Object.assign(this, { name, text });
  }
  append(child) {
    this.children.push(typeof child === "string" ? new Node("#text", child) : child);
  }
  setAttribute(name, value) {
    (this.attributes ??= {})[name] = value;
  }
  addEventListener() {}
  get textContent() {
    return this.text + this.children.map((child) => child.textContent).join("");
  }
}
globalThis.Node = Node;
globalThis.document = { createElement: (name) => new Node(name), createTextNode: (text) => new Node("#text", text) };

const resolveDir = path.join(path.dirname(fileURLToPath(import.meta.url)), "../src");
const built = await esbuild.build({ stdin: { contents: 'export { blocks } from "./markdown"', resolveDir }, bundle: true, write: false, format: "esm" });
const { blocks } = await import(`data:text/javascript,${encodeURIComponent(built.outputFiles[0].text)}`);

const render = (source, from = 0) => blocks(source, from, (start, end) => [new Node("#text", source.slice(start, end))]);
const shape = (found) => JSON.stringify(found.map(({ node }) => node));

const ATOMS = ["*", "**", "_", "__", "`", "```", "~~", "[", "]", "(", ")", "!", "<", ">", "|", "\n", "\n\n", "- ", "1. ", "  ", "    ", "# ", "> ", "word", "é", "https://a.b/c", "\\", "---", "|--|--|", "<tool_call>", "</tool_call>", "x y", "~~~", "🙂"];

test("of random texts, no word is lost, parts come in order, and a text that grows looks as the whole one", () => {
  let seed = 7;
  const random = (n) => {
    seed = (seed * 1103515245 + 12345) % 2 ** 31;
    return Math.floor((seed / 2 ** 31) * n);
  };
  for (let n = 0; n < 5000; n += 1) {
    const source = Array.from({ length: 1 + random(40) }, () => ATOMS[random(ATOMS.length)]).join("");
    let last = 0;
    const found = blocks(source, 0, (start, end) => {
      assert.ok(last <= start && start <= end && end <= source.length, source);
      last = end;
      return [new Node("#text", source.slice(start, end))];
    });
    const words = (text) => text.match(/word/g)?.length ?? 0;
    // Names of languages and addresses of links are not shown as text.
    if (!/```|~~~|\[/.test(source)) assert.equal(words(found.map(({ node }) => node.textContent).join("\n")), words(source), source);
    // As `AnswerText` renders a text while it is written.
    let [start, complete] = [0, []];
    for (let end = 1; end < source.length; end += 1 + random(5)) {
      const part = source.slice(0, end);
      const until = part.lastIndexOf("\n", part.lastIndexOf("\n") - 1);
      const grown = render(part, start);
      const n = grown.filter((block) => block.start <= until).length - 1;
      if (n < 1) continue;
      complete = [...complete, ...grown.slice(0, n)];
      start = grown[n].start;
    }
    assert.equal(shape([...complete, ...render(source, start)]), shape(found), source);
  }
});

test("hostile texts of 100 KB take no long time", () => {
  for (const part of ["[", "*a ", "**a ", "`", "`a``", "> ", "- ", "|", "1. a\n", "_a_b", "![", "[a](", "h", "https://a ", "~~a~", "\\", "*_", "***a", "*a **b ", "```\n", "[](", "x|y\n", "#\n", "  - x\n"]) {
    const since = process.cpuUsage();
    render(`a|b\n-|-\n${part.repeat(100_000 / part.length)}`);
    render(part.repeat(100_000 / part.length));
    const ms = process.cpuUsage(since).user / 1000;
    assert.ok(ms < 5000, `${part}: ${ms} ms of processor time`);
  }
});
