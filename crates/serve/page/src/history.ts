// The view "History": what was answered and edited since the server started, and deletion.

import * as api from "./api";
import { count, el, fill } from "./dom";
import { confirmForget, onForgotten } from "./forget";
import type { Entry, Forget } from "./wire";

export interface HistoryView {
  element: HTMLElement;
  refresh: () => Promise<void>;
}

export function historyView(): HistoryView {
  const list = el("div", { class: "entries" });
  const refresh = async (): Promise<void> => {
    try {
      const { entries } = await api.history();
      fill(list, ...(entries.length === 0 ? [el("p", { class: "hint" }, "Nothing is kept in this list.")] : entries.map(entry)));
    } catch (error) {
      fill(list, el("p", { class: "error", role: "alert" }, api.words(error)));
    }
  };
  onForgotten(() => void refresh());
  const forget = (label: string, what: () => Forget, name: string): HTMLElement =>
    el("button", { type: "button", class: "quiet danger", click: () => void confirmForget(what(), name) }, label);
  const element = el(
    "section",
    { class: "view history", "aria-label": "History" },
    el("h2", {}, "History"),
    el("p", { class: "dim" }, "Answers and edits since the server started. Kept answers draft later ones."),
    el(
      "div",
      { class: "actions start" },
      forget("Forget all answers…", () => ({ what: "before", at_ms: Date.now() }), "before now"),
      forget("Forget everything…", () => ({ what: "everything" }), ""),
    ),
    list,
  );
  return { element, refresh };
}

function entry({ kind, at_ms, request, text, tokens, steps, is_kept, notes }: Entry): HTMLElement {
  const time = new Date(at_ms);
  const shown = time.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  const before: Forget = { what: "before", at_ms: at_ms + 1 };
  return el(
    "article",
    { class: "entry", "aria-label": request },
    el("p", { class: "dim" }, el("time", { datetime: time.toISOString() }, shown), ` · ${kind === "edit" ? "edit" : "answer"} · ${count(tokens, "token")} in ${count(steps, "step")}${is_kept ? "" : " · not kept"}`),
    el("h3", {}, request),
    el("p", { class: "kept-text" }, text),
    notes.length > 0 &&
      el(
        "ul",
        { class: "chips", "aria-label": "Made from" },
        ...notes.map(({ id, title, file }) =>
          el(
            "li",
            {},
            title || file,
            el("button", { type: "button", class: "icon", "aria-label": `Forget the note ${title || file}`, click: () => void confirmForget({ what: "note", id, file }, title || file) }, "✕"),
          ),
        ),
      ),
    el("p", {}, el("button", { type: "button", class: "quiet danger", click: () => void confirmForget(before, `${shown} and before`) }, "Forget this and everything before…")),
  );
}
