/**
 * The points of metrics, as charts draw them: what the run has kept since it started, and what this page has seen since.
 */
import type { Metrics, Summary } from "./records";
import { INDEX, Refusal, address, request, tree } from "./tree";
import { exact, pointer } from "./words";

export const HISTORY = "history/index.json";
export const METRICS = "state/metrics/index.json";
/** Charts that are in view are filled in from the run's own record, but not more often, in milliseconds. */
const STALE = 3_000;
/** In live mode the page sees most points of metrics by itself. */
const STALE_LIVE = 15_000;
/** So long after a value is shown it is surely in the record, in milliseconds. */
const SETTLED = 1_000;
/** When what is logged was last seen to change, by the browser's clock. */
let changed = 0;

/** What there is a record of: the files by the names. */
export interface Index {
  series: Record<string, string>;
}

/** One metric's points, oldest first. The arrays only grow, until the whole is loaded again. */
export class Series {
  steps: number[] = [];
  times: number[] = [];
  values: number[] = [];
  /** The smallest and the largest finite value there has been. */
  low = Infinity;
  high = -Infinity;
  /** When the record was last loaded, by the browser's clock; 0 before. */
  loaded = 0;
  trouble = "";
  private listeners = new Set<() => void>();
  private loading = false;
  /** How many of the points are from the record: this page saw the others. */
  private recorded = 0;
  /** When the session began that these are of: a model may be trained again under the same address. */
  private started: number | undefined;

  constructor(readonly name: string) {}

  watch(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Fetch all that the run has kept, unless that was done a moment ago or nothing was logged since. */
  async load(): Promise<void> {
    const now = Date.now();
    const isSeen = tree.live && Object.hasOwn(shown<Metrics>(METRICS)?.metrics ?? {}, this.name);
    const isFresh = now - this.loaded < (isSeen ? STALE_LIVE : STALE) || this.loaded > changed + SETTLED;
    if (this.loading || (isFresh && this.isOfNow)) return;
    this.loading = true;
    try {
      const files = shown<Index>(HISTORY)?.series ?? {};
      const file = Object.hasOwn(files, this.name) && files[this.name];
      if (!file) return; // It may come with the next poll.
      this.take(await (await request(`files/history/${address(file)}`)).text());
      this.trouble = "";
      this.loaded = now;
    } catch (error) {
      // The points that are here stay. A run that is silent is told of at the top of the page.
      this.trouble = error instanceof Refusal ? error.message : "";
    } finally {
      this.loading = false;
      this.tell();
    }
  }

  /** Add a point that was just seen. */
  add(step: number, time: number, value: number): void {
    if (!this.isOfNow) return; // All of it is loaded anew.
    const last = this.steps.length - 1;
    const isSame = Object.is(this.values[last], value) || step === this.steps[last];
    if (last >= 0 && isSame) return;
    this.push(step, time, value);
    this.tell();
  }

  private take(csv: string): void {
    const seen = this.seen();
    [this.steps, this.times, this.values] = [[], [], []];
    [this.low, this.high] = [Infinity, -Infinity];
    let start = csv.indexOf("\n") + 1;
    while (start > 0 && start < csv.length) {
      const end = csv.indexOf("\n", start);
      const stop = end < 0 ? csv.length : end;
      const first = csv.indexOf(",", start);
      const second = csv.indexOf(",", first + 1);
      this.push(+csv.slice(start, first), +csv.slice(first + 1, second), valueOf(csv.slice(second + 1, stop)));
      start = end < 0 ? 0 : end + 1;
    }
    this.recorded = this.steps.length;
    const last = this.steps.at(-1) ?? -Infinity;
    // What this page saw after the last point of the record stays.
    for (const [step, time, value] of seen) if (step > last) this.push(step, time, value);
  }

  /** The points that this page saw in this session and the record did not have. */
  private seen(): [number, number, number][] {
    const at = this.isOfNow ? this.recorded : this.steps.length;
    this.started = shown<Summary>(INDEX)?.started;
    return this.steps.slice(at).map((step, over) => [step, this.times[at + over]!, this.values[at + over]!]);
  }

  private get isOfNow(): boolean {
    return this.started === shown<Summary>(INDEX)?.started;
  }

  private push(step: number, time: number, value: number): void {
    if (this.steps.length > 0 && this.steps.at(-1)! > step) this.goBack(step);
    this.steps.push(step);
    this.times.push(time);
    this.values.push(value);
    this.stretch(value);
  }

  /** A run that went back draws its new values as the line. */
  private goBack(step: number): void {
    const kept = this.steps.findLastIndex((each) => each <= step) + 1;
    for (const column of [this.steps, this.times, this.values]) column.length = kept;
    this.recorded = Math.min(this.recorded, kept);
    [this.low, this.high] = [Infinity, -Infinity];
    for (const value of this.values) this.stretch(value);
  }

  private stretch(value: number): void {
    if (!Number.isFinite(value)) return;
    if (value < this.low) this.low = value;
    if (value > this.high) this.high = value;
  }

  private tell(): void {
    for (const listener of [...this.listeners]) listener();
  }
}

function valueOf(text: string): number {
  if (text === "inf") return Infinity;
  return text === "-inf" ? -Infinity : Number(text);
}

const all = new Map<string, Series>();

/** The series of a name. */
export function series(name: string): Series {
  const known = all.get(name) ?? new Series(name);
  all.set(name, known);
  return known;
}

function shown<T>(path: string): T | undefined {
  return tree.shot(path)?.value as T | undefined;
}

// Both are for the whole page: what is polled is drawn at once, and needs no request of its own.
tree.watch(HISTORY, () => undefined);
tree.watch(METRICS, () => {
  changed = Date.now();
  const polled = shown<Metrics>(METRICS);
  const time = shown<Summary>(INDEX)?.sampled;
  // Between polls that are far apart there is more than a straight line: then only the record is drawn.
  if (!polled?.metrics || time === undefined || !tree.live) return;
  for (const [name, value] of Object.entries(polled.metrics)) {
    const known = all.get(name);
    if (known?.loaded) known.add(polled.global_step, time, toNumber(exact(polled, `/metrics/${pointer(name)}`, value)));
  }
});

function toNumber(value: unknown): number {
  if (value === "Infinity") return Infinity;
  if (value === "-Infinity") return -Infinity;
  return typeof value === "number" ? value : NaN;
}

/**
 * An exponential moving average whose first values are not drawn towards zero (as TensorBoard's). `weight` is what the
 * past counts, from 0 to 1. A value that is no finite number leaves a gap and is not averaged.
 */
export function smooth(values: readonly number[], weight: number): (number | null)[] {
  let last = 0;
  let count = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return null;
    count += 1;
    last = last * weight + (1 - weight) * value;
    return last / (1 - weight ** count);
  });
}

