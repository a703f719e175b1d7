// The view "Ask": a conversation with the model, whose turns may ask the notes.

import * as api from "./api";
import { AnswerText, passageList } from "./answer";
import type { Meter } from "./chart";
import { MODES, radios } from "./choice";
import { copyButton } from "./copy";
import { chatDialog } from "./dialog";
import { count, el, fill, newId } from "./dom";
import { Attached, FILES_HINT, fileList, withFiles } from "./files";
import { onForgotten } from "./forget";
import { Progress, run } from "./job";
import { announce } from "./live";
import { draftedSummary } from "./origins";
import { comparison, foot } from "./result";
import type { Run } from "./result";
import { settings } from "./settings";
import type { Mode } from "./settings";
import { closeSource } from "./source";
import * as store from "./store";
import type { Answer, Chat, Turn } from "./store";
import type { Answered, ChatRequest, Forget, Message, Piece, Status } from "./wire";

/** Earlier questions that a search reads. */
const EARLIER_MAX = 5;
/** The share of the room for a prompt that stays when the oldest turns are left out: the next turns fit without leaving out more. */
const ROOM_LEFT = 0.7;
/** A longer message is refused by the server's notes, and by most contexts. */
const ASKED_MAX = 200_000;

/** The turn that is being written. */
interface Writing {
  chat: Chat;
  turn: Turn;
  article: HTMLElement;
  stop: AbortController;
}

export class ChatView {
  readonly element: HTMLElement;
  /** The conversation on the screen. */
  chat: Chat = fresh();
  private writing: Writing | null = null;
  private kept: Promise<void> = Promise.resolve();
  /** The conversation that is about to be shown: the newest call of `open` decides. */
  private opening: { id: string | null } | null = null;
  /** Conversations that are about to be kept. */
  private readonly keeping = new Set<Chat>();
  /** Resolves when the newest turn is written and kept. */
  private ended: Promise<void> = Promise.resolve();
  private readonly articles = new Map<Turn, HTMLElement>();
  /** What was typed and not sent, by conversation. */
  private readonly unsent = new Map<string, string>();
  /** The turns before the newest edit or regeneration. */
  private before: Turn[] | null = null;
  /** Whether the page scrolls with the text. */
  private follows = true;

  private readonly progress = new Progress(() => this.writing?.stop.abort());
  private readonly feed = el("div", { class: "feed" });
  private readonly empty: HTMLElement;
  private readonly problem = el("p", { class: "error", role: "alert" });
  private readonly undo = el("p", { class: "hint undo", hidden: true }, "What followed was dropped. ", el("button", { type: "button", class: "quiet", click: () => this.takeBack() }, "Undo"));
  private readonly input = el("textarea", { id: newId(), rows: 1, maxlength: ASKED_MAX });
  private readonly label = el("label", { for: this.input.id, class: "sr" });
  private readonly send = el("button", { type: "submit", class: "primary" });
  private readonly notes = el("input", { type: "checkbox", role: "switch" });
  private readonly notesLabel = el("label", { class: "toggle", title: "Search the notes, and answer from what they say" }, this.notes, " Notes");
  private readonly follow = el("input", { type: "checkbox" });
  private readonly followLabel = el("label", { class: "toggle", title: "The search also looks for the words of earlier questions." }, this.follow, " Follow-up");
  private readonly attached: Attached;
  private readonly mode: ReturnType<typeof radios>;
  private readonly form: HTMLFormElement;

  /** Called when the list of conversations has changed, or the conversation on the screen. */
  onChange: () => void = () => undefined;

