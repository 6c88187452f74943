/**
 * The points of metrics, as charts draw them: what the run has on the disk, and what this page has seen since.
 */
import type { Metrics, Summary } from "./records";
import { INDEX, Refusal, address, isSayable, request, tree } from "./tree";
import { exact, pointer } from "./words";

export const HISTORY = "history/index.json";
export const METRICS = "state/metrics/index.json";
/** Charts that are in view are filled in from the run's own record, but not more often, in milliseconds. */
const STALE = 3_000;
/** In live mode the page sees some points of metrics by itself; the record has those between them. */
const STALE_LIVE = 5_000;
/** So long after a value is shown it is surely in the record, in milliseconds. */
const SETTLED = 1_000;
/** The status of an answer that says: there is none. */
const ABSENT = 404;
/** When what is logged was last seen to change, by the browser's clock. */
let changed = 0;

/** Points of the record that a chart has at most, about: of longer ones the server leaves out what no chart can show. */
const MOST = 2_000;
/** So long after somebody has zoomed the points of that range are asked for, in milliseconds. */
const PAUSE = 250;

/** What GET /history answers. */
interface Curve {
  rows: number;
  exact: boolean;
  usual: number[];
  attempts: Attempt[];
}

interface Attempt {
  function: string;
  steps: number[];
  times: number[];
  values: (number | null)[];
  pieces: Piece[];
}

/** Neighbouring points of which only the extremes are here: how many numbers there are among them, and their mean. */
export interface Piece {
  step: number;
  count: number;
  mean: number | null;
}

/** A point, and the piece that it is an extreme of. */
type Point = [step: number, time: number, value: number, piece?: Piece | undefined];

/** What there is a record of: the files by the names. */
export interface Index {
  series: Record<string, string>;
}

/**
 * One metric's points, oldest first. The arrays only grow, until the whole is loaded again.
 *
 * Of a long run the record is thinned: each spike is there, and not each point. A range that somebody looks at is then
 * fetched once more.
 */
export class Series {
  steps: number[] = [];
  times: number[] = [];
  values: number[] = [];
  /** Of each point the piece that it stands for, where it stands for others. */
  pieces: (Piece | undefined)[] = [];
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
  /** How many points the record has. */
  private rows = 0;
  /** Whether each of them is here. */
  private isExact = true;
  /** Of points of which most are extremes, between which values nearly all are that are not here. */
  usual: number[] = [];
  private usualOfAll: number[] = [];
  /** The steps that somebody looks at. */
  private range: { first: number; last: number } | undefined;
  private timer = 0;
  /** When the session began that these are of: a model may be trained again under the same address. */
  private started: number | undefined;

  constructor(readonly name: string) {}

  /** How many points there are, those included that are not here. */
  get count(): number {
    return this.rows + this.steps.length - this.recorded;
  }

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
      if (!Object.hasOwn(shown<Index>(HISTORY)?.series ?? {}, this.name)) return; // It may come with the next poll.
      const [points, rows] = await this.record();
      this.take(points, rows);
      await this.refine();
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

  /** Have all points of a range of steps, where these are too many to have all of. Without one, the whole is enough. */
  look(range: { first: number; last: number } | undefined): void {
    if (range?.first === this.range?.first && range?.last === this.range?.last) return;
    this.range = range;
    if (!range) this.usual = this.usualOfAll;
    clearTimeout(this.timer);
    if (range && !this.isExact) this.timer = setTimeout(() => void this.refine().then(() => this.tell()), PAUSE);
  }

  /** Return the points of the record, and how many it has. */
  private async record(): Promise<[Point[], number]> {
    try {
      // A name that no address can say has its file all the same.
      if (this.name !== "" && isSayable(this.name)) {
        const curve = await this.ask();
        this.isExact = curve.exact;
        this.usual = this.usualOfAll = curve.usual;
        return [pointsOf(curve), curve.rows];
      }
    } catch (error) {
      // Nothing of it is on the disk, which may be full: then there is what the run has in memory.
      if (!(error instanceof Refusal && error.status === ABSENT)) throw error;
    }
    const file = shown<Index>(HISTORY)?.series[this.name];
    const points = parsed(await (await request(`files/history/${address(file ?? "")}`)).text());
    this.isExact = true;
    this.usual = this.usualOfAll = [];
    return [points, points.length];
  }

  private async ask(more = ""): Promise<Curve> {
    const name = encodeURIComponent(this.name);
    return (await (await request(`history?name=${name}&points=${MOST}&duplicates=last${more}`)).json()) as Curve;
  }

