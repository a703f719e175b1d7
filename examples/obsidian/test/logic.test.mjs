// The logic of the plugin over the engine, with the small model of the fixtures and a vault in memory.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { ask, pieces, placeOf } from '../out/answer.js';
import { applied, edit, LiveDiff } from '../out/edit.js';
import { Host } from '../out/host.js';
import { Library } from '../out/library.js';
import { parts, search } from '../out/search.js';
import { MemoryVault } from './vault.mjs';

const refrain = createRequire(import.meta.url)('@refrain-rs/node');
const MODEL = fileURLToPath(new URL('../../../fixtures/target.gguf', import.meta.url));
const KITCHEN = '# Kitchen\n\nThe tap in the kitchen drips. Ada Voss repairs the tap on Friday.\n';

async function opened(t, vault = new MemoryVault()) {
  const folder = mkdtempSync(join(tmpdir(), 'refrain-obsidian-'));
  const host = new Host(refrain, join(folder, 'index'));
  t.after(() => {
    host.close();
    rmSync(folder, { recursive: true, force: true });
  });
  const errors = [];
  const steps = [];
  await host.open(vault, waiting => steps.push(waiting), error => errors.push(error));
  vault.library = host.library;
  return { vault, host, folder, errors, steps };
}

const titles = async (host, text) => (await search(host.notes, text)).map(hit => hit.document);

test('the index follows what happens in the vault', async t => {
  const { vault, host, errors, steps } = await opened(t);
  assert.deepEqual(await titles(host, 'tap'), [], 'nothing is indexed yet');
  assert.deepEqual(await titles(host, '  '), []);
  vault.write('home/kitchen.md', KITCHEN);
  vault.write('car.md', 'Qulittus Works takes care of the car.');
  await host.library.settle();
  assert.deepEqual(await titles(host, 'tap'), ['home/kitchen.md']);
  vault.write('car.md', 'The garage takes care of the bicycle.');
  await host.library.settle();
  assert.deepEqual([await titles(host, 'Qulittus'), await titles(host, 'bicycle')], [[], ['car.md']]);
  vault.rename('home/kitchen.md', 'tap.md');
  await host.library.settle();
  assert.deepEqual(await titles(host, 'tap'), ['tap.md']);
  vault.delete('tap.md');
  vault.write('half.md', 'half a pair: \ud83d');
  await host.library.settle();
  assert.deepEqual([await titles(host, 'drips'), await titles(host, 'pair')], [[], ['half.md']]);
  assert.deepEqual(errors, []);
  assert.equal(steps.at(-1), 0);
});

test('changes wait until it is quiet, and are one step', async t => {
  const puts = [];
  const index = {
    documentsSince: async () => ({ put: [], removed: [], change: 0, isComplete: true }),
    cursor: async () => null,
    put: async request => puts.push(request),
  };
  const vault = new MemoryVault();
  const library = new Library({ index, vault, quiet: 30 });
  t.after(() => library.close());
  await library.open();
  vault.library = library;
  for (let n = 0; n < 5; n++) {
    vault.write('a.md', `text ${n}`);
    await sleep(5);
  }
  vault.delete('b.md');
  await sleep(200);
  assert.equal(puts.length, 1);
  assert.deepEqual(puts[0].documents.map(({ id, text, title }) => [id, text, title]), [['a.md', 'text 4', 'a']]);
  assert.deepEqual(puts[0].remove, ['b.md']);
});

test('a step that fails is tried again, and what changes while it reads is not lost', async t => {
  let fails = 1;
  const [puts, errors] = [[], []];
  const index = {
    documentsSince: async () => {
      throw Object.assign(new Error('none'), { kind: 'not_found' });
    },
    cursor: async () => null,
    put: async request => {
      if (fails-- > 0) {
        throw Object.assign(new Error('in use'), { kind: 'in_use' });
      }
      puts.push(request);
    },
  };
  const vault = new MemoryVault();
  const read = vault.read.bind(vault);
  let during = () => {};
  vault.read = async path => {
    const text = await read(path);
    during();
    during = () => {};
    return text;
  };
  const library = new Library({ index, vault, onError: error => errors.push(error) });
  t.after(() => library.close());
  vault.write('a.md', 'one');
  vault.library = library;
  await library.open();
  assert.deepEqual([puts.length, errors.length], [0, 1]);
  during = () => vault.write('a.md', 'two');
  await library.settle();
  assert.deepEqual(puts.map(put => put.documents[0].text), ['one', 'two']);
  assert.deepEqual(puts.map(put => typeof put.cursor), ['undefined', 'string'], 'moved on when nothing waits');
});

