// The page of `refrain serve`: views, sign-in and routes.

import * as api from "./api";
import { Meter } from "./chart";
import { ChatView } from "./chat";
import { byId, el, fill, newId } from "./dom";
import { editView } from "./edit";
import { historyView } from "./history";
import { ChatList } from "./list";
import { announce } from "./live";
import { applyTheme } from "./settings";
import { settingsView } from "./settingsview";
import { closeSource } from "./source";
import type { Status } from "./wire";

type View = "ask" | "edit" | "history" | "settings";
const NAMES: Record<View, string> = { ask: "Ask", edit: "Edit", history: "History", settings: "Settings" };

const main = byId("main");
const nav = byId("nav");

async function start(): Promise<void> {
  fill(nav);
  let status: Status;
  try {
    status = await api.status();
  } catch (error) {
    if (error instanceof api.RequestError && error.status === 401) return;
    const retry = el("button", { type: "button", class: "primary", click: () => void start() }, "Try again");
    fill(main, el("section", { class: "view" }, el("h2", {}, "The page cannot start"), el("p", { class: "error", role: "alert" }, api.words(error)), el("p", {}, retry)));
    return;
  }
  show(status);
}

function show(status: Status): void {
  const meter = new Meter();
  const history = historyView();
  const signOut = (): void => {
    api.token.clear();
    location.reload();
  };
  const chats = new ChatView(status, meter);
  const list = new ChatList({
    create: () => {
      // The one before stays in the browser's history.
      window.history.pushState(null, "", "#ask");
      address = location.hash;
      void chats.open(null).then(() => chats.focus());
    },
    details: (id) => void chats.details(id),
  });
  const views: Record<View, HTMLElement> = {
    ask: chats.element,
    edit: editView(meter),
    history: history.element,
    settings: settingsView(status, signOut),
  };
  const links = (Object.keys(NAMES) as View[]).map((view) => ({ view, link: el("a", { href: `#${view}` }, NAMES[view]) }));
  fill(nav, ...links.map(({ link }) => link));
  let shown: View | null = null;
  // The address that is shown. Another one is of a click, of which the browser tells some time later.
  let address = location.hash;
  const place = (): void => {
    const { id, turns } = chats.chat;
    if (shown === "ask" && location.hash === address) {
      window.history.replaceState(null, "", turns.length > 0 ? `#ask/${id}` : "#ask");
      address = location.hash;
    }
    void list.show(id);
  };
  const route = (isFirst: boolean): void => {
    address = location.hash;
    const [wanted = "", id = ""] = location.hash.slice(1).split("/");
    if (wanted === "main") return;
    const view = wanted in views ? (wanted as View) : "ask";
    const opens = view === "ask" && id !== "" && id !== chats.comingId;
    if (opens) void chats.open(id);
    if (view === "ask" && shown === "ask") {
      if (!opens) place();
      return;
    }
    shown = view;
    closeSource();
    // The charts stand in the view whose jobs they show.
    if (view === "ask" || view === "edit") views[view].prepend(meter.element);
    if (view === "history") void history.refresh();
    links.forEach(({ view: of, link }) => {
      if (of === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    document.title = `${NAMES[view]} · Refrain`;
    list.place(view === "ask");
    fill(main, views[view]);
    if (view === "ask" && !isFirst && !opens) place();
    if (!isFirst) {
      announce(NAMES[view]);
      window.scrollTo(0, 0);
    }
  };
  window.onhashchange = () => route(false);
  document.onkeydown = (event) => {
    // Dialogs have keys of their own.
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      if (!closeSource() && !list.close()) chats.stop();
    } else if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey) {
      event.preventDefault();
      // Shown at once: the browser tells of a new address some time later, and hidden fields take no focus.
      if (shown !== "ask" || !/^(#ask|$)/.test(location.hash)) {
        window.history.pushState(null, "", "#ask");
        route(false);
      }
      list.search();
    }
  };
  route(true);
  void list.show(chats.chat.id);
  chats.onChange = place;
}

/** Asks for the token. It stays in this tab's session storage. */
function signIn(): void {
  const wasWrong = api.token.get() !== null;
  api.token.clear();
  const id = newId();
  const input = el("input", { id, type: "password", required: true, autocomplete: "current-password", spellcheck: "false" });
  const form = el(
    "form",
    { class: "signin" },
    el("h2", {}, "Sign in"),
    el("p", { class: "dim" }, "The server wants its token: the one that it was started with, or that is in the address that it printed. It is kept in this tab until you close it."),
    wasWrong && el("p", { class: "error", role: "alert" }, "The server does not accept this token."),
    // Password managers file a secret under a name.
    el("input", { type: "text", autocomplete: "username", value: "refrain", hidden: true }),
    el("label", { for: id }, "Token"),
    el("div", { class: "row" }, input, el("button", { type: "submit", class: "primary" }, "Sign in")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    api.token.set(input.value.trim());
    void start();
  });
  closeSource();
  // Without the token, the page shows nothing that this browser keeps.
  document.body.classList.remove("has-list", "shows-list");
  for (const id of ["chats", "chats-toggle"]) byId(id).hidden = true;
  for (const id of ["main", "head"]) byId(id).inert = false;
  fill(nav);
  fill(main, el("section", { class: "view" }, form));
  input.focus();
}

api.takeToken();
applyTheme();
api.whenUnauthorized(signIn);
void start();
