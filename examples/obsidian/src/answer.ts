// An answer with citations, and the places that they open.

import type { Assistant, JobResult, Source } from '@refrain-rs/node';

/** A piece of an answer, as it is shown. */
export type Piece =
  | { kind: 'text'; text: string; isUnsupported: boolean }
  | { kind: 'citation'; number: number; source: Source | undefined; holds: boolean };

/** What the view shows. */
export interface Shown {
  /** `searching`, `reading` the prompt, `writing`, or how it has ended. */
  state: 'searching' | 'reading' | 'writing' | 'done' | 'not_in_notes' | 'cancelled' | 'failed';
  /** From 0 to 1 while the prompt is read. */
  share: number;
  pieces: Piece[];
  sources: Source[];
  /** Titles of notes that are near, if none answers. */
  nearest: string[];
  problem: string;
}

/** Asks, and shows each state. It never throws: a failure is a state. */
export async function ask(assistant: Pick<Assistant, 'start'>, question: string, signal: AbortSignal, show: (shown: Shown) => void): Promise<Shown> {
  let shown: Shown = { state: 'searching', share: 0, pieces: [], sources: [], nearest: [], problem: '' };
  const change = (changes: Partial<Shown>) => {
    shown = { ...shown, ...changes };
    show(shown);
  };
  change({});
  let text = '';
  try {
    for await (const event of assistant.start({ task: 'ask', question }, { signal })) {
      switch (event.type) {
        case 'searched':
          change({ nearest: event.nearest });
          break;
        case 'progress':
          change({ state: 'reading', share: event.done / Math.max(event.total, 1) });
          break;
        case 'text':
          if (event.kind === 'answer') {
            text += event.text;
            change({ state: 'writing', share: 1, pieces: [{ kind: 'text', text, isUnsupported: false }] });
          }
          break;
        case 'done':
          change({ state: 'done', pieces: pieces(event.result), sources: event.result.sources });
          break;
      }
    }
  } catch (error) {
    const { kind, message } = error as { kind?: string; message: string };
    const state = kind === 'cancelled' || kind === 'not_in_notes' ? kind : 'failed';
    change({ state, problem: message });
  }
  return shown;
}

/** The text of an answer with its citations as pieces, and with the sentences marked that no source supports. */
export function pieces(result: JobResult): Piece[] {
  const all: Piece[] = [];
  const push = (start: number, end: number, isUnsupported: boolean) => {
    if (start < end) {
      all.push({ kind: 'text', text: result.text.slice(start, end), isUnsupported });
    }
  };
  let at = 0;
  for (const sentence of result.sentences) {
    push(at, sentence.place.start, false);
    at = Math.max(at, sentence.place.start);
    for (const { place, number, holds } of sentence.citations) {
      push(at, place.start, sentence.isUnsupported);
      const source = result.sources.find(of => of.number === number);
      all.push({ kind: 'citation', number, source, holds: holds !== false && source !== undefined });
      at = place.end;
    }
    push(at, sentence.place.end, sentence.isUnsupported);
    at = Math.max(at, sentence.place.end);
  }
  push(at, result.text.length, false);
  return all;
}

/** A place in a note, in code units. */
export interface Range {
  start: number;
  end: number;
}

/**
 * The place of a passage in a note as it is now: the passage itself, else its first line that is still there, else the line that its locator
 * names (`line 12`), else the start.
 */
export function placeOf(note: string, passage: { text: string; locator?: string | null }): Range {
  const found = (text: string): Range | null => {
    const start = text.length === 0 ? -1 : note.indexOf(text);
    return start < 0 ? null : { start, end: start + text.length };
  };
  const whole = found(passage.text.trim());
  if (whole) {
    return whole;
  }
  const lines = passage.text.split('\n').map(line => line.trim());
  // Short lines, such as `---`, are in many places.
  for (const line of lines.filter(line => line.length >= 12)) {
    const place = found(line);
    if (place) {
      return place;
    }
  }
  const number = Number(/^line (\d+)/.exec(passage.locator ?? '')?.[1] ?? 1);
  const before = note.split('\n').slice(0, number - 1);
  const start = Math.min(before.reduce((length, line) => length + line.length + 1, 0), note.length);
  const end = note.indexOf('\n', start);
  return { start, end: end < 0 ? note.length : end };
}
