"""What every test may do to a process, and what it may expect of a machine that has other things to do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_PATIENCE = 30.0
"""Seconds that a process may take to stand still, on a machine that has other things to do."""


def stand_still(*pids: int) -> None:
    """Stop processes, and return when every thread of theirs stands still.

    The signal alone is no stop: until a thread is scheduled to take it, the others go on, and may well answer.
    """
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _PATIENCE
    while moving := [pid for pid in pids if not _threads(pid) <= set("TtZX")]:
        assert time.monotonic() < deadline, f"not in {_PATIENCE:g} s: {moving} stand still"
        time.sleep(0.001)


def _threads(pid: int) -> set[str]:
    """Return the states of the threads of a process, a letter each."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            found.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return found


def on_this_machine(seconds: float) -> float:
    """Return what takes so many seconds on a machine with a core to spare: longer, where many share one."""
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return seconds * max(1.0, max(running, os.getloadavg()[0]) / (os.cpu_count() or 1))
