"""Polls: several nodes in one answer, and of these only what has changed.

A client names nodes as an address under `/files/` does, percent-encoding included: `state/metrics/train%2Floss`. As
that is the value of a query argument, it is encoded once more on its way, which every library for addresses does by
itself: `node=state/metrics/train%252Floss`. Once the query is decoded, the value is what the answer calls the node by,
and is then read as the rest of an address is.

The server remembers no client. A revision is a mark for each node, in the order asked, and a client that gives the last
one back gets the nodes whose marks are others now. A mark is of what is shown, of the run, and of the list of nodes, so
a revision of another list or of another run has none that is alike, and all is sent.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, TypeAlias, TypedDict
from urllib.parse import quote

import trio

from midrun.fs.faults import Fault, FieldError, NotFound, Refused, Unavailable
from midrun.fs.render import render
from midrun.fs.view import Rendered
from midrun.web import nodes
from midrun.web.calls import Answer, Call, Query
from midrun.web.site import Site

MOST_NODES = 64
"""Nodes in one poll."""
POLLERS = 4
"""Polls that may wait for the run at once: each holds a worker, and the others must go on when the run is stopped."""

QUERY = (
    Query(
        "node",
        "A node, by its address after /files/, percent-encoded as there. It repeats.",
        least=1,
        most=MOST_NODES,
    ),
    Query(
        "seen",
        "The revision of the last answer: nodes that are still the same are left out. Where it is not one of these "
        "nodes in this order, all are sent.",
        longest=1024,
    ),
)

_DIGEST = 6
"""Bytes in a mark: one change in 2^48 goes unseen, until the next."""
_MARK = 8
"""Characters in a mark: so many bytes are in Base64, with nothing left over."""

_Found: TypeAlias = Rendered | dict[str, Any] | Fault


class NotShown(TypedDict):
    """Why a node is not shown: what GET would answer."""

    status: Annotated[int, "The HTTP status."]
    detail: Annotated[str | list[FieldError], "What was wrong, and what to do."]


class Polled(TypedDict):
    """What `/poll` shows."""

    revision: Annotated[str, "To be sent as `seen` next time."]
    age: Annotated[float, "Seconds by which the oldest of the nodes is old; 0 when all are current."]
    nodes: Annotated[
        dict[str, Any],
        "By the names that the request has for them, the nodes that can be shown: a .json file's document, any other "
        "file's text, what GET shows of a directory or a link.",
    ]
    faults: Annotated[dict[str, NotShown], "The nodes that can't, and why."]


@dataclass(frozen=True)
class _Part:
    """A node as a member of the answer."""

    shown: bool
    body: bytes
    """JSON: of a document, the very bytes of its file."""
    age: float = 0.0

    def mark(self, key: bytes) -> str:
        """Return what tells this from the same node with another content."""
        digest = blake2b(b"+" if self.shown else b"-", digest_size=_DIGEST, key=key)
        digest.update(self.body)
        return urlsafe_b64encode(digest.digest()).decode()


def show(site: Site, call: Call) -> Answer:
    """Show the nodes that have changed since the revision that the client has seen."""
    asked = list(dict.fromkeys(call.lists["node"]))  # A node that is asked for twice is one member all the same.
    parts = _parts(site, asked)
    key = blake2b(json.dumps([site.run.get("id"), site.run.get("dir"), asked]).encode(), digest_size=32).digest()
    marks = [part.mark(key) for part in parts.values()]
    seen = _marks(call.query["seen"], len(asked))
    changed = {node: part for (node, part), mark, last in zip(parts.items(), marks, seen, strict=True) if mark != last}
    body = b'{"revision": "%b", "age": %b, "nodes": {%b}, "faults": {%b}}\n' % (
        "".join(marks).encode(),
        json.dumps(round(max(part.age for part in parts.values()), 3)).encode(),
        _members(changed, shown=True),
        _members(changed, shown=False),
    )
    return Answer(body)


def _marks(revision: str, count: int) -> Sequence[str]:
    if len(revision) != count * _MARK:
        return [""] * count
    return [revision[start : start + _MARK] for start in range(0, len(revision), _MARK)]


def _members(parts: Mapping[str, _Part], *, shown: bool) -> bytes:
    members = (json.dumps(node).encode() + b": " + part.body for node, part in parts.items() if part.shown is shown)
    return b", ".join(members)


def _parts(site: Site, asked: Sequence[str]) -> dict[str, _Part]:
    """Return each node as it is now, in the order asked. The loop is asked once, for all that is not at hand."""
    parts: dict[str, _Part] = {}
    paths: dict[str, str] = {}
    for node in asked:
        try:
            path = _path(node)
        except NotFound as fault:
            parts[node] = _part(node, fault)
            continue
        rendered = site.view.at_hand(path)
        if rendered is None:
            paths[node] = path
        else:
            parts[node] = _part(path, rendered)
    if paths:
        found = site.ask(partial(_find_all, site, set(paths.values())))
        parts |= {node: _part(path, found[path]) for node, path in paths.items()}
    return {node: parts[node] for node in asked}


def _path(node: str) -> str:
    # Signs that end the path of a whole address are part of a name here.
    return nodes.bind("/{path:path}", f"/{quote(node, safe='/%')}")["path"]


async def _find_all(site: Site, paths: Iterable[str]) -> dict[str, _Found]:
    """Return what each path leads to. All are asked for at once: a run that is slow to answer is waited for once."""
    if site.polling >= POLLERS:
        raise Unavailable(f"the run is slow to answer, and {POLLERS} polls wait for it: try again")
    found: dict[str, _Found] = {}

    async def find(path: str) -> None:
        try:
            found[path] = await _find(site, path)
        except Fault as fault:
            found[path] = fault

    site.polling += 1
    try:
        async with trio.open_nursery() as nursery:
            for path in paths:
                nursery.start_soon(find, path)
    finally:
        site.polling -= 1
    return found


async def _find(site: Site, path: str) -> Rendered | dict[str, Any]:
    call = Call(path)
    path, node = await nodes.described(site, call)
    if node["live"]:
        # It may take half a minute and a step of the run's: nothing to be done each second.
        raise Refused(f"'{path}' is made on demand, and no poll makes it: GET {nodes.href(path)}")
    return await nodes.content(site, call, path, node)


def _part(path: str, found: _Found) -> _Part:
    match found:
        case Fault():
            return _Part(False, json.dumps(NotShown(status=found.status, detail=found.detail)).encode())
        case Rendered() if path.endswith(".json"):
            return _Part(True, found.data, found.age)
        case Rendered():
            text = found.data.decode("utf-8", "backslashreplace")
            return _Part(True, json.dumps(text, ensure_ascii=False).encode(), found.age)
    return _Part(True, render("answer.json", found))
