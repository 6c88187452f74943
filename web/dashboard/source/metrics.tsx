/** The metrics: their values now, and their charts. */
import { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { Chart, type Drawing, type Zoom } from "./chart";
import { useChoice, useNode, useRedraw, useScheme } from "./hooks";
import { type NamedGroup, groupsOf, useOptimizers } from "./optimizers";
import { Head } from "./panel";
import type { Metrics } from "./records";
import { HISTORY, type Index, METRICS, series } from "./series";
import { tree } from "./tree";
import { brief, exact, pointer } from "./words";

/** Charts in groups that are open from the start; of more, people open those that they want. */
const OPEN = 24;
/** The group of names without a slash. */
const UNGROUPED = "";
/** The groups that most people look at first. */
const FIRST = [UNGROUPED, "train", "val", "valid", "validation", "test"];
/** The group of learning rates: what one is recorded under is no name to read. */
const RATES = "Learning rate";
const DRAWING: Omit<Drawing, "scheme"> = { axis: "step", log: false, smoothing: 0, clipped: false };

type View = "charts" | "table";

/** The panel. */
export function MetricsPanel() {
  const shown = useNode<Metrics>(METRICS);
  const [search, setSearch] = useState("");
  const [view, setView] = useChoice<View>("view", "charts");
  const [kept, draw] = useChoice<unknown>("drawing", DRAWING);
  const scheme = useScheme();
  const drawing = useMemo(() => ({ ...drawingOf(kept), scheme }), [kept, scheme]);
  const groups = groupsOf(useOptimizers());
  const [fits, fit] = useReducer((count: number) => count + 1, 0);
  const names = useNames(shown);
  const metrics = useMetrics(names, groups);
  const found = useMemo(() => metrics.filter(({ title }) => matches(title, search)), [metrics, search]);
  const valueOf = (name: string): unknown =>
    Object.hasOwn(shown?.metrics ?? {}, name)
      ? exact(shown, `/metrics/${pointer(name)}`, shown!.metrics[name])
      : groups.find(({ series }) => name === series)?.rate;
  return (
    <section class="panel metrics" aria-labelledby="metrics-title">
      <div class="row spread">
        <h2 id="metrics-title">Metrics</h2>
        <Tools {...{ search, setSearch, view, setView, drawing, draw, fit: () => fit(undefined) }} />
      </div>
      {shown && names.length === 0 && <p class="faint">The model has logged nothing yet.</p>}
      {names.length > 0 && found.length === 0 && <p class="faint">No name of {names.length} has “{search}” in it.</p>}
      {view === "table" ? (
        <Values metrics={found} valueOf={valueOf} />
      ) : (
        <Groups metrics={found} {...{ valueOf, drawing, fits }} fitAll={() => fit(undefined)} all={search !== ""} />
      )}
    </section>
  );
}

/** The names of all metrics and learning rates. They stay the same array while they are the same names. */
function useNames(shown: Metrics | undefined): string[] {
  const kept = useNode<Index>(HISTORY);
  const names = [...new Set([...Object.keys(shown?.metrics ?? {}), ...Object.keys(kept?.series ?? {})])];
  return useMemo(() => names, [JSON.stringify(names)]);
}

/** One metric: the name of its series, and what people read. */
interface Metric {
  name: string;
  title: string;
  group: string;
  /** The title within its group. */
  short: string;
}

/** The metrics of the names. They stay the same array while they and the optimizers have the same names. */
function useMetrics(names: string[], groups: NamedGroup[]): Metric[] {
  const rates = new Map(groups.map(({ series, name }) => [series, name]));
  return useMemo(() => names.map((name) => metricOf(name, rates)), [names, JSON.stringify([...rates])]);
}

/** A name's group is what stands before the first slash. */
function metricOf(name: string, rates: Map<string, string>): Metric {
  const rate = rates.get(name);
  if (rate !== undefined) return { name, title: `${RATES}/${rate}`, group: RATES, short: rate };
  const slash = name.indexOf("/");
  const group = slash > 0 ? name.slice(0, slash) : UNGROUPED;
  return { name, title: name, group, short: (group !== UNGROUPED && name.slice(slash + 1)) || name };
}

/** How charts are to be drawn, of what the browser has kept: another version may have kept something else. */
function drawingOf(kept: unknown): Omit<Drawing, "scheme"> {
  const members = Object.entries(DRAWING).map(([name, initial]) => {
    const value: unknown = (kept as Record<string, unknown> | null)?.[name];
    return [name, typeof value === typeof initial ? value : initial];
  });
  return Object.fromEntries(members) as Omit<Drawing, "scheme">;
}

function matches(name: string, search: string): boolean {
  const lower = name.toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

interface ToolsProps {
  search: string;
  setSearch: (text: string) => void;
  view: View;
  setView: (view: View) => void;
  drawing: Drawing;
  draw: (drawing: Drawing) => void;
  fit: () => void;
}

function Tools({ search, setSearch, view, setView, drawing, draw, fit }: ToolsProps) {
  return (
    <div class="row tools">
      <input
        type="search"
        placeholder="Search"
        aria-label="Search metrics"
        value={search}
        onInput={(event) => setSearch(event.currentTarget.value)}
      />
      <label>
        Show{" "}
        <select value={view} onChange={(event) => setView(event.currentTarget.value as View)}>
          <option value="charts">charts</option>
          <option value="table">values</option>
        </select>
      </label>
      {view === "charts" && (
        <>
          <label>
            By{" "}
            <select
              value={drawing.axis}
              onChange={(event) => draw({ ...drawing, axis: event.currentTarget.value as Drawing["axis"] })}
            >
              <option value="step">step</option>
              <option value="time">time</option>
            </select>
          </label>
          <label>
            Smoothing{" "}
            <input
              type="range"
              min="0"
              max="0.99"
              step="0.01"
              value={drawing.smoothing}
              onInput={(event) => draw({ ...drawing, smoothing: Number(event.currentTarget.value) })}
            />{" "}
            <span class="number">{drawing.smoothing.toFixed(2)}</span>
          </label>
          <Check words="Log scale" is={drawing.log} set={(log) => draw({ ...drawing, log })} />
          <Check
            words="Ignore outliers"
            is={drawing.clipped}
            set={(clipped) => draw({ ...drawing, clipped })}
            isOff={drawing.log}
          />
          <button type="button" onClick={fit}>
            Fit all
          </button>
        </>
      )}
    </div>
  );
}

interface CheckProps {
  words: string;
  is: boolean;
  set: (value: boolean) => void;
  /** Whether it makes no difference now. */
  isOff?: boolean;
}

function Check({ words, is, set, isOff = false }: CheckProps) {
  return (
    <label class="check">
      <input type="checkbox" checked={is} disabled={isOff} onChange={(event) => set(event.currentTarget.checked)} /> {words}
    </label>
  );
}

function Values({ metrics, valueOf }: { metrics: Metric[]; valueOf: (name: string) => unknown }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Values of metrics">
      <table>
        <Head names={["Metric", "Value"]} />
        <tbody>
          {metrics.map(({ name, title }) => (
            <tr key={name}>
              <th scope="row">{title || "(no name)"}</th>
              <td class="number">{brief(valueOf(name))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface GroupsProps {
  metrics: Metric[];
  valueOf: (name: string) => unknown;
  drawing: Drawing;
  fits: number;
  fitAll: () => void;
  /** Whether somebody has searched for these: then more are open. */
  all: boolean;
}

function Groups({ metrics, all, ...rest }: GroupsProps) {
  const groups = useMemo(() => grouped(metrics), [metrics]);
  /** The groups that somebody has opened or closed. */
  const [chosen, choose] = useState<Record<string, boolean>>({});
  const most = all ? 2 * OPEN : OPEN;
  let count = 0;
  return (
    <>
      {groups.map(([group, members], at) => {
        count += members.length;
        const open = chosen[`/${group}`] ?? (count <= most || (at === 0 && members.length <= 4 * OPEN));
        const set = (next: boolean): void => choose((before) => ({ ...before, [`/${group}`]: next }));
        return <GroupOfCharts key={group} {...rest} {...{ group, members, open, set }} />;
      })}
    </>
  );
}

interface GroupProps extends Omit<GroupsProps, "metrics" | "all"> {
  group: string;
  members: Metric[];
  open: boolean;
  set: (open: boolean) => void;
}

function GroupOfCharts({ group, members, open, set, ...rest }: GroupProps) {
  return (
    <details class="group" open={open} onToggle={(event) => event.currentTarget.open !== open && set(!open)}>
      <summary>
        {group === UNGROUPED ? "others" : group} <span class="faint">{members.length}</span>
      </summary>
      {open && (
        <div class="cards">
          {members.map((metric) => (
            <Card
              key={metric.name}
              metric={metric}
              value={rest.valueOf(metric.name)}
              drawing={rest.drawing}
              fits={rest.fits}
              fitAll={rest.fitAll}
            />
          ))}
        </div>
      )}
    </details>
  );
}

/** The metrics by their groups: those that are looked at first, then all others in the order in which they came. */
function grouped(metrics: Metric[]): [string, Metric[]][] {
  const groups = new Map<string, Metric[]>();
  for (const metric of metrics) groups.set(metric.group, [...(groups.get(metric.group) ?? []), metric]);
  const place = (group: string): number => (FIRST.includes(group) ? FIRST.indexOf(group) : FIRST.length);
  return [...groups].sort(([one], [other]) => place(one) - place(other));
}

interface CardProps {
  metric: Metric;
  value: unknown;
  drawing: Drawing;
  fits: number;
  fitAll: () => void;
}

/** One metric: its value, and its chart while that is in view. */
function Card({ metric: { name, title, group, short }, value, drawing, fits, fitAll }: CardProps) {
  const place = useRef<HTMLElement>(null);
  const isSeen = useInView(place);
  const [tall, setTall] = useState(false);
  const zoom = useMemo<Zoom>(() => ({}), [fits]); // Also of a chart that is not in view when all are fitted.
  const points = useSeries(name, isSeen);
  const latest = value ?? points.values.at(-1);
  // A rate is what it was set to: an average of it has values that there never were.
  const smoothing = group === RATES ? 0 : drawing.smoothing;
  const drawn = useMemo(() => ({ ...drawing, smoothing }), [drawing, smoothing]);
  return (
    <article ref={place} class={tall ? "card tall" : "card"} aria-label={title}>
      <header class="row spread">
        <h3 title={title}>{short || "(no name)"}</h3>
        <span class="number">{brief(latest)}</span>
        <button type="button" class="quiet" aria-pressed={tall} onClick={() => setTall(!tall)}>
          {tall ? "Smaller" : "Larger"}
        </button>
      </header>
      {isSeen ? (
        <Chart series={points} {...{ title, zoom, tall, fitAll }} drawing={drawn} />
      ) : (
        <div class="chart empty" />
      )}
      {points.trouble && isSeen && <p class="faint">{points.trouble}</p>}
    </article>
  );
}

/** The series of a name, kept up to date while `wanted`. */
function useSeries(name: string, wanted: boolean) {
  const points = series(name);
  const redraw = useRedraw();
  useLayoutEffect(() => {
    if (!wanted) return undefined;
    const unwatch = points.watch(redraw);
    void points.load();
    const unwatchPolls = tree.watchAll(() => void points.load());
    return () => [unwatch, unwatchPolls].forEach((end) => end());
  }, [points, wanted]);
  return points;
}

/** Whether an element is on the screen, or nearly. */
function useInView(place: { current: HTMLElement | null }): boolean {
  const [isSeen, see] = useState(false);
  useEffect(() => {
    // A busy page is told of several crossings at once, the oldest first.
    const told: IntersectionObserverCallback = (crossings) => see(crossings.at(-1)!.isIntersecting);
    const observer = new IntersectionObserver(told, { rootMargin: "200px" });
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, []);
  return isSeen;
}
