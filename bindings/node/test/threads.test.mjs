// Worker threads, the ends of threads and processes, and memory.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { Engine } from '../dist/index.js';
import { LONG, OPTIONS } from './common.mjs';

/** Generations of a worker thread; 10000 is the long form. */
const GENERATIONS = Number(process.env.REFRAIN_TEST_GENERATIONS ?? 12);

function run(script) {
  const path = join(fileURLToPath(new URL('.', import.meta.url)), script);
  return spawnSync(process.execPath, [path], { encoding: 'utf8', timeout: 300_000 });
}

test('8 worker threads generate the same text, and memory does not grow', { timeout: 3_600_000 }, async () => {
  const round = async generations => {
    const workers = Array.from({ length: 8 }, () => {
      const worker = new Worker(new URL('./worker.mjs', import.meta.url), {
        workerData: { options: OPTIONS, generate: { ...LONG, maxTokens: 24 }, generations },
      });
      return new Promise((resolve, reject) => {
        let last;
        worker.on('message', message => (last = message)).once('error', reject).once('exit', () => resolve(last));
      });
    });
    const texts = (await Promise.all(workers)).flat();
    assert.equal(texts.length, 8);
    assert.equal(new Set(texts).size, 1);
  };
  await round(2);
  const before = process.memoryUsage.rss();
  await round(GENERATIONS);
  const after = process.memoryUsage.rss();
  console.log(`8 threads × ${GENERATIONS} generations: resident memory from ${before >> 10} to ${after >> 10} KiB`);
  const grown = (after - before) / 2 ** 20;
  // Workers leave arenas of the allocator behind; a generation that leaked would leave its session's 3 MiB.
  assert.ok(grown < 96, `${grown.toFixed(0)} MiB more after ${8 * GENERATIONS} generations`);
});

test('a worker thread is terminated during a generation', () => {
  const { status, stdout, stderr, signal } = run('terminated.mjs');
  assert.deepEqual([status, signal, stdout], [0, null, 'ended\n'], stderr);
});

test('a process exits during a generation', () => {
  const { status, signal, stderr } = run('exits.mjs');
  assert.deepEqual([status, signal], [7, null], stderr);
});

test('a job that nobody holds is cancelled, and a process ends without it', async () => {
  const engine = await Engine.open(OPTIONS);
  const session = await engine.session({ contextLen: 1024 });
  await session.append('user', 'Count.');
  session.generate(LONG);
  assert.deepEqual((await engine.prepareToSuspend(60_000)).running, 0);
  engine.close();
});
