// Written by bindings/node/types from the records of bindings/core. Do not edit.
// Sizes and counts are integers. Places in texts are in UTF-16 code units, as the indexes of strings.

/** Options of an assistant. */
export interface AssistantOptions {
  /** The folder of an index of notes (`Notes`). */
  notes?: string | null;
  /** The embedding model whose vectors the index has: notes are then searched by meaning too. */
  embedder?: string | null;
  /** A folder that keeps answers and computed prompts, used by one process at a time. Default: answers are kept in memory. */
  store?: string | null;
  /** 32 bytes that encrypt the store, and with which the index was encrypted. The app keeps them. */
  key?: Uint8Array | number[] | null;
  /** Options of every session, its namespace and system turn included. */
  session?: SessionOptions | null;
  /** Room for the output in tokens. Default: 512, at most a quarter of the context. */
  maxTokens?: number | null;
  /** Passages that a search shows to the model. Default: 4. */
  nPassages?: number | null;
  /** The least share of a question that a passage must cover, 0 to 1. Default: 0.3. */
  coverageMin?: number | null;
}

/** A part of the difference between two texts. Changes come in the order of the new text. */
export interface Change {
  /** What happens. */
  kind: ChangeKind;
  /** The place in the old text; of an insertion, the empty place before which it stands. */
  old: Place;
  /** The place in the new text; of a deletion, an empty place. */
  new: Place;
}

/** What happens to a text in a change. */
export type ChangeKind =
  /** It stays. */
  | 'keep'
  /** It is new. */
  | 'insert'
  /** It is left out. */
  | 'delete';

/** A turn of the user in a conversation. */
export interface ChatRequest {
  /** The user's words. */
  text?: string;
  /** Passages of the notes to show. Default: 0. */
  nPassages?: number | null;
  /** The notes to search. Default: all. */
  filter?: NoteFilter | null;
  /** Passages to show in place of a search, best first. */
  passages?: Passage[] | null;
}

/** A citation in the text. */
export interface Citation {
  /** Its place in the text. */
  place: Place;
  /** The number that it names. */
  number: number;
  /** Whether the source of this number supports the sentence; `None`: the sentence is too short to be checked. */
  holds: boolean | null;
}

/** A part of the text that stands in a source. */
export interface CopiedSpan {
  /** Its place in the text. */
  place: Place;
  /** The number of the source. */
  source: number;
  /** Its place in the source's text. */
  sourcePlace: Place;
}

/** What the device reports. A state that is left out stays as it was. */
export interface DeviceState {
  /** Heat. */
  thermal?: ThermalState | null;
  /** Memory. */
  memory?: MemoryPressure | null;
  /** Power. */
  power?: PowerState | null;
}

/** A document without a file. */
export interface Document {
  /** The id that the app gives it. */
  id?: string;
  /** The text, read as Markdown. */
  text?: string;
  /** The title. Default: that in the text, else the id. */
  title?: string | null;
  /** Seconds since 1970. Default: the date in the text, else now. */
  date?: number | null;
  /** Tags, beside those in the text. */
  tags?: string[];
  /** The kind, for filters. Default: `note`. */
  kind?: string | null;
}

/** What changed among the documents. */
export interface DocumentChanges {
  /** The number of the last change: the next call continues behind it. */
  change: number;
  /** Documents that were put. */
  put: DocumentInfo[];
  /** Ids of documents that were removed. */
  removed: string[];
  /** Whether these are the changes since the given number. If not, `put` has every document, and a copy begins anew. */
  isComplete: boolean;
}

/** A document in the index. */
export interface DocumentInfo {
  /** The id. */
  id: string;
  /** Bytes of its text. */
  bytes: number;
  /** Its passages. */
  passages: number;
  /** The number of the change that has put it. */
  change: number;
}

/** What a session drafts from. Never changes the output. */
export type Drafting =
  /** Text on the device, the model's own predictions, and the draft model if there is one. */
  | 'auto'
  /** The draft model alone. */
  | 'draft_model'
  /** Nothing: plain decoding. */
  | 'off';

