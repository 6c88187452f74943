"""Execution: one run of a script, in a process group of its own, with its output taken line by line.

Nothing that a script does keeps its caller longer than the script itself runs, or than its time limit: what it leaves
running in the background may keep its output open, and is not waited for.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MOST_LINES = 1000
"""Lines of output that one run of a script may have."""
LONGEST_LINE = 2000
"""Characters of one."""

_CHUNK = 1 << 16
_LEFTOVER = 1 << 20
"""Bytes that are still read when the script has ended: what it left in the background may write for ever."""
_GRACE = 1.0
"""Seconds between being told to end and being killed."""
_LAST_WORDS = 10.0
"""Seconds that a script has from when its caller is told to end."""
_LOOK = 0.2
"""Seconds between two looks whether it is."""
_SHELL = "/bin/sh"
_ITSELF = (b"#!", b"\x7fELF")
"""How files begin that the system runs by itself."""


@dataclass(frozen=True)
class Ended:
    """How a run of a script ended."""

    status: int
    """As a shell has it; below zero, the signal."""
    seconds: float
    cut_for: str | None
    """Why it did not end by itself."""

    @property
    def trouble(self) -> str:
        """What was wrong; "" if nothing was."""
        if self.cut_for is not None:
            return f"it was ended after {self.seconds:.1f} s: {self.cut_for}"
        if self.status < 0:
            return f"it was ended by {_name_of(-self.status)}"
        return f"exit status {self.status}" if self.status else ""


class Waiter(NamedTuple):
    """Who waits for a script."""

    is_told: Callable[[], bool]
    """Whether it is told to end, which a signal handler may note: a script that runs then, or later, ends soon."""
    begun: Callable[[int], object]
    """Is told the process's number."""
    line: Callable[[str], object]
    """Is handed each line that is printed."""


def execute(
    script: Path,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    timeout: float | None,
    waiter: Waiter,
) -> Ended:
    """Run a script until it ends, and return how it ended.

    A script without `#!` is run by `/bin/sh`. Raises OSError where it can't be started.
    """
    began = time.monotonic()
    command = [str(script)] if beginning(script, 4).startswith(_ITSELF) else [_SHELL, str(script)]
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        os.set_blocking(reader, False)
        try:
            process = subprocess.Popen(  # noqa: S603 - the user made it executable
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(writer)
        running = _Running(process, reader, waiter.line)
        try:
            waiter.begun(process.pid)
            cut_for = running.wait(None if timeout is None else began + timeout, waiter.is_told)
        finally:
            running.end()
        return Ended(process.returncode, time.monotonic() - began, cut_for)
    finally:
        os.close(reader)


def beginning(script: Path, size: int) -> bytes:
    """Return the first bytes of a script. Raises OSError where it can't be read."""
    # It may have become a pipe by now, which would keep whoever opens it.
    fd = os.open(script, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no file any more")
        return os.read(fd, size)
    finally:
        os.close(fd)


class _Running:
    """A process and the pipe that it prints into."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: int, line: Callable[[str], object]) -> None:
        self._process, self._pipe = process, pipe
        self._lines = _Lines(line)
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)
        self._alive = os.pidfd_open(process.pid)
        self._poll.register(self._alive, select.POLLIN)

    def wait(self, deadline: float | None, is_told: Callable[[], bool]) -> str | None:
        """Take what is printed until the process has ended; if its time is up before, return why."""
        why, end, was_told = "hooks_timeout_s", float("inf") if deadline is None else deadline, False
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return why
            ready = dict(self._poll.poll(min(left, _LOOK) * 1000 + 1))
            if self._pipe in ready and not self._take():
                self._poll.unregister(self._pipe)
            if self._alive in ready:
                return None
            if not was_told and is_told():
                was_told, last = True, time.monotonic() + _LAST_WORDS
                if last < end:
                    why, end = "the run was told to end", last

    def end(self) -> None:
        """Have the process end, with its group and whoever else holds its output if it has not by itself."""
        try:
            if self._process.poll() is None:
                self._kill()
            left = _LEFTOVER
            while left > 0 and (size := self._take()):
                left -= size
            self._lines.close()
        finally:
            os.close(self._alive)

    def _kill(self) -> None:
        holders = _holders(self._pipe)
        for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            for holder in holders:
                with suppress(OSError):
                    os.kill(holder, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        # Others of the group may have ignored the first signal, and the leader not.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _take(self) -> int:
        """Take what is in the pipe, and return how much that was; 0 where nothing is, or comes any more."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return 0
        self._lines.add(data)
        return len(data)


class _Lines:
    """Makes lines of what is printed, and no more of them than anybody reads."""

    def __init__(self, line: Callable[[str], object]) -> None:
        self._line = line
        self._begun = b""
        self._count = self._dropped = 0

    def add(self, data: bytes) -> None:
        """Take what was printed."""
        if self._count >= MOST_LINES:
            self._dropped += len(data)
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._tell(line)
        if len(self._begun) > 4 * LONGEST_LINE:
            self._tell(self._begun)
            self._begun = b""

    def close(self) -> None:
        """Tell the line that has no end, and what was not told."""
        if self._begun:
            self._tell(self._begun)
        if self._dropped:
            self._line(f"… and {self._dropped:,} bytes more")

    def _tell(self, line: bytes) -> None:
        if self._count >= MOST_LINES:
            self._dropped += len(line) + 1
            return
        self._count += 1
        text = line.decode(errors="backslashreplace").rstrip("\r")
        self._line(f"{text[:LONGEST_LINE]}…" if len(text) > LONGEST_LINE else text)


def _holders(pipe: int) -> list[int]:
    """Return the processes that can write into a pipe: those that a script has started and put out of its group."""
    wanted = Path(f"/proc/self/fd/{pipe}").readlink()
    others = (process for process in Path("/proc").iterdir() if process.name.isdecimal())
    return [int(process.name) for process in others if int(process.name) != os.getpid() and _writes(process, wanted)]


def _writes(process: Path, pipe: Path) -> bool:
    with suppress(OSError, ValueError):
        for fd in (process / "fd").iterdir():
            with suppress(OSError):
                if fd.readlink() == pipe and _is_open_for_writing(process / "fdinfo" / fd.name):
                    return True
    return False


def _is_open_for_writing(info: Path) -> bool:
    flags = next(line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
