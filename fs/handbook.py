"""The handbook: every path of a tree as one page of Markdown, made from the declarations themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from midrun.fs.tree import Dir, Leaf, Link, Node


def handbook(root: Dir) -> str:
    """Return a table of every path below `root`: what it shows, and of which type.

    Where entries come and go, the first of them stands for all, under the directory's `placeholder`.
    """
    rows = ["| path | shows | type |", "|---|---|---|"]
    for path, node in paths(root):
        name = f"`{path}/`" if isinstance(node, Dir) else f"`{path}`"
        rows.append(f"| {name} | {_oneline(node.doc)} | {_kind(node)} |")
    return "\n".join(rows) + "\n"


def paths(directory: Dir, above: str = "") -> Iterator[tuple[str, Node]]:
    """Iterate over the paths and nodes below `directory`, one entry standing for all that come and go."""
    stood_for = False
    for name, node in directory:
        if not directory.declares(name):
            if stood_for:
                continue
            stood_for, name = True, directory.placeholder  # noqa: PLW2901 - the placeholder is this entry's name here
        path = f"{above}{name}"
        yield path, node
        if isinstance(node, Dir):
            yield from paths(node, f"{path}/")


def _kind(node: Node) -> str:
    match node:
        case Dir():
            return "directory"
        case Link():
            return "link"
        case Leaf(store=None):
            return _type(node.schema()) + (", made on demand" if node.live else "")
    return "control"


def _type(schema: dict[str, Any]) -> str:
    """Return the short name of what a schema describes."""
    options = [_type(option) for option in schema.get("anyOf", ())]
    if options:
        return " or ".join("empty" if option == "null" else option for option in options)
    kinds = schema.get("type", "any")
    if isinstance(kinds, list):
        return str(next(kind for kind in kinds if kind != "null"))
    members = schema.get("properties", {})
    return f"object: {', '.join(f'`{member}`' for member in members)}" if members else str(kinds)


def _oneline(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