  constructor(
    private readonly status: Status,
    private readonly meter: Meter,
  ) {
    this.mode = radios<Mode>("Drafting", MODES, () => this.settings().mode, (mode) => void this.set({ mode }));
    this.attached = new Attached(() => this.showComposer());
    this.empty = el("div", { class: "empty" }, el("h2", {}, status.notes ? "Ask your notes" : "Ask the model"), el("p", {}, hint(status)), el("p", { class: "keys" }, "Enter sends, Shift+Enter is a new line, ↑ edits the last message, Esc stops, Ctrl+K finds conversations."));
    const options = el("button", { type: "button", class: "quiet", title: "Name, system prompt, sampling, export, deletion", click: () => void this.details(this.chat.id) }, "Options");
    this.form = el(
      "form",
      { class: "composer" },
      this.attached.element,
      this.label,
      el("div", { class: "row" }, this.input, this.send),
      el("div", { class: "row under" }, this.mode.element, this.notesLabel, this.followLabel, this.attached.button, options),
    );
    this.notesLabel.hidden = !status.notes;
    this.notes.addEventListener("change", () => void this.set({ asksNotes: this.notes.checked }));
    this.input.addEventListener("keydown", (event) => this.onKey(event));
    this.input.addEventListener("input", () => this.grow());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.element = el("section", { class: "view ask with-meter", "aria-label": "Ask" }, meter.element, this.feed, this.progress.element, el("div", { class: "notices" }, this.problem, this.undo), this.form);
    this.takeDrops();
    for (const name of ["wheel", "touchmove"]) window.addEventListener(name, () => (this.follows = isAtEnd()), { passive: true });
    store.onOtherTab((what) => void (typeof what === "string" ? this.otherTab(what) : this.forgottenInOtherTab(what)));
    // What the page shows and keeps of an answer goes with it.
    onForgotten(async (what) => {
      this.writing?.stop.abort();
      await this.settled();
      this.before = null;
      await store.forget(what);
      await this.open((await store.chat(this.chat.id)) ? this.chat.id : null);
      this.onChange();
    });
    this.show();
  }

  /** The conversation that is shown, or is about to be. */
  get comingId(): string | null {
    return this.opening ? this.opening.id : this.chat.id;
  }

  /** Shows a conversation; a new one without an id, or if this browser does not have it. */
  async open(id: string | null): Promise<void> {
    const opening = (this.opening = { id });
    this.unsent.set(this.chat.id, this.input.value);
    const own = [this.writing?.chat, ...this.keeping].find((chat) => chat?.id === id);
    const found = own ?? (id === null ? null : await store.chat(id));
    if (this.opening !== opening) return;
    this.opening = null;
    this.chat = found ?? fresh();
    this.before = null;
    this.problem.textContent = found || id === null ? "" : "This browser does not have this conversation.";
    this.show();
    if (found) window.scrollTo(0, document.documentElement.scrollHeight);
  }

  /** Stops the turn that is being written. */
  stop(): boolean {
    this.writing?.stop.abort();
    return this.writing !== null;
  }

  focus(): void {
    this.input.focus({ preventScroll: true });
  }

  /** The name, settings, exports and deletion of a conversation. */
  async details(id: string): Promise<void> {
    const chat = [this.chat, this.writing?.chat].find((open) => open?.id === id) ?? (await store.chat(id));
    if (!chat) return;
    chatDialog(chat, {
      keep: () => void this.keep(chat),
      remove: () => void this.remove(chat.id),
    });
  }

  /** Resolves when what was stopped is kept: only then a deletion finds it. */
  private async settled(): Promise<void> {
    await this.ended.catch(() => undefined);
    await this.kept;
  }

  private async remove(id: string): Promise<void> {
    if (this.writing?.chat.id === id) this.writing.stop.abort();
    await this.settled();
    try {
      await store.remove(id);
      if (this.chat.id === id) await this.open(null);
    } catch {
      this.problem.textContent = "The browser could not delete the conversation.";
    }
    this.onChange();
  }

  /** The settings of a conversation over those of the page. */
  private settings(chat = this.chat): { mode: Mode; temperature: number; maxTokens: number; asksNotes: boolean } {
    const { mode, temperature, maxTokens, asksNotes } = chat.settings;
    const page = settings();
    return {
      mode: mode ?? page.mode,
      temperature: temperature ?? page.temperature,
      maxTokens: Math.min(maxTokens ?? page.maxTokens, this.status.max_tokens),
      asksNotes: this.status.notes !== null && (asksNotes ?? this.status.notes.n_passages > 0),
    };
  }

  private async set(changes: store.ChatSettings): Promise<void> {
    Object.assign(this.chat.settings, changes);
    this.showComposer();
    await this.keep(this.chat);
  }

  /** Keeps a conversation that has a turn. One is kept after another: each must know of the change before. */
  private keep(chat: Chat): Promise<void> {
    this.keeping.add(chat);
    this.kept = this.kept.then(() => this.keepNow(chat)).finally(() => this.keeping.delete(chat));
    return this.kept;
  }

