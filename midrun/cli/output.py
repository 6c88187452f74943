"""Output: how the command line speaks. Results go to standard output, all else to standard error, a line each."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

_MOST_CHANGES = 4
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class Trouble(Exception):  # noqa: N818 - it is told to a person, who need not hear of errors
    """What keeps a command from being done, in one line: what was wrong, what was expected and what to do.

    Parameters
    ----------
    code
        The exit code: 2 where the command is to be written otherwise, 1 where the same may work another time.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


# ---- where it goes


def prepare() -> None:
    """Have any text be printable, whatever the terminal's encoding."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # A test's stream may be another kind.
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def to_stdout(text: str) -> bool:
    """Print a line of the result; return whether anybody reads on. A closed pipe is no error."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        mute()
        return False
    return True


def to_stderr(text: str) -> None:
    """Say something to the person at the terminal."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(f"midrun: {one_line(text)}\n")
            sys.stderr.flush()


def mute() -> None:
    """Let what is still printed go nowhere: whoever read it has left, and Python would complain when it ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# ---- how things are written


def plain(text: str) -> str:
    """Return text that does nothing to a terminal but be read."""
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def one_line(text: str) -> str:
    """Return text as one line."""
    return plain(" ".join(text.split("\n")))


def shown(value: object) -> str:
    """Return a value of a record as a person writes it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value and value.isprintable() and not set(value) & {" ", '"'}:
        return value
    if isinstance(value, Mapping) and value:
        return f"({pairs(value)})"
    return one_line(json.dumps(value, ensure_ascii=False))


def pairs(values: Mapping[str, object]) -> str:
    """Return the members that are not null as `name=value`."""
    return " ".join(f"{one_line(name)}={shown(value)}" for name, value in values.items() if value is not None)


def changes(changed: Sequence[Mapping[str, Any]], most: int = _MOST_CHANGES) -> list[str]:
    """Return what was changed, one text each; of very many the first."""
    told = [f"{one_line(str(c.get('what')))} {shown(c.get('old'))} -> {shown(c.get('new'))}" for c in changed[:most]]
    return [*told, f"and {len(changed) - most} more"] if len(changed) > most else told


def place(where: Mapping[str, Any] | None) -> str:
    """Return where in training something was, as in `step 312`."""
    return f"step {where['global_step']}" if where and "global_step" in where else "no step"


def clock(seconds: float) -> str:
    """Return a time, as the run's log writes it."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError, TypeError):
        return shown(seconds)


def span(seconds: float) -> str:
    """Return how long something took, in the two units that matter."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
