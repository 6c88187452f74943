// Shows what /run and /metrics say, as tables. Text goes into the page as text, never as markup.
"use strict";

const SECONDS = 15;
const state = document.getElementById("state");
let asking = false;

/** A node, and by how many seconds it is old. */
async function ask(route) {
  const response = await fetch(route, { cache: "no-store" });
  if (response.status === 404) return { value: {}, age: 0 };
  if (!response.ok) throw new Error(`/${route} answers ${response.status}`);
  const age = Number(response.headers.get("X-Midrun-Age") ?? 0);
  return { value: await response.json(), age };
}

/** The rows of a table: every value with the keys that lead to it. */
function* rows(value, odd, keys = [], pointer = "") {
  if (value === null || typeof value !== "object") {
    yield [keys.join(" · "), pointer in odd ? odd[pointer] : shown(value, keys.at(-1))];
    return;
  }
  for (const [key, item] of Object.entries(value)) {
    if (pointer === "" && key === "_nonfinite") continue;
    const step = key.replaceAll("~", "~0").replaceAll("/", "~1");
    yield* rows(item, odd, [...keys, key], `${pointer}/${step}`);
  }
}

const TIMES = new Set(["started", "sampled", "time"]);

function shown(value, key) {
  if (value === null) return "–";
  if (TIMES.has(key) && typeof value === "number") return new Date(value * 1000).toLocaleString();
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  return String(value);
}

function fill(table, value) {
  const lines = [];
  for (const [name, text] of rows(value, value._nonfinite ?? {})) {
    const line = document.createElement("tr");
    const head = line.appendChild(document.createElement("th"));
    head.scope = "row";
    head.textContent = name;
    line.appendChild(document.createElement("td")).textContent = text;
    lines.push(line);
  }
  if (lines.length === 0) {
    const line = document.createElement("tr");
    line.appendChild(document.createElement("td")).textContent = "nothing yet";
    lines.push(line);
  }
  table.tBodies[0].replaceChildren(...lines);
}

function say(text, trouble) {
  state.textContent = text;
  state.classList.toggle("trouble", trouble);
}

async function refresh() {
  if (asking) return;
  asking = true;
  try {
    let oldest = 0;
    for (const table of document.querySelectorAll("table[data-from]")) {
      const { value, age } = await ask(table.dataset.from);
      fill(table, value);
      oldest = Math.max(oldest, age);
    }
    const time = new Date().toLocaleTimeString();
    say(oldest > 0 ? `${time}: the run is busy, values are ${oldest.toFixed(1)} s old` : `As of ${time}`, oldest > 0);
  } catch (error) {
    say(`Not updated: ${error instanceof TypeError ? "the run does not answer; it may have ended" : error.message}`, true);
  } finally {
    asking = false;
  }
}

document.getElementById("refresh").addEventListener("click", refresh);
setInterval(refresh, SECONDS * 1000);
refresh();
