/** Links that save a file. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useNode, useTree } from "./hooks";
import { Refusal, address, isSayable, reason, request } from "./tree";

interface DownloadProps {
  href: string;
  name: string;
  children: ComponentChildren;
}

/**
 * A link to a file of the run's. A link can't say which run it means, and another may have taken the address: so it is
 * asked first, and saved only when the answer is that the file is there.
 */
export function Download({ href, name, children }: DownloadProps) {
  const [trouble, tell] = useState("");
  const start = async (event: MouseEvent): Promise<void> => {
    event.preventDefault();
    if (event.detail > 1) return; // The second click of a double click.
    try {
      await request(href, { method: "HEAD" });
      tell("");
      follow(href, name);
    } catch (error) {
      tell(refused(error));
    }
  };
  return (
    <>
      <a href={href} download={name} onClick={(event) => void start(event)}>
        {children}
      </a>
      {trouble && <span class="wrong"> {trouble}</span>}
    </>
  );
}

const REFUSED: Record<number, string> = { 404: "there is no such file now", 409: "another run answers here now" };

/** An answer to HEAD has no words. */
function refused(error: unknown): string {
  return (error instanceof Refusal && REFUSED[error.status]) || reason(error);
}

function follow(href: string, name: string): void {
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  link.click();
}

/** Save what the page has itself. */
export function save(name: string, text: string, type: string): void {
  const address = URL.createObjectURL(new Blob([text], { type }));
  follow(address, name);
  // The browser reads it after the click; a minute is more than it needs.
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

interface Directory {
  entries: { name: string; kind: string }[];
}

/** Whether the run gives away the artifact at a path below the artifact directory: those in directories that it links. */
export function useGiven(path: string): boolean {
  const directory = useNode<Directory>("artifacts");
  const { presence } = useTree();
  const linked = (directory?.entries ?? []).some(({ name, kind }) => kind === "link" && path.startsWith(`${name}/`));
  return linked && presence === "here" && isSayable(path);
}

/** An artifact by its path: as a link where the run gives it away. */
export function ArtifactLink({ path, children }: { path: string; children: ComponentChildren }) {
  if (!useGiven(path)) return <span>{children}</span>;
  return (
    <Download href={`artifacts/${address(path)}`} name={path.split("/").at(-1) ?? ""}>
      {children}
    </Download>
  );
}
