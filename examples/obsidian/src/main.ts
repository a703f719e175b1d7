// The plugin: what Obsidian shows, over the logic of the other files, which do not need Obsidian.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import {
  FileSystemAdapter,
  ItemView,
  MarkdownView,
  Modal,
  Notice,
  Plugin,
  PluginSettingTab,
  Setting,
  SuggestModal,
  TFile,
  type App,
  type Editor,
  type WorkspaceLeaf,
} from 'obsidian';
import type { Hit } from '@refrain-rs/node';
import { ask, placeOf, type Shown } from './answer';
import { applied, edit, type Edited, type Part } from './edit';
import { Host, type Settings } from './host';
import type { Vault } from './library';
import { parts, search } from './search';

const VIEW = 'refrain-answer';
const DEFAULTS: Settings = { model: '', memoryLimitBytes: null };

export default class RefrainPlugin extends Plugin {
  override settings: Settings = DEFAULTS;
  host!: Host;

  override async onload(): Promise<void> {
    this.settings = { ...DEFAULTS, ...((await this.loadData()) as Partial<Settings> | null) };
    const { adapter } = this.app.vault;
    if (!(adapter instanceof FileSystemAdapter)) {
      throw new Error('Refrain needs a vault in a folder of this computer.');
    }
    const folder = join(adapter.getBasePath(), this.manifest.dir ?? join(this.app.vault.configDir, 'plugins', this.manifest.id));
    // Obsidian evaluates main.js without a path, so the package of the plugin's folder is named by its own.
    const refrain = createRequire(join(folder, 'main.js'))('@refrain-rs/node') as typeof import('@refrain-rs/node');
    this.host = new Host(refrain, join(folder, 'index'));

    const status = this.addStatusBarItem();
    this.registerView(VIEW, leaf => new AnswerView(leaf, this));
    this.addSettingTab(new SettingTab(this.app, this));
    this.addCommand({ id: 'ask', name: 'Ask notes', callback: () => void this.showAnswers() });
    this.addCommand({ id: 'search', name: 'Search notes', callback: () => new SearchModal(this.app, this).open() });
    this.addCommand({
      id: 'edit',
      name: 'Edit note or selection',
      editorCallback: editor => new EditModal(this.app, this, editor).open(),
    });
    this.addCommand({
      id: 'rebuild',
      name: 'Index all notes again',
      callback: () => void this.host.library?.open(true).catch(problem),
    });

    // Before the layout is ready, Obsidian tells every note as a new one.
    this.app.workspace.onLayoutReady(() => {
      const { vault } = this.app;
      const isNote = (file: { path: string }) => file.path.endsWith('.md');
      this.registerEvent(vault.on('create', file => isNote(file) && this.host.library?.changed(file.path)));
      this.registerEvent(vault.on('modify', file => isNote(file) && this.host.library?.changed(file.path)));
      this.registerEvent(vault.on('delete', file => isNote(file) && this.host.library?.changed(file.path)));
      this.registerEvent(
        vault.on('rename', (file, from) => {
          if (isNote(file) || from.endsWith('.md')) {
            this.host.library?.renamed(from, file.path);
          }
        }),
      );
      const onStep = (waiting: number) => status.setText(waiting > 0 ? `${waiting} notes to index` : '');
      this.host.open(vaultOf(this.app), onStep, problem).catch(problem);
    });
  }

  override onunload(): void {
    this.host.close();
  }

  /** The assistant; loads the model at the first call. */
  async assistant() {
    if (this.settings.model === '') {
      throw new Error('Choose a model in the settings of Refrain.');
    }
    const notice = new Notice('Loading the model …', 0);
    try {
      return await this.host.assistant(this.settings, share => notice.setMessage(`Loading the model: ${Math.round(share * 100)} %`));
    } finally {
      notice.hide();
    }
  }

  async showAnswers(): Promise<void> {
    const { workspace } = this.app;
    const leaf = workspace.getLeavesOfType(VIEW)[0] ?? workspace.getRightLeaf(false);
    await leaf?.setViewState({ type: VIEW, active: true });
    if (leaf) {
      await workspace.revealLeaf(leaf);
    }
  }

