"""Artifacts: the files that a run leaves, each whole or not there, and the lists of them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from midrun.fs.disk import aside, remove, sweep, sync_directory, write_whole
from midrun.fs.render import render
from midrun.fs.tree import Dir, Link, file

if TYPE_CHECKING:
    from midrun.command import Command, Place
    from midrun.run import Run

FOLDERS = ("checkpoints", "snapshots", "debug")
"""The directories in the artifact directory."""
_LONGEST_LABEL = 120
"""Bytes of a label in a file name."""

_DAY = 86400.0
_SHARE = 0.01
"""Of a processor: whoever lists thousands of files each second gets a list that is some seconds old."""
_FAST = 0.02
"""Seconds of a walk that may be repeated at once."""


class ArtifactRecord(TypedDict):
    """One file among the artifacts."""

    path: str
    """Relative to the artifact directory."""
    size: int
    """Bytes."""
    modified: float
    """Seconds since 1970."""


class ArtifactIndex(TypedDict):
    """The files among the artifacts."""

    artifact_dir: str
    artifacts: list[ArtifactRecord]


class Written(TypedDict):
    """One checkpoint, snapshot or capture that a command wrote."""

    id: str
    """The artifact's id, which is its file name."""
    path: str
    """Absolute."""
    size: int
    """Bytes."""
    label: str | None
    kind: str
    """The command's kind."""
    command: str
    """The command's id."""
    control_revision: int
    """The last line of the control log before it."""
    global_step: int
    epoch: int
    time: float
    """When it was there, whole. Seconds since 1970."""


class WrittenIndex(TypedDict):
    """What commands wrote, the newest first."""

    artifacts: list[Written]


class Store:
    """The artifact directory, for commands that write into it.

    Parameters
    ----------
    run
        The run.
    directory
        The artifact directory.
    """

    def __init__(self, run: Run, directory: Path) -> None:
        self._run = run
        self.directory = directory
        self.written = 0
        """How many files have been written: after each a list is out of date."""

    def write(
        self,
        folder: str,
        write: Callable[[str], object],
        command: Command,
        label: str | None,
        *,
        word: str = "",
        suffix: str = "",
    ) -> dict[str, Any]:
        """Have `write` make a file, or a directory, aside; show it whole; put it into the index.

        Returns the result of the command, with the artifact's entry in the index. Raises OSError where the disk
        does not take it, and whatever `write` raises; then nothing is left of it.

        Parameters
        ----------
        folder
            The directory that it goes to, below the artifact directory.
        write
            Called with the path at which it is to be made.
        command
            The command that asks for it.
        label
            Words of the user's, which its name has behind the epoch and step.
        word
            What its name begins with.
        suffix
            What its name ends in, without the dot; "" for a directory.
        """
        into = self.directory / folder
        into.mkdir(parents=True, exist_ok=True)
        place = self._run.points.place(None)
        path = _unused(into, _stem(word, place, label), suffix)
        made = aside(path)
        try:
            write(str(made))
            size = _sync(made)
            made.rename(path)
            made = path
            sync_directory(into)
            written = self._entry(path, size, command, label, place)
            index = into / "index.json"
            write_whole(index, render(index.name, {"artifacts": [written, *self.index(folder)["artifacts"]]}))
        except BaseException as error:
            # What is not in the index is not there: else a full disk would be the fuller for a command that failed.
            remove(made)
            if (reason := _reason_of_the_disk(error)) is not None:
                raise reason from error
            raise
        self.written += 1
        return {"artifact": written}

    def _entry(self, path: Path, size: int, command: Command, label: str | None, place: Place) -> Written:
        return Written(
            id=path.name,
            path=str(path),
            size=size,
            label=label,
            kind=command.record["kind"],
            command=command.id,
            control_revision=self._run.queue.control_log.revision,
            global_step=place["global_step"],
            epoch=place["epoch"],
            time=time.time(),
        )

    def sweep(self) -> None:
        """Remove what a process that was killed has left half written; none takes a day to write."""
        for folder in FOLDERS:
            with suppress(OSError, ValueError):
                sweep(self.directory / folder, older=_DAY, folders=True)

    def index(self, folder: str) -> WrittenIndex:
        """Return what is in the index; a file that is no index is none."""
        try:
            index = json.loads((self.directory / folder / "index.json").read_bytes())
            return WrittenIndex(artifacts=[dict(item) for item in index["artifacts"]])  # type: ignore[misc]  # as written
        except (OSError, ValueError, KeyError, TypeError):
            return WrittenIndex(artifacts=[])


