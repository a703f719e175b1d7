// Live charts: tokens per second, tokens per step, and the share of prompts that was not computed again.

import { duration, el, fill, short, svg } from "./dom";
import type { Piece, Stats } from "./wire";

const WIDTH = 160;
const HEIGHT = 44;
/** Runs whose prefill is shown. */
const N_RUNS = 12;
/** Points of a line; a longer run is thinned. */
const N_POINTS = 160;

type Point = [x: number, y: number];

interface Run {
  isPlain: boolean;
  rate: Point[];
  perStep: Point[];
  nSteps: number;
}

/** A chart with its number. */
class Tile {
  readonly value = el("b", {}, "–");
  readonly picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", preserveAspectRatio: "none", "aria-label": "no run yet" });
  readonly element: HTMLElement;

  constructor(name: string, hint: string) {
    this.element = el("div", { class: "tile", title: hint }, el("span", { class: "name" }, name), this.value, this.picture as unknown as HTMLElement);
  }

  set(value: string, label: string, ...shapes: Node[]): void {
    this.value.textContent = value;
    this.picture.setAttribute("aria-label", label);
    fill(this.picture, ...shapes);
  }
}

/** The charts of the page. */
export class Meter {
  private readonly rate = new Tile("tokens / s", "Output tokens per second of decoding");
  private readonly perStep = new Tile("tokens / step", "Output tokens per pass of the model; 1 without drafts");
  private readonly saved = new Tile("prompt saved", "Share of the prompt that an earlier request had computed");
  readonly element = el("section", { class: "meter", "aria-label": "Speed" }, this.rate.element, this.perStep.element, this.saved.element);
  private runs: Run[] = [];
  private prefills: { share: number; tokens: number }[] = [];
  private frame: number | undefined;

  /** Begins a run. Those of one request share the charts. */
  start(isPlain: boolean, isFirst: boolean): void {
    if (isFirst) this.runs = [];
    this.runs.push({ isPlain, rate: [], perStep: [], nSteps: 0 });
  }

  /** Notes a piece of the newest run. */
  push({ us, n_tokens, n_steps }: Piece): void {
    const run = this.runs.at(-1);
    // A step is counted with its last token: between two steps the numbers are exact.
    if (!run || us === 0 || n_steps <= run.nSteps) return;
    run.nSteps = n_steps;
    run.rate.push([us, n_tokens / (us / 1e6)]);
    run.perStep.push([us, n_tokens / n_steps]);
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  /** Ends the newest run with its exact numbers. */
  end({ tokens, steps, decode_us, prompt_tokens, cached_tokens }: Stats): void {
    const run = this.runs.at(-1);
    if (run && steps > 0 && decode_us > 0) {
      run.rate.push([decode_us, tokens / (decode_us / 1e6)]);
      run.perStep.push([decode_us, tokens / steps]);
    }
    if (prompt_tokens > 0) {
      this.prefills.push({ share: cached_tokens / prompt_tokens, tokens: cached_tokens });
      this.prefills = this.prefills.slice(-N_RUNS);
    }
    this.draw();
  }

  private draw(): void {
    if (this.frame !== undefined) cancelAnimationFrame(this.frame);
    this.frame = undefined;
    const last = (points: Point[] | undefined): number => points?.at(-1)?.[1] ?? Number.NaN;
    const newest = this.runs.at(-1);
    const rate = short(last(newest?.rate));
    const perStep = short(last(newest?.perStep));
    this.rate.set(rate, `${rate} tokens per second`, ...lines(this.runs.map(({ isPlain, rate }) => ({ isPlain, points: rate })), 0));
    this.perStep.set(
      perStep,
      `${perStep} tokens per step`,
      svg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 2, y2: HEIGHT - 2 }),
      ...lines(this.runs.map(({ isPlain, perStep }) => ({ isPlain, points: perStep })), 1),
    );
    const prefill = this.prefills.at(-1);
    const share = prefill ? `${Math.round(100 * prefill.share)} %` : "–";
    this.saved.set(share, `${share} of the newest prompt not computed again`, ...this.bars());
  }

  private bars(): SVGElement[] {
    const step = WIDTH / N_RUNS;
    const full = HEIGHT - 4;
    return this.prefills.map(({ share }, index) => {
      const height = Math.max(2, share * full);
      return svg("rect", { x: index * step + 1, y: HEIGHT - 2 - height, width: step - 3, height, rx: 1.5 });
    });
  }
}

/** Lines over a common time, from `floor` upwards; plain runs are dashed. */
function lines(runs: { isPlain: boolean; points: Point[] }[], floor: number): SVGElement[] {
  const all = runs.flatMap(({ points }) => points);
  const right = Math.max(...all.map(([x]) => x), 1);
  const top = Math.max(...all.map(([, y]) => y), floor + 1);
  return runs
    .filter(({ points }) => points.length > 0)
    .map(({ isPlain, points }) => {
      const stride = Math.max(1, Math.ceil(points.length / N_POINTS));
      // From the start: the first step has its rate from its beginning.
      const shown: Point[] = [[0, points[0]?.[1] ?? floor], ...points.filter((_, index) => index % stride === 0 || index === points.length - 1)];
      const place = ([x, y]: Point): string =>
        `${((x / right) * (WIDTH - 4) + 2).toFixed(1)},${(HEIGHT - 3 - ((y - floor) / (top - floor)) * (HEIGHT - 8)).toFixed(1)}`;
      return svg("polyline", { class: isPlain ? "line plain" : "line", points: shown.map(place).join(" ") });
    });
}

/** Two runs of one text as stairs: tokens over time, a step for each pass of the model. */
export function race(runs: { name: string; isPlain: boolean; pieces: readonly Piece[]; stats: Stats }[]): HTMLElement {
  const [width, height] = [640, 150];
  const right = Math.max(...runs.map(({ stats }) => stats.decode_us), 1);
  const top = Math.max(...runs.map(({ stats }) => stats.tokens), 1);
  const x = (us: number): string => ((Math.min(us, right) / right) * (width - 8) + 4).toFixed(1);
  const y = (n: number): string => (height - 4 - (n / top) * (height - 12)).toFixed(1);
  const stairs = runs.map(({ isPlain, pieces, stats }) => {
    let path = `M${x(0)} ${y(0)}`;
    for (const { us, n_tokens } of pieces) path += `H${x(us)}V${y(n_tokens)}`;
    path += `H${x(stats.decode_us)}V${y(stats.tokens)}`;
    return svg("path", { class: isPlain ? "line plain" : "line", d: path });
  });
  const label = runs.map(({ name, stats }) => `${name}: ${stats.tokens} tokens in ${duration(stats.decode_us)}`).join("; ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "race", preserveAspectRatio: "none" }, ...stairs);
  return el(
    "figure",
    {},
    picture as unknown as HTMLElement,
    el("figcaption", { class: "dim" }, el("span", { class: "key line" }), "with drafts ", el("span", { class: "key plain" }), `without · tokens over ${duration(right)} of decoding`),
  );
}
