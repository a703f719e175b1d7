// The text of an answer: Markdown in the colours of the draft sources, then the copied spans, the citations and the sentences that no
// passage supports.

import { count, el, fill } from "./dom";
import { blocks, toolCall } from "./markdown";
import { originKey, originName } from "./origins";
import { openSource, placeOf } from "./source";
import type { Answered, Call, Copied, Piece, Sentence } from "./wire";

/** What the server found out about a text. */
export type Checked = Pick<Answered, "copied" | "sentences" | "passages">;
const NOTHING: Checked = { copied: [], sentences: [], passages: [] };

/** An answer that is being written, or was. */
export class AnswerText {
  readonly element = el("div", { class: "answer" });
  readonly pieces: Piece[] = [];
  private readonly thought = el("p");
  private readonly thoughtBox = el("details", { class: "reasoning" }, el("summary", {}, "Reasoning"), this.thought);
  private readonly content = el("div", { class: "text" });
  private readonly callBox = el("div");
  private marks = new Marks(NOTHING);
  private unshown: Piece[] = [];
  private frame: number | undefined;
  /** Where the last block begins: what stands before it is complete. */
  private start = 0;
  private nComplete = 0;

  /** `onShow` is called after each frame with new text. */
  constructor(private readonly onShow: () => void = () => undefined) {
    this.thoughtBox.hidden = true;
    fill(this.element, this.thoughtBox, this.content, this.callBox);
  }

  get text(): string {
    return this.marks.text;
  }

  get reasoning(): string {
    return this.thought.textContent ?? "";
  }

  /** Shows a piece in the next frame. */
  push(piece: Piece): void {
    this.pieces.push(piece);
    this.unshown.push(piece);
    this.frame ??= requestAnimationFrame(() => {
      this.show();
      this.onShow();
    });
  }

  /** Shows what has arrived. */
  show(): void {
    if (this.frame !== undefined) cancelAnimationFrame(this.frame);
    this.frame = undefined;
    for (const piece of this.unshown) {
      if (piece.is_reasoning) {
        this.thoughtBox.hidden = false;
        this.thought.append(piece.text);
      } else {
        this.marks.push(piece);
      }
    }
    this.unshown = [];
    this.render();
  }

  calls(calls: readonly Call[]): void {
    fill(this.callBox, ...calls.map(({ name, arguments: given }) => toolCall(name, [document.createTextNode(given)])));
  }

  /** The whole text, with what the server found out about it. */
  finish(checked: Checked): void {
    this.show();
    this.marks = new Marks(checked);
    this.pieces.forEach((piece) => !piece.is_reasoning && this.marks.push(piece));
    fill(this.content);
    [this.start, this.nComplete] = [0, 0];
    this.render();
  }

  /** Shows the pieces in the rhythm in which the model wrote them, `slower` times slower. Returns when the last one is shown. */
  async replay(slower: number): Promise<void> {
    const tokens = [...this.content.querySelectorAll<HTMLElement>("[data-us]")];
    tokens.forEach((element) => element.classList.add("later"));
    const start = performance.now();
    for (const element of tokens) {
      const wait = (Number(element.dataset["us"]) / 1000) * slower - (performance.now() - start);
      if (wait > 1) await new Promise((resolve) => setTimeout(resolve, wait));
      element.classList.remove("later");
    }
  }

  /** Renders the last blocks and what follows them. What a line begins depends on its end and on the next line, so two are waited for. */
  private render(): void {
    const { text } = this.marks;
    const found = blocks(text, this.start, (start, end) => this.marks.nodes(start, end));
    while (this.content.childNodes.length > this.nComplete) this.content.lastChild?.remove();
    found.forEach(({ node }) => this.content.append(node));
    const until = text.lastIndexOf("\n", text.lastIndexOf("\n") - 1);
    const last = found.filter(({ start }) => start <= until).length - 1;
    if (last < 1) return;
    this.nComplete += last;
    this.start = found[last]?.start ?? this.start;
  }
}

/** A part of a piece. The space before a word has no colour, so that none stands at the end of a line. */
function token(piece: Piece, text: string): HTMLElement[] {
  const { us, origin } = piece;
  if (origin === null) return [el("span", { class: "tok", "data-us": us }, text)];
  const word = text.trimStart();
  const space = text.slice(0, text.length - word.length);
  const attributes = { class: "tok", "data-us": us, "data-src": originKey(origin), title: `drafted: ${originName(origin)}` };
  return [space !== "" && el("span", { class: "tok", "data-us": us }, space), word !== "" && el("span", attributes, word)].filter(
    (part): part is HTMLElement => part !== false,
  );
}

/** The text of an answer, and what each part of it is. */
class Marks {
  text = "";
  private readonly pieces: Piece[] = [];
  /** Where each piece ends. */
  private readonly ends: number[] = [];
  /** Where a copied span, a sentence or a citation begins or ends. */
  private readonly cuts: number[];
  private readonly sentences: Sentence[];

  constructor(private readonly checked: Checked) {
    const ranges = [
      ...checked.copied.map(({ output }) => output),
      ...checked.sentences.flatMap(({ text, citations }) => [text, ...citations.map((citation) => citation.text)]),
    ];
    this.cuts = ranges.flat().sort((a, b) => a - b);
    // Each gets its badge where it ends.
    this.sentences = checked.sentences.filter(({ support }) => support === "none");
  }

