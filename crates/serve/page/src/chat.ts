// The view "Ask": questions about the notes.

import * as api from "./api";
import { AnswerText, passageList } from "./answer";
import { race } from "./chart";
import type { Meter } from "./chart";
import { modeChoice } from "./choice";
import { count, duration, el, fill, newId, short } from "./dom";
import { onForgotten } from "./forget";
import { Progress, run } from "./job";
import { announce } from "./live";
import { draftedSummary, legend } from "./origins";
import { settings } from "./settings";
import { closeSource } from "./source";
import type { Answered, Stats, Status } from "./wire";

/** Earlier questions that a search reads. */
const EARLIER_MAX = 5;

/** A run of a question: with drafts or without. */
interface Run {
  isPlain: boolean;
  text: AnswerText;
  answered: Answered;
}

export function askView(status: Status, meter: Meter): HTMLElement {
  let stop: AbortController | null = null;
  const progress = new Progress(() => stop?.abort());
  const feed = el("div", { class: "feed" });
  const id = newId();
  const input = el("textarea", { id, rows: 1, placeholder: "Ask your notes", maxlength: 8000, required: true });
  const send = el("button", { type: "submit", class: "primary" }, "Ask");
  // Earlier questions, newest first, whose words a follow-up question is searched with.
  let earlier: string[] = [];
  const follow = el("input", { type: "checkbox" });
  const follows = el("label", { class: "follow", title: "The search also looks for the words of earlier questions." }, follow, " follows the last question");
  follows.hidden = true;
  const form = el(
    "form",
    { class: "composer" },
    el("label", { for: id, class: "sr" }, "Question about your notes"),
    el("div", { class: "row" }, input, send),
    el("div", { class: "row under" }, modeChoice(), follows, el("span", { class: "dim keys" }, "Enter asks, Shift+Enter is a new line")),
  );
  const empty = el("div", { class: "empty" }, el("h2", {}, "Ask your notes"), el("p", {}, hint(status)));

  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  input.addEventListener("input", () => {
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight, 200)}px`;
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const question = input.value.trim();
    if (question === "" || stop) return;
    stop = new AbortController();
    send.disabled = true;
    empty.remove();
    closeSource();
    const body = el("div");
    const turn = el("article", { class: "turn", "aria-label": `Question: ${question}` }, el("h2", { class: "question" }, question), body);
    feed.append(turn);
    turn.scrollIntoView({ block: "start" });
    try {
      await ask(question, follow.checked ? earlier : [], body, progress, meter, stop.signal);
      earlier = [question, ...(follow.checked ? earlier : [])].slice(0, EARLIER_MAX);
      follows.hidden = false;
      input.value = "";
      input.style.height = "auto";
    } catch (error) {
      const problem = api.words(error);
      body.append(el("p", problem === null ? { class: "hint" } : { class: "error", role: "alert" }, problem ?? "Stopped. Nothing was kept."));
      if (problem === null) announce("Stopped");
    } finally {
      stop = null;
      send.disabled = false;
      progress.end();
      input.focus({ preventScroll: true });
    }
  });
  feed.append(empty);
  // What the page shows of an answer goes with it.
  onForgotten(() => {
    fill(feed, empty);
    earlier = [];
    follow.checked = false;
    follows.hidden = true;
  });

  return el("section", { class: "view ask with-meter", "aria-label": "Ask" }, meter.element, feed, progress.element, form);
}

function hint({ notes, model }: Status): string {
  if (!notes) return "The server has no notes. Start it with `refrain serve --notes FOLDER`. Edits work without notes.";
  return `${count(notes.n_passages, "passage")} of your notes can be asked. The model ${model} answers on this device, and nothing leaves it.`;
}

async function ask(question: string, earlier: string[], body: HTMLElement, progress: Progress, meter: Meter, signal: AbortSignal): Promise<void> {
  const { mode, maxTokens, temperature, keep } = settings();
  // With one seed, a sampled text is the same with drafts and without.
  const seed = temperature > 0 ? crypto.getRandomValues(new Uint32Array(1))[0] : undefined;
  const request = { question, earlier, max_tokens: maxTokens, temperature, seed };
  const ways = mode === "compare" ? [true, false] : [mode === "plain"];
  const columns = el("div", { class: ways.length > 1 ? "columns" : "" });
  body.append(columns);
  const runs: Run[] = [];
  for (const [index, isPlain] of ways.entries()) {
    const text = new AnswerText();
    const column = el("div", { class: "column" }, ways.length > 1 && el("h3", {}, isPlain ? "Without drafts" : "With drafts"), text.element);
    columns.append(column);
    meter.start(isPlain, index === 0);
    const answered = await run<Answered>("ask", { ...request, drafts: !isPlain, keep: keep && (ways.length === 1 || !isPlain) }, signal, progress, (event) => {
      if (event.kind !== "text") return;
      text.push(event.data);
      meter.push(event.data);
    });
    text.finish(answered);
    meter.end(answered.stats);
    runs.push({ isPlain, text, answered });
    // No model has run, and the other way gives the same.
    if (answered.is_not_in_notes) break;
    column.append(...foot(text, answered));
  }
  const last = runs.at(-1);
  if (!last) return;
  if (runs.length > 1) body.append(comparison(runs));
  body.append(passageList(last.answered));
  const unsupported = last.answered.sentences.filter(({ support }) => support === "none").length;
  if (last.answered.is_not_in_notes) return announce(last.answered.text);
  announce(
    `${last.answered.text} — ${draftedSummary(last.text.pieces)}.${unsupported > 0 ? ` ${count(unsupported, "sentence")} not found in the notes.` : ""}`,
  );
}

/** Legend and numbers of a run. */
function foot(text: AnswerText, answered: Answered): HTMLElement[] {
  const notices = [
    answered.is_cut && "The answer was cut at the limit of tokens (see Settings).",
    answered.not_kept && `The answer is not kept: ${answered.not_kept}`,
  ].filter((notice): notice is string => typeof notice === "string");
  return [
    legend(text.pieces),
    el("p", { class: "dim numbers" }, numbers(answered.stats)),
    ...notices.map((notice) => el("p", { class: "hint" }, notice)),
  ];
}

export function numbers({ tokens, steps, decode_us, prefill_us, prompt_tokens, cached_tokens }: Stats): string {
  const saved = cached_tokens > 0 ? `, ${cached_tokens} not computed again` : "";
  return `${count(tokens, "token")} in ${count(steps, "step")} and ${duration(decode_us)} · prompt ${count(prompt_tokens, "token")}${saved}, ${duration(prefill_us)}`;
}

/** Whether both texts are equal, and their times. */
function comparison(runs: Run[]): HTMLElement {
  const plain = runs.find(({ isPlain }) => isPlain);
  const drafted = runs.find(({ isPlain }) => !isPlain);
  if (!plain || !drafted) return el("p");
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
  return el("div", { class: "comparison" }, verdict, el("p", {}, times, " ", replay), race(named));
}
