// An edit with its live difference.

import type { Assistant, Change, ChangeKind, Event } from '@refrain-rs/node';

/** A part of the difference. `rest` is the old text that the edit has not reached yet. */
export interface Part {
  kind: ChangeKind | 'rest';
  text: string;
}

/** The difference so far. */
export class LiveDiff {
  readonly #old: string;
  #new = '';
  #parts: Part[] = [];
  /** The end of what the changes cover, in the old text. */
  #at = 0;
  /** The ends of the newest window: the new text up to there may be kept without the rest. */
  #window = { old: 0, new: 0 };

  constructor(old: string) {
    this.#old = old;
  }

  /** Takes an event. Returns whether the difference has changed. */
  push(event: Event): boolean {
    switch (event.type) {
      case 'text':
        if (event.kind === 'answer') {
          this.#new += event.text;
        }
        return false;
      case 'edit':
        this.#change(event.change);
        return true;
      case 'window':
        this.#window = { old: event.old.end, new: event.new.end };
        return false;
      case 'done':
        this.#new = event.result.text;
        [this.#parts, this.#at] = [[], 0];
        event.result.changes.forEach(change => this.#change(change));
        return true;
      default:
        return false;
    }
  }

  #change({ kind, old, new: place }: Change): void {
    const text = kind === 'insert' ? this.#new.slice(place.start, place.end) : this.#old.slice(old.start, old.end);
    const last = this.#parts.at(-1);
    if (last?.kind === kind) {
      // Parts that were given out stay as they are.
      this.#parts[this.#parts.length - 1] = { kind, text: last.text + text };
    } else {
      this.#parts.push({ kind, text });
    }
    this.#at = Math.max(this.#at, old.end);
  }

  /** The parts, with the rest of the old text. */
  get parts(): Part[] {
    const rest = this.#old.slice(this.#at);
    return rest === '' ? [...this.#parts] : [...this.#parts, { kind: 'rest', text: rest }];
  }

  /** The new text up to the newest window, and the old one behind it: what may be kept of an edit that was stopped. */
  get kept(): string {
    return this.#new.slice(0, this.#window.new) + this.#old.slice(this.#window.old);
  }
}

/** How an edit has ended. */
export interface Edited {
  /** The new text; of an edit that was stopped, with what may be kept; `null`: it failed. */
  text: string | null;
  /** Why it should not replace the old text without asking. */
  doubts: string[];
  problem: string;
}

export interface Asked {
  /** The whole note. */
  text: string;
  instruction: string;
  /** The part that is edited, in code units; the whole note without it. */
  selection?: { start: number; end: number } | undefined;
}

/** Edits, and shows the difference at each change. It never throws. */
export async function edit(
  assistant: Pick<Assistant, 'start'>,
  { text, instruction, selection }: Asked,
  signal: AbortSignal,
  show: (parts: Part[]) => void,
): Promise<Edited> {
  const diff = new LiveDiff(text);
  try {
    const job = assistant.start({ task: 'edit', text, instruction, selection: selection ?? null }, { signal });
    for await (const event of job) {
      if (diff.push(event)) {
        show(diff.parts);
      }
      if (event.type === 'done') {
        return { text: event.result.text, doubts: event.result.doubts, problem: '' };
      }
    }
  } catch (error) {
    const { kind, message } = error as { kind?: string; message: string };
    return { text: kind === 'cancelled' ? diff.kept : null, doubts: [], problem: message };
  }
  return { text: null, doubts: [], problem: 'the edit has no end' };
}

/** The note with an edit, if it is as it was when the edit began; else `null`, and nothing is lost. */
export function applied(note: string, before: string, after: string): string | null {
  return note === before ? after : null;
}
