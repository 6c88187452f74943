"""Processes: how the trainer starts a face, keeps it alive and ends it.

A face is started by its module's name, never imported: it runs in a process and a session of its own, with the
trainer's interpreter and module path, and is no child of the trainer's. One that dies is started again, a few times;
one that says why it can't serve is not.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import midrun
from midrun.fs import forks
from midrun.fs.answers import Answers
from midrun.fs.birth import BOOT, UNWANTED, Handed
from midrun.fs.page import Page
from midrun.log import open_log
from midrun.services import Service

_DEATHS = 5
"""How often a face may die within `_WINDOW` and be started again."""
_WINDOW = 600.0
"""Seconds."""
_KILLED = 1.0
"""Seconds that a killed process is waited for: it ends at once, unless the kernel keeps it."""
_REAPS, _REAP_PAUSE = 25, 0.002
"""How often, and in seconds how far apart, to ask whether a process can be reaped whose descriptors are closed."""


@dataclass(frozen=True)
class Ties:
    """What ties every face of a run to the run."""

    answers: Answers
    page: Page
    log: Path
    """File that a face's own errors go to."""
    aside: Callable[[Callable[[], object]], object]
    """Hands a task to the thread that may wait."""


class FaceProcess:
    """One face's process and its successors. What is special to a face is in the methods that its class overrides.

    Parameters
    ----------
    service
        Where the face's state is told.
    ties
        What ties it to the run.
    """

    module: ClassVar[str]
    """The face's module; it has `serve`."""
    slot: ClassVar[int]
    """The face's mark on the shared page."""

    def __init__(self, service: Service, ties: Ties) -> None:
        self.service = service
        self._ties = ties
        self._life: _Life | None = None
        self._disconnect: Callable[[], None] = lambda: None
        self._deaths: list[float] = []
        self._turn = threading.Lock()
        """Held to start a process and to stop the last one: no process is started behind the back of a stop."""
        self._stopping = False

    def options(self) -> dict[str, Any]:
        """Return what a new process is told."""
        return {}

    def listener(self) -> socket.socket | None:
        """Return the listening socket that a new process serves, if it serves one."""
        return None

    def served(self, detail: dict[str, Any]) -> None:
        """Note what a process says of itself once it serves."""

    def clear(self) -> None:
        """Take away what a process has left that was killed."""

    def start(self) -> None:
        """Start the process; what goes wrong is told by the service."""
        with self._turn:
            if self._stopping:
                return
            try:
                self._spawn()
            except Exception as error:  # noqa: BLE001 - whatever it was, the other services start
                self.service.fail(str(error))

    def stop(self) -> None:
        """Tell the process to end. `join` waits for it."""
        self._stopping = True
        with self._turn:
            self._disconnect()
            if self._life is not None and self.service.state == "starting":
                self._life.signal(UNWANTED)

    def join(self, deadline: float) -> None:
        """Wait until the process has ended, and end it by force at `deadline` (of the monotonic clock)."""
        life = self._life
        if life is None:
            return
        if not life.over.wait(max(0.0, deadline - time.monotonic())):
            life.signal(signal.SIGKILL)
            life.over.wait(_KILLED)
        if life.over.is_set():
            life.reap()
        self.clear()
        if self.service.state != "failed":
            self.service.turn_off("the run has ended")

    def _spawn(self) -> None:
        with ExitStack() as ours, _Sockets() as given:
            wire, theirs = given.pair(ours)
            alive, life = given.pair(ours)
            options = self.options()
            if (listener := self.listener()) is not None:
                options["listener"] = given.take(listener)
            handed = Handed(
                module=self.module,
                trainer_pid=os.getpid(),
                wire=theirs,
                page=self._ties.page.fd,
                slot=self.slot,
                life=life,
                options=options,
            )
            self._life = _Life(self._popen(json.dumps(asdict(handed)), [*given.filenos(), self._ties.page.fd]))
            ours.pop_all()
        self._disconnect = self._ties.answers.connect(wire, self._hear, self.slot, self.service.name)
        self._ties.answers.watch(alive.detach(), partial(self._died, self._life))

    def _popen(self, handed: str, given: list[int]) -> subprocess.Popen[bytes]:
        errors = subprocess.DEVNULL
        with suppress(OSError):
            errors = open_log(self._ties.log)
        try:
            return subprocess.Popen(  # noqa: S603 - this interpreter, and a text of ours
                [sys.executable, "-I", "-c", BOOT, json.dumps(module_path()), handed],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                start_new_session=True,
            )
        finally:
            if errors != subprocess.DEVNULL:
                os.close(errors)

    def _hear(self, notice: str, detail: dict[str, Any]) -> None:
        if notice == "running":
            if self._life is not None:
                self._life.reap_first()
            self.served(detail)
            self.service.run()
        elif notice == "failed":
            self.service.fail(str(detail.get("reason", "it gave no reason")))

    def _died(self, life: _Life) -> None:
        life.over.set()
        self._ties.aside(partial(self._ended, life))

    def _ended(self, life: _Life) -> None:
        """Start the process again, unless it was told to end, or has said that it can't serve."""
        life.reap()
        if self._stopping or self.service.state == "failed":
            return
        self._disconnect()
        now = time.monotonic()
        self._deaths = [*(death for death in self._deaths if now - death < _WINDOW), now]
        count = len(self._deaths)
        if count > _DEATHS:
            self.clear()
            often = f"{count} times in {_WINDOW / 60:.0f} min"
            self.service.fail(f"its process ended {often}, and is not started again; midrun.log may say why")
            return
        self.service.start(f"its process ended and is started again ({count} of {_DEATHS})")
        self.start()


