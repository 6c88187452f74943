/** The run at one glance, and the four buttons that matter: what everybody looks at first. */
import { useEffect } from "preact/hooks";
import { OVER, useChoice, useCommands, useHolds, useNode, useNow, useStopped, useSummary, useTree } from "./hooks";
import type { HoldList, Summary } from "./records";
import { Send, Sending, useSending } from "./sending";
import { sentence } from "./tree";
import { by, duration, moment, number, words } from "./words";

/** A run that was so near to its end, in seconds, has most likely come to it when it does not answer any more. */
const NEAR = 30;

/**
 * What is known of the end of a run that does not answer any more; "" where nothing is. Its last moment is seldom seen:
 * when training ends, so do its faces.
 */
export function useEnd(): string {
  const summary = useSummary();
  const isStopped = useStopped();
  const isOver = summary !== undefined && OVER.includes(summary.status);
  if (isStopped && (!isOver || summary.status === "finished")) return "The run has ended: it was told to stop.";
  if (isOver) return `The run has ended: ${summary.status}.`;
  const left = summary?.seconds_left;
  return typeof left === "number" && left <= NEAR ? `The run does not answer any more, ${duration(left)} before its end: it has most likely finished.` : "";
}

/** The strip at the top. */
export function RunState() {
  const summary = useSummary();
  const tree = useTree();
  const holds = useHolds();
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
      {summary && <Facts summary={summary} status={status} />}
      {holds && <Held holds={holds} />}
      {summary?.notices?.map((notice) => (
        <p key={notice} class="wrong prose">
          {sentence(notice)}
        </p>
      ))}
      <Buttons held={holds?.active ?? null} caught={Boolean(holds?.exception)} pausing={usePausing(holds)} />
    </section>
  );
}

/** Whether a pause is on its way; one for a later step leaves the button for one now. */
function usePausing(holds: HoldList | undefined): boolean {
  const scheduled = new Set(useCommands().filter(({ execution }) => execution.when).map(({ id }) => id));
  return (holds?.pending ?? []).some((hold) => hold.is_pause && !scheduled.has(hold.id));
}

/** Which run it is, for those who have several open. */
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
  return presence === "silent" && end ? "ended" : presence;
}

const STATUS: Record<string, string> = { silent: "no answer", another: "another run", starting: "connecting…" };

function Progress({ summary }: { summary: Summary }) {
  const part = summary.progress;
  if (typeof part !== "number") return null;
  const percent = (Math.floor(part * 1000) / 10).toFixed(1);
  return (
    <div class="progress">
      <progress value={part} max={1} aria-label="Progress of the run" />
      <span>{percent} %</span>
    </div>
  );
}

/** `status` is the page's: a run that is held or has ended has no pace. */
function Facts({ summary, status }: { summary: Summary; status: string }) {
  const { epoch, batch, batches, max_epochs, max_steps } = summary;
  const facts: [string, string][] = [
    ["Stage", summary.stage ?? "–"],
    ["Epochs done", max_epochs && max_epochs > 0 ? `${number(epoch)} of ${number(max_epochs)}` : number(epoch)],
    ["Batch", batch === null ? "–" : batches ? `${number(batch + 1)} of ${number(batches)}` : number(batch + 1)],
    ["Step", max_steps && max_steps > 0 ? `${number(summary.global_step)} of ${number(max_steps)}` : number(summary.global_step)],
    ["Pace", status === "running" && typeof summary.steps_per_second === "number" ? pace(summary.steps_per_second) : "–"],
    ["Time left", left(summary, status)],
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

function left({ seconds_left, exception }: Summary, status: string): string {
  if (exception || typeof seconds_left !== "number" || (status !== "running" && status !== "held")) return "–";
  return `about ${duration(seconds_left)}${status === "held" ? " when it goes on" : ""}`;
}

/** A rate in the unit that reads best: a slow run's is seconds for a step. */
function pace(perSecond: number): string {
  return perSecond >= 1 || perSecond === 0
    ? `${number(Number(perSecond.toPrecision(3)))} steps/s`
    : `${number(Number((1 / perSecond).toPrecision(3)))} s/step`;
}

function Held({ holds }: { holds: HoldList }) {
  const { active, exception, pending, waiting } = holds;
  const now = useNow(active !== null || exception !== null);
  const due = active || exception ? [] : pending;
  const behind = waiting.filter(({ execution }) => !execution.when);
  if (!active && !exception && due.length === 0) return null;
  return (
    <div class="held">
      {active && (
        <p>
          <strong>
            Held{active.since !== null && ` for ${duration(now - active.since)}`} {by(active.source)}
          </strong>
          {active.reason && `: ${active.reason}`}
          {active.place?.safe_point && `, ${words(active.place.safe_point)}`}.
          {behind.length > 0 && ` Commands that wait for it to end: ${behind.length}.`}
        </p>
      )}
      {exception && (
        <p>
          <strong>Held by an exception for {duration(now - exception.time)}</strong>, to be inspected: {exception.type}. When
          it is released, the run ends with it.
        </p>
      )}
      {due.length > 0 && <p>A hold is pending: the run stands still when it comes to it.</p>}
    </div>
  );
}

interface ButtonsProps {
  held: HoldList["active"];
  /** Whether an exception holds the run. */
  caught: boolean;
  pausing: boolean;
}

function Buttons({ held, caught, pausing }: ButtonsProps) {
  const sending = useSending();
  // What asks nothing does not wait for a question: a pause is for when the loss goes up.
  const asking = useSending();
  const button = (name: string, says: string, title: string, look: string, asks = false) => (
    <Send
      sending={asks ? asking : sending}
      class={look}
      title={title}
      onClick={() => void (asks ? asking.send(`control/${name}`, {}, name) : sending.send(`control/${name}`, {}))}
    >
      {says}
    </Send>
  );
  return (
    <div class="row buttons">
      {caught && button("release_exception", "Release exception…", "Let the run end with it", "danger", true)}
      {held || pausing
        ? button("continue", held ? "Resume" : "Cancel pause", "Let training go on", "main")
        : !caught && button("pause", "Pause", "Hold training before the next optimizer step", "main")}
      {button("checkpoint", "Checkpoint", "Write a checkpoint now", "")}
      {button("stop", "Stop…", "End training cleanly", "danger", true)}
      <Sending of={sending} />
      <Sending of={asking} />
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

function freshness({ presence, answered, age, isPutOff }: ReturnType<typeof useTree>): string {
  const slow = isPutOff ? "the run is slow to answer" : "";
  if (!answered) return slow;
  const as = `as of ${new Date(answered).toLocaleTimeString()}`;
  if (presence !== "here") return as;
  if (slow) return `${as}; ${slow}`;
  return age > 1 ? `${as}; the run is busy, values are ${age.toFixed(0)} s older` : as;
}
