import { ERROR_CODES, type ErrorInfo, type ErrorKind } from './records';

/** Why a call or a job failed. `code` and `kind` never change, and are the same in every language; messages do. */
export class RefrainError extends Error {
  override readonly name = 'RefrainError';
  /** The stable number of the kind. */
  readonly code: number;
  /** The kind. */
  readonly kind: ErrorKind;
  /** The file or folder. */
  readonly file: string | null;
  /** The field of a file, the missing part, or the option, as `bindings/core` names it, such as `memory_limit_bytes`. */
  readonly field: string | null;
  /** Where, in bytes from the start of a file; of `not_utf8`, in code units from the start of the text. */
  readonly offset: number | null;
  /** The number that is refused. */
  readonly value: number | null;
  /** The largest allowed value. */
  readonly limit: number | null;

  /** @internal */
  constructor(info: Partial<ErrorInfo> & Pick<ErrorInfo, 'kind' | 'message'>, cause?: unknown) {
    super(info.message, cause === undefined ? undefined : { cause });
    this.kind = info.kind;
    this.code = ERROR_CODES[info.kind];
    this.file = info.file ?? null;
    this.field = info.field ?? null;
    this.offset = info.offset ?? null;
    this.value = info.value ?? null;
    this.limit = info.limit ?? null;
  }
}

/** An error of the native half, whose message is the JSON of its facts. */
export function asRefrainError(error: unknown): unknown {
  if (error instanceof Error && error.message.startsWith('{')) {
    return new RefrainError(JSON.parse(error.message) as ErrorInfo);
  }
  return error;
}
