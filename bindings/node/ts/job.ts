import { asRefrainError, RefrainError } from './errors';
import { fromJson } from './json';
import type { NativeJob } from './native';
import type { Event, JobResult } from './records';

/** Calls the native half. */
export async function call<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw asRefrainError(error);
  }
}

/** As {@link call}, of calls that never wait. */
export function callNow<T>(work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw asRefrainError(error);
  }
}

/**
 * A running answer, task or update. It computes on a thread of its own from the start, and whether its events are read or not.
 *
 * `for await (const event of job)` gives the events; the last one is `done`. A job that failed or was cancelled throws a
 * {@link RefrainError} there. Who leaves the loop early cancels the job. `await job.result()` gives the result alone. One of the two reads
 * the events, once.
 */
export class Job implements AsyncIterable<Event>, Disposable {
  readonly #native: Promise<NativeJob>;
  readonly #ended: Promise<JobResult>;
  #started: NativeJob | undefined;
  #resolve!: (result: JobResult) => void;
  #reject!: (error: unknown) => void;
  #isRead = false;
  #isCancelled = false;
  #reason: unknown;

  /** @internal */
  constructor(start: () => Promise<NativeJob>, signal: AbortSignal | undefined) {
    this.#ended = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Nobody need ask for the result.
    this.#ended.catch(() => {});
    this.#native = this.#start(start, signal);
    this.#native.catch(error => this.#reject(error));
  }

  async #start(start: () => Promise<NativeJob>, signal: AbortSignal | undefined): Promise<NativeJob> {
    if (signal?.aborted) {
      this.#reason = signal.reason;
      throw this.#cancelled();
    }
    if (signal) {
      // A signal may live longer than the job.
      const job = new WeakRef(this);
      const abort = () => {
        const running = job.deref();
        if (running) {
          running.#reason = signal.reason;
          running.cancel();
        }
      };
      signal.addEventListener('abort', abort, { once: true });
      const leave = () => signal.removeEventListener('abort', abort);
      this.#ended.then(leave, leave);
    }
    const native = await call(start);
    this.#started = native;
    if (this.#isCancelled) {
      native.cancel();
    }
    return native;
  }

  #cancelled(): RefrainError {
    return new RefrainError({ kind: 'cancelled', message: 'cancelled' }, this.#reason);
  }

  /** The events, once. */
  [Symbol.asyncIterator](): AsyncGenerator<Event, void, undefined> {
    if (this.#isRead) {
      throw new RefrainError({ kind: 'busy', message: 'the events of this job are read already' });
    }
    this.#isRead = true;
    return this.#events();
  }

  async *#events(): AsyncGenerator<Event, void, undefined> {
    let isOver = false;
    try {
      const native = await this.#native;
      while (!isOver) {
        for (const event of fromJson<Event[]>(await call(() => native.next()))) {
          if (event.type === 'failed') {
            isOver = true;
            throw event.error.kind === 'cancelled' ? this.#cancelled() : new RefrainError(event.error);
          }
          if (event.type === 'done') {
            isOver = true;
            this.#resolve(event.result);
          }
          yield event;
        }
      }
    } catch (error) {
      this.#reject(error);
      throw error;
    } finally {
      if (!isOver) {
        this.close();
      }
    }
  }

  /** The result. It reads the events, unless a loop does. */
  async result(): Promise<JobResult> {
    if (!this.#isRead) {
      this.#isRead = true;
      // `#ended` tells the error.
      this.#readAll().catch(() => {});
    }
    return this.#ended;
  }

  async #readAll(): Promise<void> {
    for await (const _ of this.#events());
  }

  /** Cancels the job: it fails with `cancelled` before the model's next layer, unless it has ended. Of a session, the text so far stays. */
  cancel(): void {
    this.#isCancelled = true;
    this.#started?.cancel();
  }

  /** Cancels the job and drops its other events. */
  close(): void {
    this.cancel();
    this.#native.then(native => native.close()).catch(() => {});
    this.#reject(this.#cancelled());
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
