// Radio buttons in a row that show and change one setting.

import { el, newId } from "./dom";
import * as settings from "./settings";
import type { Settings } from "./settings";

export function choice<K extends "mode" | "theme">(key: K, legend: string, options: [value: Settings[K], label: string][]): HTMLElement {
  const name = newId();
  const inputs = options.map(([value, label]) => {
    const input = el("input", { type: "radio", name, value, change: () => settings.change({ [key]: value }) });
    return { input, value, label: el("label", {}, input, el("span", {}, label)) };
  });
  const show = (): void => inputs.forEach(({ input, value }) => (input.checked = settings.settings()[key] === value));
  show();
  settings.onChange(show);
  return el("fieldset", { class: "choice" }, el("legend", {}, legend), ...inputs.map(({ label }) => label));
}

export const modeChoice = (): HTMLElement =>
  choice("mode", "Drafting", [
    ["drafts", "With drafts"],
    ["plain", "Without drafts"],
    ["compare", "Compare"],
  ]);
