// The text of an answer: pieces in the colours of their draft sources, then the copied spans, the citations and the sentences that
// no passage supports.

import { count, el, fill } from "./dom";
import { originKey, originName } from "./origins";
import { openSource, placeOf } from "./source";
import type { Answered, Copied, Piece, Sentence } from "./wire";

/** An answer that is being written. */
export class AnswerText {
  readonly element = el("div", { class: "answer" });
  readonly pieces: Piece[] = [];
  private readonly reasoning = el("p");
  private readonly reasoningBox = el("details", { class: "reasoning" }, el("summary", {}, "Reasoning"), this.reasoning);
  private readonly text = el("div", { class: "text" });
  private unshown: Piece[] = [];
  private frame: number | undefined;

  constructor() {
    this.reasoningBox.hidden = true;
    fill(this.element, this.reasoningBox, this.text);
  }

  /** Shows a piece in the next frame. */
  push(piece: Piece): void {
    this.pieces.push(piece);
    this.unshown.push(piece);
    this.frame ??= requestAnimationFrame(() => this.show());
  }

  /** Shows what has arrived. */
  show(): void {
    if (this.frame !== undefined) cancelAnimationFrame(this.frame);
    this.frame = undefined;
    for (const piece of this.unshown) {
      if (piece.is_reasoning) {
        this.reasoningBox.hidden = false;
        this.reasoning.append(piece.text);
      } else {
        this.text.append(...token(piece, piece.text));
      }
    }
    this.unshown = [];
  }

  /** The whole text, with what the server found out about it. */
  finish(answered: Pick<Answered, "text" | "copied" | "sentences" | "passages">): void {
    this.show();
    fill(this.text, ...marked(answered, this.pieces));
  }

  /** Shows the pieces in the rhythm in which the model wrote them, `slower` times slower. Returns when the last one is shown. */
  async replay(slower: number): Promise<void> {
    const tokens = [...this.text.querySelectorAll<HTMLElement>("[data-us]")];
    tokens.forEach((element) => element.classList.add("later"));
    const start = performance.now();
    for (const element of tokens) {
      const wait = (Number(element.dataset["us"]) / 1000) * slower - (performance.now() - start);
      if (wait > 1) await new Promise((resolve) => setTimeout(resolve, wait));
      element.classList.remove("later");
    }
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

/** The text in order, cut wherever a piece, a copied span, a sentence or a citation begins or ends. */
function marked(answered: Pick<Answered, "text" | "copied" | "sentences" | "passages">, pieces: readonly Piece[]): Node[] {
  const { text, copied, sentences, passages } = answered;
  const written = placed(pieces);
  const ends = new Set<number>([text.length]);
  for (const { end } of written) ends.add(end);
  for (const { output } of copied) output.forEach((offset) => ends.add(offset));
  for (const { text: range, citations } of sentences) {
    range.forEach((offset) => ends.add(offset));
    citations.forEach((citation) => citation.text.forEach((offset) => ends.add(offset)));
  }
  const nodes: Node[] = [];
  let open: { span: Copied; element: HTMLElement } | null = null;
  let [start, at] = [0, 0];
  for (const end of [...ends].filter((offset) => offset > 0 && offset <= text.length).sort((a, b) => a - b)) {
    while (at + 1 < written.length && (written[at]?.end ?? 0) <= start) at += 1;
    const piece = written[at]?.piece;
    const part = text.slice(start, end);
    const span = copied.find(({ output }) => output[0] <= start && end <= output[1]) ?? null;
    const sentence = sentences.find(({ text: range }) => range[0] <= start && end <= range[1]);
    const citation = span ? undefined : sentence?.citations.find(({ text: range }) => range[0] <= start && end <= range[1]);
    if (open?.span !== (span ?? undefined)) open = null;
    const elements = citation ? [cited(part, citation, passages)] : piece ? token(piece, part) : [el("span", {}, part)];
    if (sentence?.support === "none") elements.forEach((element) => element.classList.add("unsupported"));
    if (span) {
      if (!open) {
        open = { span, element: copiedSpan(span, passages) };
        nodes.push(open.element);
      }
      open.element.append(...elements);
    } else {
      nodes.push(...elements);
    }
    if (sentence && end === sentence.text[1]) nodes.push(...badge(sentence));
    start = end;
  }
  return nodes;
}

/** The pieces of the answer with their ends in it. */
function placed(pieces: readonly Piece[]): { piece: Piece; end: number }[] {
  let end = 0;
  return pieces
    .filter((piece) => !piece.is_reasoning)
    .map((piece) => {
      end += piece.text.length;
      return { piece, end };
    });
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

function badge(sentence: Sentence): Node[] {
  if (sentence.support !== "none") return [];
  return [el("span", { class: "badge", title: "No passage has enough words of this sentence. It may still be true." }, "not found in the notes")];
}

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