/** A loaded model. */
export interface EngineInfo {
  /** The name of the architecture, such as `llama`. */
  architecture: string;
  /** Layers. */
  layers: number;
  /** The longest context that the model was trained for, in tokens. */
  contextLen: number;
  /** Tokens of the vocabulary. */
  vocabSize: number;
  /** Threads of a pass, the caller's included. */
  threads: number;
  /** Bytes of the weights, including those of a mapped file. */
  memoryBytes: number;
  /** Whether the model has a chat template: without one, turns are written as plain text by assistants, and refused by sessions. */
  hasChatTemplate: boolean;
  /** The instruction set of the computations, such as `avx2` or `neon`. */
  instructionSet: string;
}

/** Options of an engine. */
export interface EngineOptions {
  /** A GGUF file, a packed file, or a folder of Hugging Face. */
  path: string;
  /** Threads of a pass, the caller's included. Default: one per physical performance core that the process may use. */
  threads?: number | null;
  /** Maximum bytes of the model and its sessions together, as `estimate_memory` counts them. An engine or a session that does not fit is refused with `OutOfMemory` before anything is allocated. Default: no limit. */
  memoryLimitBytes?: number | null;
  /** Block format of the weights in memory. Default: as in the file. */
  quantize?: Quantize | null;
  /** A smaller model of the same vocabulary, which drafts; `mtp`: the head in the model's own file. */
  draftModel?: string | null;
  /** Milliseconds for measuring step costs while loading. Default: 300. 0: none, and steps correct the costs later. */
  measureMs?: number | null;
  /** The units of all places in texts. Default: `utf16`. */
  units?: Units | null;
}

/** The facts of an error. */
export interface ErrorInfo {
  /** The stable number of the kind. */
  code: number;
  /** The kind. */
  kind: ErrorKind;
  /** What happened, with the numbers, in English. Not stable. */
  message: string;
  /** The file or folder. */
  file: string | null;
  /** The field of a file, the missing part, or the option. */
  field: string | null;
  /** Where, in bytes from the start of the file or the text. */
  offset: number | null;
  /** The number that is refused. */
  value: number | null;
  /** The largest allowed value. */
  limit: number | null;
}

/** What an error means for an app. Code and name never change, and no code is used again. */
export type ErrorKind =
  /** The system failed: a disk, a permission, a thread. */
  | 'io'
  /** A file, or a part of a model, does not exist. */
  | 'not_found'
  /** A file has another format than its name or place says, or contradicts its format. */
  | 'damaged'
  /** Valid, but not implemented, or not in this combination. */
  | 'unsupported'
  /** A number exceeds a limit of Refrain, of the model or of a given budget. */
  | 'over_limit'
  /** The system or the engine's memory limit gives too little memory. */
  | 'out_of_memory'
  /** Two things do not belong together, such as a model and a draft model with another vocabulary. */
  | 'mismatch'
  /** An argument or an option is outside its range. Nothing has changed. */
  | 'invalid_argument'
  /** The tokens do not fit the context. */
  | 'context_full'
  /** The job was cancelled. */
  | 'cancelled'
  /** The call is not possible in this state, such as a task about notes without notes. */
  | 'wrong_state'
  /** The mask of a grammar, or an embedding model, failed. */
  | 'processor'
  /** No token can be chosen: options and grammar forbid every one. */
  | 'no_token'
  /** The object was closed. */
  | 'closed'
  /** Another thread or job uses the object. */
  | 'busy'
  /** A listener calls the library from within a call of it. Only `cancel` may be called there. */
  | 'reentrant'
  /** The object belongs to another process, of which this one is a fork. */
  | 'forked'
  /** A bug of Refrain. The object is closed. */
  | 'panicked'
  /** An earlier call has panicked, and has closed the object. */
  | 'poisoned'
  /** A listener has thrown. The job is cancelled. */
  | 'listener'
  /** The handle is 0. */
  | 'null_handle'
  /** The handle was freed. */
  | 'stale_handle'
  /** The handle was made by another copy of the library, or by nobody. */
  | 'foreign_handle'
  /** The handle is of an object of another type. */
  | 'wrong_handle'
  /** A pointer is null that must not be. */
  | 'null_pointer'
  /** A text is not UTF-8. `offset` is its first wrong byte. */
  | 'not_utf8'
  /** A text is not the JSON that the call takes. `offset` is the place. */
  | 'not_json'
  /** No passage of the notes covers enough of the question. */
  | 'not_in_notes'
  /** There is nothing to work on: no text, or no passage. */
  | 'nothing'
  /** Another process or object uses the folder. */
  | 'in_use';

