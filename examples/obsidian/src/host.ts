// The engine, the index and the assistant of a vault, made when they are first needed.

import type { Assistant, Engine, Notes } from '@refrain-rs/node';
import { Library, type Vault } from './library';

type Refrain = typeof import('@refrain-rs/node');

export interface Settings {
  /** A GGUF file. */
  model: string;
  /** Most bytes of the model and its sessions. */
  memoryLimitBytes: number | null;
}

/** Searching and indexing need no model: it is loaded by the first question or edit. */
export class Host {
  readonly #refrain: Refrain;
  readonly #folder: string;
  #notes: Notes | undefined;
  #library: Library | undefined;
  #engine: Engine | undefined;
  #assistant: Promise<Assistant> | undefined;

  constructor(refrain: Refrain, folder: string) {
    this.#refrain = refrain;
    this.#folder = folder;
  }

  /** Opens the index and catches up with the vault. */
  async open(vault: Vault, onStep: (waiting: number) => void, onError: (error: unknown) => void): Promise<void> {
    const index = await this.#refrain.Notes.open({ folder: this.#folder });
    this.#notes = index;
    this.#library = new Library({
      index,
      vault,
      onError,
      onStep: (waiting, removed) => {
        onStep(waiting);
        this.#changed(removed).catch(onError);
      },
    });
    await this.#library.open();
  }

  /** The assistant searches the index as it is now, and keeps nothing of notes that are gone. */
  async #changed(removed: string[]): Promise<void> {
    const assistant = await this.#assistant?.catch(() => undefined);
    if (assistant) {
      await assistant.refreshNotes();
      for (const path of removed) {
        await assistant.forget({ what: 'note', path: this.#refrain.documentPath(path) });
      }
    }
  }

  get library(): Library | undefined {
    return this.#library;
  }

  get notes(): Notes | undefined {
    return this.#notes;
  }

  /** The assistant. `onProgress` tells the share of the model that is loaded. */
  assistant(settings: Settings, onProgress: (share: number) => void): Promise<Assistant> {
    this.#assistant ??= this.#load(settings, onProgress).catch(error => {
      this.#assistant = undefined;
      throw error;
    });
    return this.#assistant;
  }

  async #load({ model, memoryLimitBytes }: Settings, onProgress: (share: number) => void): Promise<Assistant> {
    const engine = await this.#refrain.Engine.open({
      path: model,
      memoryLimitBytes,
      onProgress: ({ done, total }) => onProgress(done / Math.max(total, 1)),
    });
    this.#engine = engine;
    // The first write makes the index: a vault without a note has none yet.
    await this.#notes?.put({});
    return engine.assistant({ notes: this.#folder });
  }

  /** Frees the model; the next question loads the one of the settings. */
  unload(): void {
    this.#engine?.close();
    this.#engine = undefined;
    this.#assistant = undefined;
  }

  close(): void {
    this.#library?.close();
    this.unload();
    this.#notes?.close();
  }
}
