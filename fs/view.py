"""The view: what a face shows of a tree, and for how long.

A face asks for each file at most ten times a second, whatever the number of its readers, and goes on showing the last
value, marked as old, while the trainer is too busy to answer. What must never be old, the nodes that steer, is never
kept.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

import trio

from midrun.fs.faults import ENDED, Fault, Gone, timed_out
from midrun.fs.names import join
from midrun.fs.verbs import Description, Entry, Verbs

CURRENT_FOR = 0.1
"""Seconds for which an answer is current."""
PROMPT = 0.2
"""Seconds after which the last value is shown instead of waiting on."""
PATIENCE = 5.0
"""Seconds to wait where there is no last value to show."""
LIVE_PATIENCE = 30.0
"""Seconds to wait for a file that is made on demand."""
MEMORY = 32 << 20
"""Bytes of files that a view keeps, and as many of listings and of descriptions."""

_VOID = -1
"""The generation of what is never current."""

T = TypeVar("T")


@dataclass(frozen=True)
class Rendered:
    """A rendered file as a face shows it."""

    data: bytes
    changed_ns: int
    """When its value last changed, in nanoseconds of the wall clock."""
    age: float = 0.0
    """Seconds by which it is old because the trainer did not answer; 0.0 when it is current."""


class View:
    """What a face shows of a tree. It works inside `async with`, in one trio loop.

    Every verb raises `Fault`: the node's own, or `TimedOut` when the trainer did not answer in time, which is 5 s
    unless a method says otherwise.

    Parameters
    ----------
    verbs
        The tree.
    generation
        Returns a number that changes when all that is kept is void.
    now
        The clock that says how old something is, in seconds. Any thread may call it.
    """

    def __init__(
        self,
        verbs: Verbs,
        generation: Callable[[], int] = lambda: 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verbs = verbs
        self._generation = generation
        self._now = now
        self._fixed: dict[str, Description] = {}
        self._files: _Cache[Rendered] = _Cache(lambda rendered: 200 + len(rendered.data))
        self._lists: _Cache[list[Entry]] = _Cache(lambda entries: 200 * len(entries))
        self._descriptions: _Cache[Description] = _Cache(lambda _: 1000)
        self._entries: _Cache[Entry] = _Cache(lambda _: 500)
        self._slow = False
        self._scope = trio.open_nursery()

    async def __aenter__(self) -> Self:
        self._nursery = await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._nursery.cancel_scope.cancel()
        return await self._scope.__aexit__(kind, error, traceback)

    @property
    def generation(self) -> int:
        """A number that changes when all that was shown before is void."""
        return self._generation()

    def at_hand(self, path: str) -> Rendered | None:
        """Return the file at `path` if it is kept and current. Any thread may call it; it never waits."""
        kept = self._files.get(path)
        return kept.value if kept is not None and self._is_current(kept) else None

    async def describe(self, path: str, patience: float = PATIENCE) -> Description:
        """Return what is known of the node at `path` without reading it."""
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed
        description = await self._recall(self._descriptions, path, partial(self._verbs.describe, path), patience)
        if description["fixed"]:
            self._fixed[path] = description
        return description

    async def entry(self, path: str, patience: float = PATIENCE) -> Entry:
        """Return the node at `path` as its directory lists it; whoever has just listed that need not ask."""
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed
        kept = self._entries.get(path)
        listed = None if kept is None else kept.value
        if listed is not None and listed["fixed"]:
            return listed
        return await self._recall(self._entries, path, partial(self._described, path), patience)

    async def list(self, path: str) -> list[Entry]:
        """Return the entries of the directory at `path`."""
        return await self._recall(self._lists, path, partial(self._listed, path))

    async def read(self, path: str, patience: float = PATIENCE) -> Rendered:
        """Return the file at `path`; raises `TimedOut` when there is no value of it in time.

        Parameters
        ----------
        patience
            Seconds to wait for a first value. Live files have 30 s whatever it is.
        """
        shown = self.at_hand(path)
        if shown is not None:
            return shown
        node = await self.entry(path, patience)
        if node["live"]:
            return await self._wait(self._ask(self._files, path, partial(self._fetch, path), keep=False), LIVE_PATIENCE)
        if node["cached"]:
            return await self._recall(self._files, path, partial(self._fetch, path), patience)
        with trio.move_on_after(patience):
            rendered = await self._fetch(path)
            # Never current, and kept all the same: what has not changed keeps the moment of its last change.
            self._files.put(path, _Kept(rendered, _VOID, self._now()))
            return rendered
        raise timed_out(patience, path)

    async def write(self, path: str, data: bytes, *, check: bool = False, key: str | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Store `data` in the control file at `path`, or only `check` it."""
        with trio.move_on_after(PATIENCE):
            return await self._verbs.write(path, data, check=check, key=key)
        raise timed_out(PATIENCE, path)

    def changed(self, path: str, rendered: Rendered) -> Rendered:
        """Return `rendered` with the moment of its value's last change, as far as this view has seen it."""
        kept = self._files.get(path)
        last = None if kept is None else kept.value
        same = last is not None and last.data == rendered.data
        return replace(rendered, changed_ns=last.changed_ns) if last is not None and same else rendered

    async def _described(self, path: str) -> Description:
        generation = self._generation()
        description = await self._verbs.describe(path)
        self._descriptions.put(path, _Kept(description, generation, self._now()))
        return description

    async def _listed(self, path: str) -> _Listing:
        generation = self._generation()
        entries = await self._verbs.list(path)
        for entry in entries:
            self._entries.put(join(path, entry["name"]), _Kept(entry, generation, self._now()))
        return entries

    async def _fetch(self, path: str) -> Rendered:
        data = await self._verbs.read(path)
        return self.changed(path, Rendered(data, time.time_ns()))

    def _is_current(self, kept: _Kept[Any]) -> bool:
        return kept.generation == self._generation() and self._now() - kept.came < CURRENT_FOR

    async def _recall(self, cache: _Cache[T], path: str, fetch: _Fetch[T], patience: float = PATIENCE) -> T:
        """Return what is kept while it is current, else the tree's answer, else a kept value, marked as old.

        A fault is kept as a value is, so that what is absent or broken costs no more; but it is never shown as old.
        """
        kept = cache.get(path)
        if kept is not None and self._is_current(kept):
            return _result(kept.answer)
        request = self._ask(cache, path, fetch)
        if kept is None or isinstance(kept.answer, Fault):
            return await self._wait(request, patience)
        # After one answer that came late, old values are shown at once until the trainer answers again: a listing of
        # 500 files would else take 500 times 200 ms.
        with trio.move_on_after(0 if self._slow else PROMPT):
            await request.done.wait()
        if request.done.is_set():
            return _result(request.answer)
        self._slow = True
        return _aged(kept.answer, self._now() - kept.came)

    async def _wait(self, request: _Request[T], patience: float) -> T:
        with trio.move_on_after(patience):
            await request.done.wait()
        if not request.done.is_set():
            raise timed_out(patience, request.path)
        return _result(request.answer)

    def _ask(self, cache: _Cache[T], path: str, fetch: _Fetch[T], *, keep: bool = True) -> _Request[T]:
        """Return the request that is on its way, or make one: made before the last bump, its answer would be void."""
        request = cache.requests.get(path)
        if request is None or request.generation != self._generation():
            request = cache.requests[path] = _Request(path, self._generation())
            self._nursery.start_soon(partial(self._answer, cache, request, fetch, keep=keep))
        return request

    async def _answer(self, cache: _Cache[T], request: _Request[T], fetch: _Fetch[T], *, keep: bool) -> None:
        """Ask the tree once, for all who wait, and keep the answer; an answer that comes late is kept all the same.

        Unless a later request has taken this one's place: its answer is the newer one.
        """
        path = request.path
        try:
            request.answer = await _answer_of(fetch)
            if isinstance(request.answer, Gone):
                return  # It is the last answer of all.
            self._slow = False
            if keep and cache.requests.get(path) is request:
                cache.put(path, _Kept(request.answer, request.generation, self._now()))
        finally:
            request.done.set()
            if cache.requests.get(path) is request:
                del cache.requests[path]


