// The settings of this browser. They hold no text of notes, questions or answers.

export type Theme = "system" | "light" | "dark";
/** Drafting: as usual, without drafts, or both for comparison. */
export type Mode = "drafts" | "plain" | "compare";

export interface Settings {
  maxTokens: number;
  temperature: number;
  theme: Theme;
  mode: Mode;
  keep: boolean;
  /** Whether conversations are kept in this browser. */
  keepsChats: boolean;
}

const KEY = "refrain.settings";
const DEFAULTS: Settings = { maxTokens: 256, temperature: 0, theme: "system", mode: "drafts", keep: true, keepsChats: true };

export const MAX_TOKENS_LIMIT = 4096;
export const TEMPERATURE_LIMIT = 2;

let current = read();
const listeners = new Set<() => void>();

export function settings(): Settings {
  return current;
}

/** Changes settings, and tells the views that show them. */
export function change(changes: Partial<Settings>): void {
  current = checked({ ...current, ...changes });
  try {
    localStorage.setItem(KEY, JSON.stringify(current));
  } catch {
    // Without storage the settings last as long as the page.
  }
  applyTheme();
  listeners.forEach((listener) => listener());
}

export function onChange(listener: () => void): void {
  listeners.add(listener);
}

export function applyTheme(): void {
  const root = document.documentElement;
  if (current.theme === "system") root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", current.theme);
}

function read(): Settings {
  try {
    return checked({ ...DEFAULTS, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Settings>) });
  } catch {
    return DEFAULTS;
  }
}

/** The stored values may be of another version, or typed in. */
function checked(given: Settings): Settings {
  const within = (value: unknown, min: number, max: number, otherwise: number): number =>
    typeof value === "number" && Number.isFinite(value) ? Math.min(max, Math.max(min, value)) : otherwise;
  const one = <T extends string>(value: T, of: readonly T[], otherwise: T): T => (of.includes(value) ? value : otherwise);
  return {
    maxTokens: Math.round(within(given.maxTokens, 1, MAX_TOKENS_LIMIT, DEFAULTS.maxTokens)),
    temperature: within(given.temperature, 0, TEMPERATURE_LIMIT, DEFAULTS.temperature),
    theme: one(given.theme, ["system", "light", "dark"], DEFAULTS.theme),
    mode: one(given.mode, ["drafts", "plain", "compare"], DEFAULTS.mode),
    keep: given.keep !== false,
    keepsChats: given.keepsChats !== false,
  };
}
