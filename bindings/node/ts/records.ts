export type Quantize = 'keep' | 'f32' | 'q8_0' | 'q4_0';
export type KvType = 'f32' | 'f16' | 'q8_0' | 'q4_0';
export type Drafting = 'auto' | 'draft_model' | 'off';
export type Role = 'system' | 'developer' | 'user' | 'assistant' | 'tool';
export type ThermalState = 'nominal' | 'fair' | 'serious' | 'critical';
export type MemoryPressure = 'normal' | 'warning' | 'critical';
export type PowerState = 'mains' | 'battery' | 'saver';
export type Priority = 'foreground' | 'interactive' | 'background';
export type Units = 'utf8' | 'utf16';
export interface EngineOptions {
  path: string;
  threads?: number | null;
  memoryLimitBytes?: number | null;
  quantize?: Quantize | null;
  draftModel?: string | null;
  measureMs?: number | null;
  units?: Units | null;
}
export interface SessionOptions {
  contextLen?: number | null;
  kvType?: KvType | null;
  drafting?: Drafting | null;
  namespace?: string | null;
  system?: string | null;
  history?: boolean | null;
}
export interface GenerateOptions {
  maxTokens?: number | null;
  temperature?: number | null;
  topP?: number | null;
  topK?: number | null;
  minP?: number | null;
  repetitionPenalty?: number | null;
  seed?: number | null;
  stop?: string[];
  jsonSchema?: string | null;
  sentences?: boolean;
  priority?: Priority | null;
  keep?: boolean | null;
}
export interface HistoryOptions {
  folder: string;
  namespace?: string | null;
  key?: Uint8Array | number[] | null;
}
export interface DeviceState {
  thermal?: ThermalState | null;
  memory?: MemoryPressure | null;
  power?: PowerState | null;
}
export interface Message {
  role: Role;
  content: string;
}
export type Event = { type: 'progress'; stage: Stage; done: number; total: number; } | { type: 'searched'; words: string[]; coverage: number; nearest: string[]; } | { type: 'text'; text: string; kind: TextKind; draftedBy: string | null; } | { type: 'sentence'; index: number; place: Place; text: string; } | { type: 'edit'; change: Change; } | { type: 'window'; index: number; count: number; old: Place; new: Place; } | { type: 'part'; index: number; count: number; text: string; } | { type: 'estimate'; ms: number; prompts: number; } | { type: 'done'; result: JobResult; } | { type: 'failed'; error: ErrorInfo; };
export type Stage = 'load' | 'prefill' | 'index';
export type TextKind = 'answer' | 'reasoning';
export type FinishReason = 'end_token' | 'stop' | 'max_tokens' | 'context_full';
export interface Place {
  start: number;
  end: number;
}
export type ChangeKind = 'keep' | 'insert' | 'delete';
export interface Change {
  kind: ChangeKind;
  old: Place;
  new: Place;
}
export interface JobResult {
  text: string;
  reasoning: string;
  finish: FinishReason | null;
  isCut: boolean;
  seed: number | null;
  stats: JobStats;
  sources: Source[];
  copied: CopiedSpan[];
  sentences: Sentence[];
  leftOut: LeftOut[];
  changes: Change[];
  doubts: string[];
  parts: string[];
  previous: string | null;
  command: UiCommand | null;
  dropped: Turn[];
  update: UpdateReport | null;
  keptTokens: number | null;
  notKept: string | null;
}
export interface JobStats {
  promptTokens: number;
  cachedTokens: number;
  tokens: number;
  steps: number;
  prefillUs: number;
  decodeUs: number;
  savedUs: number;
}
export interface Source {
  number: number;
  title: string;
  path: string | null;
  document: string | null;
  locator: string | null;
  text: string;
  isCited: boolean;
  supports: number[];
}
export interface CopiedSpan {
  place: Place;
  source: number;
  sourcePlace: Place;
}
export interface Sentence {
  place: Place;
  source: number | null;
  isUnsupported: boolean;
  citations: Citation[];
}
export interface Citation {
  place: Place;
  number: number;
  holds: boolean | null;
}
export interface LeftOut {
  title: string;
  path: string | null;
  tokens: number;
}
export interface UiCommand {
  kind: string;
  element: string | null;
  text: string | null;
  direction: string | null;
  name: string | null;
  arguments: string | null;
}
export interface Turn {
  role: Role;
  content: string;
  notes: string[];
  asked: string | null;
  keep: boolean;
}
export interface UpdateReport {
  added: number;
  changed: number;
  unchanged: number;
  removed: number;
  passages: number;
  skipped: Skipped[];
  isIncomplete: boolean;
}
export interface Skipped {
  path: string;
  reason: string;
}
export interface EngineInfo {
  architecture: string;
  layers: number;
  contextLen: number;
  vocabSize: number;
  threads: number;
  memoryBytes: number;
  hasChatTemplate: boolean;
  instructionSet: string;
}
export interface MemoryEstimate {
  modelBytes: number;
  sessionBytes: number;
  totalBytes: number;
  fits: boolean | null;
}
export interface SuspendReport {
  cancelled: number;
  running: number;
}
export interface SessionInfo {
  tokens: number;
  cachedTokens: number;
  contextLen: number;
  memoryBytes: number;
}
export interface AssistantOptions {
  notes?: string | null;
  embedder?: string | null;
  store?: string | null;
  key?: Uint8Array | number[] | null;
  session?: SessionOptions | null;
  maxTokens?: number | null;
  nPassages?: number | null;
  coverageMin?: number | null;
}
export interface NoteFilter {
  kinds?: string[];
  folders?: string[];
  since?: number | null;
  until?: number | null;
  tags?: string[];
}
export interface Passage {
  title?: string;
  text?: string;
  note?: string | null;
}
export type TaskRequest = { task: 'ask' } & AskRequest | { task: 'summarize' } & SummarizeRequest | { task: 'reply' } & ReplyRequest | { task: 'edit' } & EditRequest | { task: 'ui' } & UiRequest | { task: 'prefetch_ask' } & AskRequest | { task: 'prefetch_summarize' } & SummarizeRequest | { task: 'prefetch_reply' } & ReplyRequest;
export interface AskRequest {
  question?: string;
  filter?: NoteFilter | null;
  nPassages?: number | null;
  passages?: Passage[] | null;
  earlier?: string[];
  coverageMin?: number | null;
}
export interface SummarizeRequest {
  texts?: Passage[];
  notes?: string[];
  query?: string | null;
  request?: string;
  id?: string | null;
  filter?: NoteFilter | null;
}
export type Length = 'short' | 'medium' | 'long';
export interface ReplyRequest {
  message?: Passage;
  earlier?: Passage[];
  request?: string;
  tone?: string | null;
  length?: Length | null;
  passages?: Passage[];
  nPassages?: number | null;
  filter?: NoteFilter | null;
}
export interface EditRequest {
  text?: string;
  instruction?: string;
  note?: string | null;
  selection?: Place | null;
  lines?: number[] | null;
  section?: string | null;
}
export interface UiRequest {
  screen?: string;
  goal?: string;
  steps?: UiStep[];
  actions?: string | null;
  nScreens?: number | null;
}
export interface UiStep {
  screen?: string | null;
  command?: string;
}
export interface ChatRequest {
  text?: string;
  nPassages?: number | null;
  filter?: NoteFilter | null;
  passages?: Passage[] | null;
}
export type Forget = { what: 'note'; path: string; } | { what: 'conversation'; id: string; } | { what: 'before'; time: number; } | { what: 'everything' };
export interface Forgotten {
  answers: number;
  summaries: number;
  promptBlocks: number;
  isNotesPending: boolean;
}
export interface NotesOptions {
  folder: string;
  languages?: string[] | null;
  embedder?: string | null;
  key?: Uint8Array | number[] | null;
  units?: Units | null;
}
export interface SearchRequest {
  text?: string;
  limit?: number | null;
  filter?: NoteFilter | null;
  earlier?: string[];
}
export interface Hit {
  path: string;
  document: string | null;
  kind: string;
  title: string;
  text: string;
  fileStart: number;
  fileEnd: number;
  locator: string | null;
  date: number;
  tags: string[];
  score: number;
  coverage: number;
  snippet: string;
  matched: Place[];
}
export interface Document {
  id?: string;
  text?: string;
  title?: string | null;
  date?: number | null;
  tags?: string[];
  kind?: string | null;
}
export interface PutRequest {
  documents?: Document[];
  remove?: string[];
  cursor?: string | null;
}
export interface DocumentInfo {
  id: string;
  bytes: number;
  passages: number;
  change: number;
}
export interface DocumentChanges {
  change: number;
  put: DocumentInfo[];
  removed: string[];
  isComplete: boolean;
}
export interface NoteFile {
  path: string;
  document: string | null;
  bytes: number;
  modified: number;
  passages: number;
}
export interface ErrorInfo {
  code: number;
  kind: ErrorKind;
  message: string;
  file: string | null;
  field: string | null;
  offset: number | null;
  value: number | null;
  limit: number | null;
}
export type ErrorKind = 'io' | 'not_found' | 'damaged' | 'unsupported' | 'over_limit' | 'out_of_memory' | 'mismatch' | 'invalid_argument' | 'context_full' | 'cancelled' | 'wrong_state' | 'processor' | 'no_token' | 'closed' | 'busy' | 'reentrant' | 'forked' | 'panicked' | 'poisoned' | 'listener' | 'null_handle' | 'stale_handle' | 'foreign_handle' | 'wrong_handle' | 'null_pointer' | 'not_utf8' | 'not_json' | 'not_in_notes' | 'nothing' | 'in_use';
export const ERROR_CODES = {
  io: 1,
  not_found: 2,
  damaged: 3,
  unsupported: 4,
  over_limit: 5,
  out_of_memory: 6,
  mismatch: 7,
  invalid_argument: 8,
  context_full: 9,
  cancelled: 10,
  wrong_state: 11,
  processor: 12,
  no_token: 13,
  closed: 32,
  busy: 33,
  reentrant: 34,
  forked: 35,
  panicked: 36,
  poisoned: 37,
  listener: 38,
  null_handle: 40,
  stale_handle: 41,
  foreign_handle: 42,
  wrong_handle: 43,
  null_pointer: 44,
  not_utf8: 45,
  not_json: 46,
  not_in_notes: 64,
  nothing: 65,
  in_use: 66,
} as const;
