// Deletion, with a question before it and the server's count behind it.

import * as api from "./api";
import { byId, count, el, fill } from "./dom";
import { announce } from "./live";
import type { Forget, Forgotten } from "./wire";

const listeners = new Set<(what: Forget) => void | Promise<void>>();

/** Calls `listener` after each deletion. */
export function onForgotten(listener: (what: Forget) => void | Promise<void>): void {
  listeners.add(listener);
}

/** Asks, and deletes if the answer is yes. Returns whether something was deleted. */
export function confirmForget(what: Forget, name = ""): Promise<boolean> {
  const [title, text] = question(what, name);
  const dialog = byId("confirm") as HTMLDialogElement;
  const problem = el("p", { class: "error", role: "alert" });
  const yes = el("button", { type: "button", class: "danger" }, "Forget");
  const no = el("button", { type: "button" }, "Keep");
  fill(dialog, el("h2", { id: "confirm-title" }, title), el("p", {}, text), problem, el("p", { class: "actions" }, no, yes));
  return new Promise((resolve) => {
    let isDone = false;
    no.addEventListener("click", () => dialog.close());
    yes.addEventListener("click", async () => {
      yes.disabled = true;
      try {
        const forgotten = await api.forget(what);
        isDone = true;
        await Promise.all([...listeners].map((listener) => listener(what)));
        announce(report(forgotten));
        fill(dialog, el("h2", { id: "confirm-title" }, "Forgotten"), el("p", {}, report(forgotten)), el("p", { class: "actions" }, no));
        no.textContent = "Close";
        no.focus();
      } catch (error) {
        yes.disabled = false;
        problem.textContent = api.words(error);
      }
    });
    dialog.addEventListener("close", () => resolve(isDone), { once: true });
    dialog.showModal();
    no.focus();
  });
}

function question(what: Forget, name: string): [string, string] {
  switch (what.what) {
    case "note":
      return [`Forget “${name}”?`, "Its text in the index is deleted, with every answer, summary and computed prompt made from it, and what follows in conversations of this browser. The file itself stays."];
    case "before":
      return ["Forget answers?", `Every answer, summary and computed prompt from ${name} is deleted, with the turns of conversations in this browser. Notes stay in the index.`];
    case "everything":
      return [
        "Forget everything?",
        "All answers, summaries, computed prompts and conversations of this browser are deleted, and all notes leave the index: no question can be answered until they are added again. The files themselves stay.",
      ];
  }
}

function report({ n_answers, n_summaries, n_prefix_blocks, is_notes_pending }: Forgotten): string {
  const parts = [
    count(n_answers, "kept answer"),
    count(n_summaries, "summary", "summaries"),
    count(n_prefix_blocks, "block of computed prompts", "blocks of computed prompts"),
  ];
  const rest = is_notes_pending ? " Another program has the index open, and deletes the notes at its next update." : "";
  return `Deleted: ${parts.join(", ")}, and what this page showed and kept of them.${rest}`;
}
