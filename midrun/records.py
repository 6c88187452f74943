"""Records: the files that tell of a run when nobody can be asked any more.

`run.json` says what the run directory belongs to and whether its session has ended; `last-state.json` is the state of a
moment ago. Both are replaced whole, so that a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import midrun
from midrun.fs.disk import write_whole
from midrun.fs.render import render
from midrun.services import Service

if TYPE_CHECKING:
    from midrun.run import Run

FORMAT = "midrun.run/1"
RUN_RECORD, LAST_STATE = "run.json", "last-state.json"
"""Their names in the run directory."""
HISTORY = "history"
"""The name of the directory there with the segments of the history."""


class Session(TypedDict):
    """One fit, validate, test or predict of a run: from the model's setup to its teardown.

    A process may have several.
    """

    host: str
    boot_id: str
    """Identifies the boot of the host that `pid` counts in."""
    pid: int
    born: int | None
    """When that process began, in clock ticks since the boot: numbers are used again, and wall clocks are set."""
    started: float
    """When it began. Seconds since 1970."""
    ended: float | None
    """When it ended. Seconds since 1970; None while the session lasts, and for good when the process was killed."""
    outcome: str | None
    """`finished`, `interrupted` or `failed`."""
    stopped_by: str | None
    """Who sent the stop that has run; None where there was none."""


class Process(NamedTuple):
    """What the kernel says of a process, in its `stat`: proc(5)."""

    state: str
    """A letter: `Z` or `X` is one that has ended."""
    born: int
    """When it began, in clock ticks since the boot."""


class ResumedFrom(TypedDict):
    """Where a run has gone on from."""

    run_id: str | None
    run_dir: str | None
    checkpoint: str | None
    global_step: int


class RunRecord(TypedDict):
    """What `run.json` holds."""

    format: str
    run_id: str
    midrun: str
    """Version of midrun."""
    state: str
    """`open`, and the run can be resumed; or `closed`, and nobody goes on with it."""
    resumed_from: ResumedFrom | None
    """What this session has gone on from; null where it has begun anew."""
    artifact_dir: str
    fuse_mountpoint: str | None
    rest_url: str | None
    session: Session


def new_session(started: float) -> Session:
    """Return the session of this process."""
    own = process(os.getpid())
    return Session(
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid=os.getpid(),
        born=None if own is None else own.born,
        started=started,
        ended=None,
        outcome=None,
        stopped_by=None,
    )


def record_of(run: Run) -> RunRecord:
    """Return what a live run writes into `run.json`."""
    return RunRecord(
        format=FORMAT,
        run_id=run.run_id,
        midrun=midrun.__version__,
        state=_state_of(run),
        resumed_from=_resumed_from(run),
        artifact_dir=str(run.artifact_dir),
        fuse_mountpoint=str(run.mountpoint) if run.config.fuse_enabled else None,
        rest_url=run.rest_url,
        session=run.session,
    )


def _state_of(run: Run) -> str:
    """Return `closed` where the run was closed in an earlier session: what comes after that opens nothing."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        written = json.loads((run.directory / RUN_RECORD).read_bytes())
        if written["run_id"] == run.run_id and written["state"] == "closed":
            return "closed"
    return "open"


def _resumed_from(run: Run) -> ResumedFrom | None:
    record = run.resume.record
    if record is None:
        return None
    return ResumedFrom(
        run_id=record["run_id"],
        run_dir=record["run_dir"],
        checkpoint=record["checkpoint"],
        global_step=record["global_step"],
    )


def close(directory: Path) -> None:
    """Have nobody go on with the run in a directory. Raises OSError, and ValueError where its record is none."""
    path = directory / RUN_RECORD
    record = json.loads(path.read_bytes())
    write_whole(path, render(RUN_RECORD, {**record, "state": "closed"}))


class Records:
    """Writes a run's records, and says by a service whether it can.

    Parameters
    ----------
    directory
        The run directory.
    beside
        Other directories, which are made with it.
    service
        Where it is told what can't be written.
    """

    def __init__(self, directory: Path, beside: Iterable[Path], service: Service) -> None:
        self._directories = (directory, *beside)
        self._directory = directory
        self._service = service

    def prepare(self) -> None:
        """Make the directories."""
        if self._made():
            self._service.run()

    def write(self, name: str, document: Mapping[str, object]) -> None:
        """Write a record; what can't be written is told, and is written again when it can."""
        made = self._service.state == "running" or self._made()
        try:
            write_whole(self._directory / name, render(name, document))
        except OSError as error:
            self._fail(f"{name} can't be written: {error}")
        else:
            if made and self._service.state != "running":
                self._service.run()

    def _made(self) -> bool:
        """Make the directories; return whether they are there."""
        for directory in self._directories:
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except (OSError, ValueError) as error:
                self._fail(f"{directory} can't be made: {error}")
                return False
        return True

    def _fail(self, reason: str) -> None:
        """Say that something can't be written. While one thing can't, the next reason would only follow from it."""
        if self._service.state != "failed":
            self._service.fail(reason)


def process(pid: int) -> Process | None:
    """Return what the kernel says of a process; None where there is none, or where that can't be known."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return Process(fields[0], int(fields[19]))
    return None


def boot_id() -> str:
    """Return what identifies the boot of this host; empty where that can't be known."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
