"""Readers: the processes that wait for an answer of the mount, and when they must not wait on.

A process that waits for a file system can't be interrupted, not even by kill -9, until the answer is there. So for
everyone who waits, somebody looks whether a signal is pending, and then the wait ends.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import trio

from midrun.fs.faults import timed_out

LOOK = 0.04
"""Seconds between two looks for signals."""
OWN_PATIENCE = 0.3
"""Seconds that the trainer itself waits: long enough for a value that is kept but old."""

T = TypeVar("T")

# Their default is to do nothing, or they tick in a program that is profiled: nobody wants to end a wait with them.
_IDLE = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGPROF, signal.SIGVTALRM}
_ENDING = ~sum(1 << (number - 1) for number in _IDLE)
_SIGNALS = re.compile(rb"^SigPnd:\s*(\w+)\s+ShdPnd:\s*(\w+)\s+SigBlk:\s*(\w+)", re.MULTILINE)


class Interrupted(Exception):  # noqa: N818 - what has happened, as all faults here are named
    """A signal is pending for the one who waits."""


class Readers:
    """The processes that wait for an answer of a mount: a signal to one ends its wait.

    Parameters
    ----------
    trainer_pid
        The process whose tree this is. It may hold the GIL while it waits, and then nobody can answer it.
    """

    def __init__(self, trainer_pid: int | None) -> None:
        self._trainer_pid = trainer_pid
        self._waiting: dict[_Wait, None] = {}
        self._some = trio.Event()

    async def watch(self) -> None:
        """Look for signals for as long as somebody waits."""
        while True:
            await self._some.wait()
            await trio.sleep(LOOK)
            for wait in self._waiting:
                if is_interrupted(wait.pid):
                    wait.interrupted = True
                    wait.scope.cancel()
            if not self._waiting:
                self._some = trio.Event()

    async def wait(self, pid: int, question: Callable[[], Awaitable[T]], patience: float) -> T:
        """Return the answer to `question`, which process `pid` asks.

        Raises `TimedOut` when it is not there in `patience` seconds, and `Interrupted` when a signal ends the wait.
        """
        if self.is_trainer(pid):
            patience = min(patience, OWN_PATIENCE)
        wait = _Wait(pid, trio.CancelScope(deadline=trio.current_time() + patience))
        self._waiting[wait] = None
        self._some.set()
        try:
            with wait.scope:
                return await question()
        finally:
            del self._waiting[wait]
        if wait.interrupted:
            raise Interrupted
        raise timed_out(patience)

    def is_trainer(self, thread: int) -> bool:
        """Whether a thread is one of the trainer's; a request carries the number of the thread that makes it."""
        return self._trainer_pid is not None and Path(f"/proc/{self._trainer_pid}/task/{thread}").exists()


class _Wait:
    """One who waits."""

    def __init__(self, pid: int, scope: trio.CancelScope) -> None:
        self.pid = pid
        self.scope = scope
        self.interrupted = False


def is_interrupted(pid: int) -> bool:
    """Whether a signal that ends a wait is pending for a process or thread, or the process is gone."""
    if not pid:
        return False  # It is in another process namespace, and nothing is known of it.
    try:
        found = _SIGNALS.search(Path(f"/proc/{pid}/status").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    if found is None:
        return False
    own, shared, blocked = (int(mask, 16) for mask in found.groups())
    return bool((own | shared) & ~blocked & _ENDING)
