// Server-sent events from a response's bytes. (EventSource sends no body and no token.)

/** An event as it was sent. */
export interface RawEvent {
  name: string;
  data: string;
}

/** Maximum characters of one event: longer than any that the server sends. */
const EVENT_CHARS_MAX = 16 << 20;

/** The events of a body, as they arrive. Comments are skipped, and an event that is cut off at the end is dropped. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<RawEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const blocks = rest.split("\n\n");
      rest = blocks.pop() ?? "";
      if (rest.length > EVENT_CHARS_MAX) throw new Error("an event of the stream is too long");
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
      }
    }
  } finally {
    // Whoever stops reading ends the request, and with it the job.
    await reader.cancel().catch(() => undefined);
  }
}

function parse(block: string): RawEvent | null {
  let name = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length > 0 ? { name, data: data.join("\n") } : null;
}
