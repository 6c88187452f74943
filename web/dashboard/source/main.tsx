/** The dashboard: a face like the others. It shows nodes of the run's tree and writes to those that can be written. */
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { ExceptionShown } from "./batches";
import { CommandsPanel } from "./commands";
import { ControlsPanel } from "./controls";
import { useChoice, useNode, useTree } from "./hooks";
import { MetricsPanel } from "./metrics";
import { Panels } from "./panels";
import type { Service } from "./records";
import { Freshness, RunState, useEnd } from "./runstate";

function Dashboard() {
  return (
    <>
      <header class="top">
        <span class="brand">midrun</span>
        <nav aria-label="On this page">
          <a href="#metrics-title">Metrics</a>
          <a href="#controls-title">Controls</a>
          <a href="#commands-title">Commands</a>
        </nav>
        <nav aria-label="Pages">
          <a href="docs">API</a>
          <a href="files">Files</a>
        </nav>
        <Theme />
        <Freshness />
      </header>
      <main>
        <Warnings />
        <RunState />
        <ExceptionShown />
        <div class="columns">
          <MetricsPanel />
          <div class="side">
            <ControlsPanel />
            <CommandsPanel />
          </div>
          <Panels />
        </div>
      </main>
    </>
  );
}

/** Addresses that only this machine, or who has a way into it, can reach. */
const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\])$/;

/** Milliseconds without an answer after which somebody has to know, whatever the reason. */
const LONG = 20_000;

/** What somebody has to know before they believe or touch anything on the page. */
function Warnings() {
  const tree = useTree();
  const shown = useNode<{ services: Record<string, Service> }>("state/services.json");
  const directory = useNode<string>("meta/run-dir");
  const end = useEnd();
  const failed = Object.entries(shown?.services ?? {}).filter(([, { state }]) => state === "failed");
  return (
    <div role="alert">
      {tree.presence === "silent" && (
        <p class={end ? "notice" : "warning"}>
          <strong>{end || "The run does not answer."}</strong>{" "}
          {end ? "" : `${tree.trouble}: it has ended, or the way to it is cut. The page goes on asking. `}
          {tree.answered > 0 && `What is below is as of ${new Date(tree.answered).toLocaleTimeString()}. `}
          {directory && (
            <>
              How it ended: <code>midrun status {directory.trim()}</code>
            </>
          )}
        </p>
      )}
      {isLeftWaiting(tree) && (
        <p class="notice">
          <strong>The run is slow to answer</strong>: it is busy or stopped, and others wait for it too. The page goes on
          asking.
        </p>
      )}
      {tree.presence === "another" && (
        <p class="warning">
          <strong>Another run answers under this address now.</strong> What is below is the old one's.{" "}
          <a href=".">Show the new one</a>
        </p>
      )}
      {!LOOPBACK.test(location.hostname) && (
        <p class="notice">
          Whoever reaches {location.host} can steer this run: midrun asks for no password.
        </p>
      )}
      {failed.map(([name, { reason }]) => (
        <p key={name} class="warning">
          <strong>{name} does not work</strong>: {reason}. Training goes on.
        </p>
      ))}
    </div>
  );
}

/** Whether the run has told this page for long to ask again later. */
function isLeftWaiting({ isPutOff, answered }: ReturnType<typeof useTree>): boolean {
  return isPutOff && Date.now() - answered > LONG;
}

const THEMES = ["auto", "light", "dark"];

function Theme() {
  const [theme, choose] = useChoice("theme", "auto");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  return (
    <label class="theme">
      Theme{" "}
      <select value={theme} onChange={(event) => choose(event.currentTarget.value)}>
        {THEMES.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}

render(<Dashboard />, document.getElementById("dashboard")!);
