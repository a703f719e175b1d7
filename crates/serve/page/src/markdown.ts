// Markdown as elements. Nothing becomes markup: every part is made by name, and HTML in a text stays text. The text of each leaf is asked
// for by its place in the source, so that a token keeps its colour and a copied span its button inside any formatting.

import { el } from "./dom";
import { copyButton } from "./copy";

/** The nodes of a part of the source. */
export type Leaf = (start: number, end: number) => Node[];

/** A line without its end and without the indentation and marks of what it stands in. */
type Line = Range;
type Range = [start: number, end: number];

/** Deeper lists, quotes and emphasis are plain text. */
const DEPTH_MAX = 12;
/** Longer labels and addresses are no links. */
const LABEL_MAX = 500;
const ADDRESS_MAX = 2000;

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const DELIMITERS = /^ *\|?(?: *:?-+:? *\|)+(?: *:?-+:?)? *$|^ *\| *:?-+:? *$/;
const CALL = /^ {0,3}<tool_call>/;

/** The blocks of a text from `from` on, and where each begins. */
export function blocks(source: string, from: number, leaf: Leaf): { node: HTMLElement; start: number }[] {
  const lines: Line[] = [];
  for (let start = from; start <= source.length; ) {
    const found = source.indexOf("\n", start);
    const end = found < 0 ? source.length : found;
    lines.push([start, end]);
    start = end + 1;
  }
  return new Reader(source, leaf).blocks(lines, 0);
}

class Reader {
  /** The levels of the headings that contain the current line. */
  private readonly levels: number[] = [];

  constructor(
    private readonly source: string,
    private readonly leaf: Leaf,
  ) {}

  blocks(lines: readonly Line[], depth: number): { node: HTMLElement; start: number }[] {
    const found: { node: HTMLElement; start: number }[] = [];
    for (let at = 0; at < lines.length; ) {
      const line = lines[at] as Line;
      const text = this.text(line);
      if (text.trim() === "") {
        at += 1;
        continue;
      }
      const [node, next] = this.block(lines, at, text, depth);
      found.push({ node, start: line[0] });
      at = next;
    }
    return found;
  }

  /** The block that begins with a line, and the index of the line behind it. */
  private block(lines: readonly Line[], at: number, text: string, depth: number): [HTMLElement, number] {
    const [start] = lines[at] as Line;
    const fence = FENCE.exec(text);
    if (fence) return this.code(lines, at, fence);
    const heading = HEADING.exec(text);
    if (heading) {
      const closed = text.replace(/[ \t]+#*[ \t]*$/, "");
      const level = (heading[1] as string).length;
      while ((this.levels.at(-1) ?? 0) >= level) this.levels.pop();
      this.levels.push(level);
      // Below the question, which is a heading of the second level, and without a gap. The size is that of the mark.
      const name = `h${Math.min(6, this.levels.length + 2)}` as "h3";
      return [el(name, { class: `h${level}` }, this.inline([start + heading[0].length, start + Math.max(heading[0].length, closed.length)])), at + 1];
    }
    if (RULE.test(text)) return [el("hr"), at + 1];
    if (CALL.test(text)) return this.call(lines, at);
    if (depth < DEPTH_MAX && QUOTE.test(text)) {
      const [inside, next] = this.while(lines, at, (line) => {
        const mark = QUOTE.exec(this.text(line));
        return mark && [line[0] + mark[0].length, line[1]];
      });
      return [el("blockquote", {}, nodes(this.blocks(inside, depth + 1))), next];
    }
    if (depth < DEPTH_MAX && ITEM.test(text)) return this.list(lines, at, depth);
    const second = lines[at + 1];
    if (text.includes("|") && second && DELIMITERS.test(this.text(second))) return this.table(lines, at);
    let next = at + 1;
    while (next < lines.length && !this.interrupts(lines, next)) next += 1;
    return [el("p", {}, this.lines(lines.slice(at, next), ([from, until]) => this.inline([from, until]))), next];
  }

  /** Whether a line ends a paragraph. A number other than 1 is more often a year at the start of a line than a list. */
  private interrupts(lines: readonly Line[], at: number): boolean {
    const text = this.text(lines[at] as Line);
    const item = ITEM.exec(text);
    const second = lines[at + 1];
    return (
      text.trim() === "" ||
      [FENCE, HEADING, RULE, QUOTE, CALL].some((form) => form.test(text)) ||
      (item !== null && /^([-*+]|1[.)])$/.test(item[2] as string) && item[0] !== text) ||
      (text.includes("|") && second !== undefined && DELIMITERS.test(this.text(second)))
    );
  }

