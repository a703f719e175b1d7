// A process whose main thread does not load the library: worker threads do, and are terminated in the middle of a generation.

import { Worker } from 'node:worker_threads';
import { setTimeout as sleep } from 'node:timers/promises';
import { LONG, OPTIONS } from './common.mjs';

for (let round = 0; round < 6; round++) {
  const worker = new Worker(new URL('./worker.mjs', import.meta.url), { workerData: { options: OPTIONS, generate: LONG, generations: 1000 } });
  await new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject));
  await sleep(round);
  await worker.terminate();
}
// Threads of the library may still end.
await sleep(200);
console.log('ended');