/** An event of a job. `Done` or `Failed` is the last one. */
export type Event =
  /** Work before the first text. Of several that were not taken, the newest one stays. */
  | {
      type: 'progress';
      /** What is done. */
      stage: Stage;
      /** Bytes, tokens or files that are done. */
      done: number;
      /** All of them. */
      total: number;
    }
  /** The notes were searched. */
  | {
      type: 'searched';
      /** The words, those of the request first. */
      words: string[];
      /** The largest share of the request that a passage covers, 0 to 1. */
      coverage: number;
      /** The titles of passages that are near, and not shown, because none covers enough. */
      nearest: string[];
    }
  /** A piece of the output: whole characters, never empty. Pieces that came together are one if their kind and origin are the same. */
  | {
      type: 'text';
      /** The text. */
      text: string;
      /** Answer or reasoning. */
      kind: TextKind;
      /** The draft source that proposed it; `None`: decoded by the model alone. Drafts never change the text. */
      draftedBy: string | null;
    }
  /** A sentence of the answer is complete. */
  | {
      type: 'sentence';
      /** Its number, from 0. */
      index: number;
      /** Its place in the answer, with citations. */
      place: Place;
      /** Its words, without citations. */
      text: string;
    }
  /** A part of the difference between the text that is edited and the new one. */
  | {
      type: 'edit';
      /** The change. */
      change: Change;
    }
  /** A window of a long text was edited. Who cancels later may keep the new text up to `new.end`, and the old one from `old.end` on. */
  | {
      type: 'window';
      /** Its number, from 0. */
      index: number;
      /** All of them. */
      count: number;
      /** Its place in the old text. */
      old: Place;
      /** What became of it: its place in the new text. */
      new: Place;
    }
  /** A part of a long text was summarised. */
  | {
      type: 'part';
      /** Its number, from 0. */
      index: number;
      /** All of them. */
      count: number;
      /** Its summary. */
      text: string;
    }
  /** How long a task of several prompts takes still. */
  | {
      type: 'estimate';
      /** Milliseconds. */
      ms: number;
      /** Prompts. */
      prompts: number;
    }
  /** The result; nothing follows. */
  | {
      type: 'done';
      /** The result. */
      result: JobResult;
    }
  /** The job failed or was cancelled; nothing follows. */
  | {
      type: 'failed';
      /** Why. */
      error: ErrorInfo;
    };

/** Why an output ended. */
export type FinishReason =
  /** The model ended it. */
  | 'end_token'
  /** A stop text. */
  | 'stop'
  /** The maximum of tokens. */
  | 'max_tokens'
  /** The context is full. */
  | 'context_full';

/** What is to be deleted. When the deletion returns, no file has a byte of it. */
export type Forget =
  /** What was made from a note or a folder of notes, and its text in the index. The note itself stays. */
  | {
      what: 'note';
      /** The note or folder. */
      path: string;
    }
  /** A conversation. */
  | {
      what: 'conversation';
      /** Its id. */
      id: string;
    }
  /** All answers from before a time. */
  | {
      what: 'before';
      /** Seconds since 1970. */
      time: number;
    }
  /** All answers, and all notes of the index. */
  | {
      what: 'everything';
    };

/** What was deleted. */
export interface Forgotten {
  /** Answers. */
  answers: number;
  /** Summaries. */
  summaries: number;
  /** Blocks of computed prompts. */
  promptBlocks: number;
  /** Another writer has the index open, and deletes the text of the notes when it next updates the index. */
  isNotesPending: boolean;
}

