/** Sending something to the run, and following what becomes of it. */
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { ask } from "./ask";
import { ArtifactLink } from "./download";
import { useCommands, useNode, useOpen } from "./hooks";
import { type Naming, useNaming } from "./optimizers";
import type { Change, CommandRecord } from "./records";
import { kinds } from "./schema";
import { Refusal, newKey, reason, tree } from "./tree";
import { brief, label, moment, words } from "./words";

interface Told {
  record?: Partial<CommandRecord>;
  error?: string;
  /** When there was something to tell, in seconds since 1970 by the run's clock. */
  time?: number;
  fields?: Refusal["fields"];
  busy?: boolean;
  /** What it is busy with. */
  words?: string;
  /** What the run did not answer in time: sent again, it is the same. */
  late?: { what: string; key: string };
}

const LATE = "The run did not answer in time, and may still do it. To send the same again is safe: it is done once.";

/** What a button or a form needs to send something once, and to say what came of it. */
export function useSending() {
  const [told, tell] = useState<Told>({});
  /** Two presses may come before anything is drawn. */
  const isBusy = useRef(false);
  /** Send it; `asks` is the kind that says what is to be asked first. */
  const send = async (path: string, body: unknown, asks = ""): Promise<boolean> => {
    if (isBusy.current) return false;
    isBusy.current = true;
    const what = JSON.stringify([path, body]);
    const key = told.late?.what === what ? told.late.key : newKey();
    const [before, pressed] = [told, document.activeElement];
    try {
      if (asks) {
        tell({ busy: true, words: "one moment…" });
        const confirm = await confirmation(asks);
        if (confirm && !(await ask(question(confirm)))) {
          tell(before);
          return false;
        }
      }
      tell({ busy: true, words: "sending…" });
      tell({ record: (await tree.write(path, body, key)) as CommandRecord, time: tree.now });
      return true;
    } catch (error) {
      const refusal = error instanceof Refusal ? error : undefined;
      tell({
        error: refusal?.id ? LATE : reason(error),
        time: tree.now,
        ...(refusal && { fields: refusal.fields }),
        ...(refusal?.id && { record: { id: refusal.id } }),
        ...((!refusal || refusal.id) && { late: { what, key } }),
      });
      return false;
    } finally {
      isBusy.current = false;
      refocus(pressed);
    }
  };
  return {
    send,
    told,
    busy: told.busy ?? false,
    /** What is wrong with one field, where the run said so. */
    wrong: (at: string, name: string): string => {
      const found = told.fields?.find(({ loc }) => loc.includes(at) && loc.includes(name));
      return found?.msg ?? "";
    },
  };
}

interface SendProps {
  sending: ReturnType<typeof useSending>;
  children: ComponentChildren;
  type?: "button" | "submit";
  class?: string;
  title?: string;
  "aria-label"?: string;
  /** Whether there is nothing to be sent yet. */
  isIdle?: boolean;
  onClick?: () => void;
}

/**
 * A button that sends something. The second click of a double click is none: what the button says then may be the
 * opposite of what was to be done, and a command is not meant twice.
 */
export function Send({ sending, isIdle = false, onClick, type = "button", children, ...rest }: SendProps) {
  const isOpen = useOpen();
  const click = (event: MouseEvent): void => {
    if (event.detail > 1) event.preventDefault();
    else onClick?.();
  };
  return (
    <button {...rest} type={type} disabled={sending.busy || !isOpen || isIdle} onClick={click}>
      {children}
    </button>
  );
}

/** A button loses the focus while it is disabled, and to a question. Who has not gone elsewhere gets it back. */
function refocus(pressed: Element | null): void {
  requestAnimationFrame(() => {
    if (document.activeElement === document.body && pressed instanceof HTMLElement) pressed.focus();
  });
}

/** What to ask before a command of this kind is sent. Where that can't be known, there is a question too. */
async function confirmation(name: string): Promise<string> {
  try {
    return (await kinds()).find((kind) => kind.name === name)?.confirm ?? "";
  } catch {
    return `Send ${name}? The run does not say now what it does.`;
  }
}

