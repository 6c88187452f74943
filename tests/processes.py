"""What every test may do to a process, and what it may expect of a machine that has other things to do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds to wait for what should happen at once, on a machine that has other things to do."""


def stand_still(*pids: int) -> None:
    """Stop processes, and return when every thread of theirs stands still.

    The signal alone is no stop: until a thread is scheduled to take it, the others go on, and may well answer.
    """
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    while moving := [pid for pid in pids if not _threads(pid) <= set("TtZX")]:
        assert time.monotonic() < deadline, f"not in {PATIENCE:g} s: {moving} stand still"
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


def wait_for(condition: Callable[[], T | None], what: str, seconds: float = PATIENCE, every: float = 0.01) -> T:
    """Return what `condition` returns as soon as that is true; fail when it is not in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            message = f"not in {seconds:g} s: {what}"
            raise AssertionError(message)
        time.sleep(every)
    return value


def start(*command: str | Path, **how: Any) -> subprocess.Popen[str]:
    """Start a program; the streams that are not told are pipes."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.Popen(
        [str(word) for word in command], text=True, errors="surrogateescape", env=environment, **{**pipes, **how}
    )


def sh(*command: str | Path, seconds: float = PATIENCE, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. One that hangs is killed and not waited for: a dead mount may never let go of it."""
    process = start(*command, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE)
    try:
        out, err = process.communicate(text, timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        message = f"it hung for {seconds:g} s: {' '.join(map(str, command))}"
        raise AssertionError(message) from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def output(*command: str | Path, seconds: float = PATIENCE, text: str | None = None) -> str:
    """Return what a program prints; it must end well and complain of nothing."""
    done = sh(*command, seconds=seconds, text=text)
    assert (done.returncode, done.stderr) == (0, ""), (command, done)
    return done.stdout
