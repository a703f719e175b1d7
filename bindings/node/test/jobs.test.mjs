// Objects, jobs and errors.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Engine, estimateMemory, libraryVersion, RefrainError } from '../dist/index.js';
import { folder, isError, LONG, OPTIONS } from './common.mjs';

describe('jobs', () => {
  let engine;
  before(async () => {
    engine = await Engine.open(OPTIONS);
  });
  after(() => engine.close());

  async function session(options = {}) {
    const made = await engine.session({ contextLen: 1024, ...options });
    await made.append('user', 'Who repairs the tap?');
    return made;
  }

  test('a job has progress, text and a result, and ends', async () => {
    const made = await session();
    const events = [];
    const job = made.generate({ maxTokens: 8 });
    for await (const event of job) {
      events.push(event);
    }
    assert.deepEqual([events[0].type, events[0].stage], ['progress', 'prefill']);
    const text = events.filter(event => event.type === 'text').map(event => event.text);
    const { result } = events.at(-1);
    assert.equal(text.join(''), result.text);
    assert.equal(result.stats.tokens, 8);
    assert.deepEqual(await job.result(), result);
    assert.throws(() => job[Symbol.asyncIterator](), isError('busy'));
    assert.equal((await made.messages()).length, 2);
    assert.deepEqual(await made.pop(), { role: 'assistant', content: result.text });
    made.close();
  });

  test('a result needs no loop, and calls keep their order', async () => {
    const made = await engine.session({ contextLen: 512 });
    const appended = made.append('user', 'Who repairs the tap?');
    const result = await made.generate({ maxTokens: 8, temperature: 1, seed: 3 }).result();
    await appended;
    assert.equal(result.seed, 3);
    assert.equal((await made.info()).contextLen, 512);
    made.close();
  });

  test('a prompt is computed ahead, and plain text is continued', async () => {
    const made = await engine.session({ contextLen: 512 });
    await made.appendText('The train leaves at');
    const prefilled = await made.prefill().result();
    assert.equal(prefilled.text, '');
    const { cachedTokens, tokens } = await made.info();
    assert.ok(cachedTokens > 0 && cachedTokens <= tokens);
    assert.ok((await made.generate({ maxTokens: 4 }).result()).stats.cachedTokens > 0);
    await assert.rejects(made.append('user', 'x'), isError('wrong_state'));
    made.close();
  });

  test('a signal cancels a job: before, during and after it', async () => {
    const made = await session();
    const early = made.generate({ ...LONG, signal: AbortSignal.abort('early') });
    await assert.rejects(early.result(), isError('cancelled', { code: 10, cause: 'early' }));
    const controller = new AbortController();
    const job = made.generate({ ...LONG, signal: controller.signal });
    let n = 0;
    await assert.rejects(async () => {
      for await (const event of job) {
        if (event.type === 'text' && ++n === 2) {
          controller.abort(new Error('enough'));
        }
      }
    }, isError('cancelled'));
    await assert.rejects(job.result(), error => error.cause.message === 'enough');
    const controller2 = new AbortController();
    const { text } = await made.generate({ maxTokens: 4, signal: controller2.signal }).result();
    controller2.abort();
    assert.ok(text.length > 0, 'the session goes on');
    made.close();
  });

  test('who leaves a loop cancels the job', async () => {
    const made = await session();
    const left = made.generate(LONG);
    for await (const event of left) {
      if (event.type === 'text') {
        break;
      }
    }
    await assert.rejects(left.result(), isError('cancelled'));
    const thrown = made.generate(LONG);
    await assert.rejects(async () => {
      for await (const event of thrown) {
        if (event.type === 'text') {
          throw new TypeError('of the app');
        }
      }
    }, TypeError);
    await assert.rejects(thrown.result(), isError('cancelled'));
    assert.equal((await made.generate({ maxTokens: 4 }).result()).stats.tokens, 4);
    made.close();
  });

  test('a second use is busy', async () => {
    const made = await session();
    const job = made.generate(LONG);
    await assert.rejects(made.info(), isError('busy', { code: 33 }));
    await assert.rejects(made.generate().result(), isError('busy'));
    job.close();
    await assert.rejects(job.result(), isError('cancelled'));
    assert.ok((await made.info()).tokens > 0, 'waits for the job that was closed');
    made.close();
  });

  test('a closed object refuses, and closing twice is allowed', async () => {
    const other = await Engine.open(OPTIONS);
    const made = await other.session({ contextLen: 1024 });
    await made.append('user', 'Count.');
    const job = made.generate(LONG);
    const iterator = job[Symbol.asyncIterator]();
    assert.equal((await iterator.next()).done, false);
    other.close();
    other[Symbol.dispose]();
    await assert.rejects(async () => {
      while (!(await iterator.next()).done);
    }, isError('cancelled'));
    await assert.rejects(made.info(), isError('closed', { code: 32 }));
    await assert.rejects(other.info(), isError('closed'));
    await assert.rejects(other.session(), isError('closed'));
    await other[Symbol.asyncDispose]();
  });

  test('jobs end before the process is suspended', async () => {
    const made = await session();
    const job = made.generate(LONG);
    const events = job[Symbol.asyncIterator]();
    await events.next();
    assert.deepEqual(await engine.prepareToSuspend(60_000), { cancelled: 1, running: 0 });
    await assert.rejects(async () => {
      while (!(await events.next()).done);
    }, isError('cancelled'));
    await engine.setDeviceState({ thermal: 'serious', memory: 'critical', power: 'saver' });
    await engine.setDeviceState({ thermal: 'nominal', memory: 'normal', power: 'mains' });
    assert.equal((await made.generate({ maxTokens: 4 }).result()).stats.tokens, 4);
    made.close();
  });

  test('the event loop goes on, and more jobs run than the pool has threads', async () => {
    let ticks = 0;
    const timer = setInterval(() => ticks++, 1);
    const sessions = await Promise.all(Array.from({ length: 8 }, () => session({ history: false })));
    const jobs = sessions.map(made => made.generate({ ...LONG, maxTokens: 64 }));
    const results = Promise.all(jobs.map(job => job.result()));
    assert.ok((await readFile(new URL(import.meta.url))).length > 0, 'the pool has free threads');
    const texts = (await results).map(result => result.text);
    assert.equal(new Set(texts).size, 1);
    clearInterval(timer);
    assert.ok(ticks > 8, `${ticks} ticks`);
    sessions.forEach(made => made.close());
  });

  test('a slow reader gets the same text in fewer pieces', async () => {
    const made = await session({ history: false });
    const pieces = async wait => {
      const events = [];
      for await (const event of made.generate({ ...LONG, maxTokens: 200 })) {
        events.push(event);
        if (event.type === 'text') {
          await sleep(wait);
        }
      }
      await made.pop();
      return [events.filter(event => event.type === 'text').length, events.at(-1).result.text];
    };
    const [quick, text] = await pieces(0);
    const [slow, same] = await pieces(20);
    assert.equal(same, text);
    assert.ok(slow <= quick, `${slow} pieces, ${quick} at once`);
    made.close();
  });

  test('text with half a character is refused, with its place', async () => {
    const made = await engine.session({ contextLen: 512 });
    await assert.rejects(made.append('user', 'ab\ud83d'), isError('not_utf8', { code: 45, field: 'content', offset: 2 }));
    await assert.rejects(made.appendText('🎉\udf89'), isError('not_utf8', { offset: 2 }));
    assert.throws(() => made.generate({ stop: ['\udc00'] }), isError('not_utf8', { field: '0' }));
    await made.append('user', 'Fine: 🎉 \\ud83d');
    assert.equal((await made.messages())[0].content, 'Fine: 🎉 \\ud83d');
    made.close();
  });

  test('options that are none are refused', async () => {
    const made = await session();
    const refused = options => {
      try {
        return made.generate(options).result();
      } catch (error) {
        return Promise.reject(error);
      }
    };
    const cycle = {};
    cycle.stop = cycle;
    let deep = [];
    for (let level = 0; level < 100_000; level++) {
      deep = [deep];
    }
    for (const [options, word] of [
      [{ maxToken: 3 }, 'maxToken'],
      [{ max_tokens: 3 }, 'max_tokens'],
      [{ maxTokens: -1 }, '-1'],
      [{ maxTokens: 1.5 }, '1.5'],
      [{ temperature: NaN }, 'NaN'],
      [{ seed: 3n }, 'bigint'],
      [{ stop: () => {} }, 'function'],
      [cycle, ''],
      [{ stop: deep }, ''],
      [{ stop: 'x'.repeat(10) }, 'sequence'],
      [{ seed: 2 ** 53 }, 'seed'],
      [{ jsonSchema: '{' }, ''],
      [null, ''],
    ]) {
      await assert.rejects(refused(options), error => {
        if (options === null) {
          return error instanceof TypeError;
        }
        isError('invalid_argument')(error);
        assert.ok(error.message.includes(word), error.message);
        return true;
      });
    }
    await assert.rejects(Engine.open({ path: '/none.gguf' }), isError('not_found', { file: '/none.gguf' }));
    await assert.rejects(Engine.open({ path: import.meta.filename }), error => error instanceof RefrainError && error.file === import.meta.filename);
    assert.equal((await made.generate({ maxTokens: 2 }).result()).stats.tokens, 2, 'nothing has changed');
    made.close();
  });

  test('memory is refused before it is taken', async () => {
    const { totalBytes, modelBytes } = await estimateMemory(OPTIONS, { contextLen: 512 });
    assert.ok(modelBytes < totalBytes);
    await assert.rejects(
      Engine.open({ ...OPTIONS, memoryLimitBytes: 1000 }),
      isError('out_of_memory', { code: 6, field: 'memory_limit_bytes', limit: 1000 }),
    );
    const small = await Engine.open({ ...OPTIONS, memoryLimitBytes: totalBytes });
    const first = await small.session({ contextLen: 512 });
    await assert.rejects(small.session({ contextLen: 512 }), isError('out_of_memory', { limit: totalBytes }));
    first.close();
    (await small.session({ contextLen: 512 })).close();
    small.close();
  });

  test('loading tells its progress, and what it throws', async () => {
    const told = [];
    const loaded = await Engine.open({ ...OPTIONS, onProgress: progress => told.push(progress) });
    assert.ok(told.length > 0 && told.every(({ stage, done, total }) => stage === 'load' && done <= total));
    const info = await loaded.info();
    assert.deepEqual([info.threads, info.hasChatTemplate], [1, true]);
    loaded.close();
    let calls = 0;
    const throws = () => {
      calls++;
      throw new RangeError('of the app');
    };
    await assert.rejects(Engine.open({ ...OPTIONS, onProgress: throws }), error => {
      isError('listener', { code: 38 })(error);
      return error.cause instanceof RangeError;
    });
    assert.equal(calls, 1);
    assert.match(libraryVersion(), /^\d+\.\d+\.\d+$/);
  });

  test('a history on disk drafts, and is forgotten', async t => {
    const history = await engine.history({ folder: folder(t), key: new Uint8Array(32).fill(7) });
    const made = await engine.session({ contextLen: 512 }, history);
    await made.append('user', 'Who repairs the tap?');
    assert.equal((await made.generate({ maxTokens: 8 }).result()).notKept, null);
    await history.maintain();
    await history.forget();
    history.close();
    await assert.rejects(history.maintain(), isError('closed'));
    await assert.rejects(engine.history({ folder: folder(t), key: [1, 2] }), isError('invalid_argument', { field: 'key' }));
    await engine.forgetOutputs('default');
    await engine.forgetOutputs();
    made.close();
  });
});
