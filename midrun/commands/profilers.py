"""Profiling: some steps with torch's profiler, and Lightning's profilers while training goes on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from midrun.command import Change, Command
from midrun.commands.artifacts import Labelled
from midrun.commands.kind import Arguments, Kind
from midrun.profilers import write_profile
from midrun.store import write_text
from midrun.tasks import Steps

if TYPE_CHECKING:
    from midrun.run import Run


class Profiled(Labelled):
    """What of which steps is recorded."""

    steps: int = Field(default=5, ge=1, le=100, description="Batches that are recorded.")
    warmup: int = Field(default=1, ge=0, le=1000, description="Batches before them that are not.")
    memory: bool = Field(default=False, description="Record what is allocated and freed.")
    shapes: bool = Field(default=False, description="Record the sizes of what operators are given.")
    stacks: bool = Field(default=False, description="Record the lines of code that call operators. Slow.")


class Profile(Kind):
    """Record some batches with `torch.profiler`: a trace for Chrome or Perfetto, and a table of the operators.

    Both are in a directory of `artifacts/debug/`. Training is slower while it is recorded, and while that is written.
    """

    name = "profile"
    Arguments = Profiled
    bare = "steps"
    points = ("train_batch_end",)

    def do(self, run: Run, args: Profiled, command: Command) -> Steps:
        """Record from this batch's end on."""
        profiler = yield from run.profilers.profile(**args.model_dump(exclude={"label"}))
        return run.store.write("debug", partial(write_profile, profiler), command, args.label, word="profile")


class Clock(Arguments):
    """Whose times are taken."""

    clock: Literal["host", "device"] = Field(description="`device`: as the device goes along its work, such as CUDA's.")


class SetPipelineClock(Kind):
    """Take the times in `state/pipeline/summary.json` from the device, or from the host, as is done at first.

    What was timed before is forgotten. Nothing waits for the device; fewer batches are timed.
    """

    name = "set_pipeline_clock"
    lasts = True
    Arguments = Clock
    bare = "clock"
    points = ("train_batch_end",)

    def do(self, run: Run, args: Clock, command: Command) -> dict[str, Any]:
        """Set it."""
        old = "device" if run.pipeline.set(device=args.clock == "device") else "host"
        return {"changes": [Change(what="pipeline_clock", old=old, new=args.clock)] if old != args.clock else []}


class Profiler(Arguments):
    """Which profiler is set."""

    profiler: Literal["none", "simple", "advanced", "pytorch"] = Field(description="As the Trainer's `profiler`.")


class SetLightningProfiler(Kind):
    """Set Lightning's profiler, at the end of a batch. What it finds is in `model/lightning-profiler-summary.txt`.

    What the one before has found is written into `artifacts/debug/`.
    """

    name = "set_lightning_profiler"
    lasts = True
    Arguments = Profiler
    bare = "profiler"
    points = ("train_batch_end",)

    def do(self, run: Run, args: Profiler, command: Command) -> dict[str, Any]:
        """Set it."""
        old, found = run.profilers.set(args.profiler)
        written = {}
        if found:
            write = partial(write_text, found)
            written = run.store.write("debug", write, command, None, word=f"{old}-profiler", suffix="txt")
        return {**written, "changes": [Change(what="lightning_profiler", old=old, new=args.profiler)]}
