"""Nodes: how the tree's files, directories and links are shown and written over HTTP.

A file's answer is its very bytes, the same that the mount gives. A path's segments are percent-decoded once, and what
is then no file name is turned into one: the metric `train/loss`, whose file is `train%2Floss`, is found under both
`train%2Floss` and `train%252Floss`, and no spelling of a path leaves the tree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NotRequired, TypedDict
from urllib.parse import quote, unquote_to_bytes

import trio

from midrun.fs import names
from midrun.fs.faults import Fault, Gone, NotADirectory, NotFound, Refused, TimedOut, Unavailable
from midrun.fs.verbs import Description, Entry, Kind
from midrun.fs.view import Rendered
from midrun.web.calls import AGE, JSON, KEY, TEXT, Answer, Call, Responder, document, key_of
from midrun.web.site import Site

LIVE_READERS = 2
"""Clients that may wait for files made on demand at once: each holds a worker, and the others must go on."""
LARGEST_TREE = 20_000
"""Entries in the largest subtree that is shown whole."""

_NO_FILE_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f/]|\A\.\.?\Z")
_TAIL = ":path}"


class Shown(TypedDict):
    """A node as its directory shows it."""

    name: Annotated[str, "The file name."]
    kind: Kind
    href: Annotated[str, "Where it is on this server."]
    live: Annotated[bool, "Made on demand: reading it may take up to 30 seconds."]
    writable: Annotated[bool, "It takes POST."]
    target: Annotated[str | None, "Where a link points."]


class Late(TypedDict):
    """The answer to a write of which the run has not said in time what came."""

    detail: Annotated[str, "What was wrong, and what to do."]
    id: Annotated[str, f"The write's name: repeated with it as {KEY}, it is the same write."]


class Branch(Shown):
    """A node with, for a directory in a tree, what is in it."""

    entries: NotRequired[list[Branch]]


def show(site: Site, call: Call) -> Answer:
    """Show the node: a file's bytes, a directory's entries, a link's target."""
    found = site.view.at_hand(call.node) or site.ask(partial(_find, site, call))
    if not isinstance(found, Rendered):
        return document(found)
    headers = {AGE: f"{found.age:.3f}"} if found.age else {}
    return Answer(found.data, JSON if call.node.endswith(".json") else TEXT, headers=headers)


def show_or_write(writes: str) -> Responder:
    """Return what shows a route's node or, for a request with arguments, writes these as JSON to another one."""

    def respond(site: Site, call: Call) -> Answer:
        given = {name: _plain(text) for name, text in call.query.items() if text}
        if not given:
            return show(site, call)
        return write(site, replace(call, node=writes, body=json.dumps(given).encode(), key=key_of(None)))

    return respond