  /** Opens a note at a passage, and selects it. */
  async openAt(passage: { document?: string | null; text: string; locator?: string | null }): Promise<void> {
    const file = passage.document ? this.app.vault.getAbstractFileByPath(passage.document) : null;
    if (!(file instanceof TFile)) {
      new Notice(`${passage.document ?? 'The note'} is not in the vault any more.`);
      return;
    }
    const leaf = this.app.workspace.getLeaf(false);
    await leaf.openFile(file);
    if (leaf.view instanceof MarkdownView) {
      const { editor } = leaf.view;
      const place = placeOf(editor.getValue(), passage);
      const [from, to] = [editor.offsetToPos(place.start), editor.offsetToPos(place.end)];
      editor.setSelection(from, to);
      editor.scrollIntoView({ from, to }, true);
    }
  }
}

function problem(error: unknown): void {
  new Notice(`Refrain: ${error instanceof Error ? error.message : String(error)}`);
}

/** The Markdown files of a vault. */
function vaultOf(app: App): Vault {
  const note = (file: TFile) => ({ path: file.path, modified: file.stat.mtime, size: file.stat.size });
  const file = (path: string) => {
    const found = app.vault.getAbstractFileByPath(path);
    return found instanceof TFile ? found : null;
  };
  return {
    notes: () => app.vault.getMarkdownFiles().map(note),
    note: path => {
      const found = file(path);
      return found && note(found);
    },
    read: async path => {
      const found = file(path);
      if (!found) {
        throw new Error(`${path} is not in the vault`);
      }
      return app.vault.cachedRead(found);
    },
  };
}

/** A question and its answer. */
class AnswerView extends ItemView {
  #stop: AbortController | undefined;

  constructor(
    leaf: WorkspaceLeaf,
    private readonly plugin: RefrainPlugin,
  ) {
    super(leaf);
  }

  override getViewType(): string {
    return VIEW;
  }

  override getDisplayText(): string {
    return 'Answers from notes';
  }

  protected override async onOpen(): Promise<void> {
    const form = this.contentEl.createEl('form');
    const input = form.createEl('input', { type: 'text', placeholder: 'A question about your notes' });
    const body = this.contentEl.createDiv();
    form.addEventListener('submit', event => {
      event.preventDefault();
      void this.#ask(input.value, body);
    });
  }

  protected override async onClose(): Promise<void> {
    this.#stop?.abort();
  }

  async #ask(question: string, body: HTMLElement): Promise<void> {
    // A new question ends the one before.
    this.#stop?.abort();
    const stop = new AbortController();
    this.#stop = stop;
    try {
      const assistant = await this.plugin.assistant();
      await ask(assistant, question, stop.signal, shown => {
        if (this.#stop === stop) {
          this.#show(shown, body);
        }
      });
    } catch (error) {
      problem(error);
    }
  }

  #show(shown: Shown, body: HTMLElement): void {
    body.empty();
    if (shown.state === 'reading') {
      body.createEl('progress', { attr: { value: shown.share, max: 1 } });
    }
    const answer = body.createEl('p');
    for (const piece of shown.pieces) {
      if (piece.kind === 'text') {
        answer.createSpan({ text: piece.text, cls: piece.isUnsupported ? 'mod-warning' : '' });
        continue;
      }
      const link = answer.createEl('a', { text: `[${piece.number}]`, cls: piece.holds ? '' : 'mod-muted' });
      const { source } = piece;
      if (source) {
        link.addEventListener('click', () => void this.plugin.openAt(source));
      }
    }
    if (shown.state === 'not_in_notes') {
      body.createEl('p', { text: ['Not in your notes.', ...shown.nearest].join(' ') });
    } else if (shown.problem !== '' && shown.state === 'failed') {
      body.createEl('p', { text: shown.problem });
    }
    const list = body.createEl('ol');
    for (const source of shown.sources) {
      const item = list.createEl('li').createEl('a', { text: `${source.title} ${source.locator ?? ''}` });
      item.addEventListener('click', () => void this.plugin.openAt(source));
    }
  }
}

class SearchModal extends SuggestModal<Hit> {
  constructor(
    app: App,
    private readonly plugin: RefrainPlugin,
  ) {
    super(app);
  }

