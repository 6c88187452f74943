/** The optimizers' groups of parameters, by the names that the page has for them everywhere. */
import { useNode, useSummary } from "./hooks";
import type { Group, Optimizers } from "./records";
import { exact } from "./words";

export const OPTIMIZERS = "state/optimizers.json";

/** A group with its name: the optimizer's class, with numbers where there are several. */
export interface NamedGroup extends Group {
  name: string;
  /** Its place, under which changes of its options are told. */
  path: string;
  /** The name under which its learning rate is recorded. */
  series: string;
  rate: unknown;
  /** How a command names it; empty where there is but one. */
  where: { optimizer?: number; group?: number };
}

/** The node; undefined before it was seen. */
export function useOptimizers(): Optimizers | undefined {
  return useNode<Optimizers>(OPTIMIZERS);
}

/** The groups of all optimizers. */
export function groupsOf(shown: Optimizers | undefined): NamedGroup[] {
  const optimizers = shown?.optimizers ?? [];
  return optimizers.flatMap(({ name, groups }, optimizer) =>
    groups.map((group, at) => {
      const path = `optimizers/${optimizer}/groups/${at}`;
      return {
        ...group,
        name: `${name}${optimizers.length > 1 ? ` ${optimizer}` : ""}${groups.length > 1 ? `, group ${at}` : ""}`,
        path,
        series: `${path}/lr`,
        rate: exact(shown, `/${path}/lr`, group.lr),
        where: { ...(optimizers.length > 1 && { optimizer }), ...(groups.length > 1 && { group: at }) },
      };
    }),
  );
}

/** Returns what a change is of, in the page's words: "lr of SGD" for "optimizers/0/groups/0/lr". */
export type Naming = (what: string, time: number | null) => string;

/** The names of what was changed since this session began: an earlier one had other optimizers in their places. */
export function useNaming(): Naming {
  const groups = groupsOf(useOptimizers());
  const began = useSummary()?.started ?? Infinity;
  return (what, time) => {
    const group = groups.find(({ path }) => what.startsWith(`${path}/`));
    return group && (time ?? 0) >= began ? `${what.slice(group.path.length + 1)} of ${group.name}` : what;
  };
}
