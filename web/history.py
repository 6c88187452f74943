"""History: the points of a run on the disk, as a chart or a script asks for them.

They are read here, and not in the training process: the tree only has a link to where they are.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypedDict, cast, get_args

from midrun.fs.curves import Curve, Duplicates, Name, curve_of, names_in
from midrun.fs.faults import NotFound, Unavailable
from midrun.fs.guesses import closest
from midrun.web.calls import NUMBER, Answer, Call, Query, document
from midrun.web.site import Site

_POINTS = 1000
_MOST_READERS = 4
"""How many of the server's workers may read the disk at a time."""
_PATIENCE = 5.0
"""Seconds to wait for a turn, and after which one that still reads counts as stuck."""

QUERY = (
    Query("name", "What is shown: a metric's name, or a learning rate's, such as optimizers/0/groups/0/lr."),
    Query("from", "The step of the first point: 0 without it.", pattern=NUMBER, expected="a whole number from 0 on"),
    Query(
        "to", "The step of the last point: the last without it.", pattern=NUMBER, expected="a whole number from 0 on"
    ),
    Query(
        "points",
        f"About how many points: {_POINTS} without it. Where there are more, those are left out that lie between "
        "others: of each piece the lowest, the highest and the first NaN are there.",
        pattern="[1-9][0-9]{0,4}",
        expected="a whole number from 1 to 99999",
    ),
    Query(
        "duplicates",
        "What is shown of steps that were made again, as after a resume: every value, or the last. Then what an "
        "earlier session has from there on is left out.",
        get_args(Duplicates),
        "both",
    ),
)


class Names(TypedDict):
    """What there is a history of."""

    names: dict[str, Name]


class _Readers:
    """Those who read the disk at a time. One that does not answer must not keep all workers of the server."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun: list[float] = []

    @contextmanager
    def one(self) -> Iterator[None]:
        """Be one of them. Raises Unavailable where the others seem to be stuck."""
        with self._changed:
            deadline = time.monotonic() + _PATIENCE
            while len(self._begun) >= _MOST_READERS:
                left = min(deadline, self._begun[0] + _PATIENCE) - time.monotonic()
                if left <= 0:
                    raise Unavailable("the history can't be read now: the disk does not answer, or others ask too much")
                self._changed.wait(left)
            begun = time.monotonic()
            self._begun.append(begun)
        try:
            yield
        finally:
            with self._changed:
                self._begun.remove(begun)
                self._changed.notify()


_readers = _Readers()


def show(site: Site, call: Call) -> Answer:
    """Show the points of a name, or which names there are."""
    directory = site.ask(partial(site.view.entry, call.node))["target"]
    if directory is None:
        raise NotFound("this run has no history on the disk")
    parent, name = Path(directory), call.query["name"]
    found: Curve | Names
    try:
        with _readers.one():
            found = _curve(parent, name, call.query) if name else Names(names=names_in(parent))
    except OSError as error:
        raise Unavailable(f"the history can't be read now: {error.strerror or error}") from None
    return _document(found)


def _document(found: Curve | Names) -> Answer:
    """Return what `document` does, of many numbers in less time: a page asks for dozens of curves every few seconds."""
    try:
        return Answer(f"{json.dumps(found, allow_nan=False)}\n".encode())
    except ValueError:  # NaN, say.
        return document(found)


def _curve(parent: Path, name: str, query: Mapping[str, str]) -> Curve:
    found = curve_of(
        parent,
        name,
        first=int(query["from"] or 0),
        last=int(query["to"]) if query["to"] else math.inf,
        points=int(query["points"] or _POINTS),
        duplicates=cast("Duplicates", query["duplicates"]),
    )
    if found is None:
        close = closest(name, names_in(parent))
        hint = "without a name it is said what there is" if close is None else f"did you mean {close!r}?"
        raise NotFound(f"there is no history of {name!a:.200}: {hint}")
    return found
