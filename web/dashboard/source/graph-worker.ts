/**
 * The worker that draws DOT text as SVG. A message `{dot}` is answered by `{drawing: true}` once graphviz is there, and
 * then by `{svg}` or `{error}`.
 *
 * The text comes from the run and may say anything. Graphviz has no network here, but it writes some attributes into
 * the SVG as they are (`fontname`, `stylesheet`), markup and all. So what leaves the worker is written anew from its
 * shapes and its text alone: it runs nothing, links to nothing and loads nothing, also when somebody keeps the file and
 * opens it.
 */
import { Graphviz } from "@hpcc-js/wasm-graphviz";

/** What the worker says. */
export type Said = { drawing: true } | { svg: string } | { error: string };

self.onmessage = async (event: MessageEvent<{ dot: string }>): Promise<void> => {
  try {
    const graphviz = await Graphviz.load();
    say({ drawing: true });
    const drawn = graphviz.dot(drawable(event.data.dot));
    if (!drawn) throw new Error("there is no graph in the DOT text");
    say({ svg: pictureOf(drawn) });
  } catch (error) {
    say({ error: complaint(error instanceof Error ? error.message : String(error)) });
  }
};

function complaint(message: string): string {
  // Graphviz calls itself for each edge of a path: the browser's stack ends at some 10,000.
  if (/call stack|recursion/i.test(message)) return "the graph is too large for a browser; draw it outside of one";
  return message.trim().slice(0, 500);
}

function say(said: Said): void {
  self.postMessage(said);
}

// ---- DOT: no label may start with an empty line, and a font must be one whose widths graphviz knows

/**
 * Where a label, or a field of a record, starts with a line break; an escape such as \N may stand for an empty name.
 * A backslash at a line's end joins the lines.
 */
