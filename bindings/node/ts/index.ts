/**
 * Refrain for Node: language models on a device's CPU.
 *
 * Calls that may wait or compute give promises, and run on threads of their own: none blocks the event loop. Objects belong to the thread
 * (main or worker) that made them, and end with it. Each has `close()`, which may be called twice and which `using` calls; every later call
 * is the error `closed`. Text with half a surrogate pair is the error `not_utf8`, and an unknown option is `invalid_argument`.
 *
 * @packageDocumentation
 */

import { RefrainError } from './errors';
import { call, callNow, Job } from './job';
import { fromJson, toJson } from './json';
import {
  native,
  type NativeAssistant,
  type NativeConversation,
  type NativeEngine,
  type NativeHistory,
  type NativeNotes,
  type NativeSession,
} from './native';
import type {
  AssistantOptions,
  ChatRequest,
  DeviceState,
  DocumentChanges,
  EngineInfo,
  EngineOptions,
  Event,
  Forget,
  Forgotten,
  GenerateOptions,
  HistoryOptions,
  Hit,
  MemoryEstimate,
  Message,
  NoteFile,
  NotesOptions,
  PutRequest,
  Role,
  SearchRequest,
  SessionInfo,
  SessionOptions,
  SuspendReport,
  TaskRequest,
  Turn,
} from './records';

export * from './records';
export { Job, RefrainError };

/** Options of a job: those of a generation, and a signal that cancels it. */
export type JobOptions = GenerateOptions & { signal?: AbortSignal | undefined };

/** The event that tells how far work has come. */
export type Progress = Extract<Event, { type: 'progress' }>;

/** The version of the library, such as `0.2.0`. */
export function libraryVersion(): string {
  return native.libraryVersion();
}

/** The path that stands for the id of a document without a file: for filters and deletions. */
export function documentPath(id: string): string {
  return callNow(() => native.documentPath(toJson(id, 'id')));
}

/** The memory of a model with one session, from the header of its file. Errors: as {@link Engine.open}. */
export async function estimateMemory(engine: EngineOptions, session: SessionOptions = {}): Promise<MemoryEstimate> {
  return fromJson(await call(() => native.estimateMemory(toJson(engine, 'engine'), toJson(session, 'session'))));
}

/** Calls one after the other, in the order in which they were made: threads of a pool keep no order. */
class InOrder {
  #last: Promise<unknown> = Promise.resolve();

  run<T>(work: () => Promise<T>): Promise<T> {
    const next = this.#last.then(work);
    this.#last = next.catch(() => {});
    return next;
  }
}

function split({ signal, ...options }: JobOptions): [string, AbortSignal | undefined] {
  return [toJson(options, 'options'), signal];
}

/** A loaded model. Its sessions and assistants share it; their passes take turns. */
export class Engine implements Disposable, AsyncDisposable {
  readonly #native: NativeEngine;

  /** @internal */
  constructor(native: NativeEngine) {
    this.#native = native;
  }

  /**
   * Loads a model, in seconds. `onProgress` is called in percents of its bytes. A load cannot be stopped: if `onProgress` throws, it is not
   * called again, and the promise is rejected with `listener` when the load has ended.
   *
   * Errors: `not_found`, `damaged`, `unsupported`, `over_limit` and `io`, with the file; `out_of_memory`, with `limit`; `mismatch` of the draft
   * model; `invalid_argument`.
   */
  static async open(options: EngineOptions & { onProgress?: ((progress: Progress) => void) | undefined }): Promise<Engine> {
    const { onProgress, ...given } = options;
    const json = toJson(given, 'options');
    let thrown: { error: unknown } | undefined;
    const onEvents = (batch: string) => {
      for (const event of fromJson<Progress[]>(batch)) {
        try {
          if (!thrown) {
            onProgress?.(event);
          }
        } catch (error) {
          thrown = { error };
        }
      }
    };
    const engine = new Engine(await call(() => native.Engine.open(json, onProgress ? onEvents : undefined)));
    if (onProgress) {
      // The last batches are in the queue of the event loop, where the promise may have been before them.
      await new Promise(resolve => setImmediate(resolve));
      await new Promise(resolve => setImmediate(resolve));
    }
    if (thrown) {
      engine.close();
      throw new RefrainError({ kind: 'listener', message: 'onProgress has thrown' }, (thrown as { error: unknown }).error);
    }
    return engine;
  }

