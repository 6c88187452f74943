"""The four verbs: all that a face can ask of a tree.

`list` a directory, `read` a file, `write` a control file, `describe` any node. A path is the file names from the root,
joined by `/`; the root is `""`. `Verbs` is what faces are written against, and what the wire (see `wire`) has at their
end; at its other end, a `Tree` answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar

from midrun.fs.faults import Fault, IsADirectory, NotADirectory, NotFound
from midrun.fs.later import Later
from midrun.fs.names import split
from midrun.fs.render import jsonable, render
from midrun.fs.tracebacks import last_line
from midrun.fs.tree import Dir, Leaf, Link, Node
from midrun.fs.write import IN_PROCESS, Writer

Kind = Literal["dir", "file", "link"]
P = ParamSpec("P")
T = TypeVar("T")


class Entry(TypedDict):
    """A node as a listing shows it."""

    name: str
    kind: Kind
    live: bool
    cached: bool
    writable: bool
    fixed: bool
    """Declared: the node is there, and the same, as long as the tree is. Where a link points may change."""
    target: str | None
    """Where a link points."""


class Description(Entry):
    """A node as its documentation shows it."""

    path: str
    doc: str
    schema: dict[str, Any]
    """JSON Schema of what a read shows."""
    takes: dict[str, Any] | None
    """JSON Schema of what a write takes."""
    gives: dict[str, Any] | None
    """JSON Schema of what a write gives back."""


class Verbs(Protocol):
    """What a face asks of a tree. Every verb raises `Fault`."""

    async def list(self, path: str) -> list[Entry]:
        """Return the entries of the directory at `path`."""

    async def read(self, path: str) -> bytes:
        """Return the rendered file at `path`; of a live file, once it is made."""

    async def write(self, path: str, data: bytes, *, check: bool = False, key: str | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Store `data` in the control file at `path`, or only `check` it; return the result, a JSON value.

        A `key` names this write: a run knows it by that if it comes again.
        """

    async def describe(self, path: str) -> Description:
        """Return what is known of the node at `path` without reading it."""