/** Options of a generation or a task. Without any option of sampling, a session takes the most likely tokens, and a task also has the assistant's penalty against loops. */
export interface GenerateOptions {
  /** Maximum output tokens. Default: 512; of a task, at most a quarter of the context. */
  maxTokens?: number | null;
  /** 0, the default, takes the most likely token. */
  temperature?: number | null;
  /** Keeps the fewest most likely tokens whose probabilities reach it. Default: 1, all. */
  topP?: number | null;
  /** Keeps so many of the most likely tokens. Default: 0, all. */
  topK?: number | null;
  /** Drops tokens less likely than this times the most likely one. Default: 0. */
  minP?: number | null;
  /** Divides positive and multiplies negative logits of the newest 64 tokens. Default: 1. */
  repetitionPenalty?: number | null;
  /** The key of the random numbers, below 2⁵³, so that every reader of JSON keeps it. The same seed gives the same text, with and without drafts. Default: drawn, and told by the result. Temperature 0 uses none. */
  seed?: number | null;
  /** Texts before which the output ends. */
  stop?: string[];
  /** A JSON Schema: the output is JSON that is valid under it. Not for commands for screens, which have a grammar of their own. */
  jsonSchema?: string | null;
  /** Whether each complete sentence of the answer is an event, for reading it aloud. */
  sentences?: boolean;
  /** Who waits, of a task. Default: `interactive`. */
  priority?: Priority | null;
  /** Whether a task's answer is kept, and drafts later ones. Default: yes. */
  keep?: boolean | null;
}

/** Options of a history on disk. */
export interface HistoryOptions {
  /** The folder. It is made if it does not exist. */
  folder: string;
  /** An account of the app. Default: `default`. */
  namespace?: string | null;
  /** 32 bytes that encrypt the outputs from the beginning. The app keeps them. */
  key?: Uint8Array | number[] | null;
}

/** A passage that was found. */
export interface Hit {
  /** The note. */
  path: string;
  /** The id of the document, if it has no file. */
  document: string | null;
  /** The kind of its source, such as `note`. */
  kind: string;
  /** The title. */
  title: string;
  /** The text. */
  text: string;
  /** The first byte of the file from which the text was read. */
  fileStart: number;
  /** The byte of the file behind it. */
  fileEnd: number;
  /** The line or page. */
  locator: string | null;
  /** Seconds since 1970. */
  date: number;
  /** Tags. */
  tags: string[];
  /** Larger is better, within one search. */
  score: number;
  /** How much of the request the passage covers by words, 0 to 1. */
  coverage: number;
  /** The part that matches best. */
  snippet: string;
  /** The words of the request in the snippet. */
  matched: Place[];
}

/** The result of a job. Fields that a task does not have are empty. */
export interface JobResult {
  /** The answer, summary, reply or command, or the whole edited text. */
  text: string;
  /** The reasoning before it. */
  reasoning: string;
  /** Why the output ended; `None` of jobs without an output. */
  finish: FinishReason | null;
  /** Whether an output of the job ended at a limit of tokens. */
  isCut: boolean;
  /** The seed, given or drawn. `None` at temperature 0. */
  seed: number | null;
  /** Counts and times, of all generations of the job together. */
  stats: JobStats;
  /** The passages that the model was shown, by the numbers that the text cites. */
  sources: Source[];
  /** The parts of the text that are copied from a source. */
  copied: CopiedSpan[];
  /** The sentences, with support and citations. */
  sentences: Sentence[];
  /** What the model was not shown, though it was found or given. */
  leftOut: LeftOut[];
  /** The changes of an edit, or of a summary since the last one. */
  changes: Change[];
  /** Why an edit should not replace the old text without asking. */
  doubts: string[];
  /** The summaries of the parts of a long text. */
  parts: string[];
  /** The summary that was made of the same subject before. */
  previous: string | null;
  /** The command for a screen. */
  command: UiCommand | null;
  /** The turns of a conversation that were left out, because it no longer fits the context. */
  dropped: Turn[];
  /** What an update of notes has done. */
  update: UpdateReport | null;
  /** Prompt tokens that a prefetch has kept. */
  keptTokens: number | null;
  /** Why the answer was not kept, though it should be. */
  notKept: string | null;
}

/** Counts and times. */
export interface JobStats {
  /** Tokens of the prompts. */
  promptTokens: number;
  /** Those that were computed already. */
  cachedTokens: number;
  /** Output tokens. */
  tokens: number;
  /** Passes of the model for them. */
  steps: number;
  /** Microseconds for the prompts. */
  prefillUs: number;
  /** Microseconds for the output. */
  decodeUs: number;
  /** Microseconds that drafts have saved, about; negative: lost. */
  savedUs: number;
}

/** Element type of the KV cache. Changes the output. */
export type KvType =
  /** 32 bits. */
  | 'f32'
  /** 16 bits, the default. */
  | 'f16'
  /** 8.5 bits. */
  | 'q8_0'
  /** 4.5 bits. */
  | 'q4_0';

