"""The control log: what was done to a run, by whom and when, for good: `control-log.jsonl` in the run directory.

One line for each change of what the user controls. From it a reader can tell exactly what was done to a finished run,
and do it again: a line's `kind` and `args`, at its `place`, are a command.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypedDict

from midrun.command import Change, CommandRecord, ErrorRecord, Place
from midrun.fs.disk import append_whole

CONTROL_LOG = "control-log.jsonl"
"""Its name in the run directory."""
SHOWN = 100
"""The newest lines, which are kept in memory."""
_TAIL = 4 << 20
"""Bytes at the end of the file in which its newest lines are looked for."""
_OWED = 1000
"""Lines that could not be written, and are still to be: the newest."""

Event = Literal["done", "failed", "held", "joined", "released"]


class Line(TypedDict):
    """One line."""

    revision: int
    """Counts the lines, from 1."""
    session: float
    """When the session began in which it was done, as in run.json. Seconds since 1970."""
    time: float
    """When it was done. Seconds since 1970."""
    event: Event
    id: str
    """The command's."""
    kind: str
    args: dict[str, Any]
    source: str
    via: str
    place: Place | None
    changes: list[Change]
    """Each value that is another one now."""
    result: dict[str, Any] | None
    """What else came of it."""
    error: ErrorRecord | None


def line_of(record: CommandRecord, event: Event, place: Place | None) -> Line:
    """Return the line for what a command did; the control log numbers it, and says in which session it was."""
    result = {key: value for key, value in (record["result"] or {}).items() if key != "changes"}
    return Line(
        revision=0,
        session=0.0,
        time=record["finished"] or time.time(),
        event=event,
        id=record["id"],
        kind=record["kind"],
        args=record["args"],
        source=record["source"],
        via=record["via"],
        place=place,
        changes=(record["result"] or {}).get("changes", []),
        result=result or None,
        error=record["error"],
    )


class ControlLogRecord(TypedDict):
    """What was done to the run: the newest lines of `control-log.jsonl`."""

    revision: int
    entries: Sequence[Line]


class ControlLog:
    """The control log of a run directory. One thread writes it; any may read `log`.

    Parameters
    ----------
    path
        The file.
    session
        When this session began. Seconds since 1970.
    """

    def __init__(self, path: Path, session: float) -> None:
        self._path = path
        self._session = session
        self.revision = 0
        self._newest: deque[Line] = deque(maxlen=SHOWN)
        self._owed: deque[bytes] = deque(maxlen=_OWED)
        self._end: int | None = None
        """Where the file ended when that was last known."""

    @property
    def log(self) -> ControlLogRecord:
        """The newest lines."""
        return ControlLogRecord(revision=self.revision, entries=list(self._newest))

    def open(self) -> None:
        """Read what earlier sessions have written; a line that a crash cut short is cut off. Raises OSError."""
        self._end = 0
        with suppress(FileNotFoundError), self._path.open("r+b") as file:
            size = self._end = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            tail = file.read()
            whole = tail[: tail.rfind(b"\n") + 1]
            rest = tail[len(whole) :]
            if rest and _parsed(rest) is not None:
                self._end += file.write(b"\n")  # All of it is there but its end.
                whole = tail
            elif rest:
                self._end = file.truncate(size - len(rest))
            lines = [line for text in whole.splitlines() if (line := _parsed(text)) is not None]
            self._newest.extend(lines)
        self.revision = max((line["revision"] for line in self._newest), default=0)

    def last(self, id_: str) -> Line | None:
        """Return what the newest lines say came of a command, or None."""
        ends = {"done", "failed"}
        newest = list(self._newest)[::-1]
        # Others may have put lines there that have less in them.
        return next((line for line in newest if line.get("id") == id_ and line.get("event") in ends), None)

    def add(self, line: Line) -> None:
        """Show a line, and write it so that it stays.

        Raises OSError, and it is shown all the same, and written before the next one.
        """
        self.revision += 1
        line = {**line, "revision": self.revision, "session": self._session}
        self._newest.append(line)
        self._owed.append(f"{json.dumps(line, ensure_ascii=False)}\n".encode(errors="backslashreplace"))
        self._end = append_whole(self._path, b"".join(self._owed), self._end)
        self._owed.clear()


def _parsed(text: bytes) -> Line | None:
    """Return the line that was written, or None for what is none of ours."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and type(line.get("revision")) is int else None  # type: ignore[return-value]  # as it was written