def write_text(text: str, path: str) -> None:
    """Write a text, as one of the functions that a store has make a file."""
    Path(path).write_text(text, encoding="utf-8")


class Artifacts(Dir):
    """Checkpoints, snapshots and debug captures: links to the real files, and lists."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._listed: list[ArtifactRecord] = []
        self._written = 0
        self._rests_until = 0.0
        self.checkpoints = Link(lambda: str(run.artifact_dir / "checkpoints"), "Checkpoints.")
        self.snapshots = Link(lambda: str(run.artifact_dir / "snapshots"), "Snapshots of the runtime state.")
        self.debug = Link(lambda: str(run.artifact_dir / "debug"), "Captures for offline debugging.")

    @file("index.json", slow=True)
    def index(self) -> ArtifactIndex:
        """The files below the artifact directory, the newest first."""
        began, written = time.monotonic(), self._run.store.written
        if began >= self._rests_until or written != self._written:
            self._listed, self._written = _files(self._run.artifact_dir), written
            took = time.monotonic() - began
            self._rests_until = began + took / _SHARE if took > _FAST else 0.0
        return ArtifactIndex(artifact_dir=str(self._run.artifact_dir), artifacts=self._listed)

    @file("checkpoints.json", slow=True)
    def checkpoint_index(self) -> WrittenIndex:
        """The checkpoints that commands wrote, the newest first."""
        return self._run.store.index("checkpoints")

    @file("snapshots.json", slow=True)
    def snapshot_index(self) -> WrittenIndex:
        """The snapshots that commands wrote, the newest first."""
        return self._run.store.index("snapshots")

    @file("debug.json", slow=True)
    def debug_index(self) -> WrittenIndex:
        """The captures that commands wrote, the newest first."""
        return self._run.store.index("debug")


def _files(directory: Path) -> list[ArtifactRecord]:
    found = []
    for folder, below, names in os.walk(directory):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue  # Not whole yet: files are written aside under such a name.
            path = Path(folder) / name
            try:
                status = path.lstat()
            except OSError:
                continue  # Gone since it was listed.
            found.append(
                ArtifactRecord(path=str(path.relative_to(directory)), size=status.st_size, modified=status.st_mtime)
            )
    return sorted(found, key=lambda record: record["modified"], reverse=True)


def _stem(word: str, place: Place, label: str | None) -> str:
    """Return an artifact's name without its ending. Of the label it has letters and digits, as many as fit."""
    cleaned = re.sub(r"[^\w.-]", "_", label or "").strip("._")
    cut = cleaned.encode()[:_LONGEST_LABEL].decode(errors="ignore")
    return "-".join(filter(None, (word, f"epoch={place['epoch']}-step={place['global_step']}", cut)))


def _unused(folder: Path, stem: str, suffix: str) -> Path:
    ending, number = f".{suffix}" if suffix else "", 1
    path = folder / f"{stem}{ending}"
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem}-{number}{ending}"
    return path


def _reason_of_the_disk(error: BaseException) -> OSError | None:
    """Return what the disk said, where torch then spoke of something else: a position in a file, say."""
    within: BaseException | None = error if isinstance(error, RuntimeError) else None
    while within is not None and not isinstance(within, OSError):
        within = within.__context__
    return within


def _sync(path: Path) -> int:
    """Return how many bytes a file or directory holds, once they are on the disk."""
    if path.is_dir():
        size = sum(_sync(below) for below in path.iterdir())
        sync_directory(path)
        return size
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)
