"""The root of a run's tree: what is in `procfs/`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from midrun.fs.tree import Dir, Link, file
from midrun.meta import Meta
from midrun.model import Model
from midrun.sample import Values
from midrun.state import State

if TYPE_CHECKING:
    from midrun.run import Run


class Root(Dir):
    """A live run as a tree of files."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.state = State(run)
        self.meta = Meta(run)
        self.model = Model(run)
        self.debug = Debug(run)
        self.artifacts = Artifacts(run)

    def last_state(self) -> dict[str, Any]:
        """Return what `last-state.json` keeps for when nobody can be asked any more. It may wait for a device."""
        sample = self._run.sample
        try:
            values = sample.values()
        except Exception:  # noqa: BLE001 - a device that broke takes its values with it, and nothing else
            values = Values({}, [])
        return {
            **self.state.at(sample),
            "metrics": values.metrics,
            "learning_rates": values.rates,
            "services": self.state.services["services"],
            "model": self.model.class_name,
            "written": time.time(),
        }


class Debug(Dir):
    """What helps to debug the run."""

    def __init__(self, run: Run) -> None:
        self.pytorch = PyTorchDebug(run)


class PyTorchDebug(Dir):
    """PyTorch's own debug server for distributed runs."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("status")
    def status(self) -> str:
        """Whether the torch.distributed.debug server runs, and if not, why."""
        service = self._run.services["torch-debug"]
        return service.state if service.reason is None else f"{service.state}: {service.reason}"


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
    """Checkpoints, snapshots and debug captures: links to the real files, and a list."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.checkpoints = Link(lambda: str(run.artifact_dir / "checkpoints"), "Checkpoints.")
        self.snapshots = Link(lambda: str(run.artifact_dir / "snapshots"), "Snapshots of the runtime state.")
        self.debug = Link(lambda: str(run.artifact_dir / "debug"), "Captures for offline debugging.")

    @file("index.json", slow=True)
    def index(self) -> ArtifactIndex:
        """The files below the artifact directory, the newest first."""
        return ArtifactIndex(artifact_dir=str(self._run.artifact_dir), artifacts=_files(self._run.artifact_dir))


def _files(directory: Path) -> list[ArtifactRecord]:
    found = []
    for folder, _, names in os.walk(directory):
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
