/** The panels beside metrics, controls and commands: each shows a node or two. */
import { useState } from "preact/hooks";
import { BatchesShown, type FiniteCheck } from "./batches";
import { Checkpoints } from "./checkpoints";
import { ArtifactLink, useGiven } from "./download";
import { Files } from "./files";
import { Graph } from "./graph";
import { LogPanel } from "./commands";
import { OPTIMIZERS, groupsOf } from "./optimizers";
import { Document, Head, Node, OnDemand, Panel, Text, useFew } from "./panel";
import { type Rank, RanksShown } from "./ranks";
import type { Optimizers, Service } from "./records";
import { address, reason, request } from "./tree";
import { brief, bytes, moment, number } from "./words";

/** All of them. */
export function Panels() {
  return (
    <div class="panels">
      <Panel title="Optimizers">{() => <OptimizersShown />}</Panel>
      <Panel title="Checkpoints">{() => <Checkpoints />}</Panel>
      <Panel title="Artifacts">{() => <Artifacts />}</Panel>
      <Panel title="Control log">{() => <LogPanel />}</Panel>
      <Panel title="Batches">
        {() => (
          <Node<FiniteCheck> path="state/finite-check.json" lacks="check of batches">
            {(check) => <BatchesShown {...check} />}
          </Node>
        )}
      </Panel>
      <Panel title="Pipeline timing">{() => <Pipeline />}</Panel>
      <Panel title="Memory" open={false}>
        {() => (
          <Node<HostMemory> path="state/memory.json" lacks="view of the host's memory">
            {(memory) => <HostMemoryShown {...memory} />}
          </Node>
        )}
      </Panel>
      <Panel title="CUDA memory">
        {() => (
          <Node<{ available?: boolean; why?: string }> path="state/cuda/memory.json" lacks="view of CUDA memory">
            {(memory) =>
              memory.available === false ? (
                <p class="faint">There is none to show: {memory.why}.</p>
              ) : (
                <Document value={memory} label="CUDA memory" />
              )
            }
          </Node>
        )}
      </Panel>
      <Panel title="Profiler">
        {() => (
          <OnDemand
            path="model/lightning-profiler-summary.txt"
            words="Show the profiler's summary"
            lacks="profiler summary"
          />
        )}
      </Panel>
      <Panel title="Model">{() => <Model />}</Panel>
      <Panel title="Inspectors">{() => <Inspectors />}</Panel>
      <Panel title="Hooks">
        {() => (
          <Node<HooksListed> path="hooks/index.json" lacks="shell hooks">
            {(hooks) => <HooksShown {...hooks} />}
          </Node>
        )}
      </Panel>
      <Panel title="Ranks" open={false}>
        {() => (
          <Node<{ ranks: Rank[] }> path="meta/ranks/index.json" lacks="list of ranks">
            {({ ranks }) => <RanksShown ranks={ranks} />}
          </Node>
        )}
      </Panel>
      <Panel title="Services">{() => <Services />}</Panel>
      <Panel title="This run" open={false}>
        {() => <About />}
      </Panel>
      <Panel title="All files" open={false}>
        {() => <Files />}
      </Panel>
    </div>
  );
}

function OptimizersShown() {
  return (
    <Node<Optimizers> path={OPTIMIZERS} lacks="list of optimizers">
      {(shown) => (
        <>
          {shown.optimizers.length === 0 && <p class="faint">There is no optimizer yet.</p>}
          {groupsOf(shown).map(({ name, path, rate, parameters, options }) => (
            <details key={path} class="group">
              <summary>
                {name} <span class="number">lr {brief(rate)}</span>{" "}
                <span class="faint">{number(parameters)} parameter tensors</span>
              </summary>
              <Document value={options} label={`Options of ${name}`} />
            </details>
          ))}
        </>
      )}
    </Node>
  );
}

interface Artifact {
  path: string;
  size: number;
  modified: number;
}

interface ArtifactsListed {
  artifact_dir: string;
  artifacts: Artifact[];
}

function Artifacts() {
  return (
    <Node<ArtifactsListed> path="artifacts/index.json" lacks="list of artifacts">
      {(listed) => <ArtifactList {...listed} />}
    </Node>
  );
}

