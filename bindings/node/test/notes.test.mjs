// Notes and the assistant's tasks.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { documentPath, Engine, Notes } from '../dist/index.js';
import { folder, isError, OPTIONS, ROOT } from './common.mjs';

test('files are added, searched and answered from', async t => {
  const index = join(folder(t), 'index');
  const notes = await Notes.open({ folder: index });
  await assert.rejects(notes.search({ text: 'tap' }), isError('not_found'));
  const events = [];
  for await (const event of notes.add([join(ROOT, 'fixtures', 'notes')])) {
    events.push(event);
  }
  assert.equal(events.at(-1).result.update.added, 14);
  assert.equal((await notes.files()).length, 14);
  const [hit] = await notes.search({ text: 'roof', limit: 2 });
  assert.match(hit.path, /repair-roof\.md$/);
  for (const { start, end } of hit.matched) {
    assert.match(hit.snippet.slice(start, end), /roof/i);
  }
  const engine = await Engine.open(OPTIONS);
  const assistant = await engine.assistant({ notes: index, session: { contextLen: 1024 } });
  const job = assistant.start({ task: 'ask', question: 'What is to be repaired at the roof?' }, { maxTokens: 48 });
  const types = new Set();
  let result;
  for await (const event of job) {
    types.add(event.type);
    result = event.type === 'done' ? event.result : result;
  }
  assert.ok(types.has('searched') && types.has('text'), [...types].join());
  assert.match(result.sources[0].path, /repair-roof\.md$/);
  await assert.rejects(assistant.start({ task: 'ask', question: 'Who invented gunpowder?' }).result(), isError('not_in_notes', { code: 64 }));
  await assert.rejects(engine.assistant({ notes: join(index, 'none') }), isError('not_found'));
  assistant.close();
  engine.close();
  notes.close();
  await assert.rejects(notes.files(), isError('closed'));
});

test('documents are put, found and removed', async t => {
  const notes = await Notes.open({ folder: join(folder(t), 'index') });
  const put = await notes.put({
    documents: [
      { id: 'Küche/Hahn 🎉.md', text: '# Hahn\n\n🎉 Der Wasserhahn tropft. Ada Voss repariert ihn am Freitag.', title: 'Hahn', date: 1_700_000_000, tags: ['home'] },
      { id: 'car.md', text: '# Car\n\nQulittus Works takes care of the car.' },
    ],
    cursor: 'a',
  });
  const changes = await notes.documentsSince(0);
  // (The index knows no change 0, so a copy begins anew.)
  assert.deepEqual([changes.change, changes.put.length, changes.isComplete], [put, 2, false]);
  assert.equal(await notes.cursor(), 'a');
  const [hit] = await notes.search({ text: 'Wasserhahn', filter: { tags: ['home'] } });
  assert.deepEqual([hit.document, hit.title, hit.date], ['Küche/Hahn 🎉.md', 'Hahn', 1_700_000_000]);
  const [{ start, end }] = hit.matched;
  assert.equal(hit.snippet.slice(start, end), 'Wasserhahn', 'places are indexes of strings');
  assert.equal(hit.path, documentPath('Küche/Hahn 🎉.md'));
  await notes.put({ remove: ['car.md'] });
  assert.deepEqual((await notes.documentsSince(put)).removed, ['car.md']);
  await assert.rejects(notes.put({ documents: [{ id: 'x', text: '\ud800' }] }), isError('not_utf8', { field: 'text' }));
  await assert.rejects(notes.search({ text: 'x', filter: { kinds: ['letter'] } }), isError('invalid_argument'));
  notes.close();
});

test('an edit has live changes at indexes of strings', async () => {
  const engine = await Engine.open(OPTIONS);
  const assistant = await engine.assistant({ session: { contextLen: 512 } });
  const text = '🎉 The café opens on Monday. Ada Voss repairs the tap.';
  const start = text.indexOf('The');
  const request = { task: 'edit', text, instruction: 'Change Monday to Tuesday.', selection: { start, end: text.length } };
  const live = [];
  let result;
  for await (const event of assistant.start(request, { maxTokens: 64 })) {
    if (event.type === 'edit') {
      live.push(event.change);
    } else if (event.type === 'done') {
      ({ result } = event);
    }
  }
  assert.ok(result.text.startsWith('🎉 '));
  const rebuilt = changes => changes.map(({ kind, new: of }) => (kind === 'delete' ? '' : result.text.slice(of.start, of.end))).join('');
  assert.equal(rebuilt(result.changes), result.text);
  const old = result.changes.map(({ kind, old: of }) => (kind === 'insert' ? '' : text.slice(of.start, of.end))).join('');
  assert.equal(old, text);
  assert.ok(live.length > 0);
  const half = { ...request, selection: { start: 1, end: text.length } };
  await assert.rejects(assistant.start(half).result(), isError('invalid_argument'));
  engine.close();
});

test('a conversation goes on from its stored turns', async t => {
  const engine = await Engine.open(OPTIONS);
  const assistant = await engine.assistant({ session: { contextLen: 1024 }, store: join(folder(t), 'store') });
  const first = await assistant.conversation();
  await first.say({ text: 'Who repairs the tap?' }, { maxTokens: 12 }).result();
  const turns = await first.turns();
  assert.deepEqual(turns.map(turn => turn.role), ['user', 'assistant']);
  assert.match(first.id, /^[0-9a-f]{16}$/);
  const second = await assistant.conversation({ id: first.id, turns });
  await second.say({ text: 'And the door?' }, { maxTokens: 12 }).result();
  assert.equal((await second.turns()).length, 4);
  await assert.rejects(assistant.conversation({ id: 'x' }), isError('invalid_argument', { field: 'id' }));
  const forgotten = await assistant.forget({ what: 'conversation', id: first.id });
  assert.equal(forgotten.isNotesPending, false);
  engine.close();
});
