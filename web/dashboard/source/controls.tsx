/** What can be changed in a run: learning rates, the model's tunables, and everything else that it takes. */
import { useEffect, useId, useReducer, useState } from "preact/hooks";
import { CommandForm } from "./form";
import { useNode, useOpen } from "./hooks";
import { groupsOf, useOptimizers } from "./optimizers";
import { Part } from "./panel";
import type { Tunable } from "./records";
import { type Kind, kinds, parse } from "./schema";
import { Send, Sending, useSending } from "./sending";
import { reason } from "./tree";
import { brief, exact, number, pointer } from "./words";

/** So long after the page is there what the run takes is asked for, and so long after that has failed, in milliseconds. */
const SOON = 1_000;
const LATER = 5_000;

/** The panel. */
export function ControlsPanel() {
  return (
    <section class="panel controls" aria-labelledby="controls-title">
      <h2 id="controls-title">Controls</h2>
      <LearningRates />
      <Tunables />
      <Part title="Anything else, now or later">
        <AnyCommand />
      </Part>
    </section>
  );
}

function LearningRates() {
  const shown = useOptimizers();
  const groups = groupsOf(shown);
  return (
    <Part title="Learning rate">
      {shown && groups.length === 0 && <p class="faint">There is no optimizer yet.</p>}
      {groups.map(({ name, path, rate, where }) => (
        <Setting
          key={path}
          name={name}
          label={`Learning rate of ${name}`}
          now={rate}
          kind="set_learning_rate"
          args={(text) => ({ value: parse(text, { type: "number" }), ...where })}
        />
      ))}
    </Part>
  );
}

function Tunables() {
  const shown = useNode<{ hparams: Record<string, Tunable> }>("model/tunable-hparams.json");
  const tunables = Object.entries(shown?.hparams ?? {});
  return (
    <Part title="Tunable hyperparameters">
      {shown && tunables.length === 0 && (
        <p class="faint">The model declares none in midrun_tunable_hparams, so none can be changed here.</p>
      )}
      {tunables.map(([path, tunable]) => (
        <Setting
          key={path}
          name={tunable.label ?? path}
          label={tunable.label ? `${tunable.label} (${path})` : path}
          now={exact(shown, `/hparams/${pointer(path)}/value`, tunable.value)}
          hint={limits(tunable)}
          kind="set_hparam"
          args={(text) => ({ name: path, value: typed(text, tunable) })}
        />
      ))}
    </Part>
  );
}

function typed(text: string, { type }: Tunable): unknown {
  return parse(text, { type: { float: "number", int: "integer", str: "string" }[type] });
}

function limits({ type, min, max }: Tunable): string {
  const range = [min !== undefined && `from ${number(min)}`, max !== undefined && `to ${number(max)}`];
  return [type, ...range].filter(Boolean).join(" ");
}

interface SettingProps {
  name: string;
  label: string;
  now: unknown;
  hint?: string;
  kind: string;
  args: (text: string) => Record<string, unknown>;
}

/** One value that can be set: what it is now, and a field for another. */
function Setting({ name, label, now, hint, kind, args }: SettingProps) {
  const [text, type] = useState("");
  const sending = useSending();
  const id = useId();
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (text.trim() === "" || !(await sending.send(`control/${kind}`, args(text)))) return;
    type((now) => (now === text ? "" : now)); // Somebody may have typed on.
  };
  return (
    <form class="setting" onSubmit={(event) => void send(event)} noValidate>
      <label for={id} title={label}>
        {name || "(no name)"}
      </label>
      <span class="number now">{brief(now)}</span>
      <input
        id={id}
        type="text"
        autocomplete="off"
        spellcheck={false}
        placeholder="new value"
        aria-label={label}
        aria-describedby={`${id}-hint`}
        value={text}
        onInput={(event) => type(event.currentTarget.value)}
      />
      <Send sending={sending} type="submit" isIdle={text.trim() === ""}>
        Set
      </Send>
      <small id={`${id}-hint`} class="faint">
        {hint}
      </small>
      <Sending of={sending} />
    </form>
  );
}

/** A form for each kind of command that the run takes, whatever kinds those are. */
function AnyCommand() {
  const [known, set] = useState<Kind[]>([]);
  const [trouble, tell] = useState("");
  const [name, choose] = useState("");
  const isOpen = useOpen();
  const id = useId();
  const isThere = known.length > 0;
  const [failures, fail] = useReducer((count: number) => count + 1, 0);
  const load = (): void => {
    if (isThere) return;
    kinds().then(set, (error: unknown) => {
      tell(reason(error));
      fail(undefined);
    });
  };
  useEffect(() => {
    if (isThere || !isOpen) return undefined;
    // What the run takes is a long document, and the charts come first.
    const timer = window.setTimeout(load, failures > 0 ? LATER : SOON);
    return () => clearTimeout(timer);
  }, [isThere, isOpen, failures]);
  const kind = known.find((each) => each.name === name);
  return (
    <>
      <div class="row">
        <label for={id}>Command</label>
        <select id={id} value={name} onFocus={load} onChange={(event) => choose(event.currentTarget.value)}>
          <option value="">choose…</option>
          {known.map((each) => (
            <option key={each.name}>{each.name}</option>
          ))}
        </select>
      </div>
      {trouble !== "" && !isThere && <p class="wrong">What the run takes can't be shown: {trouble}</p>}
      {kind && <CommandForm key={kind.name} kind={kind} />}
    </>
  );
}
