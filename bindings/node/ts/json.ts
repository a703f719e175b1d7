import { RefrainError } from './errors';

/** A record for the native half. */
export function toJson(given: unknown, name: string): string {
  try {
    return JSON.stringify(given === undefined ? null : given, checked);
  } catch (error) {
    if (error instanceof RefrainError) {
      throw error;
    }
    // A cycle, or more levels than the stack has.
    throw refused(name, String(error));
  }
}

/** A record of the native half. */
export function fromJson<T>(text: string): T {
  return JSON.parse(text) as T;
}

/** A value that JSON has: it would leave out the others, or write `null`, and text with half a character would be another text. */
function checked(key: string, value: unknown): unknown {
  switch (typeof value) {
    case 'string':
      if (!value.isWellFormed()) {
        const offset = firstLoneSurrogate(value);
        const message = `${key || 'the text'} has half a surrogate pair at ${offset}`;
        throw new RefrainError({ kind: 'not_utf8', message, field: key || null, offset });
      }
      return value;
    case 'number':
      if (!Number.isFinite(value)) {
        throw refused(key, `is ${value}`);
      }
      return value;
    case 'bigint':
    case 'function':
    case 'symbol':
      throw refused(key, `is a ${typeof value}`);
    default:
      return value instanceof Uint8Array ? [...value] : value;
  }
}

function firstLoneSurrogate(text: string): number {
  let at = 0;
  for (const letter of text) {
    if (!letter.isWellFormed()) {
      break;
    }
    at += letter.length;
  }
  return at;
}

function refused(field: string, problem: string): RefrainError {
  return new RefrainError({ kind: 'invalid_argument', message: `${field} ${problem}`, field });
}