function ArtifactList({ artifact_dir, artifacts }: ArtifactsListed) {
  const [shown, more] = useFew(artifacts, 12);
  return (
    <>
      <p class="faint prose">{artifact_dir}</p>
      {artifacts.length === 0 && <p class="faint">Nothing has been written yet.</p>}
      <ul class="list" aria-label="Artifacts">
        {shown.map((artifact) => (
          <ArtifactShown key={artifact.path} artifact={artifact} />
        ))}
      </ul>
      {more}
    </>
  );
}

function ArtifactShown({ artifact: { path, size, modified } }: { artifact: Artifact }) {
  const [dot, draw] = useState<string | null>(null);
  const [trouble, tell] = useState("");
  const isGiven = useGiven(path);
  const href = `artifacts/${address(path)}`;
  const load = (): void => {
    request(href)
      .then(async (response) => {
        draw(await response.text());
        tell("");
      })
      .catch((error: unknown) => tell(reason(error)));
  };
  return (
    <li>
      <ArtifactLink path={path}>{path}</ArtifactLink>{" "}
      <span class="faint">
        {bytes(size)}, {moment(modified)}
      </span>{" "}
      {isGiven && /\.(dot|gv)$/i.test(path) && (
        <button type="button" class="quiet" onClick={() => (dot === null ? load() : draw(null))}>
          {dot === null ? "Draw" : "Close"}
        </button>
      )}
      {trouble && <div class="wrong">{trouble}</div>}
      {dot !== null && <Graph name={path} dot={dot} />}
    </li>
  );
}

interface Phase {
  share: number;
  median_s?: number;
  p95_s?: number;
}

function Pipeline() {
  return (
    <Node<{ verdict?: string; phases?: Record<string, Phase> }>
      path="state/pipeline/summary.json"
      lacks="timing of the pipeline's phases"
    >
      {({ verdict, phases = {} }) => (
        <>
          {verdict && <p>{verdict}</p>}
          <Stack phases={phases} />
        </>
      )}
    </Node>
  );
}

