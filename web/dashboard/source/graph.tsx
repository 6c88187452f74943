/**
 * Graphs in DOT, drawn by graphviz in a worker and shown as a picture.
 *
 * The text comes from the run. Its picture is only ever the source of an image: an image's document runs no script,
 * follows no link and loads nothing.
 */
import { useEffect, useMemo, useState } from "preact/hooks";
import { save } from "./download";
import type { Said } from "./graph-worker";
import { bytes, number } from "./words";

/** What the page's policy lets a worker be made of: this address and no other. */
const ADDRESS = new URL("static/graph.js", document.baseURI).href;
/** Graphviz takes 1 s for a model of 90 KiB (1,100 edges) and 8 s for one of 350 KiB (4,300): more is in vain. */
const MOST_DOT = 1 << 20;
/** A browser lays an image out in the page's own thread, which 3.5 MiB (6,000 nodes and edges) keep busy for 1 s. */
const MOST_SVG = 4 << 20;
const SECONDS = 8;
const LOADING_SECONDS = 60;
const IDLE_SECONDS = 60;
const INSTEAD = "download the DOT and draw it with graphviz";

interface Options {
  /** How long graphviz may take, not counting its own loading. */
  seconds?: number;
  /** Ends the drawing, also one that has not begun. */
  signal?: AbortSignal;
}

let queue: Promise<unknown> = Promise.resolve();
let worker: Worker | undefined;
let idle: number | undefined;

/**
 * The graph as SVG. One is drawn at a time; others wait.
 *
 * Fails with what is wrong with the text, or when it is too large or takes too long.
 */
export function draw(dot: string, options: Options = {}): Promise<string> {
  const drawing = queue.then(() => drawNow(dot, options));
  queue = drawing.catch(() => undefined);
  return drawing;
}

async function drawNow(dot: string, { seconds = SECONDS, signal }: Options): Promise<string> {
  signal?.throwIfAborted();
  const size = new Blob([dot]).size;
  if (size > MOST_DOT) throw tooLarge("The DOT", size, MOST_DOT);
  clearTimeout(idle);
  try {
    worker ??= new Worker((address ??= scriptAddress()));
    const svg = await answer(worker, dot, seconds, signal);
    if (svg.length > MOST_SVG) throw tooLarge("The picture", svg.length, MOST_SVG);
    idle = window.setTimeout(dismiss, IDLE_SECONDS * 1000);
    return svg;
  } catch (error) {
    dismiss(); // Graphviz may be in any state now: the next graph gets a new one.
    throw error;
  }
}

function tooLarge(what: string, size: number, most: number): Error {
  return new Error(`${what} has ${bytes(size)}, more than ${bytes(most)}: ${INSTEAD}`);
}

function dismiss(): void {
  worker?.terminate();
  worker = undefined;
}

function answer(worker: Worker, dot: string, seconds: number, signal?: AbortSignal): Promise<string> {
  let timer: number | undefined;
  return new Promise<string>((resolve, reject) => {
    const fail = (message: string): void => reject(new Error(message));
    const limit = (seconds: number, message: string): void => {
      clearTimeout(timer);
      timer = window.setTimeout(fail, seconds * 1000, message);
    };
    worker.onerror = () => fail(`Graphviz did not start: ${ADDRESS} could not be loaded`);
    worker.onmessage = ({ data }: MessageEvent<Said>) => {
      if ("svg" in data) resolve(data.svg);
      else if ("error" in data) fail(`Graphviz: ${data.error}`);
      else limit(seconds, `The graph took more than ${seconds} s to draw; ${INSTEAD}`);
    };
    signal?.addEventListener("abort", () => reject(signal.reason));
    limit(LOADING_SECONDS, `Graphviz was not loaded within ${LOADING_SECONDS} s; ${INSTEAD}`);
    worker.postMessage({ dot });
  }).finally(() => clearTimeout(timer));
}

// ---- The address, as the page's policy asks for it

