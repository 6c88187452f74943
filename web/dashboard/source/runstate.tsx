/** The run at one glance, and the four buttons that matter: what everybody looks at first. */
import { useEffect } from "preact/hooks";
import { OVER, useChoice, useNode, useNow, useOpen, useTree } from "./hooks";
import type { HoldList, Summary } from "./records";
import { Sending, useSending } from "./sending";
import { duration, moment, number } from "./words";

/** How the run is named in the page: its id, or the directory's last part. */
export function useSummary(): Summary | undefined {
  return useNode<Summary>("state/index.json");
}

/** A run that was so near to its end, in seconds, has most likely come to it when it does not answer any more. */
const NEAR = 30;

/**
 * What is known of the end of a run that does not answer any more; "" where nothing is. Its last moment is seldom seen:
 * when training ends, so do its faces.
 */
export function useEnd(): string {
  const summary = useSummary();
  const holds = useNode<HoldList>("holds/index.json");
  if (summary && OVER.includes(summary.status)) return `The run has ended: ${summary.status}.`;
  if (holds?.stopped) return "The run has ended: it was told to stop.";
  const left = summary?.seconds_left;
  return typeof left === "number" && left <= NEAR ? `The run has gone, and was ${duration(left)} from its end.` : "";
}

/** The strip at the top. */
export function RunState() {
  const summary = useSummary();
  const tree = useTree();
  const holds = useNode<HoldList>("holds/index.json");
  const end = useEnd();
  const status = statusOf(tree.presence, summary?.status ?? "…", end);
  useEffect(() => {
    document.title = summary ? `${status} · step ${number(summary.global_step)} · midrun` : "midrun";
  });
  return (
    <section class={`run ${status}`} aria-label="Run">
      <div class="run-line">
        <span class={`pill ${status}`} role="status">
          {STATUS[status] ?? status}
        </span>
        <h1>{summary?.run_id ?? "midrun"}</h1>
        <Whereabouts />
      </div>
      {summary && <Progress summary={summary} />}
      {summary && <Facts summary={summary} />}
      {holds && <Held holds={holds} />}
      <Buttons held={holds?.active ?? null} pausing={(holds?.pending ?? []).some((hold) => hold.is_pause)} />
    </section>
  );
}

/** Which run it is, for who has several open. */
function Whereabouts() {
  const host = useNode<string>("meta/host");
  const directory = useNode<string>("meta/run-dir");
  return (
    <span class="faint whereabouts">
      {directory?.trim()} {host && `on ${host.trim()}`}
    </span>
  );
}

function statusOf(presence: ReturnType<typeof useTree>["presence"], status: string, end: string): string {
  if (presence === "here" || (presence === "silent" && OVER.includes(status))) return status;
  return presence === "silent" && end ? "gone" : presence;
}

const STATUS: Record<string, string> = { silent: "no answer", another: "another run", starting: "connecting…" };

function Progress({ summary }: { summary: Summary }) {
  const part = progress(summary);
  if (part === null) return null;
  const percent = Math.floor(part * 1000) / 10;
  return (
    <div class="progress">
      <progress value={part} max={1} aria-label="Progress of the run" />
      <span>{percent} %</span>
    </div>
  );
}

/** How far the run is, from 0 to 1; null where it has no end that is known. */
function progress({ epoch, batch, batches, max_epochs, max_steps, global_step }: Summary): number | null {
  const bySteps = max_steps && max_steps > 0 ? global_step / max_steps : null;
  const inEpoch = batches && batch !== null ? Math.min(1, (batch + 1) / batches) : 0;
  // `epoch` counts those that are complete: at the end of one, the batch is still its last.
  const byEpochs = max_epochs && max_epochs > 0 ? Math.min(epoch + inEpoch, max_epochs) / max_epochs : null;
  const known = [bySteps, byEpochs].filter((each) => each !== null);
  return known.length > 0 ? Math.min(1, Math.max(...known)) : null;
}

