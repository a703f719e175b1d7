// Announcements for screen readers: polite, and at most one at a time in a while, because a stream has hundreds of events.

import { byId } from "./dom";

const PAUSE_MS = 1500;

let waiting: string | null = null;
let timer: number | undefined;

/** Announces a text. Of several within the pause, the last one is read. */
export function announce(text: string): void {
  waiting = text;
  if (timer === undefined) tell();
}

function tell(): void {
  if (waiting === null) {
    timer = undefined;
    return;
  }
  byId("live").textContent = waiting;
  waiting = null;
  timer = window.setTimeout(tell, PAUSE_MS);
}