def _guarded(verb: Callable[Concatenate[Any, str, P], T]) -> Callable[Concatenate[Any, str, P], T]:
    """Make whatever goes wrong in a node that node's fault: it never ends the thread that answers."""

    @functools.wraps(verb)
    def guarded(self: object, path: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return verb(self, path, *args, **kwargs)
        except Fault:
            raise
        except BaseException as error:
            # A node is anybody's code: one that exits, or a Rust library that panics, must not end whoever asks it.
            raise Fault(f"'{path}' failed: {last_line(error)}") from error

    return guarded


class Tree:
    """The verbs over a root directory, called in the thread that owns the tree.

    Parameters
    ----------
    root
        The directory whose path is `""`.
    aside
        Runs a function elsewhere, for files that are `slow` to show; None shows them here.
    refused
        Told of each write that is refused: path, data, who wrote, and the fault.
    """

    def __init__(
        self,
        root: Dir,
        aside: Callable[[Callable[[], None]], object] | None = None,
        refused: Callable[[str, bytes, Writer, Fault], object] = lambda *_: None,
    ) -> None:
        self._root = root
        self._aside = aside
        self._refused = refused

    def walk(self, path: str) -> tuple[Node, bool]:
        """Return the node at `path`, and whether it is there for good. Raises `NotFound` or `NotADirectory`."""
        node: Node = self._root
        fixed = True
        try:
            steps = split(path)
        except ValueError as error:
            raise NotFound(str(error)) from None
        for at, step in enumerate(steps):
            if not isinstance(node, Dir):
                above = "/".join(steps[:at])
                raise NotADirectory(f"'{path}': {_no_directory(above, node)}; nothing is below it")
            fixed = fixed and node.declares(step)
            child = node.entry(step)
            if child is None:
                raise NotFound(node.missing(step) or _missing(path))
            node = child
        return node, fixed

    @_guarded
    def list(self, path: str) -> list[Entry]:
        """Return the entries of the directory at `path`."""
        node, fixed = self.walk(path)
        if not isinstance(node, Dir):
            raise NotADirectory(_no_directory(path, node))
        return [_entry(name, child, fixed=fixed and node.declares(name)) for name, child in node]

    @_guarded
    def read(self, path: str) -> bytes | Later:
        """Return the rendered file at `path`, or a `Later` that will have it."""
        leaf = self._leaf(path)
        if leaf.slow and self._aside is not None:
            return self._shown_aside(path, leaf, self._aside)
        value = leaf.show()
        render_it = partial(self._render, path)
        return value.then(render_it) if isinstance(value, Later) else render_it(value)

    @_guarded
    def write(self, path: str, data: bytes, *, check: bool = False, writer: Writer = IN_PROCESS) -> Any:  # noqa: ANN401 - any JSON value
        """Store `data` in the control file at `path`, or only `check` it.

        Returns what came of it, a JSON value, or a `Later` that will have it. What is refused is told to `refused`.
        """
        try:
            value = self._leaf(path).write(path, data, writer, check=check)
        except Fault as fault:
            self._refused(path, data, writer, fault)
            raise
        if not isinstance(value, Later):
            return jsonable(value)
        value.add_done_callback(partial(self._note_outcome, path, data, writer))
        return value.then(partial(self._jsonable, path))

    def _note_outcome(self, path: str, data: bytes, writer: Writer, value: Later) -> None:
        """Tell of a write that was refused after a while."""
        try:
            value.result()
        except Fault as fault:
            self._refused(path, data, writer, fault)

    @_guarded
    def describe(self, path: str) -> Description:
        """Return what is known of the node at `path` without reading it."""
        node, fixed = self.walk(path)
        entry = _entry(path.rpartition("/")[2], node, fixed=fixed)
        schema = node.schema() if isinstance(node, Leaf) else {}
        takes = gives = None
        if isinstance(node, Leaf) and node.form is not None:
            takes, gives = node.form.takes(), node.gives()
        return {**entry, "path": path, "doc": node.doc, "schema": schema, "takes": takes, "gives": gives}

    def _leaf(self, path: str) -> Leaf:
        node, _ = self.walk(path)
        if isinstance(node, Leaf):
            return node
        what = "a link to a file of the disk: open its target" if isinstance(node, Link) else "a directory: list it"
        raise IsADirectory(f"'{path}' is {what}")

    def _shown_aside(self, path: str, leaf: Leaf, aside: Callable[[Callable[[], None]], object]) -> Later:
        """Show and render the file elsewhere: a value's own text may be what takes time."""
        later = Later()

        def show() -> None:
            try:
                later.set_result(self._render(path, self._show(path, leaf)))
            except Fault as fault:
                later.set_exception(fault)

        aside(show)
        return later

    @_guarded
    def _show(self, path: str, leaf: Leaf) -> object:
        return leaf.show()

    @_guarded
    def _render(self, path: str, value: object) -> bytes:
        return value if isinstance(value, bytes) else render(path.rpartition("/")[2], value)

    @_guarded
    def _jsonable(self, path: str, value: object) -> object:
        return jsonable(value)


def _entry(name: str, node: Node, *, fixed: bool) -> Entry:
    declared = Entry(name=name, kind="dir", live=False, cached=True, writable=False, fixed=fixed, target=None)
    match node:
        case Dir():
            return declared
        case Link():
            return {**declared, "kind": "link", "fixed": False, "target": node.target()}
    return {**declared, "kind": "file", "live": node.live, "cached": node.cached, "writable": node.store is not None}


def _no_directory(path: str, node: Leaf | Link) -> str:
    """Return what is wrong where a directory was expected."""
    if isinstance(node, Link):
        return f"'{path}' is a link, not a directory of this tree: open its target on the disk"
    return f"'{path}' is a file, not a directory: read it"


def _missing(path: str) -> str:
    return f"'{path}': no such file or directory"
