// A process that exits in the middle of a generation.

import { Engine } from '../dist/index.js';
import { LONG, OPTIONS } from './common.mjs';

const engine = await Engine.open(OPTIONS);
const session = await engine.session({ contextLen: 1024 });
await session.append('user', 'Count.');
for await (const event of session.generate(LONG)) {
  if (event.type === 'text') {
    process.exit(7);
  }
}