  /** What was loaded. */
  async info(): Promise<EngineInfo> {
    return fromJson(await call(() => this.#native.info()));
  }

  /**
   * Starts a session: one conversation, or one plain text. With a history, it drafts from the history's outputs and adds its own.
   *
   * Errors: `invalid_argument`; `out_of_memory`: it exceeds the engine's memory limit, or the system's memory; `wrong_state`: `draft_model`
   * without one.
   */
  async session(options: SessionOptions = {}, history?: History): Promise<Session> {
    const json = toJson(options, 'options');
    return new Session(await call(() => this.#native.session(json, history && History.native(history))));
  }

  /** Opens the outputs of this model in a folder. Errors: `io`, `damaged`, `mismatch` of the key. */
  async history(options: HistoryOptions): Promise<History> {
    return new History(await call(() => this.#native.history(toJson(options, 'options'))));
  }

  /**
   * Makes an assistant: the tasks of a notes or assistant app.
   *
   * Errors: `in_use`: another process has the store; `not_found`: there is no index; `mismatch` of the key; `out_of_memory`; `invalid_argument`.
   */
  async assistant(options: AssistantOptions = {}): Promise<Assistant> {
    return new Assistant(await call(() => this.#native.assistant(toJson(options, 'options'))));
  }

  /** Forgets the outputs in memory: of a namespace, or all. */
  async forgetOutputs(namespace?: string): Promise<void> {
    await call(() => this.#native.forgetOutputs(toJson(namespace, 'namespace')));
  }

  /**
   * Tells the engine what the device reports: with heat, memory pressure and saved power it drafts less, and gives back memory. Never changes a
   * text.
   */
  async setDeviceState(state: DeviceState): Promise<void> {
    await call(() => this.#native.setDeviceState(toJson(state, 'state')));
  }

  /**
   * What a process does before the system suspends it: cancels the engine's jobs, waits for their ends, for at most so many milliseconds, and
   * makes histories durable. Sessions stay, with the text so far.
   */
  async prepareToSuspend(maxWaitMs: number): Promise<SuspendReport> {
    return fromJson(await call(() => this.#native.prepareToSuspend(maxWaitMs)));
  }

  /**
   * Closes the engine and everything that was made from it, and cancels their jobs. Its memory is free when running passes have ended. The
   * garbage collector does not see this memory: do not leave it to the collector.
   */
  close(): void {
    callNow(() => this.#native.close());
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Cancels the engine's jobs, waits for their ends for at most ten seconds, and closes it. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.prepareToSuspend(10_000);
    } catch (error) {
      if (!(error instanceof RefrainError && error.kind === 'closed')) {
        throw error;
      }
    } finally {
      this.close();
    }
  }
}

/** Outputs on disk, from which later sessions draft. Several processes may open one folder. */
export class History implements Disposable {
  readonly #native: NativeHistory;

  /** @internal */
  constructor(native: NativeHistory) {
    this.#native = native;
  }

  /** @internal */
  static native(history: History): NativeHistory {
    return history.#native;
  }

  /** Forgets the outputs of the namespace, in every file. Errors: `in_use`: another process writes the folder; `io`. */
  async forget(): Promise<void> {
    await call(() => this.#native.forget());
  }

  /** Reads the outputs of other processes, and makes all durable. */
  async maintain(): Promise<void> {
    await call(() => this.#native.maintain());
  }

  /** Closes the object. Sessions that have the history keep it. */
  close(): void {
    callNow(() => this.#native.close());
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/**
 * One conversation, or one plain text. Its calls run in the order in which they were made. While a job runs, the others are the error `busy`;
 * after a job was cancelled, they wait until it has ended.
 */
export class Session implements Disposable {
  readonly #native: NativeSession;
  readonly #calls = new InOrder();

  /** @internal */
  constructor(native: NativeSession) {
    this.#native = native;
  }

  /** Adds a turn. Errors: `wrong_state`: the session holds plain text; `busy`. */
  async append(role: Role, content: string): Promise<void> {
    const json = toJson({ role, content }, 'message');
    await this.#calls.run(() => call(() => this.#native.append(json)));
  }

  /** Adds plain text, without a chat template. Errors: `context_full`, and the session is unchanged; `wrong_state`: it holds turns; `busy`. */
  async appendText(text: string): Promise<void> {
    const json = toJson(text, 'text');
    await this.#calls.run(() => call(() => this.#native.appendText(json)));
  }

  /** Takes back the newest turn; `null` if there is none. */
  async pop(): Promise<Message | null> {
    return fromJson(await this.#calls.run(() => call(() => this.#native.pop())));
  }

  /** The turns. */
  async messages(): Promise<Message[]> {
    return fromJson(await this.#calls.run(() => call(() => this.#native.messages())));
  }

  /** Counts and sizes. */
  async info(): Promise<SessionInfo> {
    return fromJson(await this.#calls.run(() => call(() => this.#native.info())));
  }

  /**
   * Starts an answer to the turns, or the continuation of the text. Its errors are those of the job: `invalid_argument`: an option or the schema
   * is refused, or there is no prompt; `context_full`: the newest turn is removed; `busy`.
   */
  generate(options: JobOptions = {}): Job {
    const [json, signal] = split(options);
    return new Job(() => this.#calls.run(() => this.#native.generate(json)), signal);
  }

  /** Computes the prompt now, while the user types. The job has progress and an empty result. */
  prefill(options: { signal?: AbortSignal | undefined } = {}): Job {
    return new Job(() => this.#calls.run(() => this.#native.prefill()), options.signal);
  }

  /** Closes the session and frees its memory; cancels its job. */
  close(): void {
    callNow(() => this.#native.close());
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** The tasks of a notes or assistant app: answers from notes, summaries, replies, edits, commands for screens, conversations. */
export class Assistant implements Disposable {
  readonly #native: NativeAssistant;

  /** @internal */
  constructor(native: NativeAssistant) {
    this.#native = native;
  }

  /**
   * Starts a task. Errors of the job: `not_in_notes`: no passage covers enough of the question; `nothing`: there is no text; `context_full`;
   * `wrong_state`: there are no notes, or no store for a prefetch; `invalid_argument`.
   */
  start(request: TaskRequest, options: JobOptions = {}): Job {
    const task = toJson(request, 'request');
    const [json, signal] = split(options);
    return new Job(() => this.#native.start(task, json), signal);
  }

  /** A conversation: a new one, or one that goes on from what the app has stored of it. Errors: `invalid_argument`: the id. */
  async conversation(
    stored: { id?: string; turns?: (Pick<Turn, 'role' | 'content'> & Partial<Turn>)[] } = {},
  ): Promise<Conversation> {
    const [id, turns] = [toJson(stored.id, 'id'), toJson(stored.turns ?? [], 'turns')];
    return new Conversation(await call(() => this.#native.conversation(id, turns)));
  }

  /** Deletes what was kept. When the promise is resolved, no file has a byte of it. */
  async forget(what: Forget): Promise<Forgotten> {
    return fromJson(await call(() => this.#native.forget(toJson(what, 'what'))));
  }

  /** Reads the index of notes again, as writers have left it. */
  async refreshNotes(): Promise<void> {
    await call(() => this.#native.refreshNotes());
  }

  /** Closes the assistant; its conversations and jobs go on. */
  close(): void {
    callNow(() => this.#native.close());
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** A conversation of an assistant. One job of it runs at a time. An app stores `id` and `turns()` to continue it later. */
export class Conversation implements Disposable {
  readonly #native: NativeConversation;
  readonly #calls = new InOrder();
  /** The id, under which {@link Assistant.forget} deletes what was kept of it: 16 hexadecimal digits. */
  readonly id: string;

  /** @internal */
  constructor(native: NativeConversation) {
    this.#native = native;
    this.id = callNow(() => native.id());
  }

  /**
   * Answers a turn of the user. The conversation has both turns when the job is done. Errors of the job: `busy`: another job of it runs;
   * `context_full`: the turn alone does not fit.
   */
  say(request: ChatRequest, options: JobOptions = {}): Job {
    const turn = toJson(request, 'request');
    const [json, signal] = split(options);
    return new Job(() => this.#calls.run(() => this.#native.say(turn, json)), signal);
  }

  /** The turns of finished jobs. */
  async turns(): Promise<Turn[]> {
    return fromJson(await this.#calls.run(() => call(() => this.#native.turns())));
  }

  /** Closes the conversation; its job goes on. */
  close(): void {
    callNow(() => this.#native.close());
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/**
 * An index of notes, documents, mail, chats and calendars in a folder: searched by words, and by meaning with an embedding model. Any number of
 * processes search one folder, and one writes at a time: another one waits for it up to two seconds, and then gives `in_use`.
 */
export class Notes implements Disposable {
  readonly #native: NativeNotes;
  readonly #puts = new InOrder();

  /** @internal */
  constructor(native: NativeNotes) {
    this.#native = native;
  }

  /** An index in a folder, which is made by the first write. Errors: `invalid_argument`; those of the embedding model. */
  static async open(options: NotesOptions): Promise<Notes> {
    return new Notes(await call(() => native.Notes.open(toJson(options, 'options'))));
  }

  /**
   * Adds files and folders, and reads what has changed of all: the result has `update`. If it is cancelled, the next update goes on. Errors of the
   * job: `not_found`, `unsupported`: a path; `io`; `in_use`.
   */
  add(paths: string[], options: { signal?: AbortSignal | undefined } = {}): Job {
    const json = toJson(paths, 'paths');
    return new Job(() => this.#native.add(json), options.signal);
  }

  /** Reads what has changed of the files and folders that were added. */
  update(options: { signal?: AbortSignal | undefined } = {}): Job {
    return new Job(() => this.#native.update(), options.signal);
  }

  /** Removes files and folders from the index: when the job has ended, no file of the folder has a byte of their text. The notes stay. */
  forget(paths: string[]): Job {
    const json = toJson(paths, 'paths');
    return new Job(() => this.#native.forget(json), undefined);
  }

  /** Puts documents without files, and removes some, in one step. Gives the number of the last change, for {@link documentsSince}. */
  async put(request: PutRequest): Promise<number> {
    const json = toJson(request, 'request');
    return this.#puts.run(() => call(() => this.#native.put(json)));
  }

  /** The passages that match a text best, best first. Errors: `not_found`: there is no index; `invalid_argument`. */
  async search(request: SearchRequest): Promise<Hit[]> {
    return fromJson(await call(() => this.#native.search(toJson(request, 'request'))));
  }

  /** What changed among the documents since a number that {@link put} or this method gave; 0: all of them. */
  async documentsSince(change: number): Promise<DocumentChanges> {
    return fromJson(await call(() => this.#native.documentsSince(toJson(change, 'change'))));
  }

  /** What the app stored with the last {@link put}. `null` also after the index was built again: the app puts its documents again. */
  async cursor(): Promise<string | null> {
    return fromJson(await call(() => this.#native.cursor()));
  }

  /** The files and documents with passages, by path. */
  async files(): Promise<NoteFile[]> {
    return fromJson(await call(() => this.#native.files()));
  }

  /** Reads the index as the last writer of any process has left it, for the next searches. */
  async refresh(): Promise<void> {
    await call(() => this.#native.refresh());
  }

  /** Closes the object; its jobs go on. */
  close(): void {
    callNow(() => this.#native.close());
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
