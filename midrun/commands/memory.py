"""CUDA memory: recording the allocator's history, and writing what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from midrun.command import Change, Command
from midrun.commands.artifacts import Labelled
from midrun.commands.kind import Arguments, Kind
from midrun.memory import MAX_ENTRIES

if TYPE_CHECKING:
    from midrun.run import Run


class Recording(Arguments):
    """Whether the history is recorded."""

    enabled: bool = Field(default=True, description="Whether each allocation is recorded, with the code that makes it.")
    max_entries: int = Field(default=MAX_ENTRIES, ge=1, description="How many of the newest are kept.")


class CudaMemoryHistory(Kind):
    """Record who allocates CUDA memory, for snapshots, or record it no more. Training is slower meanwhile."""

    name = "cuda_memory_history"
    Arguments = Recording
    bare = "enabled"
    at_once = True

    def do(self, run: Run, args: Recording, command: Command) -> dict[str, Any]:
        """Begin or end to record."""
        old, new = run.cuda.record(**args.model_dump())
        changed = [Change(what="cuda_memory_history", old=old, new=new)] if old != new else []
        return {"changes": changed}


class CudaMemorySnapshot(Kind):
    """Write what each block of CUDA memory is used for into `artifacts/debug/`, for pytorch.org/memory_viz."""

    name = "cuda_memory_snapshot"
    Arguments = Labelled
    bare = "label"
    while_held = True

    def do(self, run: Run, args: Labelled, command: Command) -> dict[str, Any]:
        """Write it."""
        written = run.store.write("debug", run.cuda.write, command, args.label, word="cuda-memory", suffix="pickle")
        return {**written, "warning": run.cuda.warning}
