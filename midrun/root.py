"""The root of a run's tree: what is in `procfs/`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from midrun.artifacts import Artifacts
from midrun.control import Commands, ControlDir, HoldFiles
from midrun.fs.tree import Dir, file
from midrun.history import HistoryFiles
from midrun.memory import CudaDebug
from midrun.meta import Meta
from midrun.model import Model
from midrun.sample import Values
from midrun.shell.hooks import Hooks
from midrun.state import State

if TYPE_CHECKING:
    from midrun.run import Run


class Root(Dir):
    """A live run as a tree of files."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.state = State(run)
        self.history = HistoryFiles(run)
        self.meta = Meta(run)
        self.model = Model(run)
        self.debug = Debug(run)
        self.artifacts = Artifacts(run)
        self.control = ControlDir(run)
        self.commands = Commands(run)
        self.holds = HoldFiles(run)
        self.hooks = Hooks(run)

    def last_state(self) -> dict[str, Any]:
        """Return what `last-state.json` keeps for when nobody can be asked any more. It may wait for a device."""
        sample = self._run.sample
        try:
            values = sample.values()
        except Exception:  # noqa: BLE001 - a device that broke takes its values with it, and nothing else
            values = Values({}, [])
        return {
            **self.state.summary_of(sample),
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
        self.cuda_memory = CudaDebug(run.cuda)


class PyTorchDebug(Dir):
    """PyTorch's own debug server for distributed runs."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("status")
    def status(self) -> str:
        """Whether the torch.distributed.debug server runs, and if not, why."""
        service = self._run.services["torch-debug"]
        return service.state if service.reason is None else f"{service.state}: {service.reason}"

    @file("url")
    def url(self) -> str | None:
        """Address of the server, for a client on the trainer's machine; empty where it does not run."""
        return self._run.torch_debug.url