function Facts({ summary }: { summary: Summary }) {
  const { epoch, batch, batches, max_epochs, max_steps } = summary;
  const facts: [string, string][] = [
    ["Stage", summary.stage ?? "–"],
    ["Epoch", max_epochs && max_epochs > 0 ? `${number(epoch)} of ${number(max_epochs)}` : number(epoch)],
    ["Batch", batch === null ? "–" : batches ? `${number(batch + 1)} of ${number(batches)}` : number(batch + 1)],
    ["Step", max_steps && max_steps > 0 ? `${number(summary.global_step)} of ${number(max_steps)}` : number(summary.global_step)],
    ["Speed", typeof summary.steps_per_second === "number" ? speed(summary.steps_per_second) : "–"],
    ["Time left", typeof summary.seconds_left === "number" ? `about ${duration(summary.seconds_left)}` : "–"],
    ["Started", moment(summary.started)],
  ];
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A rate in the unit that reads best: a slow run's is seconds for a step. */
function speed(perSecond: number): string {
  return perSecond >= 1 || perSecond === 0
    ? `${number(Number(perSecond.toPrecision(3)))} steps/s`
    : `${number(Number((1 / perSecond).toPrecision(3)))} s/step`;
}

function Held({ holds }: { holds: HoldList }) {
  const { active, exception, pending, waiting } = holds;
  const now = useNow(active !== null);
  const due = pending.filter((hold) => !active || hold.id !== active.id);
  if (!active && !exception && due.length === 0) return null;
  return (
    <div class="held">
      {active && (
        <p>
          <strong>
            Held{active.since !== null && ` for ${duration(now - active.since)}`} by {active.source}
          </strong>
          {active.reason && `: ${active.reason}`}
          {active.place?.safe_point && ` (at ${active.place.safe_point})`}.
          {waiting.length > 0 && ` Commands that wait for it to end: ${waiting.length}.`}
        </p>
      )}
      {exception && <p>An exception holds the run: {exception.message}</p>}
      {!active && due.length > 0 && <p>A hold is pending: the run stands still when it comes to it.</p>}
    </div>
  );
}

function Buttons({ held, pausing }: { held: HoldList["active"]; pausing: boolean }) {
  const sending = useSending();
  const isOpen = useOpen();
  const button = (name: string, words: string, title: string, kind: string) => (
    <button
      type="button"
      class={kind}
      title={title}
      disabled={!isOpen || sending.busy}
      onClick={() => void sending.send(`control/${name}`, {}, name)}
    >
      {words}
    </button>
  );
  return (
    <div class="row buttons">
      {held || pausing
        ? button("continue", held ? "Resume" : "Cancel pause", "Let training go on", "main")
        : button("pause", "Pause", "Hold training before the next optimizer step", "main")}
      {button("checkpoint", "Checkpoint", "Write a checkpoint now", "")}
      {button("stop", "Stop…", "End training cleanly", "danger")}
      <Sending of={sending} />
    </div>
  );
}

/** How fresh the page is, and how often it asks. */
export function Freshness() {
  const tree = useTree();
  const [live, choose] = useChoice("live", false);
  useEffect(() => tree.setLive(live), [live]);
  return (
    <div class="row freshness">
      <output aria-live="off">{freshness(tree)}</output>
      <label class="check">
        <input type="checkbox" checked={live} onChange={(event) => choose(event.currentTarget.checked)} /> Live
      </label>
      <button type="button" onClick={() => void tree.refresh()}>
        Refresh
      </button>
    </div>
  );
}

function freshness({ presence, answered, age }: ReturnType<typeof useTree>): string {
  if (!answered) return "";
  const as = `as of ${new Date(answered).toLocaleTimeString()}`;
  if (presence !== "here") return as;
  return age > 1 ? `${as}; the run is busy, values are ${age.toFixed(0)} s older` : as;
}
