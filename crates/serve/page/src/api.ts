// Requests to the server that the page came from.

import type { Answered, Call, ChatRequest, Chunk, Forget, Forgotten, History, Message, Source, Status, StreamEvent } from "./wire";
import { events } from "./sse";

const TOKEN_KEY = "refrain.token";

/** A request failed; the message is for people. */
export class RequestError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

export const token = {
  get: (): string | null => sessionStorage.getItem(TOKEN_KEY),
  set: (value: string): void => sessionStorage.setItem(TOKEN_KEY, value),
  clear: (): void => sessionStorage.removeItem(TOKEN_KEY),
};

/** Takes the token from the page's address, as the server prints it. It does not stay there: addresses are copied and written to histories. */
export function takeToken(): void {
  const address = new URL(location.href);
  const given = address.searchParams.get("token");
  if (given === null) return;
  address.searchParams.delete("token");
  window.history.replaceState(null, "", address.pathname + address.search + address.hash);
  if (given !== "") token.set(given);
}

/** Called when the server wants another token. */
let onUnauthorized: () => void = () => undefined;

export function whenUnauthorized(call: () => void): void {
  onUnauthorized = call;
}

export const status = (): Promise<Status> => get("status");
export const history = (): Promise<History> => get("history");
export const source = (id: string): Promise<Source> => get(`source/${encodeURIComponent(id)}`);

export async function forget(what: Forget): Promise<Forgotten> {
  const { file: _, ...request } = { file: "", ...what };
  const response = await send("/page/forget", request);
  return (await response.json()) as Forgotten;
}

/** The events of a job. Aborting the signal cancels the job. */
export async function* stream<Result>(
  path: "ask" | "edit",
  request: unknown,
  signal: AbortSignal,
): AsyncGenerator<StreamEvent<Result>> {
  const response = await send(`/page/${path}`, request, signal);
  if (!response.body) throw new RequestError("The server sent no text.", response.status);
  let hasEnded = false;
  for await (const { name, data } of events(response.body)) {
    const event = { kind: name, data: JSON.parse(data) } as StreamEvent<Result>;
    hasEnded ||= event.kind === "done" || event.kind === "error";
    yield event;
  }
  if (!hasEnded) throw new RequestError("The connection ended before the text was complete.", 0);
}

/** The events of a turn of a conversation: those of an answer, which has no passages. Aborting the signal cancels the request. */
export async function* chat(request: ChatRequest, signal: AbortSignal): AsyncGenerator<StreamEvent<Answered>> {
  const wanted = { stream: true, stream_options: { include_usage: true }, return_progress: true, return_origins: true };
  const response = await send("/v1/chat/completions", { ...request, ...wanted }, signal);
  if (!response.body) throw new RequestError("The server sent no text.", response.status);
  const calls: Call[] = [];
  let [text, isCut, since, nTokens, nSteps] = ["", false, 0, 0, 0];
  for await (const { data } of events(response.body)) {
    if (data === "[DONE]") break;
    const { error, prompt_progress: progress, choices, usage, timings } = JSON.parse(data) as Chunk;
    if (error) {
      yield { kind: "error", data: error };
      return;
    }
    if (progress) yield { kind: "prefill", data: { done: progress.processed, total: progress.total } };
    const choice = choices?.[0];
    const { content, reasoning_content: reasoning, origin, tool_calls: parts } = choice?.delta ?? {};
    for (const { index, function: part } of parts ?? []) {
      const call = (calls[index] ??= { name: "", arguments: "" });
      call.name += part.name ?? "";
      call.arguments += part.arguments;
    }
    if (parts) yield { kind: "calls", data: calls };
    const piece = content || reasoning;
    if (piece) {
      // Up to the end, times and counts are the page's own: a token comes alone, and each step writes one that was not drafted.
      since ||= performance.now();
      nTokens += 1;
      const isDrafted = origin !== undefined && origin !== "target";
      if (!isDrafted) nSteps += 1;
      if (content) text += content;
      const us = Math.round(1000 * (performance.now() - since));
      const data = { text: piece, origin: isDrafted ? origin : null, is_reasoning: !content, us, n_tokens: nTokens, n_steps: nSteps };
      yield { kind: "text", data };
    }
    isCut ||= choice?.finish_reason === "length";
    if (!usage) continue;
    const stats = {
      prompt_tokens: usage.prompt_tokens,
      cached_tokens: timings?.cache_n ?? 0,
      tokens: usage.completion_tokens,
      steps: timings?.n_steps ?? nSteps,
      prefill_us: 1000 * (timings?.prompt_ms ?? 0),
      decode_us: 1000 * (timings?.predicted_ms ?? performance.now() - since),
    };
    const nothing = { not_kept: null, searched: "", is_not_in_notes: false, passages: [], copied: [], sentences: [], left_out: [] };
    yield { kind: "done", data: { text, is_cut: isCut, stats, ...nothing } };
    return;
  }
  throw new RequestError("The connection ended before the text was complete.", 0);
}

/** The tokens of a prompt. */
export async function promptTokens(messages: Message[], signal: AbortSignal): Promise<number> {
  const response = await send("/v1/chat/completions/input_tokens", { messages }, signal);
  return ((await response.json()) as { input_tokens: number }).input_tokens;
}

async function get<T>(path: string): Promise<T> {
  const response = await answered(fetch(`/page/${path}`, { headers: headers(), cache: "no-store" }));
  return (await response.json()) as T;
}

function send(path: string, body: unknown, signal: AbortSignal | null = null): Promise<Response> {
  const init: RequestInit = {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
  return answered(fetch(path, init));
}

function headers(): Record<string, string> {
  const secret = token.get();
  return secret ? { authorization: `Bearer ${secret}` } : {};
}

/** The response of a request that succeeded. */
async function answered(request: Promise<Response>): Promise<Response> {
  let response: Response;
  try {
    response = await request;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new RequestError("The server cannot be reached. Is `refrain serve` still running?", 0);
  }
  if (response.ok) return response;
  if (response.status === 401) onUnauthorized();
  throw new RequestError(await problem(response), response.status);
}

/** The server's own words, or what the status says. */
async function problem(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as { error?: { message?: string } };
    const message = body.error?.message;
    if (message) return sentence(message);
  } catch {
    // Not the server's form.
  }
  return `The server answered with status ${response.status}.`;
}

/** A message as a sentence: upper case at the start, a full stop at the end. */
export function sentence(message: string): string {
  const trimmed = message.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
}

/** An error in words; null if somebody stopped the request. */
export function words(error: unknown): string | null {
  if (error instanceof DOMException && error.name === "AbortError") return null;
  return error instanceof Error ? error.message : String(error);
}
