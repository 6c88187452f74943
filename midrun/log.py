"""The log: what midrun has to say, to `midrun.log` in the run directory and to Python's logging."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

RUN_LOG = "midrun.log"
"""Its name in the run directory."""

_logger = logging.getLogger("midrun")


def tell(level: int, message: str) -> None:
    """Say something to Python's logging, or to the terminal in a program that has set up no logging.

    It never raises: a handler is anybody's code.
    """
    with suppress(Exception):
        if _logger.hasHandlers():
            _logger.log(level, message)
        elif sys.stderr is sys.__stderr__:
            # Past the stream and its lock: a terminal that stands still would make the whole program wait for it.
            # A progress bar may stand in the line. A terminal's is drawn again below; in a file the line ends here.
            clear = "\r\x1b[K" if os.isatty(2) else "\n"
            os.write(2, f"{clear}midrun: {message}\n".encode(errors="backslashreplace"))
        else:
            sys.stderr.write(f"midrun: {message}\n")


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a log, and never waits: the file may be a pipe that nobody reads."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


class RunLog:
    """The log of one run.

    Parameters
    ----------
    path
        The file.
    write, tell
        Hand a task to the thread that may wait for the disk, and to the one that may wait for the terminal.
    """

    def __init__(
        self,
        path: Path,
        write: Callable[[Callable[[], object]], object],
        tell: Callable[[Callable[[], object]], object],
    ) -> None:
        self._path = path
        self._write, self._tell = write, tell
        self._said: set[str] = set()
        self._failed = False

    def say(self, message: str) -> None:
        """Say what a user wants to know."""
        self._say(logging.INFO, message)

    def alert(self, message: str, once: str | None = None) -> bool:
        """Say what is wrong and what to do about it: once for each `once`, which is the message where none is given.

        Return whether it was said now.
        """
        is_new = (once or message) not in self._said
        if is_new:
            self._said.add(once or message)
            self._say(logging.WARNING, message)
        return is_new

    def note(self, message: str) -> None:
        """Say what is for readers of the file: the terminal does not have it."""
        self._put(logging.INFO, message)

    def _say(self, level: int, message: str) -> None:
        # A terminal can stand still too: like the disk, whoever has something to say never waits for it.
        self._tell(lambda: tell(level, message))
        self._put(level, message)

    def _put(self, level: int, message: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {logging.getLevelName(level)} {message}\n"
        self._write(lambda: self._append(line))

    def _append(self, line: str) -> None:
        try:
            # Opened for each line: the file may be moved, or its disk may fill and empty again, while the run goes on.
            file = open_log(self._path)
            try:
                os.write(file, line.encode(errors="backslashreplace"))
            finally:
                os.close(file)
        except OSError as error:
            if not self._failed:
                self._failed = True
                message = f"{self._path} can't be written: {error}"
                self._tell(lambda: tell(logging.WARNING, message))
