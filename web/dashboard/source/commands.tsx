/** What was asked of the run: commands that wait, run and are over; holds; and the log of what was done. */
import { useCommands, useHolds, useNode } from "./hooks";
import { useNaming } from "./optimizers";
import { useFew } from "./panel";
import type { Change, CommandRecord, HoldList, HoldRecord, Place, Problem } from "./records";
import { Outcome, Send, Sending, arrow, hasFailed, useSending } from "./sending";
import { brief, by, moment, number, words } from "./words";

/** Lines that are shown before somebody wants more. */
const FEW = 8;

/** The panel. */
export function CommandsPanel() {
  const holds = useHolds();
  const commands = [...useCommands()].reverse();
  const open = commands.filter(({ status }) => status === "queued" || status === "executing");
  const over = commands.filter((command) => !open.includes(command));
  const waiting = new Set((holds?.waiting ?? []).map(({ id }) => id));
  return (
    <section class="panel commands" aria-labelledby="commands-title">
      <h2 id="commands-title">Commands and holds</h2>
      <Holds holds={holds} />
      <Commands title="Waiting and running" commands={open} waiting={waiting} none={holds && "Nothing waits."} />
      <Commands title="Finished" commands={over} waiting={waiting} none={holds && "Nothing has finished yet."} />
    </section>
  );
}

function Holds({ holds }: { holds: HoldList | undefined }) {
  const shown = [...(holds?.active ? [holds.active] : []), ...(holds?.pending ?? [])];
  if (shown.length === 0) return null;
  return (
    <ul class="list" aria-label="Holds">
      {shown.map((hold) => (
        <Hold key={hold.id} hold={hold} />
      ))}
    </ul>
  );
}

function Hold({ hold }: { hold: HoldRecord }) {
  const sending = useSending();
  const isActive = hold.status === "active";
  const verb = isActive ? "release" : "cancel";
  return (
    <li class="row spread">
      <span>
        <span class={`tag ${isActive ? "held" : "queued"}`}>{isActive ? "holding" : "pending"}</span>{" "}
        {hold.is_pause ? "pause" : "hold"} {by(hold.source)}
        {hold.reason && `: ${hold.reason}`}
        {isActive && hold.since !== null && <span class="faint"> since {moment(hold.since)}</span>}
      </span>
      <Sending of={sending} />
      <Send
        sending={sending}
        onClick={() => void sending.send(`holds/${hold.id}/${verb}`, {})}
        aria-label={`${isActive ? "Release" : "Cancel"} the hold ${hold.id}`}
      >
        {isActive ? "Release" : "Cancel"}
      </Send>
    </li>
  );
}

interface CommandsProps {
  title: string;
  commands: CommandRecord[];
  /** Commands that run when the hold ends. */
  waiting: Set<string>;
  none: string | undefined;
}

function Commands({ title, commands, waiting, none }: CommandsProps) {
  const [shown, more] = useFew(commands, FEW);
  return (
    <>
      <h3>{title}</h3>
      {commands.length === 0 && none && <p class="faint">{none}</p>}
      <ul class="list" aria-label={title}>
        {shown.map((command) => (
          <Command key={command.id} command={command} waits={waiting.has(command.id)} />
        ))}
      </ul>
      {more}
    </>
  );
}

function Command({ command, waits }: { command: CommandRecord; waits: boolean }) {
  const { id, kind, status, args, execution, source, submitted, finished, place } = command;
  const sending = useSending();
  const given = Object.entries(args).filter(([, value]) => value !== null);
  const when = Object.entries(execution.when ?? {});
  return (
    <li>
      <div class="row spread">
        <span>
          <span class={`tag ${status}`}>{status}</span> <strong>{kind}</strong>{" "}
          {given.map(([name, value]) => `${name}=${brief(value)}`).join(" ")}
        </span>
        {status === "queued" && (
          <Send
            sending={sending}
            onClick={() => void sending.send(`commands/${id}/cancel`, {})}
            aria-label={`Cancel the command ${id}`}
          >
            Cancel
          </Send>
        )}
      </div>
      {when.length > 0 && <div>due at {when.map(([name, value]) => `${words(name)} ${brief(value)}`).join(", ")}</div>}
      {waits && when.length === 0 && <div>runs when the hold ends</div>}
      {status !== "queued" && (
        <div class={hasFailed(command) ? "wrong" : ""}>
          <Outcome command={command} />
        </div>
      )}
      <div class="faint">
        {by(source)}, {moment(finished ?? submitted)}
        {place && `, step ${number(place.global_step)}`}, <code>{id}</code>
      </div>
      <Sending of={sending} />
    </li>
  );
}

interface Entry {
  revision: number;
  time: number;
  event: string;
  kind: string;
  source: string;
  place: Place | null;
  changes: Change[];
  error: Problem | null;
}

/** What was done to the run, and by whom. */
export function LogPanel() {
  const log = useNode<{ entries: Entry[] }>("state/control-log.json");
  const named = useNaming();
  const entries = [...(log?.entries ?? [])].reverse();
  const [shown, more] = useFew(entries, FEW);
  return (
    <>
      {log && entries.length === 0 && <p class="faint">Nobody has changed anything yet.</p>}
      <ol class="list" aria-label="Control log">
        {shown.map((entry) => (
          <li key={entry.revision}>
            <div>
              <strong>{entry.kind}</strong> {entry.event} {by(entry.source)}
              {entry.error && <span class="wrong">: {entry.error.message}</span>}
            </div>
            {entry.changes.map((change) => (
              <div key={change.what} class="number">
                {named(change.what, entry.time)}: {arrow(change)}
              </div>
            ))}
            <div class="faint">
              {moment(entry.time)}
              {entry.place && `, step ${number(entry.place.global_step)}`}
            </div>
          </li>
        ))}
      </ol>
      {more}
    </>
  );
}