/** Where the time of a batch goes, as one bar. The table below it says the same. */
function Stack({ phases }: { phases: Record<string, Phase> }) {
  const shown = Object.entries(phases);
  if (shown.length === 0) return <p class="faint">Nothing has been timed yet.</p>;
  return (
    <>
      <div class="stack" aria-hidden="true">
        {shown.map(([name, { share }], at) => (
          <span key={name} class={`phase phase-${at % 8}`} style={{ flexGrow: share }} title={name} />
        ))}
      </div>
      <table aria-label="Phases of a batch">
        <Head names={["Phase", "Share", "Median", "95 %"]} />
        <tbody>
          {shown.map(([name, phase], at) => (
            <tr key={name}>
              <th scope="row">
                <span class={`key phase-${at % 8}`} aria-hidden="true" /> {name}
              </th>
              <td class="number">{(phase.share * 100).toFixed(1)} %</td>
              <td class="number">{milliseconds(phase.median_s)}</td>
              <td class="number">{milliseconds(phase.p95_s)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function milliseconds(seconds: number | undefined): string {
  return seconds === undefined ? "–" : `${number(Number((seconds * 1000).toPrecision(3)))} ms`;
}

interface HostMemory {
  resident: number;
  largest: number;
  children: { pid: number; name: string; resident: number }[];
  available: number | null;
  limit: number | null;
  open_files: number;
  open_files_limit: number;
  threads: number;
}

function HostMemoryShown(memory: HostMemory) {
  const { resident, largest, children, available, limit, open_files, open_files_limit, threads } = memory;
  const rows = [
    ["The training process", `${bytes(resident)}, ${bytes(largest)} at most`],
    ...children.map(({ pid, name, resident: held }) => [`${name}, process ${pid}`, bytes(held)]),
    ["Free on the host", available === null ? "unknown" : bytes(available)],
    ["Limit", limit === null ? "none" : bytes(limit)],
    ["Open files", `${number(open_files)} of ${number(open_files_limit)}`],
    ["Threads", number(threads)],
  ];
  return (
    <table aria-label="Memory">
      <tbody>
        {rows.map(([name, text]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td class="number">{text}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Model() {
  return (
    <>
      <Node<string> path="model/class" lacks="name of the model's class">
        {(name) => <p class="prose">{name.trim()}</p>}
      </Node>
      <details class="group">
        <summary>Hyperparameters</summary>
        <Node path="model/hparams.json" lacks="list of hyperparameters">
          {(hparams) => <Document value={hparams} label="Hyperparameters" />}
        </Node>
      </details>
      <Node<string> path="model/summary.txt" lacks="summary of the model">
        {(summary) => <Text text={summary} label="Summary of the model" />}
      </Node>
    </>
  );
}

function Inspectors() {
  return (
    <>
      <p class="faint">Made at the next optimizer step, on the batch in flight: not while the run is held.</p>
      <OnDemand path="model/graph.dot" words="Draw the model's graph" lacks="live graph of the model">
        {(dot) => <Graph name="model/graph" dot={dot} />}
      </OnDemand>
      <OnDemand path="model/summary-live.txt" words="Show a live summary" lacks="live summary of the model" />
      <Node<Inspected> path="model/inspectors/index.json" lacks="list of inspectors">
        {(inspected) => <Captured {...inspected} />}
      </Node>
    </>
  );
}

interface Inspected {
  refused: string | null;
  inspectors: Record<string, { installed: boolean; extra: string; last: { id: string; time: number } | null }>;
}

/** What each inspector's command has written last, and what to install for the others. */
function Captured({ refused, inspectors }: Inspected) {
  return (
    <>
      {refused !== null && <p class="wrong">No view can be made here: {refused}.</p>}
      <table class="words" aria-label="Inspectors">
        <tbody>
          {Object.entries(inspectors).map(([name, { installed, extra, last }]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>
                {!installed && `not installed: pip install 'midrun[${extra}]'`}
                {installed && last === null && <span class="faint">no capture yet</span>}
                {last !== null && (
                  <>
                    <ArtifactLink path={`debug/${last.id}`}>{last.id}</ArtifactLink>{" "}
                    <span class="faint">{moment(last.time)}</span>
                  </>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

interface Script {
  enabled: boolean;
  runs: number;
  failures: number;
  failures_in_a_row: number;
  is_failing: boolean;
  seconds: number | null;
  trouble: string | null;
}

interface HooksListed {
  directory: string;
  scripts: Record<string, Script>;
}

function HooksShown({ directory, scripts }: HooksListed) {
  const shown = Object.entries(scripts);
  return (
    <>
      <p class="faint prose">
        {shown.length === 0 && "No script is executable. To enable one, set its execute bit (chmod +x) in "}
        {directory}
      </p>
      {shown.length > 0 && (
        <table aria-label="Hooks">
          <Head names={["Script", "Runs", "Failed", "Last"]} />
          <tbody>
            {shown.map(([name, script]) => (
              <ScriptShown key={name} name={name} script={script} />
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

function ScriptShown({ name, script }: { name: string; script: Script }) {
  const { enabled, runs, failures, failures_in_a_row, is_failing, seconds, trouble } = script;
  return (
    <tr>
      <th scope="row">
        {name || "(no name)"} {!enabled && <span class="tag">off</span>}
        {is_failing && <span class="tag failed">failed {number(failures_in_a_row)} times in a row</span>}
        {trouble && <div class="wrong">{trouble}</div>}
      </th>
      <td class="number">{number(runs)}</td>
      <td class="number">{number(failures)}</td>
      <td class="number">{milliseconds(seconds ?? undefined)}</td>
    </tr>
  );
}

function Services() {
  return (
    <Node<{ services: Record<string, Service> }> path="state/services.json" lacks="list of services">
      {({ services }) => (
        <table aria-label="Services">
          <tbody>
            {Object.entries(services).map(([name, { state, reason: why, since }]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>
                  <span class={`tag ${state}`}>{state}</span> {why}{" "}
                  {state === "running" && <span class="faint">since {moment(since)}</span>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Node>
  );
}

function About() {
  return (
    <>
      {["run-dir", "host", "pid", "rest/url"].map((name) => (
        <Node<string | number> key={name} path={`meta/${name}`} lacks={name}>
          {(value) => (
            <p class="prose">
              <span class="faint">{name}</span> {String(value).trim()}
            </p>
          )}
        </Node>
      ))}
      <Node path="meta/versions.json" lacks="list of versions">
        {(versions) => <Document value={versions} label="Versions" />}
      </Node>
    </>
  );
}
