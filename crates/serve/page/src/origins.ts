// The draft sources, in words. Each has a colour and a pattern in the style sheet, by `data-src`.

import { count, el, fill } from "./dom";
import type { Piece } from "./wire";

const NAMES: Record<string, [name: string, meaning: string]> = {
  context: ["prompt", "copied on from the text in the prompt"],
  passages: ["notes", "from passages that the search found"],
  history: ["earlier answers", "from answers that were kept"],
  predictions: ["likely next words", "that the model found likely after the same words"],
  resume: ["resumed copy", "goes on with a copied passage after a change"],
  draft_model: ["draft model", "from a smaller model"],
  grammar: ["grammar", "the only text that the grammar allows"],
};

/** The name of an origin for people. */
export function originName(origin: string | null): string {
  return origin === null ? "model itself" : (NAMES[origin]?.[0] ?? origin.replace(/_/g, " "));
}

/** The value of `data-src`: known names, or `other`. */
export function originKey(origin: string): string {
  return origin in NAMES ? origin : "other";
}

/** The legend of an answer: each source with its pattern, its name and its number of pieces. */
export function legend(pieces: readonly Piece[]): HTMLElement {
  const counts = new Map<string | null, number>([[null, 0]]);
  for (const { origin, is_reasoning, n_joined } of pieces) {
    if (!is_reasoning) counts.set(origin, (counts.get(origin) ?? 0) + (n_joined ?? 1));
  }
  const list = el("ul", { class: "legend", "aria-label": "Where the tokens were drafted" });
  const sorted = [...counts].sort(([a, n], [b, m]) => (a === null ? -1 : b === null ? 1 : m - n));
  fill(
    list,
    ...sorted.map(([origin, n]) =>
      el(
        "li",
        { title: origin === null ? "not drafted" : (NAMES[origin]?.[1] ?? "from another draft source") },
        el("span", { class: "swatch", "data-src": origin === null ? "target" : originKey(origin), "aria-hidden": "true" }),
        `${originName(origin)} `,
        el("b", {}, String(n)),
        el("span", { class: "sr" }, ` ${n === 1 ? "piece" : "pieces"}`),
      ),
    ),
  );
  return list;
}

/** `11 of 18 pieces were drafted`, for those who do not see the colours. */
export function draftedSummary(pieces: readonly Piece[]): string {
  const number = (of: (piece: Piece) => boolean): number =>
    pieces.filter((piece) => !piece.is_reasoning && of(piece)).reduce((sum, { n_joined }) => sum + (n_joined ?? 1), 0);
  return `${number(({ origin }) => origin !== null)} of ${count(number(() => true), "piece")} were drafted`;
}
