// Writes the code blocks of docs/embed/node.md and of the README as modules to a folder, for the type checker. The first is a whole
// program, which runs; others use what a prelude declares.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const folder = process.argv[2];
const root = new URL('../../../', import.meta.url);
const PRELUDE = `import { Engine, RefrainError, estimateMemory, type Assistant, type DeviceState, type Session } from '@refrain-rs/node';
declare const engine: Engine, assistant: Assistant, session: Session;
declare const powerMonitor: {
  on(event: 'on-battery' | 'on-ac' | 'suspend', listener: () => void): void;
  on(event: 'thermal-state-change', listener: (details: { state: 'unknown' | 'nominal' | 'fair' | 'serious' | 'critical' }) => void): void;
};
export {};
`;

mkdirSync(folder, { recursive: true });
for (const [name, path] of [['guide', 'docs/embed/node.md'], ['readme', 'bindings/node/README.md']]) {
  const text = readFileSync(new URL(path, root), 'utf8');
  const blocks = [...text.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map(([, code]) => code);
  if (blocks.length === 0) {
    throw new Error(`${path} has no code`);
  }
  blocks.forEach((code, index) => {
    const declared = /const session\b/.test(code) ? PRELUDE.replace(', session: Session', '') : PRELUDE;
    writeFileSync(join(folder, `${name}-${index}.mts`), code.startsWith('import') ? code : declared + code);
  });
}
