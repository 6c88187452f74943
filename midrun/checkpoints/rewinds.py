"""Rewinds: where a run has gone back to an earlier step, for good: `rewinds.jsonl` in the run directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

from midrun.fs.disk import append_whole

REWINDS = "rewinds.jsonl"
"""Its name in the run directory."""

Cause = Literal["resume", "load_checkpoint"]


class Rewind(NamedTuple):
    """A run has gone back: what `on_rewind` tells."""

    to_step: int
    """The optimizer step that it goes on from."""
    reached: int
    """The step that it had reached."""
    cause: Cause
    """`resume`: another process goes on with it; `load_checkpoint`: it went back while it was live."""


class RewindRecord(TypedDict):
    """One of them, with what it went back to."""

    to_step: int
    reached: int
    cause: Cause
    checkpoint: str
    """Its path."""
    time: float
    """When that was. Seconds since 1970."""


class RewindsRecord(TypedDict):
    """Where the run has gone back, the oldest first."""

    rewinds: list[RewindRecord]


class Rewinds:
    """Those of one run directory. One thread adds to them; any may read them.

    Parameters
    ----------
    directory
        The run directory.
    aside
        Calls something in a thread that may wait for the disk.
    """

    def __init__(self, directory: Path, aside: Callable[[Callable[[], object]], object]) -> None:
        self._path, self._aside = directory / REWINDS, aside
        self._known = read(directory)

    @property
    def record(self) -> RewindsRecord:
        """All of them."""
        return RewindsRecord(rewinds=list(self._known))

    def add(self, rewind: RewindRecord) -> None:
        """Add one, which the disk has soon."""
        self._known = [*self._known, rewind]
        line = f"{json.dumps(rewind)}\n".encode()
        self._aside(partial(append_whole, self._path, line))


def read(directory: Path) -> list[RewindRecord]:
    """Return what a run directory has of them; a line that is none is passed over."""
    found = []
    with suppress(OSError):
        for text in (directory / REWINDS).read_bytes().splitlines():
            with suppress(ValueError, KeyError, TypeError):
                line = json.loads(text)
                found.append(
                    RewindRecord(
                        to_step=int(line["to_step"]),
                        reached=int(line["reached"]),
                        cause=line["cause"],
                        checkpoint=str(line["checkpoint"]),
                        time=float(line["time"]),
                    )
                )
    return found
