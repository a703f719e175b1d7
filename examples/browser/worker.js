// The engine in a worker: it computes some milliseconds at a time, and hears the page in between.
import init, { Engine } from "./pkg/refrain_wasm.js";

const BATCH_MS = 30;

let engine;
let session;

// A turn of the event loop, without the delay of timers: what the page has sent comes first.
const { port1, port2 } = new MessageChannel();
const turn = () => new Promise((resolve) => ((port1.onmessage = resolve), port2.postMessage(null)));

const calls = {
  async load({ model }) {
    const start = performance.now();
    await init();
    const started = performance.now();
    const response = await fetch(model);
    if (!response.ok) throw new Error(`${model}: ${response.status} ${response.statusText}`);
    const bytes = new Uint8Array(await response.arrayBuffer());
    const fetched = performance.now();
    engine = new Engine(bytes, undefined, (done, total) => postMessage({ type: "loading", done, total }));
    const ms = { start: started - start, fetch: fetched - started, load: performance.now() - fetched };
    postMessage({ type: "loaded", info: JSON.parse(engine.info()), ms });
  },

  async ask({ message, options, drafting }) {
    session?.free();
    session = engine.session(JSON.stringify({ drafting }));
    session.append(JSON.stringify([{ role: "user", content: message }]));
    session.start(JSON.stringify(options));
    for (;;) {
      const events = JSON.parse(session.events(BATCH_MS));
      if (events.length === 0) return;
      postMessage({ type: "events", events, stats: JSON.parse(session.stats()) });
      await turn();
    }
  },

  cancel() {
    session?.cancel();
  },
};

addEventListener("message", ({ data }) => {
  // Errors of the engine have a code and the place beside their message, which a clone of an `Error` loses.
  Promise.resolve(calls[data.call](data)).catch((error) => postMessage({ type: "error", error: { ...error, message: String(error.message ?? error) } }));
});