/** The first sentence is the question and the rest explains it; the button has the question's first word. */
function question(confirm: string) {
  const [title = "", ...rest] = confirm.split(/(?<=\?)\s+/);
  return { title, text: rest.join(" "), does: title.split(" ")[0]! };
}

/** What came of it so far, and when: the command's status, and in the end what it changed or why it failed. */
export function Sending({ of }: { of: ReturnType<typeof useSending> }) {
  const commands = useCommands();
  const { record, error, busy, time } = of.told;
  const found = commands.find(({ id }) => id === record?.id) ?? record;
  const known = found?.status ? (found as CommandRecord) : undefined;
  const trouble = known ? "" : error; // What came too late to be answered may be done by now.
  const last = known?.finished ?? known?.started ?? time;
  return (
    <output class={trouble || (known && hasFailed(known)) ? "sent wrong" : "sent"}>
      {busy && of.told.words}
      {trouble}
      {known && (
        <>
          {label(known.kind)}: <Outcome command={known} />
        </>
      )}
      {!busy && last !== undefined && <span class="faint"> ({moment(last)})</span>}
    </output>
  );
}

/** Whether something went wrong: what somebody took back did not. */
export function hasFailed({ status }: CommandRecord): boolean {
  return status === "failed" || status === "expired";
}

/** A command's status in words, with what it changed and wrote or why it came to nothing. */
export function Outcome({ command }: { command: CommandRecord }) {
  const named = useNaming();
  const written = command.result?.artifact;
  return (
    <>
      {outcome(command, named)}
      {written && (
        <>
          , <Written {...written} />
        </>
      )}
    </>
  );
}

function outcome(command: CommandRecord, named: Naming): string {
  if (command.error) return `${command.status}: ${command.error.message}`;
  const holds = command.status === "executing" && (command.kind === "pause" || command.kind === "hold");
  const status = holds ? "the run is held" : command.status;
  return [status, ...details(command, named)].join(", ");
}

function details({ result, started }: CommandRecord, named: Naming): string[] {
  const changes = (result?.changes ?? []).slice(0, 1).map((change) => `${named(change.what, started)} ${arrow(change)}`);
  const isSame = result?.changes?.length === 0;
  const overwriting = result?.will_be_overwritten_by ?? [];
  return [
    ...changes,
    ...(isSame ? ["nothing has changed"] : []),
    ...(overwriting.length > 0 ? [`but ${overwriting.join(", ")} may undo it`] : []),
    ...(result?.notes ?? []),
    ...others(result ?? {}),
  ];
}

/** Members of a result that are told in words of their own. */
const TOLD = ["changes", "notes", "artifact", "will_be_overwritten_by"];
/** Characters of any other's value that are shown. */
const LONGEST = 80;

/** What else a result says: a kind of command may be added, and give back what this page has never heard of. */
function others(result: Record<string, unknown>): string[] {
  return Object.entries(result)
    .filter(([name, value]) => !TOLD.includes(name) && says(value))
    .map(([name, value]) => {
      const text = brief(value);
      return `${words(name)}: ${text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text}`;
    });
}

/** Whether a value says anything: 0 and false do. */
function says(value: unknown): boolean {
  if (typeof value === "object") return value !== null && Object.keys(value).length > 0;
  return value !== "" && value !== undefined;
}

/** An artifact that a command wrote, as a link to it; its path is the disk's. */
function Written({ id, path = "" }: { id: string; path?: string }) {
  const directory = useNode<{ artifact_dir: string }>("artifacts/index.json")?.artifact_dir;
  const isBelow = directory !== undefined && path.startsWith(`${directory}/`);
  return isBelow ? <ArtifactLink path={path.slice(directory.length + 1)}>{id}</ArtifactLink> : <>{id}</>;
}

/** A change as "0.02 → 0.001". */
export function arrow(change: Change): string {
  return `${brief(change.old)} → ${brief(change.new)}`;
}
