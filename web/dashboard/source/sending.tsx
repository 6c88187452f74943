/** Sending something to the run, and following what becomes of it. */
import { useState } from "preact/hooks";
import { ask } from "./ask";
import { useNode } from "./hooks";
import type { Change, CommandRecord } from "./records";
import { kinds } from "./schema";
import { Refusal, newKey, reason, tree } from "./tree";
import { brief } from "./words";

interface Told {
  record?: Partial<CommandRecord>;
  error?: string;
  fields?: Refusal["fields"];
  busy?: boolean;
  /** What it is busy with. */
  words?: string;
  /** What the run did not answer in time: sent again, it is the same. */
  late?: { what: string; key: string };
}

/** What a button or a form needs to send something once, and to say what came of it. */
export function useSending() {
  const [told, tell] = useState<Told>({});
  /** Send it; `asks` is the kind that says what is to be asked first. */
  const send = async (path: string, body: unknown, asks = ""): Promise<boolean> => {
    if (told.busy) return false;
    const what = JSON.stringify([path, body]);
    const key = told.late?.what === what ? told.late.key : newKey();
    const pressed = document.activeElement;
    try {
      if (asks) {
        tell({ busy: true, words: "one moment…" });
        const confirm = await confirmation(asks);
        tell({});
        if (confirm && !(await ask(question(confirm)))) return false;
      }
      tell({ busy: true, words: "sending…" });
      tell({ record: (await tree.write(path, body, key)) as CommandRecord });
      return true;
    } catch (error) {
      const refusal = error instanceof Refusal ? error : undefined;
      tell({
        error: reason(error),
        ...(refusal && { fields: refusal.fields }),
        ...(refusal?.id && { record: { id: refusal.id } }),
        ...((!refusal || refusal.id) && { late: { what, key } }),
      });
      return false;
    } finally {
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
  return { title, text: rest.join(" "), does: title.split(" ")[0] ?? "Yes" };
}

/** What came of it so far: the command's status, and in the end what it changed or why it failed. */
export function Sending({ of }: { of: ReturnType<typeof useSending> }) {
  const listed = useNode<{ commands: CommandRecord[] }>("commands/index.json");
  const { record, error, busy } = of.told;
  const found = listed?.commands?.find(({ id }) => id === record?.id) ?? record;
  const now = found?.status ? (found as CommandRecord) : undefined;
  const trouble = now ? "" : error; // What came too late to be answered may be done by now.
  return (
    <output class={trouble || now?.error ? "sent wrong" : "sent"}>
      {busy && of.told.words}
      {trouble}
      {now && `${now.kind}: ${outcome(now)}`}
    </output>
  );
}

/** A command's status in words, with what it changed or why it came to nothing. */
export function outcome(command: CommandRecord): string {
  if (command.error) return `${command.status}: ${command.error.message}`;
  const holds = command.status === "executing" && (command.kind === "pause" || command.kind === "hold");
  const status = holds ? "the run is held" : command.status === "succeeded" ? "done" : command.status;
  return [status, ...told(command)].join(", ");
}

function told({ result }: CommandRecord): string[] {
  const changes = (result?.changes ?? []).slice(0, 1).map((change) => `${change.what} ${arrow(change)}`);
  const artifact = result?.artifact as { id?: string } | undefined;
  const overwriting = (result?.will_be_overwritten_by as string[] | undefined) ?? [];
  return [
    ...changes,
    ...(artifact?.id ? [artifact.id] : []),
    ...(overwriting.length > 0 ? [`but ${overwriting.join(", ")} may undo it`] : []),
    ...(result?.notes ?? []),
  ];
}

/** A change as "0.02 → 0.001". */
export function arrow(change: Change): string {
  return `${brief(change.old)} → ${brief(change.new)}`;
}
