// One job at a time: its stream, its progress, and the button that stops it.

import * as api from "./api";
import { count, el } from "./dom";
import { announce } from "./live";
import type { Ended, Prefill, StreamEvent } from "./wire";

/** The progress of the running job, and its stop button. */
export class Progress {
  private readonly bar = el("progress", { "aria-label": "Progress of the prompt" });
  private readonly text = el("span");
  private phase = "";
  private readonly stopButton = el("button", { type: "button", class: "stop" }, "Stop");
  readonly element = el("div", { class: "progress" }, this.bar, this.text, this.stopButton);

  constructor(stop: () => void) {
    this.element.hidden = true;
    this.stopButton.addEventListener("click", stop);
  }

  start(): void {
    this.element.hidden = false;
    this.phase = "";
    this.bar.removeAttribute("value");
    this.say("Starting", "Starting…");
  }

  prefill({ done, total }: Prefill): void {
    this.bar.max = total;
    this.bar.value = done;
    this.say("Reading the prompt", `Reading: ${done} of ${count(total, "token")}`);
  }

  writing(nTokens: number): void {
    this.bar.removeAttribute("value");
    this.say("Writing", `Writing: ${count(nTokens, "token")}`);
  }

  end(): void {
    this.element.hidden = true;
  }

  /** Shows a text. Only a new phase is announced: the numbers would be read without end. */
  private say(phase: string, text: string): void {
    this.text.textContent = text;
    if (phase !== this.phase) announce(phase);
    this.phase = phase;
  }
}

/** Runs a job to its end. `show` takes every event but the errors. */
export async function run<Result extends Ended>(
  events: AsyncGenerator<StreamEvent<Result>>,
  progress: Progress,
  show: (event: Exclude<StreamEvent<Result>, { kind: "error" }>) => void,
): Promise<Result> {
  progress.start();
  for await (const event of events) {
    switch (event.kind) {
      case "error":
        throw new api.RequestError(api.sentence(event.data.message), 0);
      case "prefill":
        progress.prefill(event.data);
        break;
      case "text":
        progress.writing(event.data.n_tokens);
        break;
      default:
    }
    show(event);
    if (event.kind === "done") return event.data;
  }
  throw new api.RequestError("The connection ended before the text was complete.", 0);
}