test('a vault that has changed while it was closed is caught up with', async t => {
  const vault = new MemoryVault();
  for (let n = 0; n < 150; n++) {
    vault.write(`note ${n}.md`, `The number of this note is zahl${n}.`);
  }
  const { host, folder, steps } = await opened(t, vault);
  assert.deepEqual(steps, [86, 22, 0]);
  host.close();
  vault.library = undefined;
  vault.write('note 3.md', 'Something else, of amaryllis.');
  vault.delete('note 4.md');
  const again = new Host(refrain, join(folder, 'index'));
  const seen = [];
  await again.open(vault, waiting => seen.push(waiting), assert.ifError);
  assert.deepEqual(seen, [0], 'one step');
  assert.deepEqual(await titles(again, 'amaryllis'), ['note 3.md']);
  assert.deepEqual([await titles(again, 'zahl3'), await titles(again, 'zahl4'), await titles(again, 'zahl5')], [[], [], ['note 5.md']]);
  const changes = await again.notes.documentsSince(0);
  await again.library.open(true);
  assert.equal((await again.notes.documentsSince(0)).put.length, changes.put.length);
  again.close();
});

test('a question is answered with sources that open the note, while the index goes on', async t => {
  const { vault, host } = await opened(t);
  vault.write('home/kitchen.md', KITCHEN);
  await host.library.settle();
  const shares = [];
  const settings = { model: MODEL, memoryLimitBytes: null };
  const assistant = await host.assistant(settings, share => shares.push(share));
  assert.equal(await host.assistant(settings, () => {}), assistant);
  assert.ok(shares.length > 0 && shares.at(-1) === 1);
  const states = [];
  const answering = ask(assistant, 'Who repairs the tap in the kitchen?', new AbortController().signal, shown => states.push(shown.state));
  vault.write('car.md', 'Qulittus Works takes care of the car.');
  await host.library.settle();
  assert.deepEqual(await titles(host, 'Qulittus'), ['car.md'], 'indexed during the answer');
  const shown = await answering;
  assert.equal(shown.state, 'done');
  assert.deepEqual([...new Set(states)], ['searching', 'reading', 'writing', 'done']);
  const [source] = shown.sources;
  assert.equal(source.document, 'home/kitchen.md');
  const { start, end } = placeOf(KITCHEN, source);
  assert.match(KITCHEN.slice(start, end), /Ada Voss repairs the tap/);
  const none = await ask(assistant, 'Who invented gunpowder?', new AbortController().signal, () => {});
  assert.equal(none.state, 'not_in_notes');
  const stopped = await ask(assistant, 'Who repairs the tap?', AbortSignal.abort(), () => {});
  assert.equal(stopped.state, 'cancelled');
  vault.delete('home/kitchen.md');
  await host.library.settle();
  await sleep(100);
  const gone = await ask(assistant, 'Who repairs the tap in the kitchen?', new AbortController().signal, () => {});
  assert.equal(gone.state, 'not_in_notes');
  host.unload();
  const failed = await ask(assistant, 'Who?', new AbortController().signal, () => {});
  assert.deepEqual([failed.state, failed.problem], ['failed', 'this object is closed']);
  await assert.rejects(host.assistant({ ...settings, memoryLimitBytes: 1000 }, () => {}), error => error.kind === 'out_of_memory');
});

test('citations become links, and claims without support are marked', () => {
  const text = 'Ada repairs it [1]. It is blue [2]. End';
  const source = { number: 1, title: 'Kitchen', document: 'kitchen.md', text: 'Ada repairs it.' };
  const place = of => ({ start: text.indexOf(of), end: text.indexOf(of) + of.length });
  const result = {
    text,
    sources: [source],
    sentences: [
      { place: place('Ada repairs it [1].'), isUnsupported: false, citations: [{ place: place('[1]'), number: 1, holds: true }] },
      { place: place('It is blue [2].'), isUnsupported: true, citations: [{ place: place('[2]'), number: 2, holds: false }] },
    ],
  };
  assert.deepEqual(pieces(result), [
    { kind: 'text', text: 'Ada repairs it ', isUnsupported: false },
    { kind: 'citation', number: 1, source, holds: true },
    { kind: 'text', text: '.', isUnsupported: false },
    { kind: 'text', text: ' ', isUnsupported: false },
    { kind: 'text', text: 'It is blue ', isUnsupported: true },
    { kind: 'citation', number: 2, source: undefined, holds: false },
    { kind: 'text', text: '.', isUnsupported: true },
    { kind: 'text', text: ' End', isUnsupported: false },
  ]);
});

