"""Tail: the run's log and what was done to it, as they grow."""

from __future__ import annotations

import json
import os
import re
import select
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from midrun.cli import output
from midrun.cli.output import clock, one_line, pairs, plain, to_stdout
from midrun.cli.runs import Run, read
from midrun.control_log import CONTROL_LOG
from midrun.log import RUN_LOG

_LOOK = 250
"""Milliseconds between two looks."""
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
_BLOCK = 1 << 16
"""Bytes that are read at once."""
_MOST = 4 << 20
"""Bytes at the end of a file in which its last lines are looked for."""


def tail(run: Run, count: int, *, follows: bool) -> int:
    """Print the last lines, and then those that come."""
    log, control_log = Growing(run.path / RUN_LOG), Growing(run.path / CONTROL_LOG)
    try:
        past = _merged(
            [*map(plain, log.last(count))], [entry for line in control_log.last(count) for entry in _entries(line)]
        )
        goes_on = all(to_stdout(line) for line in (past[-count:] if count else []))
        listener = _Listener()
        while goes_on and follows and listener.waits():
            now = read(run.directory)
            lines = [*map(plain, log.more()), *(entry for line in control_log.more() for entry in _entries(line))]
            goes_on = all(to_stdout(line) for line in lines)
            if not lines and (now is None or not now.is_live):
                to_stdout("the run has ended" if now is not None and now.life == "ended" else "the run is gone")
                break
    finally:
        log.close()
        control_log.close()
    return 0


def _merged(log: list[str], control_log: list[str]) -> list[str]:
    """Return both by time; what has no time, as the lines of a traceback, stays with what comes before it."""
    stamped: list[tuple[str, str]] = []
    for lines in (log, control_log):
        stamp = ""
        for line in lines:
            found = _STAMP.match(line)
            stamp = found[0] if found else stamp
            stamped.append((stamp, line))
    return [line for _, line in sorted(stamped, key=lambda item: item[0])]


def _entries(line: str) -> Iterator[str]:
    """Iterate over the one text of a line of the control log: who did what at which step, and what is another now."""
    with suppress(ValueError, RecursionError, TypeError, AttributeError, KeyError):
        yield entry(json.loads(line))


def entry(said: dict[str, Any]) -> str:
    """Return a line of the control log as a person reads it."""
    who, kind, event = (one_line(str(said.get(key))) for key in ("source", "kind", "event"))
    asked = " ".join(filter(None, (kind, pairs(said.get("args") or {}))))
    came = {"done": "", "held": ": held", "released": ": released"}.get(event, f": {event}")
    text = f"{clock(said['time'])} {output.place(said.get('place'))}: {who}: {asked}{came}"
    changed = output.changes(said.get("changes") or [])
    error = said.get("error") or {}
    told = ", ".join(changed) or one_line(str(error.get("message") or ""))
    return f"{text}: {told}" if told else text


class Growing:
    """A file that others append to, and may cut, move away or make later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._at = 0
        self._rest = b""
        """A line that is not whole yet."""

    def last(self, count: int) -> list[str]:
        """Return the last whole lines, and have `more` go on after them."""
        if not self._open():
            return []
        size = os.fstat(self._open_fd).st_size
        self._at = max(0, size - _MOST)
        lines = self._read()
        if self._at > _MOST:
            lines = lines[1:]  # Its beginning may be missing.
        return list(deque(lines, count))

    def more(self) -> list[str]:
        """Return the whole lines that have come since."""
        if self._fd is None and not self._open():
            return []
        if os.fstat(self._open_fd).st_size < self._at:
            self._at, self._rest = 0, b""  # It was cut.
        lines = self._read()
        if not self._is_there():  # It was moved away, and this is the new one's turn.
            lines += [self._rest.decode(errors="backslashreplace")] if self._rest else []
            self.close()
            lines += self.more()
        return lines

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._at, self._rest = None, 0, b""

    @property
    def _open_fd(self) -> int:
        assert self._fd is not None  # noqa: S101 - for the type checker
        return self._fd

    def _open(self) -> bool:
        with suppress(FileNotFoundError):
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        return self._fd is not None

    def _is_there(self) -> bool:
        """Whether the file by this name is still the one that is read, or there is none yet to take its place."""
        try:
            found = self._path.stat()
        except OSError:
            return True
        mine = os.fstat(self._open_fd)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def _read(self) -> list[str]:
        parts = [self._rest]
        while block := os.pread(self._open_fd, _BLOCK, self._at):
            self._at += len(block)
            parts.append(block)
        *whole, self._rest = b"".join(parts).split(b"\n")
        return [line.decode(errors="backslashreplace") for line in whole]


class _Listener:
    """Whoever reads what is printed."""

    def __init__(self) -> None:
        self._is_there = sys.stdout is not None
        self._poll = select.poll()
        with suppress(OSError, ValueError, AttributeError):
            self._poll.register(
                sys.stdout.fileno(), 0
            )  # It is told of a pipe that nobody reads, whatever it waits for.

    def waits(self) -> bool:
        """Wait a moment; return whether the reader is still there."""
        return self._is_there and not self._poll.poll(_LOOK)