/** Text that the model was not shown. */
export interface LeftOut {
  /** The title of its passage. */
  title: string;
  /** The note. */
  path: string | null;
  /** Its tokens, about. */
  tokens: number;
}

/** The length of a reply. */
export type Length =
  /** One or two sentences. */
  | 'short'
  /** A paragraph. */
  | 'medium'
  /** Several paragraphs. */
  | 'long';

/** The memory of a model with one session, before it is loaded. */
export interface MemoryEstimate {
  /** The weights and the tokenizer, and the draft model with its state. */
  modelBytes: number;
  /** The session: KV cache, activations, draft sources. */
  sessionBytes: number;
  /** All of it. */
  totalBytes: number;
  /** Whether the system has so much now; `None`: it does not say. */
  fits: boolean | null;
}

/** How short of memory the system is. */
export type MemoryPressure =
  /** Not short. */
  | 'normal'
  /** Sessions give back buffers. */
  | 'warning'
  /** Sessions that wait also give back their keys and values, and compute them again when they go on. */
  | 'critical';

/** A turn of a session. */
export interface Message {
  /** The author. */
  role: Role;
  /** The text. It cannot forge control tokens. */
  content: string;
}

/** A file of the index, or a document without a file. */
export interface NoteFile {
  /** The file. */
  path: string;
  /** The id of the document, if it has no file. */
  document: string | null;
  /** Its length in bytes. */
  bytes: number;
  /** Its last change, in seconds since 1970. */
  modified: number;
  /** Its passages. */
  passages: number;
}

/** Conditions on passages of notes. A passage meets all of them. */
export interface NoteFilter {
  /** Of `note`, `mail`, `chat`, `screen`, `event`, `document`, `data` and `code`; empty: all. */
  kinds?: string[];
  /** Files, or folders with everything below them; empty: all. */
  folders?: string[];
  /** The earliest date, in seconds since 1970. */
  since?: number | null;
  /** The latest date, in seconds since 1970. */
  until?: number | null;
  /** A passage has one of these tags; empty: all. */
  tags?: string[];
}

/** Options of an index of notes. */
export interface NotesOptions {
  /** The folder of the index. Writing makes it, readable by its owner only. */
  folder: string;
  /** Codes of the notes' languages, such as `en`; empty: all, detected for each note. Stored with the index; default: the stored ones. */
  languages?: string[] | null;
  /** An embedding model, whose vectors are stored and searched. */
  embedder?: string | null;
  /** 32 bytes that encrypt the index from its beginning. The app keeps them. */
  key?: Uint8Array | number[] | null;
  /** The units of places in snippets. Default: `utf16`. */
  units?: Units | null;
}

/** A piece of text that is shown to the model. */
export interface Passage {
  /** A title; may be empty. */
  title?: string;
  /** The text. */
  text?: string;
  /** The note that it is of, so that deletions find what is made from it. */
  note?: string | null;
}

/** A place in a text, in the engine's `Units`. */
export interface Place {
  /** The first unit. */
  start: number;
  /** The unit behind the last one. */
  end: number;
}

/** Where the device's power comes from. */
export type PowerState =
  /** The mains. */
  | 'mains'
  /** The battery. */
  | 'battery'
  /** The battery, and the user saves it. */
  | 'saver';

/** Who waits for a task of an assistant. Sessions take no turns by priority. */
export type Priority =
  /** The app's own user, if the app also serves other programs. */
  | 'foreground'
  /** A person; the default. */
  | 'interactive'
  /** Nobody: it gives way to all others. */
  | 'background';

/** Documents to put and remove in one step: other readers see all of it or nothing. */
export interface PutRequest {
  /** Each takes the place of an earlier one with its id. */
  documents?: Document[];
  /** Ids of documents to remove. */
  remove?: string[];
  /** A text of the app, up to 4,096 bytes, that is stored in the same step. */
  cursor?: string | null;
}

/** Block format of the weights in memory. Changes the output. */
export type Quantize =
  /** As in the file. */
  | 'keep'
  /** 32 bits. */
  | 'f32'
  /** 8.5 bits. */
  | 'q8_0'
  /** 4.5 bits. */
  | 'q4_0';

