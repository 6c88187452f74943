"""`meta/`: what the run is, and where it can be reached."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

import midrun
from midrun.fs.schema import schema_of
from midrun.fs.tree import Dir, Leaf, file
from midrun.lightnings import PACKAGES
from midrun.ranks import Rank

if TYPE_CHECKING:
    from midrun.run import Run


class Versions(TypedDict):
    """The versions of what the run is made of; null for what is not loaded."""

    midrun: str
    python: str
    lightning: str | None
    torch: str | None
    cuda: str | None
    numpy: str | None
    system: str


class RanksIndex(TypedDict):
    """The processes that train."""

    ranks: list[Rank]


class Meta(Dir):
    """What the run is, and where it can be reached."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.rest = RestAddress(run)
        self.torch_debug = TorchDebugAddress(run)
        self.ranks = RankFiles(run)

    @file("run-id")
    def run_id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @file("run-dir")
    def run_dir(self) -> str:
        """The run directory."""
        return str(self._run.directory)

    @file("artifacts-path")
    def artifacts_path(self) -> str:
        """The directory of checkpoints, snapshots and debug captures."""
        return str(self._run.artifact_dir)

    @file("pid")
    def pid(self) -> int:
        """Process id of the trainer."""
        return self._run.session["pid"]

    @file("host")
    def host(self) -> str:
        """Name of the trainer's machine."""
        return self._run.session["host"]

    @file("started")
    def started(self) -> float:
        """When this session of the run started. Seconds since 1970."""
        return self._run.session["started"]

    @file("versions.json")
    def versions(self) -> Versions:
        """The versions of what the run is made of."""
        return loaded_versions()


class RestAddress(Dir):
    """The REST API's address; empty files when it does not run, `state/services.json` says why."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("url")
    def url(self) -> str | None:
        """Address of the REST API and the dashboard, for a client on the trainer's machine."""
        return self._run.rest_url

    @file("port")
    def port(self) -> int | None:
        """Port of the REST API."""
        return None if self._run.rest_url is None else self._run.rest.port


class TorchDebugAddress(Dir):
    """The torch.distributed.debug server's address; empty where it does not run, `state/services.json` says why."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("url")
    def url(self) -> str | None:
        """Address of PyTorch's debug server, for a client on the trainer's machine."""
        return self._run.torch_debug.url


class RankFiles(Dir):
    """The processes that train: one file for each rank, and all of them in one."""

    placeholder = "<rank>.json"

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("index.json")
    def index(self) -> RanksIndex:
        """All ranks that are known, in their order."""
        return RanksIndex(ranks=self._run.roll.known)

    def members(self) -> Iterable[str]:
        """Return the names of the files."""
        return (f"{rank['rank']}.json" for rank in self._run.roll.known)

    def member(self, name: str) -> Leaf | None:
        """Return the file of one rank."""
        rank = next((rank for rank in self._run.roll.known if f"{rank['rank']}.json" == name), None)
        if rank is None:
            return None
        return Leaf(
            lambda: rank,
            doc="One process: its rank, host, process id and device, and how far it has come.",
            schema=lambda: schema_of(Rank),
        )


def loaded_versions() -> Versions:
    """Return the versions of what the run is made of."""
    torch = sys.modules.get("torch")
    return Versions(
        midrun=midrun.__version__,
        python=platform.python_version(),
        lightning=next(filter(None, map(_version, PACKAGES)), None),
        torch=_version("torch"),
        cuda=getattr(getattr(torch, "version", None), "cuda", None),
        numpy=_version("numpy"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def _version(package: str) -> str | None:
    """Return the version of a loaded package, from memory: the tree thread waits for no disk."""
    return getattr(sys.modules.get(package), "__version__", None)
