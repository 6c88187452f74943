/**
 * The run's tree as this page knows it: nodes are polled together, and only those that changed come over the wire.
 *
 * A panel watches the nodes that it shows for as long as it is open, so a closed one costs the run nothing.
 */

/** A node as it was last seen: what it shows, or why it can't be shown. */
export interface Shot {
  value?: unknown;
  fault?: Fault;
}

/** Why a node can't be shown. */
interface Fault {
  status: number;
  detail: Detail;
}

/** What was wrong: a sentence, or the wrong fields. */
type Detail = string | Wrong[];

interface Wrong {
  loc: (string | number)[];
  msg: string;
}

/** What the server answers to a poll: only the nodes that changed since the revision that it was sent. */
interface Poll {
  revision: string;
  age: number;
  nodes: Record<string, unknown>;
  faults: Record<string, Fault>;
}

/** A mistake that the server told of: its status, a sentence, and the wrong fields if it named them. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly fields: Wrong[] = [],
    /** The id by which the run knows a write that it did not answer in time. */
    readonly id = "",
    /** Whether midrun said why: what stands between it and the browser has words of its own. */
    readonly isSaid = true,
  ) {
    super(message);
  }
}

/** Whether the run answers: it does, not now, or another one does under its address. */
type Presence = "starting" | "here" | "silent" | "another";

/** How often the page asks, in milliseconds: by itself, and in live mode. */
const REFRESH = 15_000;
const LIVE = 1_000;
/** So long after a command is sent the page asks as in live mode, to say what becomes of it. */
const FOLLOW = 30_000;
/** A request that takes longer than this is given up: the run's own patience is 5 s. */
const PATIENCE = 12_000;
/** The same for what the run makes on demand: its patience with that is 30 s. */
export const LIVE_PATIENCE = 40_000;
/** The status of an answer that says: later. */
const LATER = 503;
/** The run at one glance. */
export const INDEX = "state/index.json";

type Listener = () => void;

/** The run, polled. There is one for the page. */
class Tree {
  private shots = new Map<string, Shot>();
  private listeners = new Map<string, Set<Listener>>();
  private general = new Set<Listener>();
  private revision = "";
  private asked = "";
  private polling: Promise<void> | null = null;
  private again = false;
  private timer = 0;
  private soon = false;
  private sent = -Infinity;
  /** The run has so many who wait for it that it told this page to ask again. */
  isPutOff = false;

  /** The run that the page is of: the first that answered. */
  runId = "";
  presence: Presence = "starting";
  /** When the run last answered, in milliseconds since 1970. */
  answered = 0;
  /** By how many seconds the values are older than that. */
  age = 0;
  /** By how many milliseconds the run's clock is ahead of this one's. */
  skew = 0;
  /** What was answered to writes since the run was last seen: it may have gone by what was asked. */
  answers: unknown[] = [];
  /** Why there was no answer. */
  trouble = "";
  live = false;

  /** The time by the run's clock, in seconds since 1970. */
  get now(): number {
    return (Date.now() + this.skew) / 1000;
  }

  /** The node as it was last seen. */
  shot(path: string): Shot | undefined {
    return this.shots.get(path);
  }

  /** Tell `listener` whenever the node changes; the function that is returned ends that. */
  watch(path: string, listener: Listener): () => void {
    const known = this.listeners.get(path) ?? new Set();
    this.listeners.set(path, known);
    known.add(listener);
    if (!this.shots.has(path)) {
      this.pollSoon();
    }
    return () => {
      known.delete(listener);
      if (known.size === 0) {
        this.listeners.delete(path);
        this.shots.delete(path);
      }
    };
  }

  /** Tell `listener` after each poll, whatever came of it. */
  watchAll(listener: Listener): () => void {
    this.general.add(listener);
    return () => this.general.delete(listener);
  }

  setLive(live: boolean): void {
    if (live === this.live) return;
    this.live = live;
    this.tell();
    void this.refresh();
  }

  /** Ask now. One request at a time: a poll that is under way is followed by another. */
  async refresh(): Promise<void> {
    if (this.polling) {
      this.again = true;
      return this.polling;
    }
    clearTimeout(this.timer);
    this.polling = this.poll();
    try {
      await this.polling;
    } finally {
      this.polling = null;
    }
    if (this.again) {
      this.again = false;
      return this.refresh();
    }
    this.schedule();
  }

  /** Panels that open together are asked for together. */
  private pollSoon(): void {
    if (this.soon) return;
    this.soon = true;
    queueMicrotask(() => {
      this.soon = false;
      void this.refresh();
    });
  }

  private schedule(): void {
    clearTimeout(this.timer);
    const isQuick = this.live || this.isPutOff || Date.now() - this.sent < FOLLOW;
    const pause = isQuick && !document.hidden ? LIVE : REFRESH;
    this.timer = window.setTimeout(() => void this.refresh(), pause);
  }

