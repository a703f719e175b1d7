// The conversations of this browser, in its IndexedDB. They never leave it, but for the requests that continue one, and exports.

import type { Answered, Call, Forget } from "./wire";

/** What a person chose for a conversation; absent: as in the settings of the page. */
export interface ChatSettings {
  system?: string;
  temperature?: number;
  maxTokens?: number;
  topP?: number;
  topK?: number;
  minP?: number;
  seed?: number;
  mode?: "drafts" | "plain" | "compare";
  /** Whether drafted text has its colours. */
  hasColours?: boolean;
  /** Whether new turns ask the notes. */
  asksNotes?: boolean;
}

export interface TextFile {
  name: string;
  text: string;
}

/** An answer as it is kept. */
export interface Answer {
  answered: Answered;
  reasoning: string;
  calls: Call[];
  /** The draft sources of the text: for each run its characters, its source (an index; -1: the model itself), and its pieces. */
  runs: number[];
  sources: string[];
  isPlain: boolean;
  /** Whether a person or an error ended it. */
  isStopped: boolean;
  /** Oldest turns that did not fit the context. */
  nLeftOut: number;
  /** What a comparison with the other way of decoding found, in words. */
  compared: string | null;
}

export interface Turn {
  asked: string;
  files: TextFile[];
  asksNotes: boolean;
  /** Earlier questions that the search looked for too. */
  earlier: string[];
  /** Milliseconds since 1970, UTC. */
  at: number;
  answer: Answer | null;
}

export interface Chat extends Head {
  turns: Turn[];
  settings: ChatSettings;
  /** Changes so far. 0: never kept. */
  rev: number;
  /** Deletions of parts so far: a tab that shows an earlier state does not bring them back. */
  nForgotten: number;
  /** Whether a person has named it. */
  isNamed: boolean;
}

export interface Head {
  id: string;
  title: string;
  /** The time of the last change. */
  at: number;
}

/** A conversation is not kept; the message is for people. */
export class StoreError extends Error {
  constructor(
    message: string,
    /** Whether it, or a part of it, was deleted. */
    readonly isForgotten = false,
  ) {
    super(message);
  }
}

const [HEADS, CHATS] = ["heads", "chats"];

/** Conversations that are in the memory of this tab alone. */
const unkept = new Map<string, Chat>();
/** Called with the id of a conversation that another tab has changed or deleted, or with what another tab has deleted. */
const listeners = new Set<(what: string | Forget) => void>();
const channel = new BroadcastChannel("refrain.chats");
channel.onmessage = ({ data }: MessageEvent<string | Forget>) => {
  // The other tab has deleted what the browser keeps, and cannot reach what is in the memory of this one.
  const changed = typeof data === "string" ? [data] : [data, ...forgetUnkept(data)];
  changed.forEach((what) => listeners.forEach((listener) => listener(what)));
};

export function onOtherTab(listener: (what: string | Forget) => void): void {
  listeners.add(listener);
}