/** The author of a turn. */
export type Role =
  /** The app. */
  | 'system'
  /** The app, for models that tell it from the system. */
  | 'developer'
  /** The user. */
  | 'user'
  /** The model. */
  | 'assistant'
  /** A tool. */
  | 'tool';

/** A search. */
export interface SearchRequest {
  /** Words in any form. */
  text?: string;
  /** Maximum hits. Default: 5. */
  limit?: number | null;
  /** The notes to search. Default: all. */
  filter?: NoteFilter | null;
  /** Earlier texts of the conversation, newest first: their words count less. */
  earlier?: string[];
}

/** A sentence of the text. */
export interface Sentence {
  /** Its place in the text, with citations. */
  place: Place;
  /** The number of the source that supports it. */
  source: number | null;
  /** Whether it claims something that no source supports: an app marks it. */
  isUnsupported: boolean;
  /** Its citations. */
  citations: Citation[];
}

/** Counts and sizes of a session. */
export interface SessionInfo {
  /** Tokens of prompt and output. */
  tokens: number;
  /** Those whose keys and values are computed. */
  cachedTokens: number;
  /** Maximum tokens. */
  contextLen: number;
  /** Bytes of the KV cache and the draft sources. */
  memoryBytes: number;
}

/** Options of a session, and of the sessions of an assistant. */
export interface SessionOptions {
  /** Maximum tokens of prompt and output together. Default: the model's trained length, at most 4,096. */
  contextLen?: number | null;
  /** Element type of the KV cache. Default: `f16`. */
  kvType?: KvType | null;
  /** What the session drafts from. Default: `auto`. */
  drafting?: Drafting | null;
  /** An account of the app: drafts, kept answers and computed prompts of one namespace never reach another. Default: `default`. */
  namespace?: string | null;
  /** A system turn before every prompt. */
  system?: string | null;
  /** Whether outputs draft later ones of the namespace. Default: yes; in memory, if there is neither a `History` nor a store. */
  history?: boolean | null;
}

/** A file or folder that was skipped. */
export interface Skipped {
  /** The file or folder. */
  path: string;
  /** Why. */
  reason: string;
}

/** A passage that the model was shown. */
export interface Source {
  /** The number that the text cites, from 1. */
  number: number;
  /** The title; may be empty. */
  title: string;
  /** The note; `None` for the app's own text. */
  path: string | null;
  /** The id of the document, if it has no file. */
  document: string | null;
  /** The line or page, such as `line 12`. */
  locator: string | null;
  /** The passage, as it was shown. */
  text: string;
  /** Whether a citation names it and holds. */
  isCited: boolean;
  /** The sentences that it supports, by their index. */
  supports: number[];
}

/** What a job does before its first text. */
export type Stage =
  /** Reads a model; counts bytes. */
  | 'load'
  /** Computes a prompt; counts tokens. */
  | 'prefill'
  /** Reads notes; counts files. */
  | 'index';

/** What was done before the process is suspended. */
export interface SuspendReport {
  /** Jobs that were cancelled. */
  cancelled: number;
  /** Jobs that had not ended in time. They end when the process goes on. */
  running: number;
}

