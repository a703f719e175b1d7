import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { RefrainError } from './errors';

/** The native half (`src/`): options and results are JSON. */
export interface Native {
  Engine: { open(options: string, onEvents?: (batch: string) => void): Promise<NativeEngine> };
  Notes: { open(options: string): Promise<NativeNotes> };
  libraryVersion(): string;
  documentPath(id: string): string;
  estimateMemory(engine: string, session: string): Promise<string>;
}

export interface NativeEngine {
  info(): Promise<string>;
  session(options: string, history?: NativeHistory): Promise<NativeSession>;
  history(options: string): Promise<NativeHistory>;
  assistant(options: string): Promise<NativeAssistant>;
  forgetOutputs(namespace: string): Promise<void>;
  setDeviceState(state: string): Promise<void>;
  prepareToSuspend(maxWaitMs: number): Promise<string>;
  close(): void;
}

export interface NativeHistory {
  forget(): Promise<void>;
  maintain(): Promise<void>;
  close(): void;
}

export interface NativeSession {
  append(message: string): Promise<void>;
  appendText(text: string): Promise<void>;
  pop(): Promise<string>;
  messages(): Promise<string>;
  info(): Promise<string>;
  generate(options: string): Promise<NativeJob>;
  prefill(): Promise<NativeJob>;
  close(): void;
}

export interface NativeAssistant {
  start(request: string, options: string): Promise<NativeJob>;
  conversation(id: string, turns: string): Promise<NativeConversation>;
  forget(what: string): Promise<string>;
  refreshNotes(): Promise<void>;
  close(): void;
}

export interface NativeConversation {
  say(request: string, options: string): Promise<NativeJob>;
  id(): string;
  turns(): Promise<string>;
  close(): void;
}

export interface NativeNotes {
  add(paths: string): Promise<NativeJob>;
  update(): Promise<NativeJob>;
  forget(paths: string): Promise<NativeJob>;
  put(request: string): Promise<number>;
  search(request: string): Promise<string>;
  documentsSince(change: string): Promise<string>;
  cursor(): Promise<string>;
  files(): Promise<string>;
  refresh(): Promise<void>;
  close(): void;
}

export interface NativeJob {
  next(): Promise<string>;
  cancel(): void;
  close(): void;
}

/** The platform, as the packages with prebuilt libraries are named: `linux-x64-gnu`, `darwin-arm64`, `win32-x64-msvc`. */
function platform(): string {
  const { platform, arch } = process;
  if (platform === 'linux') {
    // A program with musl names no version of glibc. (Names of network hosts would take long.)
    const report = process.report as typeof process.report & { excludeNetwork?: boolean };
    report.excludeNetwork = true;
    const { header } = report.getReport() as unknown as { header: { glibcVersionRuntime?: string } };
    return `linux-${arch}-${header.glibcVersionRuntime === undefined ? 'musl' : 'gnu'}`;
  }
  return platform === 'win32' ? `win32-${arch}-msvc` : `${platform}-${arch}`;
}

/** The library that `REFRAIN_NODE_LIBRARY` names, a local build, or the package of the platform. */
function load(): Native {
  const named = process.env.REFRAIN_NODE_LIBRARY;
  const local = join(__dirname, '..', 'refrain.node');
  const file = named ?? (existsSync(local) ? local : `@refrain-rs/node-${platform()}`);
  try {
    return require(file) as Native;
  } catch (error) {
    const message =
      file.startsWith('@') && (error as { code?: unknown }).code === 'MODULE_NOT_FOUND'
        ? `the package ${file} is not installed: it is an optional dependency, which npm leaves out with --omit=optional, or there is none for this platform`
        : `${file} cannot be loaded: ${(error as Error).message}`;
    throw new RefrainError({ kind: 'unsupported', message, file }, error);
  }
}

export const native = load();
