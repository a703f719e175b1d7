// The panel of a source: the note with the passage that the model was shown, and the copied words highlighted.

import * as api from "./api";
import { byId, el, fill } from "./dom";
import { confirmForget } from "./forget";
import { announce } from "./live";
import type { Range, Source } from "./wire";

/** The file of a passage, with the line or page on which the passage begins. */
export function placeOf({ file, locator }: { file: string; locator: string | null }): string {
  return locator === null ? file : `${file}, ${locator}`;
}

/** Where the focus goes when the panel is closed. */
let opener: HTMLElement | null = null;
/** The newest request; an older one that ends later shows nothing. */
let nOpened = 0;

/** Opens the source of a passage, at a place in the passage's text if one is given. */
export async function openSource(id: string, place: Range | null, from: HTMLElement): Promise<void> {
  opener = from;
  nOpened += 1;
  const opened = nOpened;
  try {
    const source = await api.source(id);
    if (opened === nOpened) show(source, place, id);
  } catch (error) {
    if (opened === nOpened) showProblem(api.words(error) ?? "");
  }
}

/** Closes the panel. Returns whether it was open. */
export function closeSource(): boolean {
  const side = byId("side");
  if (side.hidden) return false;
  nOpened += 1;
  side.hidden = true;
  fill(side);
  document.body.classList.remove("has-side");
  if (opener?.isConnected) opener.focus();
  opener = null;
  return true;
}

function frame(title: string, ...children: Node[]): HTMLElement {
  const heading = el("h2", { tabindex: -1 }, title);
  const close = el("button", { type: "button", class: "icon", "aria-label": "Close the source", click: () => closeSource() }, "✕");
  const side = byId("side");
  fill(side, el("div", { class: "bar" }, heading, close), ...children);
  side.hidden = false;
  document.body.classList.add("has-side");
  return heading;
}

function showProblem(problem: string): void {
  frame("Source", el("p", { class: "error", role: "alert" }, problem)).focus();
}

function show(source: Source, place: Range | null, id: string): void {
  const title = source.title || source.file;
  const range: Range = place ?? [0, source.len];
  let mark: HTMLElement | null = null;
  const sections = source.sections.map((section, index) => {
    const text = el("p", { class: "note" });
    if (index === source.section) {
      mark = el("mark", {}, section.text.slice(range[0], range[1]));
      fill(text, section.text.slice(0, range[0]), mark, section.text.slice(range[1]));
    } else {
      fill(text, section.text);
    }
    const isNew = index === 0 || source.sections[index - 1]?.title !== section.title;
    return el("section", {}, isNew && section.title !== title && el("h3", {}, section.title), text);
  });
  const forget = el(
    "button",
    { type: "button", class: "quiet danger", click: () => void confirmForget({ what: "note", id, file: source.file }, title).then((isDone) => isDone && closeSource()) },
    "Forget this note…",
  );
  const body = el("div", { class: "note-text", tabindex: 0, role: "region", "aria-label": "Text of the note" }, ...sections);
  const heading = frame(
    title,
    el("p", { class: "dim file" }, placeOf(source)),
    ...(source.is_current ? [] : [el("p", { class: "hint" }, "The note has changed since. This is the passage as the model saw it.")]),
    body,
    el("p", { class: "foot" }, forget),
  );
  heading.focus();
  (mark as HTMLElement | null)?.scrollIntoView({ block: "center" });
  announce(`Source ${title}. ${place ? `Copied: ${(mark as HTMLElement | null)?.textContent ?? ""}` : ""}`);
}
