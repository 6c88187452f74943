/** Numbers, times and sizes as people read them. */

/** A number: an integer with all of its digits, any other in six of them, a very small or large one in five. */
export function number(value: unknown): string {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  // One notation for all, which is the one in which numbers are typed: elsewhere "1.234" may be a thousand or one.
  if (Number.isSafeInteger(value)) return value.toLocaleString("en-US");
  if (Number.isInteger(value) && Math.abs(value) < 1e21) return `≈${value}`;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(4).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(6)));
}

/** Seconds as a duration: 3 s, 12 min 5 s, 4 h 7 min, 2 d 3 h. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** A time, with its date when that is another day than today. */
export function moment(seconds: number): string {
  const time = new Date(seconds * 1000);
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? time.toLocaleTimeString() : time.toLocaleString();
}

/** Bytes in the unit that fits. */
export function bytes(size: number): string {
  if (size < 1024) return `${size} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  const power = Math.min(units.length, Math.floor(Math.log2(size) / 10));
  return `${(size / 1024 ** power).toFixed(1)} ${units[power - 1]}`;
}

/** A name of the code's as words: "global_step" is "global step". */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

/** A name of the code's as a label: "global_step" is "Global step". */
export function label(name: string): string {
  const text = words(name);
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const WAYS: Record<string, string> = {
  rest: "over REST",
  fuse: "through the mount",
  spool: "by a file in the spool",
  "command line": "from the command line",
  hook: "by a shell hook",
  script: "by a script",
  python: "from Python",
};

/** Who asked for something: by a name that they gave themselves, or the way they came. */
export function by(source: string): string {
  return (Object.hasOwn(WAYS, source) && WAYS[source]) || `by ${source}`;
}

/** A value of any kind on one line. */
export function brief(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return number(value);
  if (typeof value === "string") return value;
  return JSON.stringify(value);
}

/** A document's value at a JSON pointer's place: JSON has no NaN, the document says it in `_nonfinite`. */
export function exact(document: unknown, pointer: string, value: unknown): unknown {
  const odd = (document as { _nonfinite?: Record<string, string> } | undefined)?._nonfinite;
  return odd?.[pointer] ?? value;
}

/** A key as a step of a JSON pointer. */
export function pointer(key: string): string {
  return key.replaceAll("~", "~0").replaceAll("/", "~1");
}