/** A task of an assistant. */
export type TaskRequest =
  /** Answers a question from notes, with citations: `text`, `sources`, `copied`, `sentences`, `leftOut`. */
  | {
      task: 'ask';
      /** The question. */
      question?: string;
      /** The notes to search. Default: all. */
      filter?: NoteFilter | null;
      /** Maximum passages to show. Default: that of the assistant. */
      nPassages?: number | null;
      /** Passages to show in place of a search, best first. */
      passages?: Passage[] | null;
      /** Earlier questions of the conversation, newest first: the search looks for their words too. */
      earlier?: string[];
      /** The least share of the question that a passage must cover. Default: that of the assistant. */
      coverageMin?: number | null;
    }
  /** Summarises texts, notes or what a query finds: `text`, `parts`, `previous`, `changes`, `leftOut`. */
  | {
      task: 'summarize';
      /** Texts of any length. */
      texts?: Passage[];
      /** Files and folders of the index. */
      notes?: string[];
      /** The passages that match it best. */
      query?: string | null;
      /** How to summarise, such as `In two sentences.` */
      request?: string;
      /** Names texts that are of no note, so that the summary is compared with the last one of the same id. */
      id?: string | null;
      /** The notes to search for a query. Default: all. */
      filter?: NoteFilter | null;
    }
  /** Replies to a message: `text`, `sources`, `copied`, `sentences`. */
  | {
      task: 'reply';
      /** The message. */
      message?: Passage;
      /** Earlier messages of the thread, newest first. */
      earlier?: Passage[];
      /** The user's wish, such as `Accept, but on Tuesday.` */
      request?: string;
      /** The tone, such as `friendly`. */
      tone?: string | null;
      /** The length. */
      length?: Length | null;
      /** Passages that help, best first. */
      passages?: Passage[];
      /** Passages of the notes to show behind them. Default: 0. */
      nPassages?: number | null;
      /** The notes to search. Default: all. */
      filter?: NoteFilter | null;
    }
  /** Edits a text: `text`, `changes`, `doubts`, and live `Edit` events. */
  | {
      task: 'edit';
      /** The text. */
      text?: string;
      /** What is to be changed. */
      instruction?: string;
      /** The note that the text is of, so that deletions find what is made from it. */
      note?: string | null;
      /** A place in the text. */
      selection?: Place | null;
      /** The first and the last line, from 1. */
      lines?: number[] | null;
      /** The words of a heading. */
      section?: string | null;
    }
  /** Chooses the next command on a screen: `command`, and `text` as the command is written. */
  | {
      task: 'ui';
      /** Accessibility XML, a dump of a known tool, or a line per element such as `4 button "Sign in"`. Its ids are kept. */
      screen?: string;
      /** What the user wants. */
      goal?: string;
      /** The steps before, oldest first. */
      steps?: UiStep[];
      /** What the agent may do, as JSON: `commands`, `keys`, `apps`, and the app's own `actions`. */
      actions?: string | null;
      /** The most earlier screens that the prompt shows. Default: 2. */
      nScreens?: number | null;
    }
  /** Computes the prompt of a question in the background, and keeps it in the store: `keptTokens`. */
  | {
      task: 'prefetch_ask';
      /** The question. */
      question?: string;
      /** The notes to search. Default: all. */
      filter?: NoteFilter | null;
      /** Maximum passages to show. Default: that of the assistant. */
      nPassages?: number | null;
      /** Passages to show in place of a search, best first. */
      passages?: Passage[] | null;
      /** Earlier questions of the conversation, newest first: the search looks for their words too. */
      earlier?: string[];
      /** The least share of the question that a passage must cover. Default: that of the assistant. */
      coverageMin?: number | null;
    }
  /** The same of a summary. */
  | {
      task: 'prefetch_summarize';
      /** Texts of any length. */
      texts?: Passage[];
      /** Files and folders of the index. */
      notes?: string[];
      /** The passages that match it best. */
      query?: string | null;
      /** How to summarise, such as `In two sentences.` */
      request?: string;
      /** Names texts that are of no note, so that the summary is compared with the last one of the same id. */
      id?: string | null;
      /** The notes to search for a query. Default: all. */
      filter?: NoteFilter | null;
    }
  /** The same of a reply. */
  | {
      task: 'prefetch_reply';
      /** The message. */
      message?: Passage;
      /** Earlier messages of the thread, newest first. */
      earlier?: Passage[];
      /** The user's wish, such as `Accept, but on Tuesday.` */
      request?: string;
      /** The tone, such as `friendly`. */
      tone?: string | null;
      /** The length. */
      length?: Length | null;
      /** Passages that help, best first. */
      passages?: Passage[];
      /** Passages of the notes to show behind them. Default: 0. */
      nPassages?: number | null;
      /** The notes to search. Default: all. */
      filter?: NoteFilter | null;
    };

/** The kind of a text. */
export type TextKind =
  /** The answer. */
  | 'answer'
  /** The reasoning before it. */
  | 'reasoning';

/** Heat of the device, as iOS (`ProcessInfo.ThermalState`) names it. */
export type ThermalState =
  /** Cool. */
  | 'nominal'
  /** Warm. */
  | 'fair'
  /** Hot: steps draft less. */
  | 'serious'
  /** Too hot: steps do not draft. */
  | 'critical';