  push(piece: Piece): void {
    this.text += piece.text;
    this.pieces.push(piece);
    this.ends.push(this.text.length);
  }

  /** The nodes of a part, cut wherever a piece or anything else begins or ends. Parts are asked for in their order. */
  nodes(from: number, until: number): Node[] {
    const { copied, sentences, passages } = this.checked;
    const found: Node[] = [];
    let open: { span: Copied; element: HTMLElement } | null = null;
    let [piece, cut] = [behind(this.ends, from), behind(this.cuts, from)];
    for (let start = from; start < until; ) {
      while ((this.ends[piece] ?? until) <= start) piece += 1;
      while ((this.cuts[cut] ?? until) <= start) cut += 1;
      const end = Math.min(until, this.ends[piece] ?? until, this.cuts[cut] ?? until);
      const of = this.pieces[piece];
      const part = this.text.slice(start, end);
      const covers = ([first, last]: readonly [number, number]): boolean => first <= start && end <= last;
      const span = copied.find(({ output }) => covers(output));
      const sentence = sentences.find(({ text }) => covers(text));
      const citation = span ? undefined : sentence?.citations.find(({ text }) => covers(text));
      if (open && open.span !== span) open = null;
      const elements = citation ? [cited(part, citation, passages)] : of ? token(of, part) : [el("span", {}, part)];
      if (sentence?.support === "none") elements.forEach((element) => element.classList.add("unsupported"));
      if (span) {
        if (!open) {
          open = { span, element: copiedSpan(span, passages) };
          found.push(open.element);
        }
        open.element.append(...elements);
      } else {
        found.push(...elements);
      }
      if (this.sentences[0] && end >= this.sentences[0].text[1]) {
        this.sentences.shift();
        found.push(badge());
      }
      start = end;
    }
    return found;
  }
}

/** The first index whose value is greater. */
function behind(sorted: readonly number[], value: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] as number) > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Text that stands in a passage: a button that opens its source at the place. */
function copiedSpan(span: Copied, passages: Answered["passages"]): HTMLElement {
  const passage = passages[span.passage];
  const open = (event: Event): void => {
    if (passage) void openSource(passage.id, span.place, event.currentTarget as HTMLElement);
  };
  const keydown = (event: Event): void => {
    const { key } = event as KeyboardEvent;
    if (key === "Enter" || key === " ") {
      event.preventDefault();
      open(event);
    }
  };
  const exact = span.is_exact ? "" : ", but for spaces and marks";
  const title = `copied from ${passage?.title || passage?.file || "a passage"}${exact}: open the source`;
  return el("span", { class: "copied", role: "button", tabindex: 0, title, click: open, keydown });
}

function cited(part: string, citation: Sentence["citations"][number], passages: Answered["passages"]): HTMLElement {
  const passage = passages[citation.number - 1];
  const verdict = { supports: "", too_short: "", not_shown: ": names no passage", does_not_support: ": does not support the sentence" };
  const open = (event: Event): void => {
    if (passage) void openSource(passage.id, null, event.currentTarget as HTMLElement);
  };
  const title = `${passage?.title ?? "source"}${verdict[citation.verdict]}`;
  const isDoubtful = verdict[citation.verdict] !== "";
  return el(
    "button",
    { type: "button", class: isDoubtful ? "cite doubtful" : "cite", title, click: open, disabled: !passage },
    part,
    isDoubtful && el("span", { class: "sr" }, verdict[citation.verdict]),
  );
}

const badge = (): HTMLElement =>
  el("span", { class: "badge", title: "No passage has enough words of this sentence. It may still be true." }, "not found in the notes");

/** The passages that the model was shown, each with what it gave to the answer. */
export function passageList(answered: Answered): HTMLElement {
  const { passages, sentences, left_out: leftOut, searched, is_not_in_notes } = answered;
  const items = passages.map((passage, index) => {
    const supported = sentences.filter((sentence) => sentence.passage === index).length;
    const parts = [
      passage.n_words_copied > 0 && `${count(passage.n_words_copied, "word")} copied`,
      supported > 0 && `supports ${count(supported, "sentence")}`,
    ].filter((part): part is string => part !== false);
    const file = placeOf(passage);
    const open = (event: Event): void => void openSource(passage.id, null, event.currentTarget as HTMLElement);
    return el(
      "li",
      parts.length === 0 ? { class: "unused" } : {},
      el("button", { type: "button", class: "passage", click: open }, passage.title || file),
      el("span", { class: "dim" }, ` ${passage.title ? `${file} · ` : ""}${parts.join(" · ") || (is_not_in_notes ? "not shown to the model" : "shown, not used")}`),
    );
  });
  const omitted = leftOut.map(({ title, file, n_tokens, is_rest }) =>
    el("li", { class: "unused" }, `${is_rest ? "The rest of " : ""}${title || file}: ${count(n_tokens, "token")} did not fit`),
  );
  const shown = is_not_in_notes ? " nearest to the question" : " shown to the model";
  return el(
    "details",
    { class: "passages", open: true },
    el("summary", {}, count(passages.length, "passage"), shown),
    el("p", { class: "dim" }, `searched for: ${searched}`),
    el("ol", {}, ...items),
    omitted.length > 0 && el("ul", {}, ...omitted),
  );
}
