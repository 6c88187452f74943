"""Writing checkpoints and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from midrun.checkpoints.shelf import LATEST, Shelf
from midrun.command import EVALUATION, Change, Command
from midrun.commands.kind import Arguments, Here, Kind, Label, Shared
from midrun.fs.faults import Conflict
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
        return run.store.save_checkpoint(command, args.label)

    def do_here(self, here: Here, args: Labelled) -> None:
        """Do a later rank's part: the path is rank zero's, which a strategy that wants it on every rank hands out."""
        here.loop.save_checkpoint("")


class Which(Arguments):
    """Which checkpoint."""

    checkpoint: str = Field(
        default="latest",
        min_length=1,
        max_length=4000,
        description="`latest`, the newest; `resume`, the chosen one or else the newest; or an id, a label or a path.",
    )


class LoadCheckpoint(Shared):
    """Go back to a checkpoint, and train on from there: weights, optimizers, schedulers, steps, tunables and chance.

    It is done at the end of a batch. The data goes on where it is, and so do the batch and the epoch.
    """

    name = "load_checkpoint"
    confirm = "Go back to a checkpoint? What training has done since is lost, but for other checkpoints."
    Arguments = Which
    bare = "checkpoint"
    points = ("train_batch_end",)
    breaks = True

    def admit(self, run: Run, args: Which) -> None:
        """Refuse what is no checkpoint of a run that trains."""
        if not run.loop.is_fitting:
            raise Conflict("there is no training to go back in")
        run.resume.find(args.checkpoint, run.directory)

    def prepare_here(self, here: Here, args: Which) -> None:
        """Read it."""
        here.resume.read(args.checkpoint, here.directory)

    def do_here(self, here: Here, args: Which) -> dict[str, Any]:
        """Be what was read."""
        rewind = here.resume.go_back()
        change = Change(what="global_step", old=rewind["reached"], new=rewind["to_step"])
        return {"changes": [change], "checkpoint": rewind["checkpoint"]}


class ChooseCheckpoint(Kind):
    """Choose the checkpoint that the next process goes on from, once, where it asks for `resume`.

    `latest` takes that back. The run itself goes on as it is.
    """

    name = "choose_checkpoint"
    Arguments = Which
    bare = "checkpoint"
    at_once = True

    def admit(self, run: Run, args: Which) -> None:
        """Refuse what is no checkpoint of the run."""
        if args.checkpoint != LATEST:
            Shelf(run.directory).find(args.checkpoint)

    def do(self, run: Run, args: Which, command: Command) -> dict[str, Any]:
        """Write it down beside the checkpoints."""
        entry = Shelf(run.directory).choose(args.checkpoint, command.record["source"])
        return {"chosen": None if entry is None else entry["path"]}


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