test('a passage is found in a note that has changed', () => {
  const note = 'one\ntwo\nthe third line is long\nfour\n';
  const at = (text, locator) => {
    const { start, end } = placeOf(note, { text, locator });
    return note.slice(start, end);
  };
  assert.equal(at('two\nthe third line is long'), 'two\nthe third line is long');
  assert.equal(at('gone\nthe third line is long\ngone'), 'the third line is long');
  assert.equal(at('gone altogether here', 'line 4'), 'four');
  assert.equal(at('gone', 'line 99'), '');
  assert.equal(at('', null), 'one');
  assert.deepEqual(parts({ snippet: 'the tap 🎉 drips', matched: [{ start: 11, end: 16 }, { start: 4, end: 7 }, { start: 5, end: 6 }] }), [
    { text: 'the ', isMatch: false },
    { text: 'tap', isMatch: true },
    { text: ' 🎉 ', isMatch: false },
    { text: 'drips', isMatch: true },
  ]);
});

test('an edit shows its difference live, and replaces a note only as it was', async t => {
  const { host } = await opened(t);
  const assistant = await host.assistant({ model: MODEL, memoryLimitBytes: null }, () => {});
  const text = '🎉 The café opens on Monday. Ada Voss repairs the tap.';
  const seen = [];
  const start = text.indexOf('The');
  const asked = { text, instruction: 'Change Monday to Tuesday.', selection: { start, end: text.length } };
  const edited = await edit(assistant, asked, new AbortController().signal, parts => seen.push(parts));
  assert.ok(edited.text.startsWith('🎉 '), edited.problem);
  assert.ok(seen.length > 1);
  for (const parts of seen) {
    const old = parts.filter(part => part.kind !== 'insert').map(part => part.text);
    assert.equal(old.join(''), text, 'at every moment the old text is whole');
  }
  const last = seen.at(-1).filter(part => part.kind !== 'delete').map(part => part.text);
  assert.equal(last.join(''), edited.text);
  assert.equal(applied(text, text, edited.text), edited.text);
  assert.equal(applied(`${text} `, text, edited.text), null);
  const stopped = await edit(assistant, asked, AbortSignal.abort(), () => {});
  assert.equal(stopped.text, text, 'nothing was edited yet');
  const failed = await edit(assistant, { ...asked, selection: { start: 1, end: 9 } }, new AbortController().signal, () => {});
  assert.equal(failed.text, null);
});

test('of an edit that is stopped, finished windows are kept', () => {
  const diff = new LiveDiff('old one. old two.');
  diff.push({ type: 'text', kind: 'reasoning', text: 'hm' });
  diff.push({ type: 'text', kind: 'answer', text: 'new one. ' });
  assert.equal(diff.kept, 'old one. old two.');
  diff.push({ type: 'edit', change: { kind: 'delete', old: { start: 0, end: 3 }, new: { start: 0, end: 0 } } });
  diff.push({ type: 'edit', change: { kind: 'insert', old: { start: 3, end: 3 }, new: { start: 0, end: 3 } } });
  diff.push({ type: 'edit', change: { kind: 'keep', old: { start: 3, end: 9 }, new: { start: 3, end: 9 } } });
  assert.deepEqual(diff.parts, [
    { kind: 'delete', text: 'old' },
    { kind: 'insert', text: 'new' },
    { kind: 'keep', text: ' one. ' },
    { kind: 'rest', text: 'old two.' },
  ]);
  diff.push({ type: 'window', index: 0, count: 2, old: { start: 0, end: 9 }, new: { start: 0, end: 9 } });
  diff.push({ type: 'text', kind: 'answer', text: 'half' });
  assert.equal(diff.kept, 'new one. old two.');
});