export function newId(): string {
  // `randomUUID` is missing where the page came over the network without TLS.
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

let opened: Promise<IDBDatabase> | null = null;

function database(): Promise<IDBDatabase> {
  return (opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("refrain", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(HEADS, { keyPath: "id" });
      request.result.createObjectStore(CHATS, { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => {
      opened = null;
      reject(new StoreError("This browser keeps no conversations: they last as long as this page."));
    };
  }));
}

/** Runs `work` in one transaction, which is complete or has changed nothing. */
async function transaction<T>(mode: IDBTransactionMode, work: (heads: IDBObjectStore, chats: IDBObjectStore, is: (value: T) => void) => void): Promise<T> {
  const opened = await database();
  return new Promise((resolve, reject) => {
    const running = opened.transaction([HEADS, CHATS], mode);
    let value: T;
    let failure: unknown = null;
    running.oncomplete = () => resolve(value);
    running.onabort = () => reject(failure ?? running.error);
    try {
      work(running.objectStore(HEADS), running.objectStore(CHATS), (result) => (value = result));
    } catch (error) {
      failure = error;
      running.abort();
    }
  });
}

/** All conversations, the newest first. */
export async function heads(): Promise<Head[]> {
  const kept = await transaction<Head[]>("readonly", (heads, _, is) => {
    const all = heads.getAll();
    all.onsuccess = () => is(all.result as Head[]);
  }).catch(() => []);
  const own = [...unkept.values()];
  return [...own, ...kept.filter(({ id }) => !unkept.has(id))].sort((a, b) => b.at - a.at);
}

export async function chat(id: string): Promise<Chat | null> {
  const own = unkept.get(id);
  if (own) return own;
  return transaction<Chat | null>("readonly", (_, chats, is) => {
    const found = chats.get(id);
    found.onsuccess = () => is((found.result as Chat | undefined) ?? null);
  }).catch(() => null);
}

/** Keeps a conversation. If that fails, it stays in the memory of this tab. */
export async function keep(chat: Chat, isWanted: boolean): Promise<void> {
  chat.at = Date.now();
  if (!isWanted && chat.rev === 0) {
    unkept.set(chat.id, chat);
    return;
  }
  try {
    const state = await transaction<"kept" | "changed" | "deleted">("readwrite", (heads, chats, is) => {
      const before = chats.get(chat.id);
      before.onsuccess = () => {
        const known = before.result as Chat | undefined;
        if ((known?.rev ?? 0) !== chat.rev) return is(known && known.nForgotten === chat.nForgotten ? "changed" : "deleted");
        const { id, title, at } = chat;
        heads.put({ id, title, at });
        chats.put({ ...chat, rev: chat.rev + 1 });
        is("kept");
      };
    });
    if (state === "deleted") throw new StoreError("The conversation, or a part of it, was deleted in another tab.", true);
    if (state === "changed") {
      // Both are kept.
      [chat.id, chat.rev, chat.title] = [newId(), 0, `${chat.title} (copy)`];
      await keep(chat, isWanted);
      throw new StoreError("Another tab has continued this conversation. Yours is kept as a copy.");
    }
  } catch (error) {
    if (error instanceof StoreError) throw error;
    unkept.set(chat.id, chat);
    const { name, message } = (error ?? {}) as Partial<Error>;
    throw new StoreError(
      name === "QuotaExceededError"
        ? "The browser has no room for this conversation. It stays on the screen until you close this tab: export it, or delete others."
        : `The browser cannot keep this conversation${message ? ` (${message})` : ""}. It stays on the screen until you close this tab.`,
    );
  }
  chat.rev += 1;
  unkept.delete(chat.id);
  channel.postMessage(chat.id);
}

export async function remove(id: string): Promise<void> {
  unkept.delete(id);
  await transaction("readwrite", (heads, chats) => {
    heads.delete(id);
    chats.delete(id);
  });
  channel.postMessage(id);
}

/** The ids of the conversations that have all of these words. */
export async function search(words: string): Promise<Set<string>> {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const has = ({ title, turns }: Chat): boolean => {
    const text = [title, ...turns.flatMap(({ asked, answer }) => [asked, answer?.answered.text ?? ""])].join("\n").toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
  const found = new Set([...unkept.values()].filter(has).map(({ id }) => id));
  await each((chat) => void (has(chat) && found.add(chat.id)), "readonly").catch(() => undefined);
  return found;
}

/** Deletes what was made from what is forgotten: turns before a time, or from the first turn on that a note was shown to. Tells other tabs if `isNews`. */
export async function forget(what: Forget, isNews = true): Promise<void> {
  forgetUnkept(what);
  const changed: string[] = [];
  await each((chat, heads, cursor) => {
    const left = rest(chat, what);
    if (left === chat) return;
    changed.push(chat.id);
    if (left) {
      const { id, title, at } = left;
      heads.put({ id, title, at });
      cursor.update({ ...left, rev: chat.rev + 1 });
    } else {
      heads.delete(chat.id);
      cursor.delete();
    }
  }, "readwrite");
  if (isNews) channel.postMessage(what);
  changed.forEach((id) => channel.postMessage(id));
}

/** The same in the memory of this tab. Returns the ids of what has changed. */
function forgetUnkept(what: Forget): string[] {
  return [...unkept.values()].flatMap((chat) => {
    const left = rest(chat, what);
    if (left) unkept.set(chat.id, left);
    else unkept.delete(chat.id);
    return left === chat ? [] : [chat.id];
  });
}

/** What remains of a conversation; null if nothing does. */
function rest(chat: Chat, what: Forget): Chat | null {
  const turns = remaining(chat.turns, what);
  if (turns.length === chat.turns.length) return chat;
  return turns.length === 0 ? null : { ...chat, turns, title: titleOf({ ...chat, turns }), nForgotten: chat.nForgotten + 1 };
}

function each(work: (chat: Chat, heads: IDBObjectStore, cursor: IDBCursorWithValue) => void, mode: IDBTransactionMode): Promise<void> {
  return transaction<void>(mode, (heads, chats) => {
    const cursors = chats.openCursor();
    cursors.onsuccess = () => {
      const cursor = cursors.result;
      if (!cursor) return;
      work(cursor.value as Chat, heads, cursor);
      cursor.continue();
    };
  });
}

function remaining(turns: Turn[], what: Forget): Turn[] {
  switch (what.what) {
    case "everything":
      return [];
    case "before":
      return turns.filter(({ at }) => at >= what.at_ms);
    case "note": {
      const isOf = ({ file }: { file: string }): boolean => file === what.file;
      const first = turns.findIndex(({ answer }) => answer?.answered.passages.some(isOf) || answer?.answered.left_out.some(isOf));
      return first < 0 ? turns : turns.slice(0, first);
    }
  }
}

const TITLE_MAX = 80;

/** The title of a conversation: that of a person, or its first question. */
export function titleOf({ isNamed, title, turns }: Pick<Chat, "isNamed" | "title" | "turns">): string {
  if (isNamed) return title;
  const first = turns[0]?.asked.replace(/\s+/g, " ").trim() || turns[0]?.files[0]?.name || "New conversation";
  return first.length > TITLE_MAX ? `${first.slice(0, TITLE_MAX - 1)}…` : first;
}