  override async getSuggestions(query: string): Promise<Hit[]> {
    const { notes } = this.plugin.host;
    return notes ? search(notes, query) : [];
  }

  override renderSuggestion(hit: Hit, element: HTMLElement): void {
    element.createDiv({ text: hit.title });
    const snippet = element.createEl('small');
    for (const { text, isMatch } of parts(hit)) {
      snippet.createEl(isMatch ? 'b' : 'span', { text });
    }
  }

  override onChooseSuggestion(hit: Hit): void {
    void this.plugin.openAt(hit);
  }
}

class EditModal extends Modal {
  readonly #stop = new AbortController();

  constructor(
    app: App,
    private readonly plugin: RefrainPlugin,
    private readonly editor: Editor,
  ) {
    super(app);
  }

  override onOpen(): void {
    this.setTitle('Edit');
    const input = this.contentEl.createEl('input', { type: 'text', placeholder: 'What is to be changed' });
    const body = this.contentEl.createEl('pre');
    const buttons = this.contentEl.createDiv();
    input.addEventListener('keydown', event => {
      if (event.key === 'Enter') {
        input.disabled = true;
        void this.#edit(input.value, body, buttons);
      }
    });
  }

  override onClose(): void {
    this.#stop.abort();
  }

  async #edit(instruction: string, body: HTMLElement, buttons: HTMLElement): Promise<void> {
    const before = this.editor.getValue();
    const [start, end] = (['from', 'to'] as const).map(side => this.editor.posToOffset(this.editor.getCursor(side))) as [number, number];
    const selection = start < end ? { start, end } : undefined;
    const show = (parts: Part[]) => {
      body.empty();
      for (const { kind, text } of parts) {
        body.createEl(kind === 'insert' ? 'ins' : kind === 'delete' ? 'del' : 'span', { text, cls: kind === 'rest' ? 'mod-muted' : '' });
      }
    };
    try {
      const stop = buttons.createEl('button', { text: 'Stop' });
      stop.addEventListener('click', () => this.#stop.abort());
      const edited = await edit(await this.plugin.assistant(), { text: before, instruction, selection }, this.#stop.signal, show);
      buttons.empty();
      this.#decide(before, edited, buttons);
    } catch (error) {
      problem(error);
    }
  }

  #decide(before: string, { text, doubts, problem: failed }: Edited, buttons: HTMLElement): void {
    for (const doubt of doubts) {
      buttons.createEl('p', { text: doubt });
    }
    if (text === null || text === before) {
      buttons.createEl('p', { text: text === null ? failed : 'Nothing has changed.' });
      return;
    }
    buttons.createEl('button', { text: 'Replace' }).addEventListener('click', () => {
      const after = applied(this.editor.getValue(), before, text);
      if (after === null) {
        new Notice('The note has changed meanwhile, and was left alone.');
      } else {
        this.editor.setValue(after);
      }
      this.close();
    });
  }
}

class SettingTab extends PluginSettingTab {
  constructor(
    app: App,
    private readonly plugin: RefrainPlugin,
  ) {
    super(app, plugin);
  }

  override display(): void {
    this.containerEl.empty();
    const store = async (changes: Partial<Settings>) => {
      this.plugin.settings = { ...this.plugin.settings, ...changes };
      this.plugin.host.unload();
      await this.plugin.saveData(this.plugin.settings);
    };
    new Setting(this.containerEl)
      .setName('Model')
      .setDesc('A GGUF file on this computer.')
      .addText(text => text.setValue(this.plugin.settings.model).onChange(model => store({ model: model.trim() })));
    new Setting(this.containerEl)
      .setName('Memory')
      .setDesc('Most megabytes of the model and its sessions; empty: no limit.')
      .addText(text => {
        const bytes = this.plugin.settings.memoryLimitBytes;
        text.setValue(bytes === null ? '' : String(bytes / 1e6)).onChange(given => {
          const megabytes = Number(given);
          return store({ memoryLimitBytes: given.trim() === '' || !(megabytes > 0) ? null : Math.round(megabytes * 1e6) });
        });
      });
  }
}
