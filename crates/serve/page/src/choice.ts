// Radio buttons in a row.

import { el, newId } from "./dom";
import * as settings from "./settings";
import type { Mode, Settings } from "./settings";

/** A choice of a setting of the page. */
export function choice<K extends "mode" | "theme">(key: K, legend: string, options: [value: Settings[K], label: string][]): HTMLElement {
  const { element, show } = radios(legend, options, () => settings.settings()[key], (value) => settings.change({ [key]: value }));
  settings.onChange(show);
  return element;
}

/** A choice, and what shows its value again when that has changed elsewhere. */
export function radios<T extends string>(
  legend: string,
  options: [value: T, label: string][],
  get: () => T,
  set: (value: T) => void,
): { element: HTMLElement; show: () => void } {
  const name = newId();
  const inputs = options.map(([value, label]) => {
    const input = el("input", { type: "radio", name, value, change: () => set(value) });
    return { input, value, label: el("label", {}, input, el("span", {}, label)) };
  });
  const show = (): void => inputs.forEach(({ input, value }) => (input.checked = get() === value));
  show();
  return { element: el("fieldset", { class: "choice" }, el("legend", {}, legend), ...inputs.map(({ label }) => label)), show };
}

export const MODES: [Mode, string][] = [
  ["drafts", "With drafts"],
  ["plain", "Without drafts"],
  ["compare", "Compare"],
];

export const modeChoice = (): HTMLElement => choice("mode", "Drafting", MODES);
