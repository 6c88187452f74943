/**
 * What can be asked of the run: the kinds of commands and their arguments, as the API's own document describes them.
 *
 * The page knows no kind beforehand. A new one appears here because it is declared in the run.
 */
import { request } from "./tree";

/** The parts of JSON Schema that the document uses. */
export interface Schema {
  $ref?: string;
  type?: string;
  enum?: unknown[];
  anyOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  default?: unknown;
  description?: string;
  minimum?: number;
  maximum?: number;
  discriminator?: { mapping: Record<string, string> };
  /** What to ask before such a command is sent. */
  "x-confirm"?: string;
}

/** A kind of command. */
export interface Kind {
  name: string;
  doc: string;
  args: Schema;
  execution: Schema;
  /** A question to ask first; empty where there is nothing to lose. */
  confirm: string;
}

interface Described {
  paths: Record<string, { post?: { requestBody?: { content: Record<string, { schema: Schema }> } } }>;
  components: { schemas: Record<string, Schema> };
}

const NOTHING: Schema = { type: "object", properties: {} };
let asked: Promise<Kind[]> | null = null;

/** The kinds, asked for once; again if that failed. */
export function kinds(): Promise<Kind[]> {
  asked ??= fetchKinds().catch((error: unknown) => {
    asked = null;
    throw error;
  });
  return asked;
}

async function fetchKinds(): Promise<Kind[]> {
  const described = (await (await request("openapi.json")).json()) as Described;
  const any = described.paths["/commands"]?.post?.requestBody?.content["application/json"]?.schema ?? {};
  const at = (schema: Schema): Schema => resolve(schema, described.components.schemas);
  const mapping = at(any).discriminator?.mapping;
  // A run that was too busy to be asked leaves this out. That is not to say that there is nothing to be sent, or asked.
  if (!mapping) throw new Error("the run does not say now what it takes");
  return Object.entries(mapping).map(([name, $ref]) => {
    const { properties = {} } = at({ $ref });
    return {
      name,
      doc: properties.kind?.description ?? "",
      args: at(properties.args ?? NOTHING),
      execution: at(properties.execution ?? NOTHING),
      confirm: properties.kind?.["x-confirm"] ?? "",
    };
  });
}

/** The schema with every reference in it replaced by what it refers to. */
function resolve(schema: Schema, all: Record<string, Schema>, depth = 8): Schema {
  if (depth === 0) return {};
  const { $ref, ...own } = schema;
  const base = $ref ? { ...all[$ref.split("/").at(-1) ?? ""], ...own } : own;
  const inner = (each: Schema): Schema => resolve(each, all, depth - 1);
  return {
    ...base,
    ...(base.anyOf && { anyOf: base.anyOf.map(inner) }),
    ...(base.items && { items: inner(base.items) }),
    ...(base.properties && {
      properties: Object.fromEntries(Object.entries(base.properties).map(([name, each]) => [name, inner(each)])),
    }),
  };
}

/** The types that a value may have, "null" left out. */
export function typesOf(schema: Schema): Schema[] {
  return (schema.anyOf ?? [schema]).filter((each) => each.type !== "null");
}

/** Whether a value may be null. */
export function isNullable(schema: Schema): boolean {
  return (schema.anyOf ?? []).some((each) => each.type === "null");
}

/**
 * The value that a text stands for under a schema. A text that is no value of the type is sent as it is: the run says
 * what is wrong with it, in the words that it has for everybody.
 */
export function parse(text: string, schema: Schema): unknown {
  const types = typesOf(schema).map((each) => each.type);
  const trimmed = text.trim();
  if (isNullable(schema) && trimmed === "null") return null;
  if (types.length === 1 && types[0] === "string") return text;
  if (types.length === 1 && (types[0] === "number" || types[0] === "integer")) return numeral(trimmed) ?? text;
  try {
    return (JSON.parse as Parse)(trimmed, (_, value, { source }) =>
      typeof value === "number" ? (asTyped(value, source ?? String(value)) ?? source) : value,
    );
  } catch {
    return numeral(trimmed) ?? text;
  }
}

/** A number as people write it, 1e-4 or .5 too; undefined for what is none. */
function numeral(text: string): unknown {
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) ? asTyped(Number(text), text.replace(/^\+/, "")) : undefined;
}

/** What newer browsers know of the text of a number; TypeScript does not yet. */
type Parse = (text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown) => unknown;
type WithRaw = typeof JSON & { rawJSON?: (text: string) => unknown };

/**
 * A number that says exactly what was typed: JavaScript rounds integers from 2^53 on. Undefined for one that can't be
 * said, which goes as its text: the run then refuses it, and sets no other.
 */
function asTyped(value: number, text: string): unknown {
  if (!Number.isFinite(value)) return undefined;
  if (!Number.isInteger(value) || Number.isSafeInteger(value) || !/^-?\d+$/.test(text)) return value;
  return (JSON as WithRaw).rawJSON?.(text);
}
