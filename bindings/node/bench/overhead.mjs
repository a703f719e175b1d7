// What a token costs in Node beside the engine's own time for it.
//
//   node bench/overhead.mjs [TURNS]
//
// Each turn decodes 900 tokens on one thread of the model. `wall` is the time until the last event has come, less the prompt's; `engine` is the
// time that the library counts for the same tokens; their difference is the cost of the job's thread, the batches, their JSON and the event
// loop. `loop` is the time in which the event loop was busy: what an app's own work is kept waiting for.

import { performance } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import { Engine } from '../dist/index.js';

const TOKENS = 900;
const turns = Number(process.argv[2] ?? 15);
const path = fileURLToPath(new URL('../../../fixtures/target.gguf', import.meta.url));
const schema = JSON.stringify({ type: 'array', items: { type: 'integer' }, minItems: TOKENS });

const engine = await Engine.open({ path, threads: 1, measureMs: 0 });

async function turn(read) {
  const session = await engine.session({ contextLen: 1024, history: false, drafting: 'off' });
  await session.appendText('The train leaves at');
  await session.prefill().result();
  const job = session.generate({ maxTokens: TOKENS, jsonSchema: schema });
  const loop = performance.eventLoopUtilization();
  const started = performance.now();
  const { tokens, prefillUs, decodeUs } = await read(job);
  const wall = (performance.now() - started) * 1000;
  const { active } = performance.eventLoopUtilization(loop);
  session.close();
  return { wall: wall / tokens, engine: (prefillUs + decodeUs) / tokens, loop: (active * 1000) / tokens };
}

const ways = {
  'for await': async job => {
    let stats;
    for await (const event of job) {
      if (event.type === 'done') {
        ({ stats } = event.result);
      }
    }
    return stats;
  },
  result: async job => (await job.result()).stats,
};

const measured = Object.fromEntries(Object.keys(ways).map(name => [name, []]));
for (let n = 0; n < turns + 1; n++) {
  for (const [name, read] of Object.entries(ways)) {
    const taken = await turn(read);
    if (n > 0) {
      measured[name].push(taken);
    }
  }
}
const median = values => values.sort((a, b) => a - b)[values.length >> 1];
for (const [name, all] of Object.entries(measured)) {
  const [wall, own, loop] = ['wall', 'engine', 'loop'].map(of => median(all.map(taken => taken[of])));
  const over = median(all.map(taken => taken.wall - taken.engine));
  console.log(`${name.padEnd(10)} wall ${wall.toFixed(2)} µs per token, engine ${own.toFixed(2)}, over it ${over.toFixed(2)}, event loop busy ${loop.toFixed(2)}`);
}
engine.close();
