// Elements from data. Text is always a text node, so nothing of a note or an answer is ever read as markup.

export type Child = Node | string | null | undefined | false | readonly Node[];
type Listener = (event: Event) => void;
type Attribute = string | number | boolean | null | undefined | Listener;

/** An element with attributes, listeners (functions, by the event's name) and children. */
export function el<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Record<string, Attribute> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(name);
  setAttributes(element, attributes);
  add(element, children);
  return element;
}

/** The same for SVG. */
export function svg(name: string, attributes: Record<string, Attribute> = {}, ...children: Child[]): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  setAttributes(element, attributes);
  add(element, children);
  return element;
}

/** Replaces the children of an element. */
export function fill(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  add(element, children);
}

/** The element of the page with this id. */
export function byId(id: string): HTMLElement {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

let nIds = 0;

/** An id that no other element has. */
export function newId(): string {
  nIds += 1;
  return `i${nIds}`;
}

/** Appends one by one: calls have a maximum of arguments. */
function add(element: Element, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (typeof child === "string" || child instanceof Node) element.append(child);
    else for (const node of child) element.append(node);
  }
}

function setAttributes(element: Element, attributes: Record<string, Attribute>): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
}

/** `1 token`, `2 tokens`; thousands with a narrow space. */
export function count(n: number, singular: string, plural = `${singular}s`): string {
  return `${number(n)} ${n === 1 ? singular : plural}`;
}

/** A whole number with narrow spaces between thousands. */
export function number(n: number): string {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** Three significant digits. */
export function short(n: number): string {
  if (!Number.isFinite(n)) return "–";
  return n >= 100 ? number(n) : n >= 10 ? n.toFixed(1) : n.toFixed(2);
}

/** A time in the unit that gives it few digits. */
export function duration(us: number): string {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${short(us / 1000)} ms`;
  return `${short(us / 1e6)} s`;
}