/** Trusted Types, of which TypeScript's library says nothing; what a policy makes is taken where an address is. */
interface TrustedTypes {
  createPolicy(name: string, rules: Pick<Policy, "createScriptURL">): Policy;
}
interface Policy {
  createScriptURL(address: string): string;
}

let address: string | undefined;

/** Made when it is first needed: a page has one policy of a name. */
function scriptAddress(): string {
  const { trustedTypes } = window as { trustedTypes?: TrustedTypes };
  const policy = trustedTypes?.createPolicy("midrun", {
    createScriptURL(asked) {
      if (asked !== ADDRESS) throw new TypeError(`no script is made of ${asked}`);
      return asked;
    },
  });
  return policy ? policy.createScriptURL(ADDRESS) : ADDRESS;
}

// ---- The component

type Drawn = { svg?: string; error?: string };

/** A graph of that name, with its text and its picture to download. */
export function Graph({ name, dot }: { name: string; dot: string }) {
  const { svg, error, fail } = useDrawing(dot);
  const address = useObjectAddress(svg);
  const counts = useMemo(() => countsIn(svg ?? ""), [svg]);
  const [isFull, setFull] = useState(false);
  const stem = stemOf(name);
  return (
    <div class="graph">
      <div class="graph-tools">
        <button type="button" onClick={() => save(`${stem}.dot`, dot, "text/vnd.graphviz")}>
          Download DOT
        </button>
        {svg !== undefined && (
          <>
            <button type="button" onClick={() => save(`${stem}.svg`, svg, "image/svg+xml")}>
              Download SVG
            </button>
            <button type="button" aria-pressed={isFull} onClick={() => setFull(!isFull)}>
              Full size
            </button>
            <span class="faint">{counts}</span>
          </>
        )}
      </div>
      <p role="status">{svg === undefined && error === undefined ? `Drawing ${name}…` : ""}</p>
      {error !== undefined && <p role="alert">{error}</p>}
      {address !== undefined && (
        <div
          class={isFull ? "graph-picture full" : "graph-picture"}
          role="region"
          aria-label={`Picture of ${name}`}
          tabIndex={0}
        >
          <img
            src={address}
            alt={`Graph ${name}: ${counts}`}
            decoding="async"
            onError={() => fail(`The browser could not show the picture: ${INSTEAD}`)}
          />
        </div>
      )}
    </div>
  );
}

/** What came of drawing the text, and a way to say that it came to nothing after all. */
function useDrawing(dot: string): Drawn & { fail: (error: string) => void } {
  const [drawn, set] = useState<Drawn & { of?: string }>({});
  useEffect(() => {
    const left = new AbortController();
    draw(dot, { signal: left.signal }).then(
      (svg) => set({ of: dot, svg }),
      (error: unknown) => {
        if (!left.signal.aborted) set({ of: dot, error: error instanceof Error ? error.message : String(error) });
      },
    );
    return () => left.abort();
  }, [dot]);
  const fail = (error: string): void => set({ of: dot, error });
  // Between a new text and its drawing, the old picture is not this graph's.
  return drawn.of === dot ? { ...drawn, fail } : { fail };
}

/** An address of the picture, for as long as it is shown. */
function useObjectAddress(svg: string | undefined): string | undefined {
  const [address, set] = useState<string>();
  useEffect(() => {
    if (svg === undefined) return undefined;
    const made = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
    set(made);
    return () => {
      set(undefined);
      URL.revokeObjectURL(made);
    };
  }, [svg]);
  return address;
}

/** The numbers of nodes and edges, of which each is a group of its own. */
function countsIn(svg: string): string {
  const counts = { node: 0, edge: 0 };
  for (const [, kind] of svg.matchAll(/<g id="[^"]*" class="(node|edge)[ "]/g)) counts[kind as "node" | "edge"]++;
  const said = (count: number, noun: string): string => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  return `${said(counts.node, "node")}, ${said(counts.edge, "edge")}`;
}

/** A node's path as a file's name without its ending. */
function stemOf(name: string): string {
  const stem = name.replace(/\.(dot|gv)$/i, "").replace(/[^\w.-]+/g, "-");
  return stem.replace(/^[.-]+/, "") || "graph";
}
