// What is said about a text that was written: its numbers, its notices, and a comparison of both ways of decoding.

import type { AnswerText } from "./answer";
import { race } from "./chart";
import { count, duration, el, short } from "./dom";
import { legend } from "./origins";
import type { Answered, Stats } from "./wire";

/** A run of a request: with drafts or without. */
export interface Run {
  isPlain: boolean;
  text: AnswerText;
  answered: Answered;
}

/** Legend and numbers of a text. */
export function foot(text: AnswerText, { is_cut, not_kept, stats }: Answered): HTMLElement[] {
  const notices = [
    is_cut && "The answer was cut at the limit of tokens (see Settings).",
    not_kept && `The answer is not kept: ${not_kept}`,
  ].filter((notice): notice is string => typeof notice === "string");
  return [
    legend(text.pieces),
    ...(stats.tokens > 0 ? [el("p", { class: "dim numbers" }, numbers(stats))] : []),
    ...notices.map((notice) => el("p", { class: "hint" }, notice)),
  ];
}

export function numbers({ tokens, steps, decode_us, prefill_us, prompt_tokens, cached_tokens }: Stats): string {
  const saved = cached_tokens > 0 ? `, ${cached_tokens} not computed again` : "";
  return `${count(tokens, "token")} in ${count(steps, "step")} and ${duration(decode_us)} · prompt ${count(prompt_tokens, "token")}${saved}, ${duration(prefill_us)}`;
}

/** Whether both texts are equal, and their times: as an element, and in words for later. */
export function comparison(runs: Run[]): { element: HTMLElement; words: string } | null {
  const plain = runs.find(({ isPlain }) => isPlain);
  const drafted = runs.find(({ isPlain }) => !isPlain);
  if (!plain || !drafted) return null;
  const isEqual = plain.answered.text === drafted.answered.text;
  const n = [...plain.answered.text].length;
  const verdict = isEqual
    ? el("p", { class: "verdict" }, el("b", {}, "✓ Both texts are equal"), `, all ${count(n, "character")}.`)
    : el("p", { class: "error", role: "alert" }, "The texts differ. That is a bug: please report it.");
  const factor = plain.answered.stats.decode_us / drafted.answered.stats.decode_us;
  const times = `${duration(drafted.answered.stats.decode_us)} with drafts, ${duration(plain.answered.stats.decode_us)} without: ${short(factor)} times as fast.`;
  const slowest = Math.max(...runs.map(({ answered }) => answered.stats.decode_us)) / 1000;
  const replay = el("button", { type: "button", class: "quiet" }, "Replay slowly");
  replay.addEventListener("click", async () => {
    replay.disabled = true;
    // The slower run takes six seconds.
    await Promise.all(runs.map(({ text }) => text.replay(6000 / Math.max(slowest, 0.001))));
    replay.disabled = false;
  });
  const named = runs.map(({ isPlain, text, answered }) => ({
    name: isPlain ? "without drafts" : "with drafts",
    isPlain,
    pieces: text.pieces,
    stats: answered.stats,
  }));
  return {
    element: el("div", { class: "comparison" }, verdict, el("p", {}, times, " ", replay), race(named)),
    words: `${verdict.textContent} ${times}`,
  };
}
