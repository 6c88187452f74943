"""The log: what midrun has to say, to `midrun.log` in the run directory and to Python's logging."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

_logger = logging.getLogger("midrun")


def _speak() -> None:
    """Let midrun be heard in a program that has set up no logging, as Lightning does for itself."""
    if not _logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("midrun: %(message)s"))
        _logger.addHandler(handler)
        _logger.setLevel(logging.INFO)
        _logger.propagate = False


class RunLog:
    """The log of one run.

    Parameters
    ----------
    path
        The file.
    aside
        Hands a task to the thread that may wait for the disk.
    """

    def __init__(self, path: Path, aside: Callable[[Callable[[], object]], object]) -> None:
        self._path = path
        self._aside = aside
        self._said: set[str] = set()
        self._failed = False
        _speak()

    def say(self, message: str) -> None:
        """Say what a user wants to know."""
        self._say(logging.INFO, message)

    def alert(self, message: str, kind: str | None = None) -> None:
        """Say what is wrong and what to do about it: once for each `kind`, which is the message where none is given."""
        if (kind or message) not in self._said:
            self._said.add(kind or message)
            self._say(logging.WARNING, message)

    def _say(self, level: int, message: str) -> None:
        # A terminal can stand still too: like the disk, it is never waited for by who has something to say.
        self._aside(lambda: _logger.log(level, message))
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {logging.getLevelName(level)} {message}\n"
        self._aside(lambda: self._append(line))

    def _append(self, line: str) -> None:
        try:
            # Opened for each line: the file may be moved, or its disk may fill and empty again, while the run goes on.
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line)
        except OSError as error:
            if not self._failed:
                self._failed = True
                _logger.warning("%s can't be written: %s", self._path, error)