_Fetch: TypeAlias = Callable[[], Awaitable[T]]
_Listing: TypeAlias = list[Entry]


class _Request(Generic[T]):
    """A question that the tree is being asked, and all who wait for its answer."""

    def __init__(self, path: str, generation: int) -> None:
        self.path = path
        self.generation = generation
        self.done = trio.Event()
        self.answer: T | Fault = Gone(ENDED)


@dataclass(frozen=True)
class _Kept(Generic[T]):
    """An answer, the generation in which it was asked for, and when it came."""

    answer: T | Fault
    generation: int
    came: float

    @property
    def value(self) -> T | None:
        """The answer unless it is a fault."""
        return None if isinstance(self.answer, Fault) else self.answer


class _Cache(Generic[T]):
    """The answers of one verb that a view keeps, the oldest dropped first, and the requests under way."""

    def __init__(self, weigh: Callable[[T], int]) -> None:
        self.requests: dict[str, _Request[T]] = {}
        self._weigh_value = weigh
        self._weight = 0
        self._kept: OrderedDict[str, _Kept[T]] = OrderedDict()

    def get(self, path: str) -> _Kept[T] | None:
        return self._kept.get(path)

    def put(self, path: str, kept: _Kept[T]) -> None:
        self.drop(path)
        self._kept[path] = kept
        self._weight += self._weigh(kept.answer)
        while self._weight > MEMORY and len(self._kept) > 1:
            self.drop(next(iter(self._kept)))

    def drop(self, path: str) -> None:
        kept = self._kept.pop(path, None)
        if kept is not None:
            self._weight -= self._weigh(kept.answer)

    def _weigh(self, answer: T | Fault) -> int:
        # A fault's path is as long as somebody likes, and its message repeats it.
        return 500 + 2 * len(answer.message) if isinstance(answer, Fault) else self._weigh_value(answer)


async def _answer_of(fetch: _Fetch[T]) -> T | Fault:
    try:
        return await fetch()
    except Fault as fault:
        return fault


def _result(answer: T | Fault) -> T:
    if isinstance(answer, Fault):
        raise answer.with_traceback(None)  # Else everyone who is told would add to it.
    return answer


def _aged(value: T, age: float) -> T:
    return replace(value, age=age) if isinstance(value, Rendered) else value
