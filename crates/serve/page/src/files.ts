// Text files that a person attaches to a message.

import { el, fill, newId, number } from "./dom";
import type { TextFile } from "./store";

const FILES_MAX = 8;
const FILE_BYTES_MAX = 256 << 10;
export const FILES_HINT = `Text files, at most ${FILE_BYTES_MAX >> 10} KB each and ${FILES_MAX} in a message. The model sees as much as fits its context.`;

/** Files of the message that is being written. */
export class Attached {
  private files: TextFile[] = [];
  private readonly list = el("ul", { class: "chips", "aria-label": "Attached files" });
  private readonly problem = el("p", { class: "error", role: "alert" });
  private readonly input = el("input", { type: "file", multiple: true, hidden: true, tabindex: -1, "aria-label": "Attach text files" });
  readonly button = el("button", { type: "button", class: "quiet", "aria-label": "Attach files", title: FILES_HINT, click: () => this.input.click() }, "Files");
  readonly element = el("div", { class: "attached" }, this.list, this.problem, this.input);

  constructor(private readonly onChange: () => void) {
    this.input.addEventListener("change", () => {
      void this.add([...(this.input.files ?? [])]);
      this.input.value = "";
    });
    this.show();
  }

  get count(): number {
    return this.files.length;
  }

  /** Takes files that are small enough and text; says which are not. */
  async add(files: readonly File[]): Promise<void> {
    const problems: string[] = [];
    for (const file of files) {
      if (this.files.length === FILES_MAX) {
        problems.push(`A message has at most ${FILES_MAX} files.`);
        break;
      }
      if (file.size > FILE_BYTES_MAX) {
        problems.push(`${file.name} has ${number(file.size / 1024)} KB: at most ${FILE_BYTES_MAX >> 10} KB can be attached.`);
        continue;
      }
      try {
        const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
        if (text.includes("\0")) throw new TypeError();
        this.files.push({ name: file.name, text });
      } catch {
        problems.push(`${file.name} is not a text in UTF-8.`);
      }
    }
    this.problem.textContent = problems.join(" ");
    this.show();
  }

  /** The files, which the message takes with it. */
  take(): TextFile[] {
    const taken = this.files;
    this.files = [];
    this.problem.textContent = "";
    this.show();
    return taken;
  }

  private show(): void {
    fill(
      this.list,
      ...this.files.map((file) =>
        el(
          "li",
          {},
          file.name,
          el("button", {
            type: "button",
            class: "icon",
            "aria-label": `Do not attach ${file.name}`,
            click: () => {
              this.files = this.files.filter((other) => other !== file);
              this.show();
              this.button.focus();
            },
          }, "✕"),
        ),
      ),
    );
    this.list.hidden = this.files.length === 0;
    this.onChange();
  }
}

/** The files of a message that was sent. */
export function fileList(files: readonly TextFile[]): HTMLElement | null {
  if (files.length === 0) return null;
  return el(
    "div",
    { class: "files" },
    ...files.map(({ name, text }) => {
      const id = newId();
      return el("details", {}, el("summary", { id }, name), el("pre", { tabindex: 0, role: "group", "aria-labelledby": id }, text));
    }),
  );
}

/** A message as the model sees it: its files, then its words. */
export function withFiles(asked: string, files: readonly TextFile[]): string {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, asked].filter((part) => part !== "").join("\n\n");
}
