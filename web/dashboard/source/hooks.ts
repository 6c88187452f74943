/** What components use to look at the run. */
import { useEffect, useLayoutEffect, useReducer, useState } from "preact/hooks";
import type { CommandRecord, HoldList, Summary } from "./records";
import { INDEX, type Shot, tree } from "./tree";

/** A function that has the component drawn again. */
export function useRedraw(): () => void {
  const [, count] = useReducer((drawn: number) => drawn + 1, 0);
  return () => count(undefined);
}

/** The node as it was last seen; the component is drawn again when it changes. */
export function useShot(path: string): Shot | undefined {
  const redraw = useRedraw();
  // Before the page is painted: all that it shows at first is asked for at once.
  useLayoutEffect(() => tree.watch(path, redraw), [path]);
  return tree.shot(path);
}

/** The node's document, or undefined while there is none. */
export function useNode<T>(path: string): T | undefined {
  return useShot(path)?.value as T | undefined;
}

/** The run at one glance; undefined before the first answer. */
export function useSummary(): Summary | undefined {
  return useNode<Summary>(INDEX);
}

/** The commands, the oldest first. */
export function useCommands(): CommandRecord[] {
  return useNode<{ commands: CommandRecord[] }>("commands/index.json")?.commands ?? [];
}

/** Whether the run was told to stop, as far as the page knows. */
export function useStopped(): boolean {
  const commands = [...useCommands(), ...(useTree().answers as CommandRecord[])];
  const isStopped = useHolds()?.stopped ?? false;
  return isStopped || commands.some(({ kind, status }) => kind === "stop" && STOPPING.includes(status));
}

/** How the run is held. */
export function useHolds(): HoldList | undefined {
  return useNode<HoldList>("holds/index.json");
}

/** The tree, for what is said of the run as a whole; drawn again after each poll. */
export function useTree(): typeof tree {
  const redraw = useRedraw();
  // Before the page is painted: a browser that is slow to paint has the first answer by then, and would not be told.
  useLayoutEffect(() => tree.watchAll(redraw), []);
  return tree;
}

/** States of a stop after which it is done, as far as can be known. */
const STOPPING = ["queued", "executing", "succeeded"];

/** States that a run does not leave. */
export const OVER = ["finished", "interrupted", "failed"];

/** Whether the run takes commands now, as far as the page knows. */
export function useOpen(): boolean {
  const status = useSummary()?.status ?? "";
  return useTree().presence === "here" && !OVER.includes(status);
}

/** A choice that the browser remembers for this address, where it may. */
export function useChoice<T>(name: string, initial: T): [T, (value: T) => void] {
  const key = `midrun.${name}`;
  const [value, set] = useState<T>(() => {
    try {
      return (JSON.parse(localStorage.getItem(key) ?? "null") as T | null) ?? initial;
    } catch {
      return initial;
    }
  });
  const choose = (next: T): void => {
    set(next);
    try {
      localStorage.setItem(key, JSON.stringify(next));
    } catch {
      // A browser that keeps nothing still works.
    }
  };
  return [value, choose];
}

/** The time by the run's clock, in seconds; drawn again each second while `ticks`. */
export function useNow(ticks: boolean): number {
  const redraw = useRedraw();
  useEffect(() => {
    if (!ticks) return undefined;
    const timer = window.setInterval(redraw, 1000);
    return () => clearInterval(timer);
  }, [ticks]);
  return tree.now;
}

/** "light" or "dark", whatever chose it. */
export function useScheme(): string {
  const [scheme, set] = useState(() => getComputedStyle(document.documentElement).colorScheme);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const change = (): void => set(`${document.documentElement.dataset.theme ?? ""} ${query.matches}`);
    const observer = new MutationObserver(change);
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    query.addEventListener("change", change);
    return () => {
      observer.disconnect();
      query.removeEventListener("change", change);
    };
  }, []);
  return scheme;
}