  /** Put the points of the range that somebody looks at in place of the few that are there. */
  private async refine(): Promise<void> {
    const { range } = this;
    if (!range || this.isExact) return;
    try {
      const curve = await this.ask(`&from=${range.first}&to=${range.last}`);
      const points = pointsOf(curve);
      const [first, end] = [place(this.steps, range.first), place(this.steps, range.last + 1)];
      const { recorded } = this;
      if (range !== this.range || first >= recorded) return; // What this page saw by itself is all there is.
      // Behind the record stands what this page has seen, and the record may have by now.
      const old = Math.min(end, recorded) - first;
      const seen = this.steps[recorded] ?? Infinity;
      const fresh = points.filter(([step]) => step < seen);
      this.steps.splice(first, old, ...fresh.map(([step]) => step));
      this.times.splice(first, old, ...fresh.map(([, time]) => time));
      this.values.splice(first, old, ...fresh.map(([, , value]) => value));
      this.pieces.splice(first, old, ...fresh.map(([, , , piece]) => piece));
      this.recorded = recorded + fresh.length - old;
      this.usual = curve.usual;
    } catch {
      // The few that are there stay.
    }
  }

  private take(points: Point[], rows: number): void {
    const seen = this.seen();
    [this.steps, this.times, this.values, this.pieces] = [[], [], [], []];
    [this.low, this.high] = [Infinity, -Infinity];
    for (const point of points) this.push(...point);
    this.rows = rows;
    this.recorded = this.steps.length;
    const last = this.steps.at(-1) ?? -Infinity;
    // What this page saw after the last point of the record stays.
    for (const [step, time, value] of seen) if (step > last) this.push(step, time, value);
  }

  /** The points that this page saw in this session and the record did not have. */
  private seen(): Point[] {
    const at = this.isOfNow ? this.recorded : this.steps.length;
    this.started = shown<Summary>(INDEX)?.started;
    return this.steps.slice(at).map((step, over) => [step, this.times[at + over]!, this.values[at + over]!]);
  }

  private get isOfNow(): boolean {
    return this.started === shown<Summary>(INDEX)?.started;
  }

  private push(step: number, time: number, value: number, piece?: Piece): void {
    if (this.steps.length > 0 && this.steps.at(-1)! > step) this.goBack(step);
    this.steps.push(step);
    this.times.push(time);
    this.values.push(value);
    this.pieces.push(piece);
    this.stretch(value);
  }

  /** A run that went back draws its new values as the line. */
  private goBack(step: number): void {
    const kept = this.steps.findLastIndex((each) => each <= step) + 1;
    for (const column of [this.steps, this.times, this.values, this.pieces]) column.length = kept;
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

/** The points of an answer, those of one attempt after those of another. */
function pointsOf(curve: Curve): Point[] {
  const points: Point[] = [];
  curve.attempts.forEach(({ function: kind, steps, times, values, pieces }, attempt) => {
    let piece = 0;
    steps.forEach((step, at) => {
      while (piece + 1 < pieces.length && pieces[piece + 1]!.step <= step) piece += 1;
      // A test or a validation by itself goes on with no attempt, and may not know how far the last one was.
      if (kind !== "fit" && step < (points.at(-1)?.[0] ?? -Infinity)) return;
      const value = toNumber(exact(curve, `/attempts/${attempt}/values/${at}`, values[at]));
      points.push([step, times[at]!, value, pieces[piece]]);
    });
  });
  return points;
}

/** The points of a file of the history. */
function parsed(csv: string): Point[] {
  const lines = csv.split("\n").slice(1, -1);
  return lines.map((line) => line.split(",") as [string, string, string]).map(([s, t, v]) => [+s, +t, valueOf(v)]);
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
 * past counts, from 0 to 1. A value that is no finite number leaves a gap and is not averaged. Where points stand for
 * others, the mean of those counts, as often as there are: the extremes alone would draw another line.
 */
export function smooth({ values, pieces }: Series, weight: number): (number | null)[] {
  let last = 0;
  let count = 0;
  let done: Piece | undefined;
  const take = (value: number, times: number): void => {
    if (!Number.isFinite(value) || times === 0) return;
    const kept = weight ** times;
    count += times;
    last = last * kept + (1 - kept) * value;
  };
  return values.map((value, at) => {
    const piece = pieces[at];
    if (piece === undefined) take(value, 1);
    else if (piece !== done) take(piece.mean ?? NaN, piece.count);
    done = piece;
    return Number.isFinite(value) && count > 0 ? last / (1 - weight ** count) : null;
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
