"""Artifacts: the files that a run leaves, checkpoints, snapshots and debug captures, and the lists of them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from midrun.checkpoints.shelf import KeptIndex, Shelf
from midrun.fs.tree import Dir, Link, file
from midrun.store import WrittenIndex

if TYPE_CHECKING:
    from midrun.run import Run

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
        """The checkpoints, those that Lightning wrote too, the newest first."""
        return self._run.store.index("checkpoints")

    @file("resumable.json", slow=True)
    def resumable(self) -> KeptIndex:
        """The checkpoints that training can go on from, the newest first, with what that would cost."""
        return Shelf(self._run.directory).listed(self._run.sample.global_step)

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
