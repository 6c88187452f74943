/** Panels that can be closed: a closed one asks the run for nothing. */
import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import { useChoice, useNode, useShot } from "./hooks";
import { LIVE_PATIENCE, address, reason, request, sentence } from "./tree";
import { brief, exact, pointer } from "./words";

interface PanelProps {
  title: string;
  children: () => ComponentChildren;
  /** Whether it is open before somebody has chosen. */
  open?: boolean;
}

/** One panel. It remembers in the browser whether it is open. */
export function Panel({ title, children, open = true }: PanelProps) {
  const [isOpen, choose] = useChoice(`panel.${title}`, open);
  const id = useId();
  return (
    <section class="panel" aria-labelledby={id}>
      <details open={isOpen} onToggle={(event) => event.currentTarget.open !== isOpen && choose(!isOpen)}>
        <summary>
          <h2 id={id}>{title}</h2>
        </summary>
        {isOpen && children()}
      </details>
    </section>
  );
}

/** A labelled part of a panel. */
export function Part({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section class="part" aria-label={title}>
      <h3>{title}</h3>
      {children}
    </section>
  );
}

/** The first few of a list, and a button that shows all of it; nothing where these are all. */
export function useFew<T>(items: T[], few: number): [T[], ComponentChildren] {
  const [all, showAll] = useState(false);
  const button = items.length > few && (
    <button type="button" class="quiet" onClick={() => showAll(!all)}>
      {all ? "Fewer" : `All ${items.length}`}
    </button>
  );
  return [all ? items : items.slice(0, few), button];
}

interface NodeProps<T> {
  path: string;
  /** What it is that a midrun without this node lacks. */
  lacks: string;
  children: (value: T) => ComponentChildren;
}

/** What a node shows, or why there is nothing to show. */
export function Node<T>({ path, lacks, children }: NodeProps<T>) {
  const shot = useShot(path);
  if (!shot) return <p class="faint">…</p>;
  if (shot.fault?.status === 404) return <p class="faint">This version of midrun has no {lacks}.</p>;
  if (shot.fault) return <p class="wrong">{sentence(shot.fault.detail)}</p>;
  return <>{children(shot.value as T)}</>;
}

/** The head of a table: a name for each column. */
export function Head({ names }: { names: string[] }) {
  return (
    <thead>
      <tr>
        {names.map((name) => (
          <th key={name} scope="col">
            {name}
          </th>
        ))}
      </tr>
    </thead>
  );
}

/** Any document as a table: each value with the keys that lead to it. */
export function Document({ value, label }: { value: unknown; label: string }) {
  const rows = [...rowsOf(value, value, [], "")];
  if (rows.length === 0) return <p class="faint">nothing yet</p>;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label={label}>
      <table aria-label={label}>
        <tbody>
          {rows.map(([name, text]) => (
            <tr key={name}>
              <th scope="row">{name || "(no name)"}</th>
              <td class="number">{text}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The rows of a document: `at` is the JSON pointer of the part that is shown. */
function* rowsOf(root: unknown, value: unknown, keys: string[], at: string): Generator<[string, string]> {
  if (value === null || typeof value !== "object" || (at !== "" && Object.keys(value).length === 0)) {
    yield [keys.join(" · "), brief(exact(root, at, value))];
    return;
  }
  for (const [key, item] of Object.entries(value)) {
    if (at !== "" || key !== "_nonfinite") yield* rowsOf(root, item, [...keys, key], `${at}/${pointer(key)}`);
  }
}

interface OnDemandProps {
  path: string;
  words: string;
  lacks: string;
  children?: (text: string) => ComponentChildren;
}

/** A file that is made when somebody wants it, at the next optimizer step. */
export function OnDemand({ path, words, lacks, children }: OnDemandProps) {
  const at = path.lastIndexOf("/");
  const directory = useNode<{ entries: { name: string }[] }>(path.slice(0, at));
  const isMissing = directory !== undefined && !directory.entries.some(({ name }) => name === path.slice(at + 1));
  const [told, tell] = useState<{ text?: string; error?: string; busy?: boolean }>({});
  const make = async (): Promise<void> => {
    tell({ busy: true });
    try {
      tell({ text: await (await request(`files/${address(path)}`, {}, LIVE_PATIENCE)).text() });
    } catch (error) {
      tell({ error: reason(error) });
    }
  };
  if (isMissing && told.text === undefined) return <p class="faint">This version of midrun has no {lacks}.</p>;
  return (
    <div class="on-demand">
      <div class="row">
        <button type="button" disabled={told.busy} onClick={() => void make()}>
          {words}
        </button>
        <output aria-live="polite" class={told.error ? "wrong" : "faint"}>
          {told.busy ? "waiting for the next optimizer step…" : told.error}
        </output>
      </div>
      {told.text !== undefined && (children ? children(told.text) : <Text text={told.text} label={path} />)}
    </div>
  );
}

/** Text as it is, which scrolls. */
export function Text({ text, label }: { text: string; label: string }) {
  return (
    <pre class="text" tabIndex={0} role="region" aria-label={label}>
      {text}
    </pre>
  );
}
