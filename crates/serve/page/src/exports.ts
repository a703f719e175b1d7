// Conversations as files.

import { el } from "./dom";
import { withFiles } from "./files";
import type { Chat } from "./store";

export function exportMarkdown(chat: Chat): void {
  const turns = chat.turns.map(({ asked, files, answer }) => {
    const passages = answer?.answered.passages ?? [];
    const sources = passages.map(({ title, file, locator }, index) => `${index + 1}. ${title || file} (${[file, locator].filter(Boolean).join(", ")})`);
    return [
      `## Question\n\n${withFiles(asked, files)}`,
      answer && `## Answer\n\n${answer.answered.text}`,
      sources.length > 0 && `### Passages\n\n${sources.join("\n")}`,
    ].filter(Boolean);
  });
  const system = chat.settings.system ? [`## System prompt\n\n${chat.settings.system}`] : [];
  download(chat, "md", "text/markdown", `${[`# ${chat.title}`, ...system, ...turns.flat()].join("\n\n")}\n`);
}

export function exportJson({ rev: _, nForgotten: _n, ...chat }: Chat): void {
  download(chat, "json", "application/json", `${JSON.stringify({ format: "refrain-conversation", version: 1, ...chat }, null, 1)}\n`);
}

function download({ title }: Pick<Chat, "title">, ending: string, type: string, text: string): void {
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
  const href = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href, download: `${name}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}
