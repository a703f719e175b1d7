// What the tests share.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
export const MODEL = join(ROOT, 'fixtures', 'target.gguf');
export const OPTIONS = { path: MODEL, threads: 1, measureMs: 0 };

/** An output of at least 600 tokens. */
export const LONG = {
  maxTokens: 960,
  jsonSchema: JSON.stringify({ type: 'array', items: { type: 'integer' }, minItems: 600 }),
};

/** Whether an error has a kind, and others of its facts. */
export function isError(kind, facts = {}) {
  return error => {
    assert.equal(error.name, 'RefrainError', String(error.stack ?? error));
    assert.equal(error.kind, kind, error.message);
    for (const [name, value] of Object.entries(facts)) {
      assert.deepEqual(error[name], value, name);
    }
    return true;
  };
}

/** A folder for the time of a test. */
export function folder(test) {
  const path = mkdtempSync(join(tmpdir(), 'refrain-node-'));
  test.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}
