/** The checkpoints of a run: what training can go on from, and where it has gone back. */
import { useNode } from "./hooks";
import { Head, Node, useFew } from "./panel";
import { Send, Sending, useSending } from "./sending";
import { bytes, moment, number } from "./words";

interface Kept {
  id: string;
  size: number;
  global_step: number;
  time: number;
  steps_to_redo: number;
  is_older_than_control: boolean;
  is_chosen: boolean;
}

interface Rewind {
  to_step: number;
  reached: number;
  cause: string;
  time: number;
}

/** The panel. */
export function Checkpoints() {
  return (
    <>
      <Node<{ checkpoints: Kept[] }> path="artifacts/resumable.json" lacks="list of checkpoints">
        {({ checkpoints }) => <KeptShown checkpoints={checkpoints} />}
      </Node>
      <Rewinds />
    </>
  );
}

function KeptShown({ checkpoints }: { checkpoints: Kept[] }) {
  const sending = useSending();
  const [shown, more] = useFew(checkpoints, 8);
  if (checkpoints.length === 0) return <p class="faint">Nothing has been saved yet.</p>;
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="Checkpoints">
        <table aria-label="Checkpoints">
          <Head names={["Step", "To redo", "Checkpoint", ""]} />
          <tbody>
            {shown.map((kept) => (
              <tr key={kept.id}>
                <td class="number">{number(kept.global_step)}</td>
                <td class="number">{number(kept.steps_to_redo)}</td>
                <td>
                  {kept.id}{" "}
                  <span class="faint">
                    {bytes(kept.size)}, {moment(kept.time)}
                    {kept.is_older_than_control && ", older than the last change by a command"}
                  </span>
                </td>
                <td>
                  <Choice kept={kept} sending={sending} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {more}
      <Sending of={sending} />
    </>
  );
}

function Choice({ kept, sending }: { kept: Kept; sending: ReturnType<typeof useSending> }) {
  const send = (kind: string, checkpoint: string): void => {
    void sending.send(`control/${kind}`, { checkpoint }, kind);
  };
  return (
    <div class="row">
      <Send
        sending={sending}
        class="quiet"
        aria-label={`Go back to ${kept.id}`}
        onClick={() => send("load_checkpoint", kept.id)}
      >
        Go back
      </Send>
      <Send
        sending={sending}
        class="quiet"
        title="The next process goes on from it, once, where it asks for resume"
        aria-label={kept.is_chosen ? `Do not resume from ${kept.id}` : `Resume from ${kept.id}`}
        onClick={() => send("choose_checkpoint", kept.is_chosen ? "latest" : kept.id)}
      >
        {kept.is_chosen ? "Chosen" : "Choose"}
      </Send>
    </div>
  );
}

function Rewinds() {
  const shown = useNode<{ rewinds: Rewind[] }>("state/rewinds.json");
  const [few, more] = useFew([...(shown?.rewinds ?? [])].reverse(), 3);
  if (few.length === 0) return null;
  return (
    <>
      <ul class="list" aria-label="Rewinds">
        {few.map((rewind) => (
          <li key={rewind.time}>
            {rewind.cause === "resume" ? "Resumed from" : "Went back to"} step {number(rewind.to_step)} after reaching{" "}
            {number(rewind.reached)} <span class="faint">{moment(rewind.time)}</span>
          </li>
        ))}
      </ul>
      {more}
    </>
  );
}
