/** One metric's chart. */
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { type Series, pick, place, smooth } from "./series";
import { brief, moment, number } from "./words";

/** How charts are drawn; the same for all. */
export interface Drawing {
  axis: "step" | "time";
  log: boolean;
  smoothing: number;
  /** Whether the few values far off leave the range of the others alone. */
  clipped: boolean;
  /** "light" or "dark", whatever chose it: a canvas has its colours drawn in. */
  scheme: string;
}

/** Points from which on each is no longer drawn as a dot. */
const DOTS = 60;
/** Pixels of a drag from which on it is one, and no click. */
const LEAST = 4;

/** Values from which the usual range is taken. */
const SAMPLED = 2_000;

/** The range that somebody has chosen; it outlives the chart, which is drawn anew for another scale or another size. */
export interface Zoom {
  range?: { axis: Drawing["axis"]; min: number; max: number };
}

interface ChartProps {
  series: Series;
  title: string;
  drawing: Drawing;
  zoom: Zoom;
  tall: boolean;
  fitAll: () => void;
}

/** The chart itself, as wide as its place. It is drawn anew only when the way of drawing changes. */
export function Chart({ series, title, drawing, zoom, tall, fitAll }: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<Plot | null>(null);
  const [readout, read] = useState("");
  useEffect(() => {
    const drawn = new Plot(place.current!, series, drawing, zoom, read);
    plot.current = drawn;
    return () => drawn.end();
  }, [series, drawing, zoom, tall]);
  const scale = (factor: number) => () => plot.current?.zoom(factor);
  const shift = (part: number) => () => plot.current?.shift(part);
  return (
    <div class="chart">
      <div ref={place} class="plot" onDblClick={fitAll} role="img" aria-label={`${title}${description(series, drawing)}`} />
      <p class="readout faint">{readout || (series.values.length === 0 ? "no points yet" : "\u00a0")}</p>
      {tall && (
        <div class="row" role="group" aria-label={`Range of ${title}`}>
          <button type="button" onClick={shift(-0.5)} aria-label="Earlier">
            ◀
          </button>
          <button type="button" onClick={scale(0.5)} aria-label="Zoom in">
            +
          </button>
          <button type="button" onClick={scale(2)} aria-label="Zoom out">
            −
          </button>
          <button type="button" onClick={shift(0.5)} aria-label="Later">
            ▶
          </button>
          <button type="button" onClick={() => plot.current?.fit()}>
            Fit
          </button>
          <span class="faint">Drag to zoom, double-click to fit, Ctrl and the wheel to zoom at the pointer.</span>
        </div>
      )}
    </div>
  );
}

function description({ values, count, low, high }: Series, { axis }: Drawing): string {
  if (values.length === 0) return ": no points yet";
  const range = low > high ? ", none of them finite" : ` from ${number(low)} to ${number(high)}`;
  const points = count === 1 ? "1 point" : `${number(count)} points`;
  return ` by ${axis}: ${points}${range}, the last ${brief(values.at(-1))}`;
}

type Values = (number | null)[];

/**
 * uPlot, fed from a series. It gets no more points than can be told apart on the screen: those of the range in view,
 * picked anew whenever that changes.
 */
class Plot {
  private plot: uPlot;
  private observer: ResizeObserver;
  private unwatch: () => void;
  private frame = 0;
  private x: number[] = [];
  private lines: Values[] = [];
  /** Places in the series of the points that uPlot has. */
  private picked: number[] = [];

  constructor(
    private place: HTMLElement,
    private series: Series,
    private drawing: Drawing,
    private chosen: Zoom,
    private read: (text: string) => void,
  ) {
    if (chosen.range?.axis !== drawing.axis) delete chosen.range;
    this.take();
    this.plot = new uPlot(this.options(), this.reduced(-Infinity, Infinity), place);
    if (chosen.range) this.show(chosen.range.min, chosen.range.max);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(place);
    place.addEventListener("wheel", this.wheel, { passive: false });
    this.unwatch = series.watch(() => {
      this.take();
      this.draw();
    });
  }

  end(): void {
    cancelAnimationFrame(this.frame);
    this.unwatch();
    this.observer.disconnect();
    this.place.removeEventListener("wheel", this.wheel);
    this.plot.destroy();
  }

  /** Show everything. */
  fit(): void {
    delete this.chosen.range;
    this.series.look(undefined);
    this.draw();
  }

  /** Show `factor` times as much, around the middle or around a point of the axis. */
  zoom(factor: number, around?: number): void {
    const { min, max } = this.range();
    const centre = around ?? (min + max) / 2;
    this.show(centre - (centre - min) * factor, centre + (max - centre) * factor);
  }

  /** Go a part of what is shown to the left or to the right. */
  shift(part: number): void {
    const { min, max } = this.range();
    this.show(min + (max - min) * part, max + (max - min) * part);
  }

  private range(): { min: number; max: number } {
    const { min = 0, max = 1 } = this.plot.scales.x ?? {};
    return { min, max };
  }

  /** Show a range, which new points then leave alone. */
  private show(min: number, max: number): void {
    this.chosen.range = { axis: this.drawing.axis, min, max };
    this.series.look(this.steps(min, max));
    this.plot.setData(this.reduced(min, max), false);
    this.plot.setScale("x", { min, max });
  }

