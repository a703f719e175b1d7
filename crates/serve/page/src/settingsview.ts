// The view "Settings".

import * as api from "./api";
import { choice, modeChoice } from "./choice";
import { count, el, newId, number } from "./dom";
import { MAX_TOKENS_LIMIT, TEMPERATURE_LIMIT, change, onChange, settings } from "./settings";
import type { Status } from "./wire";

export function settingsView(status: Status, signOut: () => void): HTMLElement {
  const most = Math.min(MAX_TOKENS_LIMIT, status.max_tokens);
  const tokens = field("Maximum tokens of an answer", `At most ${number(most)} for this model. An edit has room for its text.`, {
    type: "number", min: 1, max: most, step: 1, inputmode: "numeric",
  }, (input) => change({ maxTokens: input.valueAsNumber }), (input) => (input.value = String(Math.min(settings().maxTokens, most))));
  const temperature = field("Temperature", "0 takes the likeliest token. A higher value draws.", {
    type: "number", min: 0, max: TEMPERATURE_LIMIT, step: 0.1, inputmode: "decimal",
  }, (input) => change({ temperature: input.valueAsNumber }), (input) => (input.value = String(settings().temperature)));
  const keep = el("input", { type: "checkbox", role: "switch", change: () => change({ keep: keep.checked }) });
  const keepsChats = el("input", { type: "checkbox", role: "switch", change: () => change({ keepsChats: keepsChats.checked }) });
  const show = (): void => {
    keep.checked = settings().keep;
    keepsChats.checked = settings().keepsChats;
  };
  show();
  onChange(show);
  const about: [string, string][] = [
    ["Model", status.model],
    ["Context", count(status.context_len, "token")],
    ["Notes", status.notes ? count(status.notes.n_passages, "passage") : "none"],
    ["Kept on disk", status.has_store ? "answers and computed prompts" : "nothing: answers are kept in memory"],
    ["Version", status.version],
  ];
  return el(
    "section",
    { class: "view settings", "aria-label": "Settings" },
    el("h2", {}, "Settings"),
    el(
      "div",
      { class: "group" },
      modeChoice(),
      el("p", { class: "dim" }, "Drafts change the time and never the text. “Compare” runs both ways and checks that."),
      tokens,
      temperature,
      el("label", { class: "switch" }, keep, el("span", {}, "Keep answers"), el("span", { class: "dim" }, "Kept answers draft later ones. The history forgets them.")),
      el("label", { class: "switch" }, keepsChats, el("span", {}, "Keep conversations"), el("span", { class: "dim" }, "In this browser, for this address, not encrypted. Off: new ones last as long as the tab. The history forgets those that are kept.")),
    ),
    el("div", { class: "group" }, choice("theme", "Theme", [["system", "System"], ["light", "Light"], ["dark", "Dark"]])),
    el("div", { class: "group" }, el("h3", {}, "This server"), el("dl", {}, ...about.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))),
    api.token.get() !== null && el("p", {}, el("button", { type: "button", click: signOut }, "Sign out")),
  );
}

function field(
  label: string,
  hint: string,
  attributes: Record<string, string | number>,
  changed: (input: HTMLInputElement) => void,
  show: (input: HTMLInputElement) => void,
): HTMLElement {
  const [id, hintId] = [newId(), newId()];
  const input = el("input", { id, "aria-describedby": hintId, ...attributes });
  input.addEventListener("change", () => {
    changed(input);
    show(input);
  });
  show(input);
  onChange(() => show(input));
  return el("div", { class: "field" }, el("label", { for: id }, label), input, el("p", { class: "dim", id: hintId }, hint));
}