const EMPTY_START = /(^|[{|}>])((?: |\\\r?\n|\\[NGETHL])*)(?=\n|\\[nlr]|&#(?:0*10|[xX]0*[aA]);)/g;

/** The font of torchviz: graphviz would take it to be as narrow as Times, and draw the boxes too small. */
const MONOSPACE = /(\bfontname\s*=\s*)monospace\b/gi;

/**
 * The same DOT, with a space before each line break that starts a label.
 *
 * Graphviz calls a function through a pointer it never set when the first line of a label is empty: natively that often
 * passes unseen, here it is "table index is out of bounds". torchviz writes such a label for each tensor without a
 * name. The space is written `\ `, which a record's field keeps as well. All quoted strings are treated alike and not
 * only the values of `label`: a node without a label shows its name, and a name stays the same wherever it stands.
 */
export function drawable(dot: string): string {
  let out = "";
  for (const [kind, token] of tokensOf(dot)) {
    out += kind === "quoted" ? filled(token) : token.replace(MONOSPACE, "$1Courier");
  }
  return out;
}

/** A quoted string, or several joined by `+`, which are one text. */
function filled(quoted: string): string {
  let text = "";
  for (const [kind, token] of tokensOf(quoted, false)) if (kind === "quoted") text += token.slice(1, -1);
  const full = text.replace(EMPTY_START, "$1$2\\ ");
  return full === text ? quoted : `"${full}"`;
}

type Token = ["quoted" | "other", string];

/**
 * The text in pieces: each quoted string (where `joined`, with those that `+` adds to it), and what lies between. What
 * has no end passes as it is, for graphviz to find fault with.
 */
function* tokensOf(dot: string, joined = true): Generator<Token> {
  let from = 0;
  for (let at = 0; at < dot.length; ) {
    if (dot[at] !== '"') {
      at = afterOther(dot, at);
      continue;
    }
    const end = joined ? afterJoined(dot, at) : afterQuoted(dot, at);
    if (end < 0) break;
    if (from < at) yield ["other", dot.slice(from, at)];
    yield ["quoted", dot.slice(at, end)];
    from = at = end;
  }
  if (from < dot.length) yield ["other", dot.slice(from)];
}

/** Where the character, comment or HTML-like string at `at` ends. */
function afterOther(dot: string, at: number): number {
  const two = dot.slice(at, at + 2);
  if (two === "//" || (dot[at] === "#" && (at === 0 || dot[at - 1] === "\n"))) return after(dot, "\n", at);
  if (two === "/*") return after(dot, "*/", at + 2);
  return dot[at] === "<" ? afterHtml(dot, at) : at + 1;
}

function after(dot: string, end: string, from: number): number {
  const at = dot.indexOf(end, from);
  return at < 0 ? dot.length : at + end.length;
}

function afterHtml(dot: string, at: number): number {
  let depth = 0;
  do {
    if (dot[at] === "<") depth++;
    else if (dot[at] === ">") depth--;
    at++;
  } while (depth > 0 && at < dot.length);
  return at;
}

/** Where the quoted string at `at` ends, or -1: a backslash takes the next character with it. */
function afterQuoted(dot: string, at: number): number {
  for (at++; at < dot.length; at++) {
    if (dot[at] === "\\") at++;
    else if (dot[at] === '"') return at + 1;
  }
  return -1;
}

function afterJoined(dot: string, at: number): number {
  let end = afterQuoted(dot, at);
  while (end >= 0) {
    const plus = afterBlank(dot, end);
    if (dot[plus] !== "+") break;
    const next = afterBlank(dot, plus + 1);
    const nextEnd = dot[next] === '"' ? afterQuoted(dot, next) : -1;
    if (nextEnd < 0) break;
    end = nextEnd;
  }
  return end;
}

/** Where white space and comments from `at` on end. */
function afterBlank(dot: string, at: number): number {
  for (;;) {
    if (at < dot.length && /\s/.test(dot.charAt(at))) at++;
    else if (dot.startsWith("//", at) || dot.startsWith("/*", at)) at = afterOther(dot, at);
    else return at;
  }
}

// ---- SVG: shapes and text, and nothing else

const ELEMENTS = new Set(
  "svg g title defs linearGradient radialGradient stop path polygon polyline ellipse circle text".split(" "),
);
const ATTRIBUTES = new Set(
  (
    "width height viewBox id class transform fill fill-opacity stroke stroke-width stroke-opacity stroke-dasharray " +
    "points d cx cy rx ry r fx fy x y x1 x2 y1 y2 offset gradientUnits gradientTransform text-anchor xml:space " +
    "font-family font-size font-weight font-style baseline-shift text-decoration textLength lengthAdjust"
  ).split(" "),
);
/** The one style that graphviz sets, at a gradient's stop. */
const STYLE = /^stop-color:[#\w]+;stop-opacity:[\d.]+;$/;
const START = '<?xml version="1.0" encoding="UTF-8"?>\n';
/** Graphviz leaves it out where the graph asks for no background: the picture must stay readable on a dark page. */
const PAPER = '<rect width="100%" height="100%" fill="white"/>';

const TAG = /<(\/?)([\w:]+)((?:\s+[\w:-]+="[^"]*")*)\s*(\/?)>/y;

/** The SVG written anew from the elements and attributes that are known. */
export function pictureOf(drawn: string): string {
  const root = drawn.indexOf("<svg ");
  if (root < 0) throw new Error("graphviz drew no picture");
  let out = START;
  for (let at = root; at < drawn.length; ) {
    const open = drawn.indexOf("<", at);
    if (open < 0) break;
    out += wellFormed(drawn.slice(at, open));
    if (drawn.startsWith("<!--", open)) {
      at = after(drawn, "-->", open);
      continue;
    }
    TAG.lastIndex = open;
    const tag = TAG.exec(drawn);
    if (!tag) throw new Error(`graphviz wrote what is no picture: ${drawn.slice(open, open + 200)}`);
    out += rewritten(tag, open === root);
    at = TAG.lastIndex;
  }
  return out;
}

function rewritten([, close, name = "", attributes = "", single]: RegExpExecArray, isRoot: boolean): string {
  if (!ELEMENTS.has(name)) return "";
  if (close) return `</${name}>`;
  const space = isRoot ? ' xmlns="http://www.w3.org/2000/svg"' : "";
  return `<${name}${space}${known(attributes)}${single}>${isRoot ? PAPER : ""}`;
}

function known(attributes: string): string {
  let out = "";
  for (const [, name = "", value = ""] of attributes.matchAll(/([\w:-]+)="([^"]*)"/g)) {
    if (isHarmless(name, value)) out += ` ${name}="${wellFormed(value)}"`;
  }
  return out;
}

/** Whether an attribute may stay: `url(#…)` is a gradient of this picture, any other one would be loaded. */
function isHarmless(name: string, value: string): boolean {
  if (name === "style") return STYLE.test(value);
  if (!ATTRIBUTES.has(name) || /[\\<]/.test(value)) return false;
  return name.endsWith("ransform") || !/\((?!#)/.test(value);
}

/** The text as XML takes it: `&` only before what XML knows, and no control characters. */
function wellFormed(text: string): string {
  return text
    .replace(/&(?!(?:amp|lt|gt|quot|apos|#45|#39|#160);)/g, "&amp;")
    .replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "");
}