/** A turn of a conversation, as an app stores it to continue later. */
export interface Turn {
  /** The author. */
  role: Role;
  /** The text. */
  content: string;
  /** The notes that it shows, so that deletions find it. */
  notes: string[];
  /** The user's words, if the text has more. */
  asked: string | null;
  /** Whether the conversation may be kept with it. Default: yes. */
  keep: boolean;
}

/** A command for a screen. */
export interface UiCommand {
  /** `tap`, `long_press`, `type`, `swipe`, `scroll`, `back`, `key`, `open`, `wait`, `ask`, `done`, `none` or `own`. */
  kind: string;
  /** The id of the element. */
  element: string | null;
  /** The text to type, or the question. */
  text: string | null;
  /** `up`, `down`, `left` or `right`. */
  direction: string | null;
  /** The key, the app, or the app's own action. */
  name: string | null;
  /** The arguments of the app's own action, as a JSON object. */
  arguments: string | null;
}

/** A step of a task on screens. */
export interface UiStep {
  /** The screen before it, if it is known. */
  screen?: string | null;
  /** The command, as the result's `text` has it. */
  command?: string;
}

/** The units of places in texts (`Place`): those of the language's strings. */
export type Units =
  /** Bytes, for C and for Swift's `String.UTF8View`; the default. */
  | 'utf8'
  /** Code units of 16 bits, for Kotlin, Java, JavaScript and `NSString`. */
  | 'utf16';

/** What an update of notes, or forgetting, has done. */
export interface UpdateReport {
  /** Files that are new in the index. */
  added: number;
  /** Files whose contents had changed. */
  changed: number;
  /** Files that were the same. */
  unchanged: number;
  /** Files whose passages were removed. */
  removed: number;
  /** Passages written. */
  passages: number;
  /** Files and folders that were skipped and should not be, with the reason. */
  skipped: Skipped[];
  /** Whether the job was cancelled before all files were read. The next update goes on. */
  isIncomplete: boolean;
}

/** The codes of errors by kind: the same numbers in every language. */
export const ERROR_CODES = {
  /** The system failed: a disk, a permission, a thread. */
  io: 1,
  /** A file, or a part of a model, does not exist. */
  not_found: 2,
  /** A file has another format than its name or place says, or contradicts its format. */
  damaged: 3,
  /** Valid, but not implemented, or not in this combination. */
  unsupported: 4,
  /** A number exceeds a limit of Refrain, of the model or of a given budget. */
  over_limit: 5,
  /** The system or the engine's memory limit gives too little memory. */
  out_of_memory: 6,
  /** Two things do not belong together, such as a model and a draft model with another vocabulary. */
  mismatch: 7,
  /** An argument or an option is outside its range. Nothing has changed. */
  invalid_argument: 8,
  /** The tokens do not fit the context. */
  context_full: 9,
  /** The job was cancelled. */
  cancelled: 10,
  /** The call is not possible in this state, such as a task about notes without notes. */
  wrong_state: 11,
  /** The mask of a grammar, or an embedding model, failed. */
  processor: 12,
  /** No token can be chosen: options and grammar forbid every one. */
  no_token: 13,
  /** The object was closed. */
  closed: 32,
  /** Another thread or job uses the object. */
  busy: 33,
  /** A listener calls the library from within a call of it. Only `cancel` may be called there. */
  reentrant: 34,
  /** The object belongs to another process, of which this one is a fork. */
  forked: 35,
  /** A bug of Refrain. The object is closed. */
  panicked: 36,
  /** An earlier call has panicked, and has closed the object. */
  poisoned: 37,
  /** A listener has thrown. The job is cancelled. */
  listener: 38,
  /** The handle is 0. */
  null_handle: 40,
  /** The handle was freed. */
  stale_handle: 41,
  /** The handle was made by another copy of the library, or by nobody. */
  foreign_handle: 42,
  /** The handle is of an object of another type. */
  wrong_handle: 43,
  /** A pointer is null that must not be. */
  null_pointer: 44,
  /** A text is not UTF-8. `offset` is its first wrong byte. */
  not_utf8: 45,
  /** A text is not the JSON that the call takes. `offset` is the place. */
  not_json: 46,
  /** No passage of the notes covers enough of the question. */
  not_in_notes: 64,
  /** There is nothing to work on: no text, or no passage. */
  nothing: 65,
  /** Another process or object uses the folder. */
  in_use: 66,
} as const;
