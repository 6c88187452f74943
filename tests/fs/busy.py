"""A trainer that may be slow to answer, for views in trio's mock time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from midrun.fs.faults import Fault
from midrun.fs.tree import Dir, Leaf, Link, Node
from midrun.fs.verbs import Description, Entry
from midrun.fs.view import View
from tests.fs.sample import Sample
from tests.local import Local

T = TypeVar("T")


class Trainer(Local):
    """The verbs over a tree that may be slow to answer, or stuck. The answer is made when it is asked for."""

    def __init__(self, root: Dir) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()
        self.delay = 0.0
        self.generation = 0
        self._free = trio.Event()
        self._free.set()

    def get_stuck(self) -> None:
        self._free = trio.Event()

    def get_free(self) -> None:
        self._free.set()

    async def list(self, path: str) -> list[Entry]:
        return await self._answered(f"list {path}", await super().list(path))

    async def read(self, path: str) -> bytes:
        self.asked[f"read {path}"] += 1
        return await self._answered(None, await super().read(path))

    async def write(self, path: str, data: bytes, *, check: bool = False, key: str | None = None) -> Any:
        return await self._answered(f"write {path}", await super().write(path, data, check=check, key=key))

    async def describe(self, path: str) -> Description:
        self.asked[f"describe {path}"] += 1
        return await self._answered(None, await super().describe(path))

    async def _answered(self, question: str | None, answer: T) -> T:
        if question is not None:
            self.asked[question] += 1
        delay, free = self.delay, self._free
        if delay:
            await trio.sleep(delay)
        await free.wait()
        return answer


class Changing(Sample):
    """A sample with members that come and go, of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.link = "/disk/1"
        self.newest = Link(lambda: self.link)
        self.members_: dict[str, Any] = {}

    def members(self) -> Iterable[str]:
        return list(self.members_)

    def member(self, name: str) -> Node | None:
        if name not in self.members_:
            return None

        def show() -> object:
            self.shown[name] += 1
            if isinstance(self.members_[name], Fault):
                raise self.members_[name]
            return self.members_[name]

        return Leaf(show)


@asynccontextmanager
async def showing(trainer: Trainer) -> AsyncIterator[View]:
    async with View(trainer, lambda: trainer.generation, now=trio.current_time) as view:
        yield view


async def timed(ask: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """Return what `ask` returns, or its fault, and how long it took."""
    begun = trio.current_time()
    try:
        result = await ask()
    except Fault as fault:
        result = fault
    return result, round(trio.current_time() - begun, 6)