  private async keepNow(chat: Chat): Promise<void> {
    const isShown = chat === this.chat;
    if (chat.turns.length > 0) {
      chat.title = store.titleOf(chat);
      try {
        await store.keep(chat, settings().keepsChats);
        if (isShown) this.problem.textContent = "";
      } catch (error) {
        if (isShown && error instanceof store.StoreError && error.isForgotten) await this.open(chat.id);
        if (isShown) this.problem.textContent = api.words(error);
      }
    }
    if (isShown) this.showSettings();
    this.onChange();
  }

  private async otherTab(id: string): Promise<void> {
    // This tab's own change may give the conversation a new id.
    await this.kept;
    const { chat, kept } = this;
    if (id === chat.id && this.writing?.chat !== chat) {
      const found = await store.chat(id);
      if (this.chat !== chat || this.kept !== kept || this.writing?.chat === chat) return this.otherTab(id);
      if (found && found.rev === this.chat.rev && found.nForgotten === this.chat.nForgotten) return;
      await this.open(found && id);
      if (!found) {
        this.problem.textContent = "The conversation was deleted in another tab.";
      }
    } else if (this.writing?.chat.id === id && !(await store.chat(id))) {
      this.writing.stop.abort();
    }
    this.onChange();
  }

  /** What this tab was writing, or had not kept yet, is deleted too. */
  private async forgottenInOtherTab(what: Forget): Promise<void> {
    const { id } = this.chat;
    this.writing?.stop.abort();
    await this.settled();
    this.before = null;
    // (The other tab reports what fails.)
    await store.forget(what, false).catch(() => undefined);
    if (this.chat.turns.length > 0) await this.otherTab(id);
  }

  private show(): void {
    this.articles.clear();
    const { turns } = this.chat;
    fill(this.feed, ...(turns.length === 0 ? [this.empty] : turns.map((turn) => (this.writing?.turn === turn ? this.placed(turn, this.writing.article) : this.article(turn)))));
    this.input.value = this.unsent.get(this.chat.id) ?? "";
    this.follow.checked = false;
    this.grow();
    this.showSettings();
    this.showComposer();
    this.onChange();
  }

  private showSettings(): void {
    this.feed.classList.toggle("uncoloured", this.chat.settings.hasColours === false);
    this.mode.show();
    this.undo.hidden = this.before === null || this.writing !== null;
  }

  private showComposer(): void {
    // While the view is built, there is nothing to show.
    if (!this.form) return;
    const hasFiles = this.attached.count > 0;
    this.notes.checked = this.settings().asksNotes && !hasFiles;
    this.notes.disabled = hasFiles;
    const asks = this.notes.checked;
    this.followLabel.hidden = !asks || this.earlier(this.chat.turns).length === 0;
    this.label.textContent = asks ? "Question about your notes" : "Message";
    this.input.placeholder = asks ? "Ask your notes" : hasFiles ? "Ask about the files" : "Message";
    this.send.textContent = asks ? "Ask" : "Send";
    this.send.disabled = this.writing !== null;
    this.attached.button.title = FILES_HINT + (this.status.notes ? " A message with files does not ask the notes." : "");
  }