/**
 * The places of the points that a chart draws of a range: all of them, or the lowest and the highest of each of `count / 2`
 * pieces, so that no spike is lost. The first and the last, and the neighbours outside the range, are always among them.
 */
export function pick(x: readonly number[], y: readonly (number | null)[], min: number, max: number, count: number): number[] {
  const first = Math.max(0, place(x, min) - 1);
  const end = Math.min(x.length, place(x, max) + 2);
  if (end - first <= count) return Array.from({ length: Math.max(0, end - first) }, (_, at) => first + at);
  const picked = [first];
  const piece = (end - first - 2) / (count / 2);
  for (let from = first + 1; from < end - 1; from += piece) {
    picked.push(...extremes(y, Math.floor(from), Math.min(end - 1, Math.floor(from + piece))));
  }
  picked.push(end - 1);
  return picked;
}

/** The places of the lowest and the highest value, in order; the first place where there is none. */
function extremes(y: readonly (number | null)[], from: number, end: number): number[] {
  let low = -1;
  let high = -1;
  for (let at = from; at < end; at++) {
    const value = y[at];
    if (value === null || value === undefined) continue;
    if (low < 0 || value < y[low]!) low = at;
    if (high < 0 || value > y[high]!) high = at;
  }
  if (low < 0) return from < end ? [from] : [];
  return low === high ? [low] : [Math.min(low, high), Math.max(low, high)];
}

/** The place of the first point that is not below a value; `x` ascends. */
export function place(x: readonly number[], value: number): number {
  let [low, high] = [0, x.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
