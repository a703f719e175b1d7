// Copying to the clipboard.

import { el, fill } from "./dom";
import { announce } from "./live";

/** A button that copies a text. */
export function copyButton(text: () => string, label: string): HTMLButtonElement {
  const button = el("button", { type: "button", class: "quiet copy", "aria-label": label }, "Copy");
  button.addEventListener("click", async () => {
    const isDone = await copy(text());
    fill(button, isDone ? "Done" : "Failed");
    announce(isDone ? "Copied" : "The browser does not allow copying");
    setTimeout(() => fill(button, "Copy"), 1500);
  });
  return button;
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page that came over the network without TLS has no clipboard.
  }
  const area = el("textarea", { class: "sr", "aria-hidden": "true" });
  area.value = text;
  const focused = document.activeElement as HTMLElement | null;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isDone;
}
