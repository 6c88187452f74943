"""A program that has a tree and mounts it: what a trainer is to the mount face, in a process that tests may end.

It takes JSON lines on its standard input, `{"do": name, ...}`, and answers each with one on its standard output. What
its face says of itself comes there too, as `{"notice": ...}`.
"""

from __future__ import annotations

import array
import ctypes
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from midrun.fs.answers import Answers
from midrun.fs.birth import BOOT, Handed
from midrun.fs.faults import Conflict, Refused
from midrun.fs.later import Later
from midrun.fs.page import Page
from midrun.fs.tree import Dir, Leaf, Link, Node, file
from midrun.fs.verbs import Tree
from tests.controls import control


def whole(number: int, longest: int = 50) -> str:
    """Return a text that shows whether it is whole, and that has another length than the one before."""
    return f"{number}:{'a' * (number * 7 % longest)}:{number}"


class Values(Dir):
    """Files whose content has another length each time it is shown."""

    def __init__(self) -> None:
        self._shown = 0
        self._log = b""

    def _next(self) -> int:
        self._shown += 1
        return self._shown

    @file("text")
    def text(self) -> str:
        """A line."""
        return whole(self._next())

    @file("document.json")
    def document(self) -> dict[str, object]:
        """A document."""
        number = self._next()
        return {"number": number, "padding": "a" * (number * 7 % 50)}

    @file("big")
    def big(self) -> str:
        """More than the kernel reads at once."""
        return whole(self._next(), 3_000_017) + "b" * 300_000

    @file("numbers")
    def numbers(self) -> bytes:
        """Doubles, all alike."""
        number = self._next()
        return array.array("d", [float(number)] * (1 + number % 700)).tobytes()

    @file("log")
    def log(self) -> bytes:
        """Lines, the last ones new."""
        return self._log


class Still(Dir):
    """Files that are as they are."""

    @file("constant")
    def constant(self) -> int:
        """The answer."""
        return 42

    @file("empty")
    def empty(self) -> None:
        """A value that does not exist."""

    @file("uncached", cached=False)
    def uncached(self) -> str:
        """What is never kept."""
        return "never kept"

    @file("step", cached=False)
    def step(self) -> float:
        """The moment."""
        return time.monotonic()


