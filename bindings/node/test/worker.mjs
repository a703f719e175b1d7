// A worker thread with an engine of its own.

import { parentPort, workerData } from 'node:worker_threads';
import { Engine } from '../dist/index.js';

const { options, generate, generations } = workerData;
const engine = await Engine.open(options);
const texts = new Set();
for (let n = 0; n < generations; n++) {
  const session = await engine.session({ contextLen: 1024, history: false });
  await session.append('user', 'Count.');
  let text = '';
  for await (const event of session.generate(generate)) {
    if (event.type === 'text') {
      text += event.text;
      if (n === 0 && texts.size === 0) {
        parentPort.postMessage('text');
      }
    }
  }
  texts.add(text);
  session.close();
}
engine.close();
parentPort.postMessage([...texts]);
