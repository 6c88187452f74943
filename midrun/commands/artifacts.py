"""Writing checkpoints and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from midrun.command import EVALUATION, Command
from midrun.commands.kind import Arguments, Here, Kind, Label, Shared
from midrun.snapshot import write_snapshot

if TYPE_CHECKING:
    from midrun.run import Run


class Labelled(Arguments):
    """What a file is to be called."""

    label: Label | None = Field(default=None, description="A word for it, which its file name has too.")


class Checkpoint(Shared):
    """Write a checkpoint, as `trainer.save_checkpoint` does, into `artifacts/checkpoints/`."""

    name = "checkpoint"
    Arguments = Labelled
    bare = "label"
    points = ("train_batch_end", "train_epoch_end", "fit_end", EVALUATION)
    while_held = True

    def do(self, run: Run, args: Labelled, command: Command) -> dict[str, Any]:
        """Write it aside, and show it whole."""
        return run.store.write("checkpoints", run.loop.save_checkpoint, command, args.label, suffix="ckpt")

    def do_here(self, here: Here, args: Labelled) -> None:
        """Do a later rank's part: the path is rank zero's, which a strategy that wants it on every rank hands out."""
        here.loop.save_checkpoint("")


class Snapshot(Kind):
    """Write the runtime state into `artifacts/snapshots/`, as JSON and tensors; nothing can be resumed from it.

    That is step, epoch, metrics, learning rates, states of the random number generators, memory and versions.
    """

    name = "snapshot"
    Arguments = Labelled
    bare = "label"
    while_held = True

    def do(self, run: Run, args: Labelled, command: Command) -> dict[str, Any]:
        """Write it aside, and show it whole."""
        return run.store.write("snapshots", lambda path: write_snapshot(run, path), command, args.label)
