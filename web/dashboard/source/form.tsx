/**
 * Forms, made from the schemas of what the run takes. What somebody types stays until it is sent: a refresh of the page
 * never touches it, and neither does a mistake.
 */
import { useId, useState } from "preact/hooks";
import { Send, Sending, useSending } from "./sending";
import { type Kind, type Schema, isNullable, parse, typesOf } from "./schema";
import { label } from "./words";

/** What has been typed, by the names of the fields; an empty one is left out of what is sent. */
type Entries = Record<string, string>;

/** The form of a kind of command: its arguments, and when it is to be done. */
export function CommandForm({ kind }: { kind: Kind }) {
  const [args, setArgs] = useState<Entries>({});
  const [when, setWhen] = useState<Entries>({});
  const sending = useSending();
  const times = kind.execution.properties?.when;
  const send = (event: Event): void => {
    event.preventDefault();
    const due = documentOf(when, times);
    const command = {
      kind: kind.name,
      args: documentOf(args, kind.args),
      ...(Object.keys(due).length > 0 && { execution: { when: due } }),
    };
    void sending.send("control/commands", command, kind.name);
  };
  return (
    <form class="command" aria-label={kind.name} onSubmit={send} noValidate>
      <p class="faint prose">{kind.doc}</p>
      <Fields schema={kind.args} entries={args} set={setArgs} sending={sending} at="args" />
      {times?.properties && (
        <details class="when">
          <summary>Later: at a step, an epoch or a safe point</summary>
          <Fields schema={times} entries={when} set={setWhen} sending={sending} at="when" />
        </details>
      )}
      <div class="row">
        <Send sending={sending} type="submit" class={kind.confirm ? "danger" : "main"}>
          Send
        </Send>
        <Sending of={sending} />
      </div>
    </form>
  );
}

interface FieldsProps {
  schema: Schema;
  entries: Entries;
  set: (entries: Entries) => void;
  sending: ReturnType<typeof useSending>;
  /** Where in the request these fields are: by it the run names a wrong one. */
  at: string;
}

function Fields({ schema, entries, set, sending, at }: FieldsProps) {
  return (
    <div class="fields">
      {Object.entries(schema.properties ?? {}).map(([name, each]) => (
        <Field
          key={name}
          name={name}
          schema={each}
          required={schema.required?.includes(name) ?? false}
          value={entries[name] ?? ""}
          set={(value) => set({ ...entries, [name]: value })}
          wrong={sending.wrong(at, name)}
        />
      ))}
    </div>
  );
}

interface FieldProps {
  name: string;
  schema: Schema;
  required: boolean;
  value: string;
  set: (value: string) => void;
  wrong: string;
}

function Field({ name, schema, required, value, set, wrong }: FieldProps) {
  const id = useId();
  const described = {
    id,
    value,
    required,
    "aria-describedby": `${id}-help`,
    "aria-invalid": wrong !== "",
  };
  const choices = choicesOf(schema);
  return (
    <div class="field">
      <label for={id}>
        {label(name)}
        {required && <span class="faint"> (required)</span>}
      </label>
      {choices.length > 0 ? (
        <select {...described} onChange={(event) => set(event.currentTarget.value)}>
          <option value="">–</option>
          {choices.map((choice) => (
            <option key={choice}>{choice}</option>
          ))}
        </select>
      ) : (
        <input
          {...described}
          type="text"
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => set(event.currentTarget.value)}
        />
      )}
      <small id={`${id}-help`} class={wrong ? "wrong" : "faint"}>
        {wrong || help(schema)}
      </small>
    </div>
  );
}

/** The document that has been typed. */
function documentOf(entries: Entries, schema: Schema | undefined): Record<string, unknown> {
  const properties = schema?.properties ?? {};
  return Object.fromEntries(
    Object.entries(properties)
      .filter(([name]) => (entries[name] ?? "") !== "")
      .map(([name, each]) => [name, parse(entries[name]!, each)]),
  );
}

function choicesOf(schema: Schema): string[] {
  const types = typesOf(schema);
  const only = types.length === 1 ? types[0] : undefined;
  if (only?.enum) return only.enum.map(String);
  return only?.type === "boolean" ? ["true", "false"] : [];
}

function help(schema: Schema): string {
  const [first] = typesOf(schema);
  const limits = [
    first?.minimum !== undefined && `at least ${first.minimum}`,
    first?.maximum !== undefined && `at most ${first.maximum}`,
    isNullable(schema) && schema.default === undefined && "null is possible",
  ].filter(Boolean);
  return [schema.description, limits.length > 0 && `(${limits.join(", ")})`].filter(Boolean).join(" ");
}

