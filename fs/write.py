"""Writes: who writes to a control file, what a write is known by, and how long it may be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from midrun.fs.faults import TooLarge

LEGAL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A name that a write can be known by, and that can be a file's: a command's id, REST's Idempotency-Key."""
LEGAL_ID_WORDS = "it has 1 to 128 letters, digits, '.', '_' and '-', and begins with a letter or a digit"
LONGEST_WRITE = 1 << 20
"""Bytes in the longest text that a control file takes, whichever face brings it."""


@dataclass(frozen=True)
class Writer:
    """Who writes to a control file."""

    via: str = "python"
    """By which way it came, as in a command's record."""
    key: str | None = None
    """What names this write (REST's Idempotency-Key): repeated with the same key, it is the same write."""


IN_PROCESS = Writer()
"""A caller of the tree within the process."""


def check_length(name: str, length: int) -> None:
    """Raise `TooLarge` if `length` bytes are more than the control file `name` takes."""
    if length > LONGEST_WRITE:
        raise TooLarge(f"{name} takes at most {LONGEST_WRITE} bytes, not {length}: write less at once")