class _Life:
    """The two processes of a face, one process group: the first was started, forks and ends; the second serves.

    Parameters
    ----------
    first
        The process that was started.
    """

    def __init__(self, first: subprocess.Popen[bytes]) -> None:
        self.over = threading.Event()
        """Set when the group is no more."""
        self._first = first

    def signal(self, number: int) -> None:
        """Send a signal to the group."""
        # While one of the group lives, its number is no other group's.
        with suppress(ProcessLookupError, PermissionError):
            if not self.over.is_set():
                os.killpg(self._first.pid, number)

    def reap_first(self) -> None:
        """Reap the first process: it has ended once the second serves."""
        self._first.poll()

    def reap(self) -> None:
        """Reap what has ended. Where the trainer is process 1 of a container, the second is its child by now."""
        # A process's descriptors are closed a moment before it can be waited for.
        with suppress(subprocess.TimeoutExpired):
            self._first.wait(_REAPS * _REAP_PAUSE)
        with suppress(ChildProcessError):
            for _ in range(_REAPS):
                if os.waitpid(-self._first.pid, os.WNOHANG) == (0, 0):
                    time.sleep(_REAP_PAUSE)


class _Sockets:
    """Sockets on their way to a face: closed here once they are there, and in every child that is forked meanwhile."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        forks.close_in_children(self)
        return self

    def __exit__(self, *_: object) -> None:
        forks.forget(self)
        self.close_in_child()

    def pair(self, ours: ExitStack) -> tuple[socket.socket, int]:
        """Make a pair; return our end, which `ours` closes, and the number of the face's."""
        kept, theirs = socket.socketpair()
        return ours.enter_context(kept), self.take(theirs)

    def take(self, end: socket.socket) -> int:
        """Hand over `end`, and return its number."""
        self._sockets.append(end)
        return end.fileno()

    def filenos(self) -> list[int]:
        """Return the numbers of all of them."""
        return [end.fileno() for end in self._sockets]

    def close_in_child(self) -> None:
        """Close them."""
        for end in self._sockets:
            end.close()


def module_path() -> list[str]:
    """Return the module path for a face: the trainer's, without the script's folder and the current one.

    A script's folder may hold an `app.py` or a `trio.py` that the trainer never imports and a face would.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    own = {"", _here()} | ({os.path.dirname(os.path.abspath(script))} if script else set())
    home = os.path.dirname(os.path.abspath(midrun.__path__[0]))
    return [*(os.path.abspath(entry) for entry in sys.path if entry not in own), home]


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # The current directory has been deleted.


def fill_standard_streams() -> None:
    """Open what is closed of standard input, output and error, on nothing.

    A program may have closed them. What is opened next would get their numbers, and whatever is printed.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) in {0, 1, 2}:
        os.set_inheritable(fd, True)
    os.close(fd)