  private async poll(): Promise<void> {
    const paths = [...new Set([INDEX, ...this.listeners.keys()])];
    const asked = paths.map((path) => `node=${encodeURIComponent(address(path))}`).join("&");
    // What this page has thrown away the server must not leave out.
    const isKept = asked === this.asked && paths.every((path) => this.shots.has(path));
    const seen = isKept ? `&seen=${encodeURIComponent(this.revision)}` : "";
    this.isPutOff = false;
    // What comes of a write meanwhile is news that this poll may be too old for.
    const known = this.answers.length;
    try {
      const response = await request(`poll?${asked}${seen}`);
      this.skew = Date.parse(response.headers.get("Date") ?? "") - Date.now() || 0;
      const poll = (await response.json()) as Poll;
      this.arrive(paths, poll);
      this.answers = this.answers.slice(known);
      this.asked = asked;
      this.revision = poll.revision;
    } catch (error) {
      this.fail(error);
    }
    this.tell();
  }

  private fail(error: unknown): void {
    const status = error instanceof Refusal ? error.status : 0;
    // Who stands between says the same when there is nothing behind it, in other words.
    this.isPutOff = status === LATER && error instanceof Refusal && error.isSaid;
    if (this.isPutOff) return;
    this.trouble = error instanceof Refusal ? error.message : "There is no answer";
    this.presence = status === 409 ? "another" : "silent";
  }

  private arrive(paths: string[], poll: Poll): void {
    const run = poll.nodes[INDEX] as { run_id?: string } | undefined;
    this.runId ||= run?.run_id ?? "";
    this.presence = "here";
    this.trouble = "";
    this.answered = Date.now();
    this.age = poll.age;
    for (const path of paths) {
      if (path !== INDEX && !this.listeners.has(path)) continue; // Its panel was closed meanwhile.
      const key = address(path);
      if (key in poll.nodes) this.change(path, { value: poll.nodes[key] });
      else if (key in poll.faults) this.change(path, { fault: poll.faults[key]! });
    }
  }

  private change(path: string, shot: Shot): void {
    this.shots.set(path, shot);
    for (const listener of [...(this.listeners.get(path) ?? [])]) listener();
  }

  private tell(): void {
    for (const listener of [...this.general]) listener();
  }

  /** Write a document to a control node, and return what came of it. Writes with the same key are done once. */
  async write(path: string, body: unknown, key: string): Promise<unknown> {
    const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
    try {
      const response = await request(`files/${address(path)}`, { method: "POST", headers, body: JSON.stringify(body) });
      const answer: unknown = await response.json();
      this.answers.push(answer);
      return answer;
    } finally {
      this.sent = Date.now();
      void this.refresh();
    }
  }
}

/** Half of a character, as Python names a byte of a file's name that is no UTF-8: no address can say it. */
const HALF = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Whether an address can say a path: it has control characters escaped, as names in the tree have. */
export function isSayable(path: string): boolean {
  return path.replace(HALF, "\0").search(/[\0-\x1f\x7f-\x9f]/) < 0;
}

/** A path of the tree as part of an address. */
export function address(path: string): string {
  return path.replace(HALF, "\ufffd").split("/").map(encodeURIComponent).join("/");
}

/** A key for a write, that no other has. */
export function newKey(): string {
  // Not crypto.randomUUID: a page that is opened under a LAN address is no secure context and lacks it.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Ask the server. Raises `Refusal` for an answer that is a mistake, and what fetch raises when there is none.
 *
 * Every request says which run is meant. When that has ended its port is free, and another run that has taken it shows
 * and does nothing that was meant for this one.
 */
export async function request(route: string, options: RequestInit = {}, patience = PATIENCE): Promise<Response> {
  const headers = new Headers(options.headers);
  if (tree.runId) headers.set("Midrun-Run-Id", encodeURIComponent(tree.runId));
  const response = await fetch(route, {
    cache: "no-store",
    signal: AbortSignal.timeout(patience),
    ...options,
    headers,
  });
  if (response.ok) return response;
  const { detail, id } = (await response.json().catch(() => ({}))) as { detail?: Detail; id?: string };
  const words = detail === undefined ? `status ${response.status}` : sentence(detail);
  throw new Refusal(response.status, words, Array.isArray(detail) ? detail : [], id, detail !== undefined);
}

/** What was wrong, in one sentence. */
export function sentence(detail: Detail): string {
  if (!Array.isArray(detail)) return detail;
  return detail.map(({ loc, msg }) => [...loc.slice(1), msg].join(": ")).join("; ");
}

/** What to say of an error to the person who looks at the page. */
export function reason(error: unknown): string {
  if (error instanceof Refusal) return error.message;
  if (error instanceof DOMException && error.name === "TimeoutError") return "the run did not answer in time";
  return "the run does not answer";
}

export const tree = new Tree();

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) void tree.refresh();
});