  private code(lines: readonly Line[], at: number, [, indent, mark, info]: RegExpExecArray): [HTMLElement, number] {
    const close = new RegExp(`^ {0,3}${(mark as string).charAt(0)}{${(mark as string).length},}\\s*$`);
    let next = at + 1;
    while (next < lines.length && !close.test(this.text(lines[next] as Line))) next += 1;
    const inside = lines.slice(at + 1, next).map((line): Line => {
      const spaces = /^ */.exec(this.text(line))?.[0].length ?? 0;
      return [line[0] + Math.min(spaces, (indent as string).length), line[1]];
    });
    const text = inside.map((line) => this.text(line)).join("\n");
    const language = (info as string).trim().split(/\s/)[0] as string;
    const label = language === "" ? "Code" : `Code, ${language}`;
    const block = el(
      "div",
      { class: "code" },
      el("div", { class: "code-bar" }, el("span", {}, language), copyButton(() => text, "Copy the code")),
      el("pre", { tabindex: 0, role: "group", "aria-label": label }, el("code", {}, this.lines(inside, ([from, until]) => this.leaf(from, until)))),
    );
    return [block, next + 1];
  }

  /** A call of a tool, as models write it into their text: folded. */
  private call(lines: readonly Line[], at: number): [HTMLElement, number] {
    let next = at;
    while (next < lines.length && !this.text(lines[next] as Line).includes("</tool_call>")) next += 1;
    const inside = lines.slice(at, next + 1);
    const text = inside.map((line) => this.text(line)).join("\n");
    return [toolCall(/"name"\s*:\s*"([^"]*)"/.exec(text)?.[1] ?? "", this.lines(inside, ([from, until]) => this.leaf(from, until))), next + 1];
  }

  private list(lines: readonly Line[], at: number, depth: number): [HTMLElement, number] {
    const first = ITEM.exec(this.text(lines[at] as Line)) as RegExpExecArray;
    const mark = first[2] as string;
    const kind = mark.slice(-1);
    const outer = (first[1] as string).length;
    const items: HTMLElement[] = [];
    let next = at;
    while (next < lines.length) {
      const line = lines[next] as Line;
      const item = ITEM.exec(this.text(line));
      if (!item || (item[2] as string).slice(-1) !== kind || Math.abs((item[1] as string).length - outer) > 1 || RULE.test(this.text(line))) break;
      const width = item[0].length;
      const inside: Line[] = [[line[0] + width, line[1]]];
      next += 1;
      // Models indent what is in an item by less than its mark is wide.
      const least = outer + 2;
      for (; next < lines.length; next += 1) {
        const [start, end] = lines[next] as Line;
        const text = this.text([start, end]);
        const spaces = /^ */.exec(text)?.[0].length ?? 0;
        if (text.trim() === "") {
          const after = lines[next + 1];
          if (!after || (/^ */.exec(this.text(after))?.[0].length ?? 0) < least) break;
          inside.push([end, end]);
        } else if (spaces >= least) {
          inside.push([start + Math.min(spaces, width), end]);
        } else if (this.interrupts(lines, next) || ITEM.test(text)) {
          break;
        } else {
          inside.push([start + spaces, end]);
        }
      }
      items.push(el("li", {}, nodes(this.blocks(inside, depth + 1))));
      // A blank line between two items.
      const [blank, after] = [lines[next], lines[next + 1]];
      if (blank && after && this.text(blank).trim() === "" && ITEM.test(this.text(after))) next += 1;
    }
    return [/\d/.test(mark) ? el("ol", { start: parseInt(mark, 10) }, items) : el("ul", {}, items), next];
  }

