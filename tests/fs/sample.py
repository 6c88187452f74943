"""What these tests share: a tree with a node of each kind, the wire to it, and patience."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import trio
from pydantic import BaseModel, ConfigDict

from midrun.fs.answers import Answers
from midrun.fs.faults import Conflict, FieldError, Invalid, Refused
from midrun.fs.later import Later
from midrun.fs.page import Page
from midrun.fs.tree import Dir, Leaf, Link, Node, file
from midrun.fs.verbs import Tree, Verbs
from midrun.fs.wire import Wire
from tests.controls import control
from tests.local import Local

BIG = 50 << 20


class Rate(BaseModel):
    """A learning rate."""

    model_config = ConfigDict(extra="forbid")
    value: float


class Metrics(Dir):
    """Metrics, which come and go."""

    one_value: ClassVar[bool] = True

    def __init__(self) -> None:
        self.values = {"train/loss": 0.25, "..": 1.0, "\ud800": 2.0, "x" * 300: 3.0}

    @file("index.json")
    def index(self) -> dict[str, float]:
        """All of them."""
        return self.values

    def members(self) -> Iterable[str]:
        return list(self.values)

    def member(self, name: str) -> Node | None:
        return Leaf(lambda: self.values[name], doc=f"The metric {name}.") if name in self.values else None


class Sample(Dir):
    """A tree with a node of each kind. It counts what is shown and keeps what is stored."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.artifacts = Link(lambda: "/disk/artifacts", doc="Large files.")
        self.shown: Counter[str] = Counter()
        self.stored: list[object] = []
        self.step: Any = 7
        self.later: queue.SimpleQueue[Later] = queue.SimpleQueue()
        """What readers wait for, and the `promise` of who wrote."""

    @file("step")
    def step_file(self) -> int:
        """Steps."""
        self.shown["step"] += 1
        return self.step  # type: ignore[no-any-return]

    @file("nothing")
    def nothing(self) -> str | None:
        """Nothing."""
        return None

    @file("state.json")
    def state(self) -> dict[str, Any]:
        """A document."""
        return {"loss": float("nan"), "step": 7}

    @file("bytes")
    def raw(self) -> bytes:
        """All bytes."""
        return bytes(range(256))

    @file("big")
    def big(self) -> bytes:
        """50 MB."""
        return bytes(range(256)) * (BIG // 256)

    @file("large")
    def large(self) -> bytes:
        """5 MB."""
        return bytes(5_000_000)

    @file("slow", slow=True)
    def slow(self) -> str:
        """Waits for the disk."""
        return "slow"

    @file("live", live=True)
    def live(self) -> Later:
        """Made on demand."""
        return self._promise("live")

    @file("awaited")
    def awaited(self) -> Later:
        """Still on a device."""
        return self._promise("awaited")

    @file("fresh", cached=False)
    def fresh(self) -> int:
        """Another number each time."""
        self.shown["fresh"] += 1
        return self.shown["fresh"]

    @file("broken")
    def broken(self) -> str:
        """Breaks."""
        raise ZeroDivisionError("by nought")

    @file("refused")
    def refused(self) -> str:
        """Refuses."""
        raise Refused("never: \ud800 é")

    @control("rate", Rate, bare="value")
    def rate(self, arguments: Rate) -> dict[str, Any]:
        """Set the rate."""
        self.stored.append(arguments.value)
        return {"value": arguments.value, "pair": (1, 2), "none": None}

    @control("promise", Rate)
    def promise(self, arguments: Rate) -> Later:
        """Set the rate by and by."""
        self.stored.append(arguments.value)
        return self._promise("promise")

    @control("busy", Rate)
    def busy(self, arguments: Rate) -> None:
        """Refuse for now."""
        raise Conflict("held")

    @control("picky", Rate)
    def picky(self, arguments: Rate) -> None:
        """Refuse for good."""
        raise Invalid("no", [FieldError(loc=["body", "value", 0], msg="not this one", type="picky")])

    def _promise(self, name: str) -> Later:
        self.shown[name] += 1
        later = Later()
        self.later.put(later)
        return later


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until `condition` holds; fail when it does not come to that."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.002)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Let other tasks run until `condition` holds; fail when it does not come to that."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is another thread's
            await trio.sleep(0.002)


def aside(work: Callable[[], None]) -> None:
    """Run `work` in a thread of its own, as a trainer would."""
    threading.Thread(target=work).start()


@contextmanager
def answering(root: Dir, page: Page | None = None) -> Iterator[Answers]:
    """Answer from `root` in a tree thread, until the block ends."""
    answers = Answers(Tree(root, aside=aside), Page() if page is None else page)
    answers.start()
    try:
        yield answers
    finally:
        answers.stop()
        wait_until(lambda: not answers._thread.is_alive())


@asynccontextmanager
async def wired(
    answers: Answers, page: Page | None = None, notice: Callable[[str, dict[str, Any]], None] = lambda *_: None
) -> AsyncIterator[Wire]:
    """Give a wire to `answers`, over a real socket pair, until the block ends."""
    ours, theirs = socket.socketpair()
    disconnect = answers.connect(ours, notice)
    wire = Wire(theirs, page)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.run)
        yield wire
        nursery.cancel_scope.cancel()
    disconnect()


@asynccontextmanager
async def verbs_over(way: str, root: Dir) -> AsyncIterator[Verbs]:
    """Give the verbs over `root`: in the same loop, or over a wire."""
    if way == "local":
        yield Local(root)
    else:
        with answering(root) as answers:
            async with wired(answers) as wire:
                yield wire


def file_behind(fd: int) -> str:
    """Return what a descriptor stands for: its number alone could be another file's by and by."""
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def open_files(pid: int | None = None) -> list[str]:
    """List what a process, or this one, has open."""
    found = []
    for entry in Path(f"/proc/{pid or 'self'}/fd").iterdir():
        with suppress(FileNotFoundError):  # What lists the folder is in it too.
            found.append(str(entry.readlink()))
    return found
