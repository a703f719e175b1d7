// Requests to the server that the page came from.

import type { Forget, Forgotten, History, Source, Status, StreamEvent } from "./wire";
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
  const response = await send("forget", what);
  return (await response.json()) as Forgotten;
}

/** The events of a job. Aborting the signal cancels the job. */
export async function* stream<Result>(
  path: "ask" | "edit",
  request: unknown,
  signal: AbortSignal,
): AsyncGenerator<StreamEvent<Result>> {
  const response = await send(path, request, signal);
  if (!response.body) throw new RequestError("The server sent no text.", response.status);
  let hasEnded = false;
  for await (const { name, data } of events(response.body)) {
    const event = { kind: name, data: JSON.parse(data) } as StreamEvent<Result>;
    hasEnded ||= event.kind === "done" || event.kind === "error";
    yield event;
  }
  if (!hasEnded) throw new RequestError("The connection ended before the text was complete.", 0);
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
  return answered(fetch(`/page/${path}`, init));
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
