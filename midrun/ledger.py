"""The ledger: what was done to a run, by whom and when, for good: `control-log.jsonl` in the run directory.

One line for each change of what the user controls. From it a reader can tell exactly what was done to a finished run,
and do it again: a line's `kind` and `args`, at its `place`, are a command.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypedDict

from midrun.changes import Change
from midrun.command import ErrorRecord, Place

SHOWN = 100
"""The newest lines, which are kept in memory."""
_TAIL = 4 << 20


class Entry(TypedDict):
    """One line."""

    revision: int
    """Counts the lines, from 1."""
    time: float
    event: Literal["done", "failed", "held", "released"]
    id: str
    """The command's."""
    kind: str
    args: dict[str, Any]
    source: str
    via: str
    place: Place | None
    changes: list[Change]
    """Each value that is another one now."""
    error: ErrorRecord | None


class ControlLog(TypedDict):
    """What was done to the run: the newest lines of `control-log.jsonl`."""

    revision: int
    entries: Sequence[Entry]


class Ledger:
    """The ledger of a run directory. One thread writes it; any may read `log`.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.revision = 0
        self._newest: deque[Entry] = deque(maxlen=SHOWN)

    @property
    def log(self) -> ControlLog:
        """The newest lines."""
        return ControlLog(revision=self.revision, entries=list(self._newest))

    def open(self) -> None:
        """Read what earlier sessions have written; a line that a crash cut short is cut off. Raises OSError."""
        with suppress(FileNotFoundError), self._path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            tail = file.read()
            whole = tail[: tail.rfind(b"\n") + 1]
            if len(whole) < len(tail):
                file.truncate(size - len(tail) + len(whole))
            for line in whole.splitlines()[-SHOWN:]:
                with suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, dict) and isinstance(entry.get("revision"), int):
                        self._newest.append(entry)  # type: ignore[arg-type]  # as it was written
        self.revision = self._newest[-1]["revision"] if self._newest else 0

    def add(self, entry: Entry) -> None:
        """Show a line, and write it so that it stays. Raises OSError, and it is shown all the same."""
        self.revision += 1
        entry = {**entry, "revision": self.revision}
        self._newest.append(entry)
        line = f"{json.dumps(entry, ensure_ascii=False)}\n".encode(errors="backslashreplace")
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            start = os.fstat(fd).st_size
            if os.write(fd, line) < len(line):
                os.ftruncate(fd, start)
                raise OSError(f"{self._path} took a part of a line only")
            os.fsync(fd)
        finally:
            os.close(fd)