  /** The steps of what is in view, with its neighbours. */
  private steps(min: number, max: number): { first: number; last: number } {
    const { steps } = this.series;
    const first = steps[Math.max(0, place(this.x, min) - 1)] ?? 0;
    return { first, last: steps[Math.min(steps.length - 1, place(this.x, max))] ?? first };
  }

  private wheel = (event: WheelEvent): void => {
    if (!event.ctrlKey && !event.metaKey) return; // The wheel alone scrolls the page.
    event.preventDefault();
    const left = event.clientX - this.plot.over.getBoundingClientRect().left;
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.plot.posToVal(left, "x"));
  };

  /** Take what the series has now. */
  private take(): void {
    const { steps, times, values } = this.series;
    const { smoothing, log, axis } = this.drawing;
    const drawable = (value: number | null): number | null =>
      value === null || !Number.isFinite(value) || (log && value <= 0) ? null : value;
    this.x = axis === "step" ? steps : ascending(times);
    this.lines = [values.map(drawable), ...(smoothing > 0 ? [smooth(this.series, smoothing).map(drawable)] : [])];
  }

  /** Draw once for each picture of the screen, whatever has changed. */
  private draw(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      const { range } = this.chosen;
      if (range) this.show(range.min, range.max);
      else this.plot.setData(this.reduced(-Infinity, Infinity));
    });
  }

  /** Show what was dragged along; uPlot tells the charts that go with this one. */
  private select(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width < LEAST) return;
    this.show(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  private reduced(min: number, max: number): uPlot.AlignedData {
    this.picked = pick(this.x, this.lines[0]!, min, max, Math.max(200, this.place.clientWidth));
    const at = <T,>(values: T[]): T[] => this.picked.map((index) => values[index]!);
    return [at(this.x), ...this.lines.map(at)] as uPlot.AlignedData;
  }

  private resize(): void {
    const width = this.place.clientWidth;
    if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.place.clientHeight });
  }

  private options(): uPlot.Options {
    const { axis, log, smoothing } = this.drawing;
    const colour = colours(this.place);
    const line = { stroke: colour.line, width: 1.5, points: { show: (plot: uPlot) => plot.data[0].length < DOTS } };
    const faint = { stroke: colour.raw, width: 1, points: { show: false } };
    const axes = { stroke: colour.faint, grid: { stroke: colour.grid, width: 1 }, ticks: { show: false }, font: FONT };
    return {
      width: Math.max(100, this.place.clientWidth),
      height: this.place.clientHeight,
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false }, sync: { key: axis }, y: false, bind: { dblclick: () => null } },
      scales: {
        x: { time: axis === "time" },
        y: { distr: log ? 3 : 1, ...(!log && { range: (_, low, high) => this.fitted(low, high) }) },
      },
      axes: [
        { ...axes, size: axis === "time" ? 40 : 26 }, // A time has its date below it.
        { ...axes, size: 58, values: (_, splits) => splits.map((each) => (each === null ? "" : brief(each))) },
      ],
      series: smoothing > 0 ? [{}, faint, line] : [{}, line],
      hooks: {
        setCursor: [(plot) => this.tell(plot)],
        setSelect: [(plot) => this.select(plot)],
      },
    };
  }

  /** The range of what is in view, with some air. */
  private fitted(low: number | null, high: number | null): uPlot.Range.MinMax {
    if (low === null || high === null) return [0, 1];
    if (this.drawing.clipped) [low, high] = this.usual(low, high);
    // What differs by rounding alone is a level line.
    const size = Math.max(Math.abs(low), Math.abs(high));
    const air = (high - low > size * 1e-12 ? high - low : size || 1) * 0.06;
    return [low - air, high + air];
  }

  private usual(low: number, high: number): [number, number] {
    const [least, most] = this.series.usual;
    if (least !== undefined && most !== undefined) return [least, most];
    // Not of what is drawn, most of which may be the extremes; and uPlot's own range is still the last picture's.
    const { min, max } = this.chosen.range ?? { min: -Infinity, max: Infinity };
    const first = place(this.x, min);
    const end = place(this.x, max);
    const each = Math.ceil((end - first + 1) / SAMPLED);
    const inView = this.lines[0]!.slice(first, end + 1).filter((value, at) => value !== null && at % each === 0);
    const sorted = (inView as number[]).sort((a, b) => a - b);
    const at = (part: number): number => sorted[Math.round(part * (sorted.length - 1))]!;
    return sorted.length < 10 ? [low, high] : [at(0.02), at(0.98)];
  }

  private tell(plot: uPlot): void {
    const at = plot.cursor.idx;
    const x = at === null || at === undefined ? undefined : plot.data[0][at];
    if (x === undefined) return this.read("");
    const where = this.drawing.axis === "step" ? `step ${number(x)}` : moment(x);
    const value = this.series.values[this.picked[at!]!];
    const smoothed = plot.data[2]?.[at!];
    const words = smoothed === undefined ? "" : `, smoothed ${brief(smoothed)}`;
    this.read(`${where}: ${brief(value)}${words}`);
  }
}

/** A clock may be set back, and a line does not: what came after is not drawn before. */
function ascending(times: number[]): number[] {
  let latest = -Infinity;
  return times.map((time) => (latest = Math.max(latest, time)));
}

const FONT = "11px system-ui, sans-serif";

/** The colours that the style sheet gives to charts, in the present light. */
function colours(place: HTMLElement) {
  const style = getComputedStyle(place);
  const named = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  return { line: named("chart-line"), raw: named("chart-raw"), faint: named("chart-ink"), grid: named("chart-grid") };
}
