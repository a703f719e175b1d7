// The page: a question about a note goes to the worker, its answer comes back in batches.
const byId = (id) => document.getElementById(id);
const [form, button, answer, numbers] = ["form", "button", "answer", "numbers"].map(byId);
const worker = new Worker("worker.js", { type: "module" });
const call = (name, fields) => worker.postMessage({ call: name, ...fields });

let isRunning = false;

function setRunning(running) {
  isRunning = running;
  button.textContent = running ? "Stop" : "Ask";
}

function show(event) {
  if (event.type === "text") {
    const piece = document.createElement("span");
    piece.textContent = event.text;
    if (event.drafted_by !== null) piece.dataset.source = piece.title = event.drafted_by;
    answer.append(piece);
  } else if (event.type === "failed" && event.error.kind !== "cancelled") {
    showError(event.error);
  }
  if (event.type === "done" || event.type === "failed") setRunning(false);
}

function showNumbers({ tokens, steps, decode_us }) {
  if (tokens === 0) return;
  const speed = (tokens / (decode_us / 1e6)).toFixed(0);
  numbers.textContent = `${tokens} tokens in ${steps} steps, ${speed} tokens per second`;
}

function showError({ kind, message }) {
  numbers.textContent = kind === undefined ? message : `${message} (${kind})`;
  setRunning(false);
}

worker.addEventListener("message", ({ data }) => {
  if (data.type === "loading") {
    numbers.textContent = `${Math.floor((100 * data.done) / data.total)} % loaded`;
  } else if (data.type === "loaded") {
    const { start, fetch, load } = data.ms;
    const ms = (time) => `${time.toFixed(0)} ms`;
    numbers.textContent = `${data.info.isa}; module ${ms(start)}, download ${ms(fetch)}, load ${ms(load)}`;
    button.disabled = false;
  } else if (data.type === "events") {
    data.events.forEach(show);
    showNumbers(data.stats);
  } else {
    showError(data.error);
  }
});
worker.addEventListener("error", (event) => showError({ message: event.message ?? "the worker cannot be loaded: run examples/browser/build" }));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (isRunning) return call("cancel");
  answer.replaceChildren();
  setRunning(true);
  const fields = new FormData(form);
  const message = `Answer the question from the notes.\n\n# ${fields.get("title")}\n${fields.get("note")}\n\nQuestion: ${fields.get("question")}`;
  call("ask", { message, options: { max_tokens: 200 }, drafting: fields.get("drafts") ? "auto" : "off" });
});

call("load", { model: "target.gguf" });