class Broken(Dir):
    """Files that break."""

    @file("value")
    def value(self) -> str:
        """No value."""
        return str(1 // 0)


class Live(Dir):
    """Files that are made on demand."""

    def __init__(self) -> None:
        self._made = 0
        self._later: list[Later] = []

    @file("counted", live=True)
    def counted(self) -> str:
        """How often it was made."""
        self._made += 1
        return f"made {self._made} times"

    @file("waiting", live=True)
    def waiting(self) -> str:
        """A text that is made when the test says so."""
        later = Later()
        self._later.append(later)
        return later  # type: ignore[return-value]  # it stands for the text

    def made(self) -> int:
        return self._made

    def asked(self) -> int:
        return len(self._later)

    def finish(self, text: str) -> int:
        waiting, self._later = self._later, []
        for later in waiting:
            later.set_result(text)
        return len(waiting)


class Many(Dir):
    """Files that come and go."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def members(self) -> Iterable[str]:
        return list(self._names)

    def member(self, name: str) -> Node | None:
        return Leaf(lambda: f"I am {name!r}", doc="A member.") if name in self._names else None

    def become(self, names: list[str]) -> None:
        self._names = names


class Rate(BaseModel):
    """A learning rate."""

    model_config = ConfigDict(extra="forbid")
    value: float = Field(ge=0)


class Note(BaseModel):
    """A note."""

    model_config = ConfigDict(extra="forbid")
    text: str = ""


class Steering(Dir):
    """Files to write to."""

    def __init__(self) -> None:
        self._applied: list[object] = []

    @control("rate", Rate, bare="value")
    def rate(self, rate: Rate) -> object:
        """Set the learning rate."""
        self._applied.append(rate.value)
        return {"done": True}

    @control("note", Note, bare="text")
    def note(self, note: Note) -> None:
        """Take a note."""
        self._applied.append(note.text)

    @control("busy", Note)
    def busy(self, note: Note) -> None:
        """Have no time now."""
        raise Conflict("not now")

    @control("never", Note)
    def never(self, note: Note) -> None:
        """Have no time ever."""
        raise Refused("not ever")

    def take(self) -> list[object]:
        applied, self._applied = self._applied, []
        return applied


class Root(Dir):
    """A tree with a node of each kind."""

    def __init__(self, target: str) -> None:
        self.values = Values()
        self.still = Still()
        self.broken = Broken()
        self.live = Live()
        self.many = Many()
        self.control = Steering()
        self.link = Link(lambda: target)


class Program:
    """The tree, its thread and its face process."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._root = Root(plan["target"])
        self._page = Page()
        self._answers = Answers(Tree(self._root), self._page)
        self._said = threading.Lock()
        self._libc = ctypes.PyDLL(None)
        self._answers.start()
        self._face = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            handed = Handed(
                self._plan.get("module", "midrun.fs.mount"),
                os.getpid(),
                theirs.fileno(),
                self._page.fd,
                0,
                self._plan["options"],
            )
            # A plan may say what the face's process does first, and what program starts it.
            boot = self._plan.get("before", "") + BOOT
            wrap = self._plan.get("wrap", [])
            paths = [*self._plan.get("paths", []), *sys.path, os.getcwd()]
            began = time.monotonic()
            face = subprocess.Popen(
                [*wrap, sys.executable, "-I", "-c", boot, json.dumps(paths), json.dumps(dataclasses.asdict(handed))],
                pass_fds=[theirs.fileno(), self._page.fd],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._disconnect = self._answers.connect(
                ours.dup(),
                lambda notice, detail: self.say(notice=notice, seconds=time.monotonic() - began, **detail),
            )
        return face

    def say(self, **what: object) -> None:
        with self._said:
            sys.stdout.write(json.dumps(what) + "\n")
            sys.stdout.flush()

    def run(self) -> None:
        self.say(started=self._face.pid)
        for line in sys.stdin:
            request = json.loads(line)
            self.say(answer=getattr(self, f"do_{request.pop('do')}")(**request))

    def do_applied(self) -> list[object]:
        return self._root.control.take()

    def do_made(self) -> int:
        return self._root.live.made()

    def do_asked(self) -> int:
        return self._root.live.asked()

    def do_finish(self, text: str) -> int:
        return self._root.live.finish(text)

    def do_members(self, names: list[str]) -> None:
        self._root.many.become(names)
        self._page.bump()

    def do_log(self, text: str) -> None:
        self._root.values._log += text.encode()

    def do_bump(self) -> None:
        self._page.bump()

    def do_fork(self) -> int:
        """Fork a child that knows nothing of it: it keeps every descriptor, as a child of a C library does."""
        pid = int(self._libc.fork())
        if pid == 0:
            while True:
                self._libc.pause()
        return pid

    def do_touch(self, path: str) -> list[object]:
        """Stat a file with the GIL held, so that nobody here can answer."""
        began = time.monotonic()
        buffer = ctypes.create_string_buffer(1024)
        code = self._libc.stat(os.fsencode(path), buffer)
        return [code, time.monotonic() - began]

    def do_write(self, path: str, text: str) -> list[object]:
        """Write a file with the GIL held, so that nobody here can answer; return how much was written."""
        fd = os.open(path, os.O_WRONLY)
        try:
            began = time.monotonic()
            written = self._libc.write(fd, text.encode(), len(text))
            return [written, time.monotonic() - began]
        finally:
            os.close(fd)

    def do_open(self, path: str) -> list[object]:
        began = time.monotonic()
        try:
            text = Path(path).read_text()
        except OSError as error:
            text = os.strerror(error.errno or 0)
        return [text, time.monotonic() - began]

    def do_quit(self) -> list[object]:
        """End the face; return its exit code and how long it took."""
        began = time.monotonic()
        self._disconnect()
        try:
            code = self._face.wait(10)
        except subprocess.TimeoutExpired:
            code = None
        return [code, time.monotonic() - began]

    def do_reap(self) -> int:
        return self._face.wait(10)

    def do_restart(self) -> int:
        self.do_reap()
        self._disconnect()
        self._face = self._start()
        return self._face.pid


if __name__ == "__main__":
    Program(json.loads(sys.argv[1])).run()
