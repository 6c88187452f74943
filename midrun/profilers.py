"""Profilers: Lightning's, which may be set while training goes on, and torch's own for some steps."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.profilers import (
    AdvancedProfiler,
    PassThroughProfiler,
    Profiler,
    PyTorchProfiler,
    SimpleProfiler,
)

from midrun.command import STEP
from midrun.fs.faults import Conflict
from midrun.fs.later import Later
from midrun.store import write_text
from midrun.tasks import Steps

if TYPE_CHECKING:
    from midrun.run import Run

KINDS: dict[str, type[Profiler]] = {
    "none": PassThroughProfiler,
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": PyTorchProfiler,
}
"""Lightning's profilers, by the names that its Trainer takes."""
_FOLDER = "lightning-profiler"
_ROWS = 50
"""Operators in the table of a profile."""


class Profilers:
    """What profiles a run. All but `name` and `summary` is the training thread's."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._is_profiling = False

    @property
    def name(self) -> str:
        """Which of Lightning's profilers is set; one of somebody's own is named by its class."""
        kind = type(self._run.loop.profiler)
        return next((name for name, known in KINDS.items() if kind is known), kind.__qualname__)

    def summary(self) -> str | Later:
        """Return what Lightning's profiler has found, or what will come of asking it at the next optimizer step."""
        if self.name == "none":
            return "no Lightning profiler is set; set one with set_lightning_profiler: simple, advanced or pytorch"
        return self._run.live.made("lightning-profiler", self._summary)

    def _summary(self) -> Steps:
        yield STEP
        profiler, name = self._run.loop.profiler, self.name
        text = profiler.summary()
        if isinstance(profiler, PyTorchProfiler):
            self._put(name)
            text += "\nTo show this has ended the profile: a new one begins with the next batch.\n"
        return text or "nothing has been profiled yet"

    def set(self, name: str) -> tuple[str, str]:
        """Set one of Lightning's profilers, and return which was set, and what it had found.

        Raises Conflict for the one that is torch's while a profile is being made.
        """
        if self._is_profiling and name == "pytorch":
            raise Conflict("a profile is being made, and torch makes one at a time: send this when it is done")
        old = self.name
        found = "" if old == "none" else self._run.loop.profiler.summary()
        self._put(name)
        return old, found

    def profile(
        self, *, steps: int, warmup: int, memory: bool, shapes: bool, stacks: bool
    ) -> Generator[str, None, torch.profiler.profile]:
        """Profile some batches with `torch.profiler`; a task that begins at a batch's end, and returns the profile.

        Raises Conflict where torch makes another profile, or might begin to: two of them take the process along.
        """
        if self._is_profiling or isinstance(self._run.loop.profiler, PyTorchProfiler) or _profiles():
            raise Conflict(
                "torch makes one profile at a time, and there is another: wait for its end, or set Lightning's profiler"
                " to none"
            )
        self._is_profiling = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # It warns of no warm-up, which is what was asked for.
                schedule = torch.profiler.schedule(wait=0, warmup=warmup, active=steps, repeat=1)
            activities = [torch.profiler.ProfilerActivity.CPU]
            if self._run.loop.strategy.root_device.type == "cuda":
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            profiler = torch.profiler.profile(
                activities=activities, schedule=schedule, record_shapes=shapes, profile_memory=memory, with_stack=stacks
            )
            with profiler:
                for _ in range(warmup + steps):
                    yield "train_batch_end"
                    profiler.step()
            return profiler
        finally:
            self._is_profiling = False

    def _put(self, name: str) -> None:
        """Set a new profiler in the place of the present one."""
        loop, kind = self._run.loop, KINDS[name]
        self._run.pipeline.spoil()
        if isinstance(loop.profiler, PyTorchProfiler):
            # Collected while the next one runs, it takes the process along. Of the others nothing must be ended: they
            # are told of the end of what has begun, and raise where they have forgotten the beginning.
            loop.profiler.teardown(loop.function)
        folder = self._run.artifact_dir / "debug" / _FOLDER
        profiler = kind() if name == "none" else kind(dirpath=folder)
        profiler._lightning_module = weakref.proxy(loop.module)  # type: ignore[attr-defined]  # noqa: SLF001 - as its Trainer does
        profiler.setup(stage=loop.function, local_rank=0, log_dir=str(folder))
        loop.profiler = profiler


def _profiles() -> bool:
    """Whether anybody has a profile of torch's, which need not have begun; nothing lists them."""
    kinds = (torch.profiler.profile, torch.autograd.profiler.profile)
    for _ in range(2):
        # By its type: to ask some objects for their class raises.
        if not any(issubclass(type(found), kinds) for found in gc.get_objects()):
            return False
        gc.collect()  # What is found may be one that is over.
    return True


def write_profile(profiler: Any, path: str) -> None:  # noqa: ANN401 - torch's profile is not typed
    """Write a profile's trace and a table of it into the directory `path`."""
    directory = Path(path)
    directory.mkdir()
    profiler.export_chrome_trace(str(directory / "trace.json"))
    averages = profiler.key_averages()
    key = "self_cuda_time_total" if any(event.device_time_total for event in averages) else "self_cpu_time_total"
    write_text(averages.table(sort_by=key, row_limit=_ROWS), str(directory / "table.txt"))