  private table(lines: readonly Line[], at: number): [HTMLElement, number] {
    const sides = this.cells(lines[at + 1] as Line).map((cell) => {
      const text = this.text(cell);
      return text.endsWith(":") ? (text.startsWith(":") ? "center" : "right") : null;
    });
    const row = (line: Line, name: "th" | "td"): HTMLElement => {
      const cells = this.cells(line).slice(0, sides.length);
      while (cells.length < sides.length) cells.push([line[1], line[1]]);
      return el("tr", {}, cells.map((cell, index) => el(name, { class: sides[index], scope: name === "th" && "col" }, this.inline(cell))));
    };
    const head = row(lines[at] as Line, "th");
    const [body, next] = this.while(lines, at + 2, (line) => (this.text(line).includes("|") ? line : null));
    const table = el("table", {}, el("thead", {}, head), el("tbody", {}, body.map((line) => row(line, "td"))));
    return [el("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" }, table), next];
  }

  /** The cells of a row, without the spaces around them. */
  private cells([start, end]: Line): Line[] {
    const cells: Line[] = [];
    let [from, isCode] = [start, false];
    for (let at = start; at <= end; at += 1) {
      const char = this.source[at];
      if (at < end && char === "\\") at += 1;
      else if (char === "`") isCode = !isCode;
      if (at < end && (char !== "|" || isCode)) continue;
      const cell: Line = [from, Math.min(at, end)];
      from = at + 1;
      // Marks at both ends of a row are no cells.
      const isEdge = this.text(cell).trim() === "" && (cells.length === 0 ? cell[0] === start || this.source.slice(start, cell[0]).trim() === "" : at >= end);
      if (!isEdge) cells.push(this.trimmed(cell));
    }
    return cells;
  }

  private trimmed([start, end]: Line): Line {
    const text = this.text([start, end]);
    const before = text.length - text.trimStart().length;
    return [start + before, Math.max(start + before, end - (text.length - text.trimEnd().length))];
  }

  private while(lines: readonly Line[], at: number, inside: (line: Line) => Line | null): [Line[], number] {
    const found: Line[] = [];
    let next = at;
    for (; next < lines.length; next += 1) {
      const line = inside(lines[next] as Line);
      if (!line) break;
      found.push(line);
    }
    return [found, next];
  }

  /** The parts of several lines. Lines that follow each other in the source are one part. */
  private lines(lines: readonly Line[], part: (range: Range) => Node[]): Node[] {
    const found: Node[] = [];
    for (let at = 0; at < lines.length; ) {
      const [start] = lines[at] as Line;
      let [, end] = lines[at] as Line;
      at += 1;
      for (; lines[at]?.[0] === end + 1; at += 1) end = (lines[at] as Line)[1];
      found.push(...part([start, end]));
      if (at < lines.length) found.push(document.createTextNode("\n"));
    }
    return found;
  }

  /** Emphasis, code, links; everything else is text. */
  private inline([start, end]: Range, depth = 0): Node[] {
    const { source } = this;
    const found: Node[] = [];
    // Marks that nothing closes up to the end, each looked for once.
    const open = new Set<string>();
    let from = start;
    // Where the next label of a link ends.
    let label = -1;
    // The text up to `until`, then an element: leaves are asked for in their order.
    const flush = (until: number, next: number, element?: () => Node): void => {
      if (until > from) found.push(...this.leaf(from, until));
      if (element) found.push(element());
      from = next;
    };
    for (let at = start; at < end; ) {
      const char = source.charAt(at);
      const rest = (length: number): string => source.slice(at, Math.min(end, at + length));
      if (char === "\\" && /[!-/:-@[-`{-~]/.test(source.charAt(at + 1)) && at + 1 < end) {
        flush(at, at + 1);
        at += 2;
        continue;
      }
      if (char === "`") {
        const mark = /^`+/.exec(rest(64))?.[0] as string;
        const close = open.has(mark) ? -1 : this.closingTicks(at + mark.length, end, mark);
        if (close < 0) {
          open.add(mark);
          at += mark.length;
          continue;
        }
        flush(at, close + mark.length, () => el("code", {}, this.leaf(at + mark.length, close)));
        at = from;
        continue;
      }
      if (char === "[" || (char === "!" && source[at + 1] === "[" && at + 1 < end)) {
        if (label < at) label = (source.indexOf("](", at) + 1 || Infinity) - 1;
        const link = label < at + LABEL_MAX && this.link(at + (char === "!" ? 2 : 1), end);
        if (link) {
          // Pictures are not loaded: what stands for one is a link.
          const { address, next } = link;
          const inside = (): Node[] => (depth < DEPTH_MAX && link.label[1] > link.label[0] ? this.inline(link.label, depth + 1) : [document.createTextNode(address)]);
          flush(at, next, () => anchor(address, inside()));
          at = next;
          continue;
        }
      }
      if (char === "h" && !/\w/.test(source.charAt(at - 1))) {
        const address = /^https?:[/]{2}[^\s<>"`|]+/.exec(rest(ADDRESS_MAX))?.[0].replace(/[.,;:!?'*_~]+$|[)\]}]+[.,;:!?]*$/, "");
        if (address && isAddress(address)) {
          const end = at + address.length;
          flush(at, end, () => anchor(address, this.leaf(end - address.length, end)));
          at = from;
          continue;
        }
      }
      const mark = depth < DEPTH_MAX ? /^(\*\*|__|~~|\*(?!\*)|_(?!_))(?=\S)/.exec(rest(3))?.[1] : undefined;
      if (mark && !open.has(mark) && !(mark.startsWith("_") && /[\p{L}\p{N}]/u.test(source.charAt(at - 1)))) {
        const close = this.closing(at + mark.length, end, mark);
        if (close > 0) {
          const name = mark === "~~" ? "s" : mark.length === 2 ? "strong" : "em";
          const begin = at + mark.length;
          flush(at, close + mark.length, () => el(name, {}, this.inline([begin, close], depth + 1)));
          at = from;
          continue;
        }
        open.add(mark);
      }
      // A mark that is open is stepped over as a whole.
      at += /^(\*\*|__|~~)/.test(rest(2)) ? 2 : 1;
    }
    flush(end, end);
    return found;
  }

  private closingTicks(from: number, end: number, mark: string): number {
    for (let at = this.source.indexOf(mark, from); at >= 0 && at + mark.length <= end; ) {
      const run = /^`+/.exec(this.source.slice(at, Math.min(end, at + 64)))?.[0].length ?? 1;
      if (run === mark.length) return at;
      at = this.source.indexOf(mark, at + run);
    }
    return -1;
  }

  /** Where emphasis ends: behind a character, outside of code. */
  private closing(from: number, end: number, mark: string): number {
    const { source } = this;
    for (let at = from; at + mark.length <= end; at += 1) {
      const char = source.charAt(at);
      if (char === "\\") {
        at += 1;
      } else if (char === "`") {
        const ticks = /^`+/.exec(source.slice(at, Math.min(end, at + 64)))?.[0] as string;
        const close = this.closingTicks(at + ticks.length, end, ticks);
        at = (close < 0 ? at : close) + ticks.length - 1;
      } else if (char === mark[0]) {
        const run = char === "*" || char === "_" ? (/^[*_]+/.exec(source.slice(at, Math.min(end, at + 3)))?.[0].length ?? 1) : 2;
        const isWord = char === "_" && /[\p{L}\p{N}]/u.test(source.charAt(at + mark.length));
        if (at > from && /\S/.test(source.charAt(at - 1)) && source.startsWith(mark, at) && !isWord) {
          if (mark.length === 2) return source.charAt(at + 2) === char && at + 2 < end ? at + 1 : at;
          if (run !== 2) return run === 3 ? at + 2 : at;
        }
        at += run - 1;
      }
    }
    return -1;
  }

  /** `label](address "title")`. */
  private link(from: number, end: number): { label: Range; address: string; next: number } | null {
    const { source } = this;
    let depth = 1;
    let at = from;
    for (const until = Math.min(end, from + LABEL_MAX); at < until; at += 1) {
      const char = source.charAt(at);
      if (char === "\\") at += 1;
      else if (char === "[") depth += 1;
      else if (char === "]" && (depth -= 1) === 0) break;
    }
    if (depth > 0 || source[at + 1] !== "(") return null;
    const target = /^\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(source.slice(at + 1, Math.min(end, at + 1 + ADDRESS_MAX)));
    const address = target?.[1] ?? "";
    return target && isAddress(address) ? { label: [from, at], address, next: at + 1 + target[0].length } : null;
  }

  private text([start, end]: Line): string {
    return this.source.slice(start, end);
  }
}

/** A folded call of a tool. */
export function toolCall(name: string, inside: Node[]): HTMLElement {
  return el(
    "details",
    { class: "reasoning call" },
    el("summary", {}, name === "" ? "Tool call" : `Tool call: ${name}`),
    el("pre", { tabindex: 0, role: "group", "aria-label": "Call" }, inside),
  );
}

const nodes = (found: { node: HTMLElement }[]): HTMLElement[] => found.map(({ node }) => node);

/** Only these addresses are links: no scripts, no data, nothing of this server. */
function isAddress(address: string): boolean {
  return /^(https?:[/]{2}|mailto:)./i.test(address) && URL.canParse?.(address) !== false;
}

function anchor(address: string, inside: Node[]): HTMLElement {
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer", title: address }, inside);
}
