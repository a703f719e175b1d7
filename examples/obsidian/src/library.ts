// The index of a vault: it follows the vault's events, and catches up with what changed while it was closed.

import type { Notes } from '@refrain-rs/node';

/** A note of the vault. */
export interface VaultNote {
  path: string;
  /** Milliseconds since 1970. */
  modified: number;
  /** Bytes. */
  size: number;
}

/** What the index needs of a vault. */
export interface Vault {
  notes(): VaultNote[];
  /** One note; `null` if there is none. */
  note(path: string): VaultNote | null;
  /** The text of a note. Fails if there is none. */
  read(path: string): Promise<string>;
}

export type Index = Pick<Notes, 'put' | 'documentsSince' | 'cursor'>;

export interface LibraryOptions {
  index: Index;
  vault: Vault;
  /** Milliseconds without an event after which changes are indexed. */
  quiet?: number;
  /** Called after a step: the notes that wait, and the paths that are gone from the index. */
  onStep?: (waiting: number, removed: string[]) => void;
  onError?: (error: unknown) => void;
}

/** Most notes of a step. */
const NOTES_MAX = 64;
/** Bytes of a step, about. */
const BYTES_MAX = 1 << 20;
/** Milliseconds after which a step that failed is tried again. */
const RETRY = 5_000;

/**
 * Notes are documents whose ids are their paths. The index keeps one text of the app, which is the newest time of change that it has: notes
 * that are newer, have another size or are unknown are put again when the vault is opened. It is only moved on when nothing waits, so that a
 * vault that is closed in between loses nothing.
 */
export class Library {
  readonly #options: LibraryOptions;
  readonly #waiting = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #working: Promise<void> | undefined;
  #newest = 0;
  #isClosed = false;

  constructor(options: LibraryOptions) {
    this.#options = options;
  }

  /** Indexes what changed while the library was closed; `everything` puts every note again. */
  async open(everything = false): Promise<void> {
    const { index, vault } = this.#options;
    const known = new Map<string, number>();
    try {
      for (const { id, bytes } of (await index.documentsSince(0)).put) {
        known.set(id, bytes);
      }
      this.#newest = Number((await index.cursor()) ?? 0);
    } catch (error) {
      // Before the first step there is no index.
      if ((error as { kind?: unknown }).kind !== 'not_found') {
        throw error;
      }
    }
    for (const { path, modified, size } of vault.notes()) {
      if (everything || modified > this.#newest || known.get(path) !== size) {
        this.#waiting.add(path);
      }
      known.delete(path);
    }
    for (const path of known.keys()) {
      this.#waiting.add(path);
    }
    await this.settle();
  }

  /** A note was made, changed or deleted. */
  changed(path: string): void {
    this.#waiting.add(path);
    this.#schedule(this.#options.quiet ?? 1_000);
  }

  /** A note has another path. */
  renamed(from: string, to: string): void {
    this.changed(from);
    this.changed(to);
  }

  /** Indexes what waits, now. */
  async settle(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    // (The step that runs does not see what came meanwhile.)
    await this.#working;
    this.#working ??= this.#work().finally(() => {
      this.#working = undefined;
    });
    await this.#working;
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  #schedule(wait: number): void {
    if (this.#isClosed) {
      return;
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.settle().catch(error => this.#options.onError?.(error));
    }, wait);
  }

  async #work(): Promise<void> {
    while (this.#waiting.size > 0 && !this.#isClosed && (await this.#step()));
  }

  /** One step. Returns whether it was stored. */
  async #step(): Promise<boolean> {
    const { index, vault, onStep, onError } = this.#options;
    const documents = [];
    const remove: string[] = [];
    let [bytes, newest] = [0, this.#newest];
    const paths: string[] = [];
    for (const path of [...this.#waiting].slice(0, NOTES_MAX)) {
      if (bytes >= BYTES_MAX) {
        break;
      }
      // Before it is read: what changes from here on waits again.
      this.#waiting.delete(path);
      paths.push(path);
      const note = vault.note(path);
      const text = note && (await vault.read(path).catch(() => null));
      if (note && typeof text === 'string') {
        newest = Math.max(newest, note.modified);
        bytes += note.size;
        documents.push({ id: path, text: text.toWellFormed(), title: title(path), date: Math.floor(note.modified / 1000) });
      } else {
        remove.push(path);
      }
    }
    this.#newest = newest;
    try {
      await index.put({ documents, remove, ...(this.#waiting.size === 0 && { cursor: String(newest) }) });
    } catch (error) {
      paths.forEach(path => this.#waiting.add(path));
      onError?.(error);
      this.#schedule(RETRY);
      return false;
    }
    onStep?.(this.#waiting.size, remove);
    return true;
  }
}

/** The title that Obsidian shows. */
function title(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1).replace(/\.md$/, '');
}
