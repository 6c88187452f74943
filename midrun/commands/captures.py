"""Saving what is in flight for offline debugging, and watching batches for NaN and infinity."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from midrun.capture import write_batch, write_gradients, write_loss, write_optimizers
from midrun.command import EVALUATION, POINTS, STEP, Change, Command
from midrun.commands.artifacts import Labelled
from midrun.commands.kind import Arguments, Here, Kind, Shared

if TYPE_CHECKING:
    from midrun.run import Run


class Checking(Arguments):
    """Whether batches are checked, and what comes of one that is not finite."""

    enabled: bool = Field(description="Whether each batch is checked from the next one on.")
    hold: bool = Field(default=False, description="Hold the run at a batch that has NaN or infinity.")


class SetFiniteCheck(Shared):
    """Turn the check of each batch for NaN and infinity on or off. It is slow: it waits for the device each time.

    What it finds is in `state/finite-check.json` and in the log.
    """

    name = "set_dataloader_finite_check"
    lasts = True
    Arguments = Checking
    bare = "enabled"
    while_held = True

    def do_here(self, here: Here, args: Checking) -> dict[str, Any]:
        """Set it."""
        old, new = here.finite_check.set(enabled=args.enabled, hold=args.hold)
        return {"changes": [Change(what="dataloader_finite_check", old=old, new=new)] if old != new else []}


class _Capture(Kind):
    """A kind that writes a file into `artifacts/debug/`."""

    Arguments = Labelled
    bare = "label"
    points: ClassVar[tuple[str, ...]] = (STEP,)
    while_held = True
    word: ClassVar[str]
    """What its files' names begin with."""
    suffix: ClassVar[str] = "pt"

    @staticmethod
    def write(run: Run, path: str) -> None:
        """Write the file."""
        raise NotImplementedError

    def do(self, run: Run, args: Labelled, command: Command) -> dict[str, Any]:
        """Write it aside, and show it whole."""
        return run.store.write(
            "debug", partial(self.write, run), command, args.label, word=self.word, suffix=self.suffix
        )


class SaveBatch(_Capture):
    """Save the batch that is in flight: its tensors and plain values, and a description of whatever else it holds."""

    name = "save_current_batch"
    points = (STEP, "train_batch_end", EVALUATION)
    word = "batch"
    write = staticmethod(write_batch)


class SaveLoss(_Capture):
    """Save the loss of the batch that is in flight."""

    name = "save_current_loss"
    word = "loss"
    write = staticmethod(write_loss)


class SaveGradients(_Capture):
    """Save the gradients that the parameters have now: of a backward pass that has failed, those that it came to.

    Where a GradScaler has scaled them, the file says so, and by how much.
    """

    name = "save_partial_gradients"
    word = "gradients"
    write = staticmethod(write_gradients)


class SaveOptimizerSummary(_Capture):
    """Save what the optimizers are set to, and the size, norm and range of what they keep for each parameter."""

    name = "save_optimizer_summary"
    points = POINTS
    word, suffix = "optimizers", "json"
    write = staticmethod(write_optimizers)
