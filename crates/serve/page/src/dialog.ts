// The dialog of a conversation: its name, its settings, exports, deletion.

import { el, fill, newId } from "./dom";
import { exportJson, exportMarkdown } from "./exports";
import { MAX_TOKENS_LIMIT, TEMPERATURE_LIMIT, settings } from "./settings";
import type { Chat, ChatSettings } from "./store";

interface Actions {
  /** Called after a change. */
  keep: () => void;
  /** Called after the person has confirmed it. */
  remove: () => void;
}

type NumberSetting = "temperature" | "maxTokens" | "topP" | "topK" | "minP" | "seed";

const SYSTEM_MAX = 32_000;
const NAME_MAX = 200;

export function chatDialog(chat: Chat, { keep, remove }: Actions): void {
  const title = newId();
  const dialog = el("dialog", { class: "options", "aria-labelledby": title });
  const page = settings();
  const name = el("input", { id: newId(), type: "text", maxlength: NAME_MAX, autocomplete: "off" });
  name.value = chat.turns.length === 0 && !chat.isNamed ? "" : chat.title;
  const system = el("textarea", { id: newId(), rows: 3, maxlength: SYSTEM_MAX, placeholder: "None" });
  system.value = chat.settings.system ?? "";
  const colours = el("input", { type: "checkbox", role: "switch" });
  colours.checked = chat.settings.hasColours !== false;
  const field = (key: NumberSetting, label: string, otherwise: string | number, min: number, max: number, step: number): [NumberSetting, HTMLInputElement, HTMLElement] => {
    const input = el("input", { id: newId(), type: "number", min, max, step, placeholder: otherwise, inputmode: "decimal" });
    input.value = String(chat.settings[key] ?? "");
    return [key, input, el("div", {}, el("label", { for: input.id }, label), input)];
  };
  const fields = [
    field("temperature", "Temperature", page.temperature, 0, TEMPERATURE_LIMIT, 0.1),
    field("maxTokens", "Token limit", page.maxTokens, 1, MAX_TOKENS_LIMIT, 1),
    field("topP", "Top-p", "model", 0, 1, 0.01),
    field("topK", "Top-k", "model", 0, 1_000_000, 1),
    field("minP", "Min-p", "model", 0, 1, 0.01),
    field("seed", "Seed", "random", 0, 2 ** 53, 1),
  ];
  const apply = (): void => {
    const wanted = name.value.trim();
    if (wanted !== "" && wanted !== chat.title) [chat.title, chat.isNamed] = [wanted, true];
    const chosen: ChatSettings = { ...chat.settings, hasColours: colours.checked };
    delete chosen.system;
    if (system.value.trim() !== "") chosen.system = system.value.trim();
    for (const [key, input] of fields) {
      delete chosen[key];
      if (input.value !== "" && input.validity.valid) chosen[key] = input.valueAsNumber;
    }
    chat.settings = chosen;
  };
  const isEmpty = chat.turns.length === 0;
  const exported = (write: (chat: Chat) => void) => (): void => {
    apply();
    write(chat);
  };
  const yes = el("button", { type: "button", class: "danger" }, "Delete");
  const no = el("button", { type: "button" }, "Keep");
  const sure = el("p", { class: "actions", hidden: true }, el("span", {}, "Delete it from this browser? The answers that the server keeps are forgotten in the history."), no, yes);
  const ask = el("button", { type: "button", class: "danger", disabled: isEmpty }, "Delete…");
  ask.addEventListener("click", () => {
    sure.hidden = false;
    no.focus();
  });
  no.addEventListener("click", () => {
    sure.hidden = true;
    ask.focus();
  });
  yes.addEventListener("click", () => {
    dialog.dataset["removed"] = "";
    dialog.close();
  });
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: title }, "Conversation"),
    el("label", { for: name.id }, "Name"),
    name,
    el("label", { for: system.id }, "System prompt"),
    system,
    el("p", { class: "dim" }, "Questions to the notes have a prompt of their own, and use temperature, tokens and seed alone."),
    el("div", { class: "numbers-grid" }, ...fields.map(([, , element]) => element)),
    el("label", { class: "switch" }, colours, el("span", {}, "Colour drafted text")),
    el(
      "p",
      { class: "actions start" },
      el("button", { type: "button", disabled: isEmpty, click: exported(exportMarkdown) }, "Export Markdown"),
      el("button", { type: "button", disabled: isEmpty, click: exported(exportJson) }, "Export JSON"),
      ask,
    ),
    sure,
    el("p", { class: "actions" }, el("button", { type: "submit", class: "primary" }, "Done")),
  );
  fill(dialog, form);
  document.body.append(dialog);
  const focused = document.activeElement as HTMLElement | null;
  dialog.addEventListener("close", () => {
    dialog.remove();
    focused?.focus();
    if ("removed" in dialog.dataset) return remove();
    apply();
    keep();
  });
  dialog.showModal();
}