  private grow(): void {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, 200)}px`;
  }

  private onKey(event: KeyboardEvent): void {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.form.requestSubmit();
    }
    const last = this.chat.turns.at(-1);
    if (event.key === "ArrowUp" && this.input.value === "" && last && !this.writing) {
      event.preventDefault();
      this.editTurn(last);
    }
  }

  /** Files that are dropped on the view or pasted. */
  private takeDrops(): void {
    const has = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") === true;
    this.element.addEventListener("dragover", (event) => {
      if (!has(event)) return;
      event.preventDefault();
      this.element.classList.add("drop");
    });
    this.element.addEventListener("dragleave", () => this.element.classList.remove("drop"));
    this.element.addEventListener("drop", (event) => {
      this.element.classList.remove("drop");
      if (!has(event)) return;
      event.preventDefault();
      void this.attached.add([...(event.dataTransfer?.files ?? [])]);
    });
    this.input.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length === 0) return;
      event.preventDefault();
      void this.attached.add(files);
    });
  }

  private submit(): void {
    const asked = this.input.value.trim();
    if (this.writing || (asked === "" && this.attached.count === 0)) return;
    const asksNotes = this.notes.checked;
    const earlier = asksNotes && this.follow.checked ? this.earlier(this.chat.turns) : [];
    this.input.value = "";
    this.unsent.delete(this.chat.id);
    this.grow();
    this.before = null;
    void this.add({ asked, files: this.attached.take(), asksNotes, earlier, at: Date.now(), answer: null });
  }

  private earlier(turns: readonly Turn[]): string[] {
    return turns.filter(({ asksNotes }) => asksNotes).map(({ asked }) => asked).reverse().slice(0, EARLIER_MAX);
  }

  /** Adds a turn, and writes its answer. */
  private async add(turn: Turn): Promise<void> {
    this.chat.turns.push(turn);
    this.empty.remove();
    closeSource();
    const article = this.article(turn);
    this.feed.append(article);
    this.follows = true;
    article.scrollIntoView({ block: "start" });
    // It has its address now, so that the back button finds it.
    this.onChange();
    // A reload finds it. (Later questions are kept with their answers: another tab may go on with the conversation meanwhile.)
    if (this.chat.rev === 0) void this.keep(this.chat);
    await this.write(turn, null);
  }

  /** Drops a turn and what follows it, to be taken back until the next message. */
  private drop(turn: Turn): void {
    const { turns } = this.chat;
    this.before = [...turns];
    for (const dropped of turns.splice(turns.indexOf(turn))) this.articles.get(dropped)?.remove();
  }

  private takeBack(): void {
    if (!this.before || this.writing) return;
    this.chat.turns = this.before;
    this.before = null;
    this.show();
    void this.keep(this.chat);
    this.focus();
  }

  private regenerate(turn: Turn, asksNotes = turn.asksNotes): void {
    if (this.writing) return;
    this.drop(turn);
    void this.add({ ...turn, asksNotes, answer: null, at: Date.now() });
  }

  private editTurn(turn: Turn): void {
    const article = this.articles.get(turn);
    if (!article || this.writing) return;
    const id = newId();
    const text = el("textarea", { id, rows: 3, maxlength: ASKED_MAX });
    text.value = turn.asked;
    const close = (): void => {
      article.replaceWith(this.article(turn));
      this.focus();
    };
    const form = el(
      "form",
      { class: "editing" },
      el("h2", {}, el("label", { for: id }, "New text of the message")),
      text,
      el("p", { class: "actions" }, el("span", { class: "dim" }, "What follows is dropped."), el("button", { type: "button", click: close }, "Cancel"), el("button", { type: "submit", class: "primary" }, "Send")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const asked = text.value.trim();
      if (this.writing || (asked === "" && turn.files.length === 0)) return;
      this.drop(turn);
      void this.add({ ...turn, asked, answer: null, at: Date.now() });
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === text) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    article.querySelector(".asked")?.replaceWith(form);
    text.focus();
    text.setSelectionRange(text.value.length, text.value.length);
    form.scrollIntoView({ block: "nearest" });
  }

  private placed(turn: Turn, article: HTMLElement): HTMLElement {
    this.articles.set(turn, article);
    return article;
  }

  /** A turn: the message, and its answer if there is one. */
  private article(turn: Turn): HTMLElement {
    const asked = el(
      "div",
      { class: "asked" },
      el("h2", { class: "question" }, turn.asked),
      fileList(turn.files),
      el("p", { class: "tools" }, copyButton(() => turn.asked, "Copy the message"), el("button", { type: "button", class: "quiet", "aria-label": "Edit the message", click: () => this.editTurn(turn) }, "Edit")),
    );
    const body = el("div", { class: "body" });
    const article = el("article", { class: "turn", "aria-label": `Question: ${turn.asked}` }, asked, body);
    if (turn.answer) this.showAnswer(turn, turn.answer, body);
    else if (this.writing?.turn !== turn) body.append(this.tools(turn));
    return this.placed(turn, article);
  }

  /** An answer as it is kept. */
  private showAnswer(turn: Turn, answer: Answer, body: HTMLElement): void {
    const { answered, compared } = answer;
    const text = new AnswerText();
    piecesOf(answer).forEach((piece) => text.push(piece));
    text.finish(answered);
    text.calls(answer.calls);
    fill(body, el("div", { class: "column" }, text.element, ...(answered.is_not_in_notes ? [] : foot(text, answered))), compared !== null && el("p", { class: "hint" }, compared), ...this.after(turn, answer));
  }

  /** What stands below an answer. */
  private after(turn: Turn, answer: Answer): HTMLElement[] {
    const { answered, nLeftOut, isStopped } = answer;
    return [
      ...(isStopped ? [el("p", { class: "hint" }, "Stopped.")] : []),
      ...(nLeftOut > 0 ? [el("p", { class: "hint" }, `The oldest ${count(nLeftOut, "turn")} did not fit the context: the model has not seen ${nLeftOut === 1 ? "it" : "them"}.`)] : []),
      ...(turn.asksNotes && answered.searched !== "" ? [passageList(answered)] : []),
      this.tools(turn),
    ];
  }

  private tools(turn: Turn): HTMLElement {
    const { answer } = turn;
    const isLast = this.chat.turns.at(-1) === turn;
    const canContinue = answer && isLast && (answer.isStopped || answer.answered.is_cut) && answer.answered.text !== "" && answer.calls.length === 0;
    return el(
      "p",
      { class: "tools" },
      answer && copyButton(() => answer.answered.text, "Copy the answer"),
      el("button", { type: "button", class: "quiet", click: () => this.regenerate(turn) }, answer ? "Regenerate" : "Try again"),
      answer?.answered.is_not_in_notes && el("button", { type: "button", class: "quiet", click: () => this.regenerate(turn, false) }, "Answer without notes"),
      canContinue && el("button", { type: "button", class: "quiet", click: () => !this.writing && void this.write(turn, answer) }, "Continue"),
    );
  }

  /** Writes the answer of the last turn, or what follows its beginning, and keeps it. */
  private write(turn: Turn, begun: Answer | null): Promise<void> {
    const { chat } = this;
    this.ended = this.writeIn(chat, turn, begun).then(() => this.keep(chat));
    return this.ended;
  }

  private async writeIn(chat: Chat, turn: Turn, begun: Answer | null): Promise<void> {
    const article = this.articles.get(turn) as HTMLElement;
    const body = article.querySelector(".body") as HTMLElement;
    const writing: Writing = { chat, turn, article, stop: new AbortController() };
    this.writing = writing;
    fill(body);
    this.showComposer();
    this.undo.hidden = true;
    // What was there before, to say if a greedy answer cannot change.
    const former = this.before?.find(({ asked }) => asked === turn.asked)?.answer?.answered.text;
    const state: Written = { runs: [], text: new AnswerText(), nLeftOut: begun?.nLeftOut ?? 0, isPlain: false, calls: begun?.calls ?? [] };
    try {
      await this.runs(writing, begun, body, state);
      // Of two, the one with drafts: it comes last.
      const last = state.runs.at(-1) as Run;
      const compared = comparison(state.runs);
      turn.answer = answerOf(last.text, begun ? { ...begun.answered, text: last.text.text, is_cut: last.answered.is_cut, stats: last.answered.stats } : last.answered, state, false, compared?.words ?? null);
      if (compared) {
        body.append(compared.element, ...this.after(turn, turn.answer));
      } else {
        this.showAnswer(turn, turn.answer, body);
      }
      if (former === last.text.text && this.settings(chat).temperature === 0) {
        body.append(el("p", { class: "hint" }, "The same text again: temperature 0 takes the likeliest tokens. Options has a temperature for this conversation."));
      }
      this.tell(turn.answer, last.text.pieces);
    } catch (error) {
      const problem = api.words(error);
      state.text.show();
      const text = state.text.text;
      if (text !== "") {
        turn.answer = answerOf(state.text, { ...(begun?.answered ?? NOTHING), text }, state, true, null);
        this.showAnswer(turn, turn.answer, body);
      } else {
        turn.answer = begun;
        if (begun) this.showAnswer(turn, begun, body);
        else fill(body, problem === null && el("p", { class: "hint" }, "Stopped. Nothing was kept."), this.tools(turn));
      }
      if (problem === null) announce("Stopped");
      else body.prepend(el("p", { class: "error", role: "alert" }, problem));
    } finally {
      this.writing = null;
      this.progress.end();
      // A reader who is elsewhere stays there.
      const focused = document.activeElement;
      if (focused === null || focused === document.body || this.form.contains(focused)) this.focus();
    }
    this.showComposer();
  }

  private tell({ answered }: Answer, pieces: readonly Piece[]): void {
    if (answered.is_not_in_notes) return announce(answered.text);
    const unsupported = answered.sentences.filter(({ support }) => support === "none").length;
    announce(`${answered.text} — ${draftedSummary(pieces)}.${unsupported > 0 ? ` ${count(unsupported, "sentence")} not found in the notes.` : ""}`);
  }

  /** Runs the request of a turn, in both ways to compare them. */
  private async runs(writing: Writing, begun: Answer | null, body: HTMLElement, state: Written): Promise<void> {
    const { chat, turn } = writing;
    const { mode, temperature } = this.settings(chat);
    // With one seed, a sampled text is the same with drafts and without.
    const seed = chat.settings.seed ?? (temperature > 0 ? crypto.getRandomValues(new Uint32Array(1))[0] : undefined);
    const ways = mode === "compare" && !begun ? [true, false] : [mode === "plain"];
    const columns = el("div", { class: ways.length > 1 ? "columns" : "" });
    body.append(columns);
    for (const [index, isPlain] of ways.entries()) {
      const text = new AnswerText(() => this.scroll());
      if (begun) piecesOf(begun).forEach((piece) => text.push(piece));
      [state.text, state.isPlain] = [text, isPlain];
      columns.append(el("div", { class: "column" }, ways.length > 1 && el("h3", {}, isPlain ? "Without drafts" : "With drafts"), text.element));
      this.meter.start(isPlain, index === 0);
      const events =
        turn.asksNotes && !begun ? this.ask(writing, seed, isPlain, ways.length === 1 || !isPlain) : await this.say(writing, begun, seed, isPlain, state);
      const answered = await run(events, this.progress, (event) => {
        if (event.kind === "calls") {
          state.calls = event.data;
          text.calls(event.data);
        }
        if (event.kind !== "text") return;
        text.push(event.data);
        this.meter.push(event.data);
      });
      text.finish(answered);
      this.meter.end(answered.stats);
      state.runs.push({ isPlain, text, answered });
      // No model has run, and the other way gives the same.
      if (answered.is_not_in_notes) break;
      if (ways.length > 1) columns.lastElementChild?.append(...foot(text, answered));
    }
  }

  /** A question to the notes. */
  private ask({ chat, turn, stop }: Writing, seed: number | undefined, isPlain: boolean, isFirst: boolean): ReturnType<typeof api.chat> {
    const { temperature, maxTokens } = this.settings(chat);
    const request = { question: turn.asked, earlier: turn.earlier, max_tokens: maxTokens, temperature, seed, drafts: !isPlain, keep: settings().keep && isFirst };
    return api.stream<Answered>("ask", request, stop.signal);
  }

  /** A message to the model, behind as many of the earlier turns as fit. */
  private async say({ chat, turn, stop }: Writing, begun: Answer | null, seed: number | undefined, isPlain: boolean, state: Written): Promise<ReturnType<typeof api.chat>> {
    const { temperature, maxTokens } = this.settings(chat);
    const { system, topP, topK, minP } = chat.settings;
    const { turns } = chat;
    // An answer from the notes goes on from their passages, as it began.
    const isFromNotes = begun !== null && turn.asksNotes;
    const before = isFromNotes ? [] : turns.slice(0, turns.indexOf(turn)).filter(({ answer }) => answer && !answer.answered.is_not_in_notes);
    const messages = (nLeftOut: number): Message[] => [
      ...(system && !isFromNotes ? [{ role: "system" as const, content: system }] : []),
      ...before.slice(nLeftOut).flatMap(({ asked, files, answer }): Message[] => [
        { role: "user", content: withFiles(asked, files) },
        { role: "assistant", content: answer?.answered.text ?? "" },
      ]),
      { role: "user", content: withFiles(turn.asked, turn.files) },
      ...(begun ? [{ role: "assistant" as const, content: begun.answered.text }] : []),
    ];
    state.nLeftOut = await this.leftOut(before, messages, maxTokens, stop.signal);
    const request: ChatRequest = {
      messages: messages(state.nLeftOut),
      continue_final_message: begun !== null,
      add_generation_prompt: begun === null,
      max_tokens: maxTokens,
      temperature,
      drafts: !isPlain,
      ...(seed !== undefined && { seed }),
      ...(topP !== undefined && { top_p: topP }),
      ...(topK !== undefined && { top_k: topK }),
      ...(minP !== undefined && { min_p: minP }),
      ...(isFromNotes && { documents: await passages(begun.answered) }),
    };
    return api.chat(request, stop.signal);
  }

  /** How many of the oldest turns do not fit the context. */
  private async leftOut(before: readonly Turn[], messages: (nLeftOut: number) => Message[], maxTokens: number, signal: AbortSignal): Promise<number> {
    const room = this.status.context_len - Math.min(maxTokens, this.status.context_len >> 1);
    // Those that were left out stay out: the prompt keeps its beginning, which is not computed again.
    let n = Math.min(before.length, before.at(-1)?.answer?.nLeftOut ?? 0);
    let wanted = room;
    while (n < before.length) {
      const given = messages(n);
      // A token has a byte or more, and no code unit has more than three.
      if (given.reduce((sum, { content }) => sum + 3 * content.length + 16, 0) < wanted) break;
      const tokens = await api.promptTokens(given, signal);
      if (tokens <= wanted) break;
      wanted = ROOM_LEFT * room;
      n += Math.max(1, Math.floor((before.length - n) * (1 - wanted / tokens)));
    }
    return Math.min(n, before.length);
  }

  /** Keeps the end of the text in sight, unless the reader has scrolled away. */
  private scroll(): void {
    const last = this.feed.lastElementChild;
    if (!this.follows || !last || !this.element.isConnected || this.writing?.chat !== this.chat) return;
    const excess = (last.querySelector(".body")?.getBoundingClientRect().bottom ?? 0) - this.form.getBoundingClientRect().top + 60;
    if (excess > 0) window.scrollBy(0, excess);
  }
}

/** What a request has written so far. */
interface Written {
  runs: Run[];
  text: AnswerText;
  nLeftOut: number;
  isPlain: boolean;
  calls: Answer["calls"];
}

const NOTHING: Answered = {
  text: "",
  is_cut: false,
  stats: { prompt_tokens: 0, cached_tokens: 0, tokens: 0, steps: 0, prefill_us: 0, decode_us: 0 },
  not_kept: null,
  searched: "",
  is_not_in_notes: false,
  passages: [],
  copied: [],
  sentences: [],
  left_out: [],
};

const fresh = (): Chat => ({ id: store.newId(), title: "New conversation", at: Date.now(), turns: [], settings: {}, rev: 0, nForgotten: 0, isNamed: false });

function hint({ notes, model }: Status): string {
  if (!notes) return `The server has no notes. Start it with \`refrain serve --notes FOLDER\`. Messages, files and edits work without notes: the model ${model} answers on this device.`;
  return `${count(notes.n_passages, "passage")} of your notes can be asked. The model ${model} answers on this device, and nothing leaves it.`;
}

