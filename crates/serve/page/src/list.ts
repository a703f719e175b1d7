// The list of conversations: beside the one on the screen, and on a narrow screen over it.

import { byId, el, fill, newId } from "./dom";
import { heads, search } from "./store";
import type { Head } from "./store";

interface Actions {
  create: () => void;
  details: (id: string) => void;
}

export class ChatList {
  private readonly side = byId("chats");
  private readonly toggle = byId("chats-toggle");
  private readonly input = el("input", { id: newId(), type: "search", placeholder: "Search", autocomplete: "off" });
  private readonly list = el("ul");
  private current = "";
  private isWanted = false;
  private nShown = 0;

  constructor(private readonly actions: Actions) {
    const create = el("button", { type: "button", class: "primary", click: () => this.create() }, "New conversation");
    const close = el("button", { type: "button", class: "icon close", "aria-label": "Close the list", click: () => this.close() }, "✕");
    fill(this.side, el("div", { class: "bar" }, create, close), el("label", { for: this.input.id, class: "sr" }, "Search conversations"), this.input, this.list);
    this.input.addEventListener("input", () => void this.show());
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      if (this.input.value.trim() === "") this.create();
      else this.list.querySelector<HTMLElement>("a")?.click();
    });
    this.list.addEventListener("click", (event) => {
      if ((event.target as Element).closest("a")) this.close();
    });
    this.toggle.onclick = () => this.open();
  }

  /** Shows or hides the list with the view that it belongs to. */
  place(isWanted: boolean): void {
    this.isWanted = isWanted;
    this.side.hidden = !isWanted;
    this.toggle.hidden = !isWanted;
    document.body.classList.toggle("has-list", isWanted);
    if (!isWanted) this.close();
  }

  /** Shows the conversations, the one on the screen marked. */
  async show(current = this.current): Promise<void> {
    this.current = current;
    this.nShown += 1;
    const shown = this.nShown;
    const words = this.input.value.trim();
    const [all, found] = await Promise.all([heads(), words === "" ? null : search(words)]);
    // A newer request is on its way.
    if (shown !== this.nShown) return;
    const listed = all.filter(({ id }) => found?.has(id) ?? true);
    const nothing = words === "" ? "Conversations are kept in this browser." : "No conversation has these words.";
    fill(this.list, ...(listed.length === 0 ? [el("li", { class: "hint" }, nothing)] : listed.map((head) => this.item(head))));
  }

  /** Opens the list to search it. */
  search(): void {
    this.open();
    this.input.focus();
    this.input.select();
  }

  /** Closes the list where it lies over the conversation. */
  close(): boolean {
    const isOpen = document.body.classList.contains("shows-list");
    document.body.classList.remove("shows-list");
    this.toggle.setAttribute("aria-expanded", "false");
    for (const id of ["main", "head"]) byId(id).inert = false;
    if (isOpen && this.side.contains(document.activeElement)) this.toggle.focus();
    return isOpen;
  }

  private open(): void {
    // Wide screens show it always.
    if (!this.isWanted || getComputedStyle(this.toggle).display === "none") return;
    document.body.classList.add("shows-list");
    this.toggle.setAttribute("aria-expanded", "true");
    for (const id of ["main", "head"]) byId(id).inert = true;
    this.input.focus();
  }

  private create(): void {
    this.close();
    this.input.value = "";
    this.actions.create();
  }

  private item({ id, title, at }: Head): HTMLElement {
    const time = new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
    return el(
      "li",
      {},
      el("a", { href: `#ask/${id}`, "aria-current": id === this.current && "page", title: `${title} · ${time}` }, title),
      el("button", { type: "button", class: "icon", "aria-label": `Options of “${title}”`, click: () => this.actions.details(id) }, "⋯"),
    );
  }
}
