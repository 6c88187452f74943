/** The batch that training has in its hands: what is saved of it, whether it is finite, and what its backward raised. */
import { useHolds, useSummary } from "./hooks";
import { Text } from "./panel";
import { Send, Sending, useSending } from "./sending";
import { moment, number } from "./words";

const CAPTURES = [
  ["save_current_batch", "Save batch"],
  ["save_current_loss", "Save loss"],
  ["save_partial_gradients", "Save gradients"],
  ["save_optimizer_summary", "Save optimizers"],
] as const;

/** The exception that ended or holds the run; nothing while there is none. */
export function ExceptionShown() {
  const exception = useSummary()?.exception;
  const isHeld = Boolean(useHolds()?.exception);
  if (!exception?.type) return null;
  return (
    <section class="panel exception" aria-labelledby="exception-title">
      <h2 id="exception-title">{exception.type}</h2>
      <p class="prose">{exception.message}</p>
      <p class="faint">
        At step {number(exception.global_step)}, epoch {number(exception.epoch)}
        {exception.batch !== null && `, batch_idx ${number(exception.batch)}`}, {moment(exception.time)}
      </p>
      {isHeld && <Captures />}
      <details>
        <summary>Traceback</summary>
        <Text text={exception.traceback} label="Traceback" />
      </details>
    </section>
  );
}

/** Buttons that save what is in flight. */
function Captures() {
  const sending = useSending();
  return (
    <div class="row">
      {CAPTURES.map(([kind, says]) => (
        <Send key={kind} sending={sending} onClick={() => void sending.send(`control/${kind}`, {})}>
          {says}
        </Send>
      ))}
      <Sending of={sending} />
    </div>
  );
}

interface Finding {
  path: string;
  nan: number;
  infinite: number;
  numbers: number;
  stage: string | null;
  global_step: number;
  epoch: number;
  batch: number | null;
  time: number;
}

/** What the check of each batch for NaN and infinity has found. */
export interface FiniteCheck {
  enabled: boolean;
  hold: boolean;
  batches: number;
  not_finite: number;
  unread: number;
  first: Finding | null;
  last: Finding | null;
}

/** Whether batches are checked, what was found, and buttons that save what is in flight. */
export function BatchesShown({ enabled, hold, batches, not_finite, unread, first, last }: FiniteCheck) {
  const sending = useSending();
  const set = (body: object): void => void sending.send("control/set_dataloader_finite_check", body);
  return (
    <>
      <p>
        {enabled ? "Each batch is checked for NaN and infinity" : "Batches are not checked for NaN and infinity"}
        {hold && ", and one that has any holds the run"}.
        {batches > 0 && ` Of ${number(batches)} that were checked, ${number(not_finite)} had some.`}
        {unread > 0 && ` ${number(unread)} had something that could not be looked at: midrun.log says what.`}
      </p>
      {first && <Found says="First" {...first} />}
      {last && not_finite > 1 && <Found says="Last" {...last} />}
      <div class="row">
        {enabled ? (
          <Send sending={sending} onClick={() => set({ enabled: false })}>
            Stop checking
          </Send>
        ) : (
          <>
            <Send sending={sending} title="Slow: it waits for the device each time" onClick={() => set({ enabled: true })}>
              Check batches
            </Send>
            <Send sending={sending} onClick={() => set({ enabled: true, hold: true })}>
              Check, and hold
            </Send>
          </>
        )}
        <Sending of={sending} />
      </div>
      <Captures />
    </>
  );
}

function Found({ says, path, nan, infinite, numbers, stage, global_step, epoch, batch, time }: Finding & { says: string }) {
  const at = [stage, `epoch ${number(epoch)}`, batch !== null && `batch_idx ${number(batch)}`, `step ${number(global_step)}`];
  const bad = [nan > 0 && `${number(nan)} NaN`, infinite > 0 && `${number(infinite)} infinite`].filter(Boolean);
  return (
    <p class="prose">
      {says}: <code>{path}</code> had {bad.join(" and ")} of {number(numbers)} numbers{" "}
      <span class="faint">
        ({at.filter(Boolean).join(", ")}, {moment(time)})
      </span>
    </p>
  );
}