/** An answer in the form in which it is kept: pieces of the model itself are joined. */
function answerOf(text: AnswerText, answered: Answered, { nLeftOut, isPlain, calls }: Written, isStopped: boolean, compared: string | null): Answer {
  const sources: string[] = [];
  const runs: number[] = [];
  for (const { text: part, origin, is_reasoning, n_joined } of text.pieces) {
    if (is_reasoning) continue;
    if (origin !== null && !sources.includes(origin)) sources.push(origin);
    const source = origin === null ? -1 : sources.indexOf(origin);
    const [length, joined] = [part.length, n_joined ?? 1];
    if (source < 0 && runs.at(-2) === -1) {
      runs[runs.length - 3] = (runs.at(-3) as number) + length;
      runs[runs.length - 1] = (runs.at(-1) as number) + joined;
    } else {
      runs.push(length, source, joined);
    }
  }
  return { answered, reasoning: text.reasoning, calls, runs, sources, isPlain, isStopped, nLeftOut, compared };
}

/** The pieces of a kept answer. Their times are not kept. */
function piecesOf({ answered, reasoning, runs, sources }: Answer): Piece[] {
  const piece = (text: string, origin: string | null, is_reasoning: boolean, n_joined: number): Piece => ({ text, origin, is_reasoning, us: 0, n_tokens: 0, n_steps: 0, n_joined });
  const pieces = reasoning === "" ? [] : [piece(reasoning, null, true, 1)];
  let from = 0;
  for (let at = 0; at < runs.length; at += 3) {
    const [length, source, joined] = runs.slice(at, at + 3) as [number, number, number];
    pieces.push(piece(answered.text.slice(from, from + length), sources[source] ?? null, false, joined));
    from += length;
  }
  return pieces;
}

/** The texts of the passages that an answer was made from. */
function passages({ passages }: Answered): Promise<{ title: string; text: string }[]> {
  return Promise.all(
    passages.map(async ({ id, title }) => {
      const { sections, section, len } = await api.source(id);
      return { title, text: sections[section]?.text.slice(0, len) ?? "" };
    }),
  );
}

function isAtEnd(): boolean {
  const { scrollHeight, clientHeight } = document.documentElement;
  return window.scrollY + clientHeight > scrollHeight - 120;
}
