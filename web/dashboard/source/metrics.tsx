/** The metrics: their values now, and their charts. */
import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { Chart, type Drawing, type Zoom } from "./chart";
import { useChoice, useNode } from "./hooks";
import type { Metrics, Optimizers } from "./records";
import { HISTORY, type Index, METRICS, series } from "./series";
import { tree } from "./tree";
import { brief, exact, pointer } from "./words";

/** Charts that are open from the start; of more, people open the groups that they want. */
const OPEN = 24;
/** The group of names without a slash. */
const UNGROUPED = "";
const DRAWING: Drawing = { axis: "step", log: false, smoothing: 0, clipped: false };

type View = "charts" | "table";

/** The panel. */
export function MetricsPanel() {
  const shown = useNode<Metrics>("state/metrics/index.json");
  const [search, setSearch] = useState("");
  const [view, setView] = useChoice<View>("view", "charts");
  const [kept, draw] = useChoice<unknown>("drawing", DRAWING);
  const drawing = useMemo(() => drawingOf(kept), [kept]);
  const rates = ratesOf(useNode<Optimizers>("state/optimizers.json"));
  const [fits, fit] = useReducer((count: number) => count + 1, 0);
  const names = useNames(shown);
  const found = useMemo(() => names.filter((name) => matches(name, search)), [names, search]);
  const valueOf = (name: string): unknown =>
    Object.hasOwn(shown?.metrics ?? {}, name)
      ? exact(shown, `/metrics/${pointer(name)}`, shown!.metrics[name])
      : rates.get(name);
  return (
    <section class="panel metrics" aria-labelledby="metrics-title">
      <div class="row spread">
        <h2 id="metrics-title">Metrics</h2>
        <Tools {...{ search, setSearch, view, setView, drawing, draw, fit: () => fit(undefined) }} />
      </div>
      {names.length === 0 && <p class="faint">The model has logged nothing yet.</p>}
      {names.length > 0 && found.length === 0 && <p class="faint">No name of {names.length} has “{search}” in it.</p>}
      {view === "table" ? (
        <Values names={found} valueOf={valueOf} />
      ) : (
        <Groups names={found} {...{ valueOf, drawing, fits }} fitAll={() => fit(undefined)} all={search !== ""} />
      )}
    </section>
  );
}

/** The names of all metrics and learning rates. They stay the same array while they are the same names. */
function useNames(shown: Metrics | undefined): string[] {
  const kept = useNode<Index>("history/index.json");
  const names = [...new Set([...Object.keys(shown?.metrics ?? {}), ...Object.keys(kept?.series ?? {})])];
  return useMemo(() => names, [JSON.stringify(names)]);
}

/** The learning rates now, by the names of their series. */
function ratesOf(shown: Optimizers | undefined): Map<string, unknown> {
  const named = (shown?.optimizers ?? []).flatMap(({ groups }, optimizer) =>
    groups.map(({ lr }, group): [string, unknown] => {
      const place = `optimizers/${optimizer}/groups/${group}/lr`;
      return [place, exact(shown, `/${place}`, lr)];
    }),
  );
  return new Map(named);
}

/** How charts are to be drawn, of what the browser has kept: another version may have kept something else. */
function drawingOf(kept: unknown): Drawing {
  const members = Object.entries(DRAWING).map(([name, initial]) => {
    const value: unknown = (kept as Record<string, unknown> | null)?.[name];
    return [name, typeof value === typeof initial ? value : initial];
  });
  return Object.fromEntries(members) as Drawing;
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
          <Check words="Ignore outliers" is={drawing.clipped} set={(clipped) => draw({ ...drawing, clipped })} />
          <button type="button" onClick={fit}>
            Fit all
          </button>
        </>
      )}
    </div>
  );
}

function Check({ words, is, set }: { words: string; is: boolean; set: (value: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={is} onChange={(event) => set(event.currentTarget.checked)} /> {words}
    </label>
  );
}

function Values({ names, valueOf }: { names: string[]; valueOf: (name: string) => unknown }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Values of metrics">
      <table>
        <thead>
          <tr>
            <th scope="col">Metric</th>
            <th scope="col">Value</th>
          </tr>
        </thead>
        <tbody>
          {names.map((name) => (
            <tr key={name}>
              <th scope="row">{name || "(no name)"}</th>
              <td class="number">{brief(valueOf(name))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface GroupsProps {
  names: string[];
  valueOf: (name: string) => unknown;
  drawing: Drawing;
  fits: number;
  fitAll: () => void;
  /** Whether every group is open: somebody has searched for these. */
  all: boolean;
}

function Groups({ names, all, ...rest }: GroupsProps) {
  const groups = useMemo(() => grouped(names), [names]);
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

interface GroupProps extends Omit<GroupsProps, "names" | "all"> {
  group: string;
  members: string[];
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
          {members.map((name) => (
            <Card
              key={name}
              name={name}
              short={group === UNGROUPED ? name : name.slice(group.length + 1)}
              value={rest.valueOf(name)}
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

/** The names by what stands before the first slash, in the order in which they came. */
function grouped(names: string[]): [string, string[]][] {
  const groups = new Map<string, string[]>();
  for (const name of names) {
    const slash = name.indexOf("/");
    const group = slash > 0 ? name.slice(0, slash) : UNGROUPED;
    groups.set(group, [...(groups.get(group) ?? []), name]);
  }
  return [...groups];
}

interface CardProps {
  name: string;
  /** The name within its group. */
  short: string;
  value: unknown;
  drawing: Drawing;
  fits: number;
  fitAll: () => void;
}

/** One metric: its value, and its chart while that is in view. */
function Card({ name, short, value, drawing, fits, fitAll }: CardProps) {
  const place = useRef<HTMLElement>(null);
  const isSeen = useInView(place);
  const [tall, setTall] = useState(false);
  const zoom = useRef<Zoom>({});
  const points = useSeries(name, isSeen);
  const latest = value ?? points.values.at(-1);
  return (
    <article ref={place} class={tall ? "card tall" : "card"} aria-label={name}>
      <header class="row spread">
        <h3 title={name}>{short || "(no name)"}</h3>
        <span class="number">{brief(latest)}</span>
        <button type="button" class="quiet" aria-pressed={tall} onClick={() => setTall(!tall)}>
          {tall ? "Smaller" : "Larger"}
        </button>
      </header>
      {isSeen ? <Chart series={points} zoom={zoom.current} fitAll={fitAll} {...{ drawing, tall, fits }} /> : <div class="chart empty" />}
      {points.trouble && isSeen && <p class="faint">{points.trouble}</p>}
    </article>
  );
}

/** The series of a name, kept up to date while `wanted`. */
function useSeries(name: string, wanted: boolean) {
  const points = series(name);
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    if (!wanted) return undefined;
    const unwatch = points.watch(() => redraw(undefined));
    void points.load();
    const unwatchPolls = [METRICS, HISTORY].map((path) => tree.watch(path, () => void points.load()));
    return () => [unwatch, ...unwatchPolls].forEach((end) => end());
  }, [points, wanted]);
  return points;
}

/** Whether an element is on the screen, or nearly. */
function useInView(place: { current: HTMLElement | null }): boolean {
  const [isSeen, see] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => see(entry?.isIntersecting ?? false), {
      rootMargin: "200px",
    });
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, []);
  return isSeen;
}
