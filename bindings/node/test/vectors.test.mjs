// The vectors that all languages share (tests/vectors).

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { Engine, RefrainError } from '../dist/index.js';
import { MODEL, ROOT } from './common.mjs';

/** Options with the names of JavaScript. */
function camel(value) {
  if (Array.isArray(value)) {
    return value.map(camel);
  }
  if (value === null || typeof value !== 'object') {
    return value;
  }
  const renamed = name => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(value).map(([name, of]) => [renamed(name), camel(of)]));
}

function ofError(error) {
  assert.ok(error instanceof RefrainError, String(error));
  const told = { code: error.code, kind: error.kind };
  for (const name of ['field', 'limit']) {
    if (error[name] !== null) {
      told[name] = error[name];
    }
  }
  return { error: told };
}

/** Takes all events. The text of the events is that of the result. */
async function ended(job) {
  let text = '';
  const live = [];
  try {
    for await (const event of job) {
      if (event.type === 'text') {
        text += event.text;
      } else if (event.type === 'edit') {
        live.push(event.change);
      } else if (event.type === 'done') {
        const { result } = event;
        const told = { text: result.text, finish: result.finish, seed: result.seed };
        if (live.length === 0) {
          assert.equal(text, result.text);
          return told;
        }
        assert.deepEqual(live, result.changes);
        return { ...told, changes: result.changes, live };
      }
    }
  } catch (error) {
    return ofError(error);
  }
  return assert.fail('a job ends with `done`');
}

for (const name of ['conversation', 'json_schema', 'edit', 'cancelled', 'out_of_memory']) {
  test(name, async () => {
    const vector = JSON.parse(readFileSync(join(ROOT, 'tests', 'vectors', `${name}.json`), 'utf8'));
    const options = { ...camel(vector.engine), path: MODEL, units: 'utf8' };
    if (!vector.session) {
      const refused = await Engine.open(options).then(
        () => assert.fail('the engine was opened'),
        error => ofError(error),
      );
      assert.deepEqual(refused, vector.expect);
      return;
    }
    const engine = await Engine.open(options);
    const session = camel(vector.session);
    if (vector.task) {
      const assistant = await engine.assistant({ session });
      assert.deepEqual(await ended(assistant.start(camel(vector.task), camel(vector.options))), vector.expect);
    } else {
      const running = await engine.session(session);
      for (const step of vector.steps) {
        if (step.append) {
          await running.append(step.append.role, step.append.content);
          continue;
        }
        const job = running.generate(camel(step.generate));
        if (step.cancel) {
          job.cancel();
        }
        assert.deepEqual(await ended(job), step.expect);
      }
    }
    engine.close();
  });
}
