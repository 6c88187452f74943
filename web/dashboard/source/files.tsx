/** The whole tree, as the mount shows it: whatever the run shows is here, also what no panel knows. */
import { useEffect, useState } from "preact/hooks";
import { save } from "./download";
import { Text } from "./panel";
import { LIVE_PATIENCE, reason, request } from "./tree";

interface Entry {
  name: string;
  kind: "dir" | "file" | "link";
  href: string;
  live: boolean;
  target: string | null;
}

/** The root. */
export function Files() {
  return <Directory href="/files" />;
}

function Directory({ href }: { href: string }) {
  const [entries, set] = useState<Entry[] | null>(null);
  const [trouble, tell] = useState("");
  useEffect(() => {
    request(href.slice(1))
      .then(async (response) => set(((await response.json()) as { entries: Entry[] }).entries))
      .catch((error: unknown) => tell(reason(error)));
  }, [href]);
  if (trouble) return <p class="wrong">{trouble}</p>;
  return (
    <ul class="tree">
      {(entries ?? []).map((entry) => (
        <li key={entry.name}>{entry.kind === "link" ? <Link entry={entry} /> : <Opening entry={entry} />}</li>
      ))}
    </ul>
  );
}

function Link({ entry }: { entry: Entry }) {
  return (
    <span>
      {entry.name} <span class="faint">→ {entry.target}</span>
    </span>
  );
}

function Opening({ entry }: { entry: Entry }) {
  const [isOpen, open] = useState(false);
  return (
    <details onToggle={(event) => open(event.currentTarget.open)}>
      <summary>
        {entry.name}
        {entry.kind === "dir" && "/"}
        {entry.live && <span class="faint"> made when it is opened</span>}
      </summary>
      {isOpen && (entry.kind === "dir" ? <Directory href={entry.href} /> : <Content entry={entry} />)}
    </details>
  );
}

/** Longer texts are cut: the file is there to be downloaded. */
const LONGEST = 100_000;

function Content({ entry }: { entry: Entry }) {
  const [text, set] = useState("…");
  useEffect(() => {
    request(entry.href.slice(1), {}, LIVE_PATIENCE)
      .then(async (response) => set(await response.text()))
      .catch((error: unknown) => set(reason(error)));
  }, [entry.href]);
  return (
    <>
      <Text text={text.slice(0, LONGEST)} label={entry.name} />
      {text.length > LONGEST && (
        <button type="button" class="quiet" onClick={() => save(entry.name, text, "text/plain")}>
          Download all of it
        </button>
      )}
    </>
  );
}
