// What the server sends. Offsets and ranges are in UTF-16 code units of the text that they belong to.

export type Range = [start: number, end: number];

export interface Status {
  version: string;
  model: string;
  context_len: number;
  max_tokens: number;
  has_chat_template: boolean;
  /** Null without notes. */
  notes: { n_passages: number } | null;
  has_store: boolean;
}

export interface Prefill {
  done: number;
  total: number;
}

/** A piece of the output, with the totals after it. */
export interface Piece {
  text: string;
  /** The name of the draft source; null for the target's own token. */
  origin: string | null;
  is_reasoning: boolean;
  /** Microseconds since the decoding began. */
  us: number;
  n_tokens: number;
  n_steps: number;
  /** Pieces of a kept answer that were joined to this one. */
  n_joined?: number;
}

export interface Stats {
  prompt_tokens: number;
  cached_tokens: number;
  tokens: number;
  steps: number;
  prefill_us: number;
  decode_us: number;
}

export interface PassageInfo {
  /** The id under which the server opens the source. */
  id: string;
  title: string;
  file: string;
  /** The line or page on which it begins, such as `line 12`. */
  locator: string | null;
  n_words_copied: number;
}

export interface Copied {
  output: Range;
  passage: number;
  place: Range;
  is_exact: boolean;
}

export type SupportKind = "copied" | "words" | "none" | "too_short";

export interface Sentence {
  text: Range;
  support: SupportKind;
  /** The passage that supports it; null if none does. */
  passage: number | null;
  citations: { text: Range; number: number; verdict: "supports" | "not_shown" | "does_not_support" | "too_short" }[];
}

/** A call of a tool. */
export interface Call {
  name: string;
  arguments: string;
}

export interface Ended {
  text: string;
  /** Whether the text was cut at the limit of tokens. */
  is_cut: boolean;
  stats: Stats;
  /** Why the answer was not kept; null if it was, or if that was not asked for. */
  not_kept: string | null;
}

export interface Answered extends Ended {
  /** The words that the notes were searched for. */
  searched: string;
  /** Whether the notes do not cover the question: the passages are the nearest ones, and no model has run. */
  is_not_in_notes: boolean;
  passages: PassageInfo[];
  copied: Copied[];
  sentences: Sentence[];
  left_out: { title: string; file: string; n_tokens: number; is_rest: boolean }[];
}

export type Change = { kind: "keep"; n: number } | { kind: "delete"; n: number } | { kind: "insert"; text: string };

/** An event of a stream. */
export type StreamEvent<Result> =
  | { kind: "prefill"; data: Prefill }
  | { kind: "text"; data: Piece }
  | { kind: "change"; data: Change }
  | { kind: "calls"; data: Call[] }
  | { kind: "done"; data: Result }
  | { kind: "error"; data: { message: string } };

export interface Source {
  title: string;
  file: string;
  locator: string | null;
  /** Whether the note still has the passage; otherwise the text is the passage as it was shown. */
  is_current: boolean;
  sections: { title: string; text: string }[];
  /** The passage's section. It begins with the passage, which has this length. */
  section: number;
  len: number;
}

export interface Entry {
  id: number;
  kind: "answer" | "edit";
  /** Milliseconds since 1970, UTC. */
  at_ms: number;
  request: string;
  text: string;
  tokens: number;
  steps: number;
  is_kept: boolean;
  notes: { id: string; title: string; file: string }[];
}

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

/** A request to write the next turn of a conversation, or to continue the last one. */
export interface ChatRequest {
  messages: Message[];
  documents?: { title: string; text: string }[];
  continue_final_message: boolean;
  add_generation_prompt: boolean;
  max_tokens: number;
  temperature: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  seed?: number;
  drafts: boolean;
}

/** A chunk of `/v1/chat/completions`, as far as the page reads it. */
export interface Chunk {
  error?: { message: string };
  prompt_progress?: { total: number; processed: number };
  choices?: {
    delta: {
      content?: string;
      reasoning_content?: string;
      origin?: string;
      tool_calls?: { index: number; function: { name?: string; arguments: string } }[];
    };
    finish_reason: "stop" | "length" | "tool_calls" | null;
  }[];
  usage?: { prompt_tokens: number; completion_tokens: number } | null;
  timings?: { cache_n: number; prompt_ms: number; predicted_ms: number; n_steps: number };
}

export interface History {
  entries: Entry[];
}

/** A note has its file's name too: conversations of this browser are found by it. */
export type Forget = { what: "note"; id: string; file: string } | { what: "before"; at_ms: number } | { what: "everything" };

export interface Forgotten {
  n_answers: number;
  n_summaries: number;
  n_prefix_blocks: number;
  is_notes_pending: boolean;
}