def _plain(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return what a query argument says: a JSON value, or text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def write(site: Site, call: Call) -> Answer:
    """Write the request's body to the node, and show what came of it."""
    try:
        return document(site.ask(partial(site.view.write, call.node, call.body, key=call.key)))
    except TimedOut as fault:
        # It may be done, or be done later. Whoever knows its name can ask again without asking twice.
        detail = (
            f"{fault.message}. It may still do this. To repeat the request with the header {KEY}: {call.key} is "
            "harmless: by that key the run knows it, and does it once"
        )
        return document(Late(detail=detail, id=call.key), fault.status)


def methods(site: Site, call: Call) -> list[str]:
    """Return the methods that the node takes."""
    _, node = site.ask(partial(described, site, call))
    return ["GET", "HEAD", "OPTIONS", *(["POST"] if node["writable"] else [])]


def href(path: str) -> str:
    """Return the address of the node at `path`, from this server's root."""
    return "/files" + "".join(f"/{quote(step, safe='')}" for step in path.split("/") if step)


def bind(template: str, target: str) -> Mapping[str, str]:
    """Return the values of a template's names in a request target as it was sent.

    Each segment is decoded to the file name that the tree has. Raises `NotFound` for a target that is none of the
    template's.
    """
    raw = re.sub(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*", "", target)  # the absolute form, which proxies send
    sent = re.split(r"[?#]", raw, maxsplit=1)[0].split("/")
    values: dict[str, str] = {}
    wanted = template.split("/")
    for position, part in enumerate(wanted):
        if part.endswith(_TAIL):
            values[part[1 : -len(_TAIL)]] = "/".join(map(_file_name, sent[position:]))
            return values
        step = _file_name(sent[position]) if position < len(sent) else ""
        if part.startswith("{") and step:
            values[part[1:-1]] = step
        elif part != step:
            raise NotFound(f"{target!a:.200}: no such file or directory")
    return values


def _file_name(segment: str) -> str:
    try:
        # WSGI's strings are bytes read as Latin-1.
        name = unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeError:
        raise NotFound(f"{segment!a:.200}: no such file or directory, for names are UTF-8") from None
    return names.escape(name) if _NO_FILE_NAME.search(name) else name


async def described(site: Site, call: Call) -> tuple[str, Description]:
    """Return the node's path and what is known of it. Only a directory's address may end in a slash."""
    path = call.node.removesuffix("/")
    node = await site.view.describe(path)
    if path != call.node and node["kind"] != "dir":
        raise NotADirectory(f"'{path}' is a {node['kind']}: leave out the final slash")
    return path, node


async def _find(site: Site, call: Call) -> Rendered | dict[str, Any]:
    path, node = await described(site, call)
    return await content(site, call, path, node)


async def content(site: Site, call: Call, path: str, node: Description) -> Rendered | dict[str, Any]:
    """Return what GET shows of a node that was looked at: a file's bytes, a directory's entries, a link's target."""
    if node["kind"] == "dir":
        return {"path": path, "entries": await (_tree if call.query.get("format") == "tree" else _list)(site, path)}
    if node["kind"] == "link":
        return {"path": path, **_shown(path, node)}
    return await (_await_live(site, path, call.left) if node["live"] else site.view.read(path))


async def _await_live(site: Site, path: str, left: Callable[[], bool]) -> Rendered:
    """Return a file that is made on demand, unless its reader leaves, or is one too many."""
    if site.waiting >= LIVE_READERS:
        raise Unavailable(f"'{path}' is made on demand and {LIVE_READERS} clients wait for such files: try again")
    outcome: Rendered | Fault = Gone("the client has left")
    site.waiting += 1
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when, left, nursery.cancel_scope)
            try:
                outcome = await site.view.read(path)
            except Fault as fault:
                outcome = fault
            nursery.cancel_scope.cancel()
    finally:
        site.waiting -= 1
    if isinstance(outcome, Fault):
        raise outcome
    return outcome


async def _cancel_when(happened: Callable[[], bool], scope: trio.CancelScope) -> None:
    while not happened():  # noqa: ASYNC110 - waitress tells when it is asked, and only then
        await trio.sleep(0.25)
    scope.cancel()


async def _list(site: Site, path: str) -> list[Branch]:
    return [_shown(names.join(path, entry["name"]), entry) for entry in await site.view.list(path)]


async def _tree(site: Site, path: str) -> list[Branch]:
    """Return the entries below `path`, each directory with its own under `entries`. No file is read."""
    root: list[Branch] = []
    left, count = [(path, root)], 0
    while left:
        directory, shown = left.pop()
        try:
            entries = await site.view.list(directory)
        except NotFound:
            if directory == path:
                raise
            continue  # It has gone since its parent was listed.
        count += len(entries)
        if count > LARGEST_TREE:
            raise Refused(f"'{path}' has more than {LARGEST_TREE} entries below it: ask for directories inside it")
        for entry in entries:
            below = names.join(directory, entry["name"])
            shown.append(_shown(below, entry))
            if entry["kind"] == "dir":
                left.append((below, shown[-1].setdefault("entries", [])))
    return root


def _shown(path: str, entry: Entry | Description) -> Branch:
    return Branch(
        name=entry["name"],
        kind=entry["kind"],
        href=href(path),
        live=entry["live"],
        writable=entry["writable"],
        target=entry["target"],
    )
