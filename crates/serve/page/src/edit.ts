// The view "Edit": a text and an instruction; the changes appear while they are written.

import * as api from "./api";
import type { Meter } from "./chart";
import { modeChoice } from "./choice";
import { count, el, fill, newId } from "./dom";
import { onForgotten } from "./forget";
import { Progress, run } from "./job";
import { announce } from "./live";
import { legend } from "./origins";
import { numbers } from "./result";
import { settings } from "./settings";
import type { Change, Ended, Piece } from "./wire";

/** The changes of an edit, in the order of both texts. */
class Diff {
  readonly element: HTMLElement;
  private at = 0;
  private text = "";
  private nInserted = 0;
  private nDeleted = 0;

  constructor(
    private readonly old: string,
    label: string,
  ) {
    this.element = el("div", { class: "diff", tabindex: 0, role: "region", "aria-label": label });
  }

  /** Applies a change to the old text. */
  push(change: Change): void {
    switch (change.kind) {
      case "keep": {
        const kept = this.take(change.n);
        this.text += kept;
        this.element.append(kept);
        break;
      }
      case "insert":
        this.text += change.text;
        this.nInserted += 1;
        this.element.append(el("ins", {}, change.text));
        break;
      case "delete":
        this.nDeleted += 1;
        this.element.append(el("del", {}, this.take(change.n)));
        break;
    }
  }

  /** The old text with all changes so far. */
  result(): string {
    return this.text;
  }

  summary(): string {
    return `${count(this.nInserted, "insertion")}, ${count(this.nDeleted, "deletion")}`;
  }

  private take(n: number): string {
    const taken = this.old.slice(this.at, this.at + n);
    this.at += n;
    return taken;
  }
}

export function editView(meter: Meter): HTMLElement {
  let stop: AbortController | null = null;
  /** The text before the newest accepted edit. */
  let before: string | null = null;
  const progress = new Progress(() => stop?.abort());
  const [textId, instructionId] = [newId(), newId()];
  const text = el("textarea", { id: textId, rows: 7, required: true, maxlength: 200_000, placeholder: "Paste a text" });
  const instruction = el("input", { id: instructionId, type: "text", required: true, maxlength: 4000, placeholder: "Change Friday to Monday." });
  const send = el("button", { type: "submit", class: "primary" }, "Edit");
  const undo = el("button", { type: "button", class: "quiet" }, "Undo the accepted edit");
  const output = el("div", { class: "output" });
  const form = el(
    "form",
    { class: "editor" },
    el("label", { for: textId }, "Text"),
    text,
    el("label", { for: instructionId }, "What to change"),
    el("div", { class: "row" }, instruction, send),
    el("div", { class: "row under" }, modeChoice(), undo),
  );
  undo.hidden = true;
  undo.addEventListener("click", () => {
    if (before !== null) text.value = before;
    before = null;
    undo.hidden = true;
    text.focus();
  });
  const accept = (result: string): void => {
    before = text.value;
    text.value = result;
    undo.hidden = false;
    fill(output);
    announce("The new text is accepted");
    text.focus();
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (stop || text.value.trim() === "") return;
    stop = new AbortController();
    send.disabled = true;
    fill(output);
    try {
      await edit(text.value, instruction.value.trim(), output, progress, meter, stop.signal, accept);
    } catch (error) {
      const problem = api.words(error);
      output.append(el("p", problem === null ? { class: "hint" } : { class: "error", role: "alert" }, problem ?? "Stopped. The text is as it was."));
    } finally {
      stop = null;
      send.disabled = false;
      progress.end();
    }
  });
  onForgotten(() => fill(output));
  return el("section", { class: "view edit with-meter", "aria-label": "Edit" }, el("h2", {}, "Edit a text"), form, progress.element, output);
}

async function edit(
  old: string,
  instruction: string,
  output: HTMLElement,
  progress: Progress,
  meter: Meter,
  signal: AbortSignal,
  accept: (result: string) => void,
): Promise<void> {
  const { mode, temperature, keep } = settings();
  const seed = temperature > 0 ? crypto.getRandomValues(new Uint32Array(1))[0] : undefined;
  const ways = mode === "compare" ? [true, false] : [mode === "plain"];
  const results: string[] = [];
  for (const [index, isPlain] of ways.entries()) {
    const diff = new Diff(old, isPlain ? "Changes, without drafts" : "Changes");
    const pieces: Piece[] = [];
    meter.start(isPlain, index === 0);
    if (ways.length > 1) output.append(el("h3", {}, isPlain ? "Without drafts" : "With drafts"));
    output.append(diff.element);
    if (index === 0) output.scrollIntoView({ block: "nearest" });
    const request = { text: old, instruction, temperature, seed, drafts: !isPlain, keep: keep && (ways.length === 1 || !isPlain) };
    const ended = await run(api.stream<Ended>("edit", request, signal), progress, (event) => {
      if (event.kind === "change") diff.push(event.data);
      else if (event.kind === "text") {
        pieces.push(event.data);
        meter.push(event.data);
      }
    });
    meter.end(ended.stats);
    output.append(legend(pieces), el("p", { class: "dim numbers" }, numbers(ended.stats)));
    if (ended.is_cut) output.append(el("p", { class: "hint" }, "The new text was cut at the limit of tokens."));
    // The changes are shown, so what they give is what may be accepted.
    if (diff.result() !== ended.text) throw new Error("The changes do not give the new text. That is a bug: please report it.");
    results.push(ended.text);
    announce(`The edit is complete: ${diff.summary()}`);
    if (index + 1 < ways.length) continue;
    if (results.length > 1) {
      const isEqual = results.every((result) => result === ended.text);
      output.append(
        isEqual
          ? el("p", { class: "verdict" }, el("b", {}, "✓ Both texts are equal"), `, all ${count([...ended.text].length, "character")}.`)
          : el("p", { class: "error", role: "alert" }, "The texts differ. That is a bug: please report it."),
      );
    }
    output.append(
      el(
        "p",
        { class: "actions" },
        el("span", { class: "dim" }, diff.summary()),
        el("button", { type: "button", click: () => fill(output) }, "Discard"),
        el("button", { type: "button", class: "primary", click: () => accept(ended.text) }, "Accept"),
      ),
    );
  }
}
