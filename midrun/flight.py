"""What is in flight: the batch and the loss that training has in its hands, and what a backward pass has raised.

Nothing is kept for it, and nothing is wrapped: it is looked up when somebody wants it, the batch where Lightning has it
for its logging, the loss in the frames of Lightning's own functions. So it costs nothing, and nothing lives longer.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from midrun.lightnings import is_lightnings

if TYPE_CHECKING:
    from types import FrameType

    from lightning.pytorch import Trainer


class Flight:
    """What a Trainer has in flight.

    Parameters
    ----------
    trainer
        The Trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._evaluated: Any = None
        self.error: BaseException | None = None
        """The exception that holds the run."""

    @contextmanager
    def at(self, batch: Any) -> Iterator[None]:  # noqa: ANN401 - a batch may be anything
        """Know the batch whose end has been reached: Lightning's `predict` keeps none."""
        self._evaluated = batch
        try:
            yield
        finally:
            self._evaluated = None

    @contextmanager
    def after(self, error: BaseException) -> Iterator[None]:
        """Look into what an exception has left."""
        self.error = error
        try:
            yield
        finally:
            self.error = None

    @property
    def batch(self) -> Any:  # noqa: ANN401 - as above
        """The batch that is under way, on its device; None between two batches."""
        if self._evaluated is not None:
            return self._evaluated
        with suppress(RuntimeError):  # A fit that neither trains nor validates just now has none.
            results = self._trainer._results  # noqa: SLF001 - the one reference that Lightning gives up in time
            return None if results is None else results.batch
        return None

    @property
    def loss(self) -> torch.Tensor | None:
        """The loss of the batch, divided by `accumulate_grad_batches` and not multiplied by a GradScaler.

        It has its graph until the end of the optimizer's step. None where Lightning has none: before the step of a
        model that optimizes manually.
        """
        frames = _above(sys._getframe()) if self.error is None else _of(self.error)  # noqa: SLF001 - no other way
        return next((loss for frame in frames if (loss := _loss_in(frame)) is not None), None)

    def is_of_backward(self, error: BaseException) -> bool:
        """Whether a backward pass has raised an exception."""
        plugin = self._trainer.precision_plugin
        return any(frame.f_code.co_name == "backward" and frame.f_locals.get("self") is plugin for frame in _of(error))

    @property
    def scales(self) -> bool:
        """Whether a GradScaler multiplies the loss, and so the gradients."""
        scaler = getattr(self._trainer.precision_plugin, "scaler", None)
        return scaler is not None and bool(scaler.is_enabled())

    def gradient_scales(self) -> dict[int, float]:
        """Return by how much a GradScaler has multiplied gradients, by the ids of the parameters whose they are.

        It knows for each optimizer whether it has unscaled them, from a backward pass to the end of that optimizer's
        step; between two steps it tells nothing. Reading it waits for the device.
        """
        if not self.scales:
            return {}
        scaler: Any = self._trainer.precision_plugin.scaler  # type: ignore[attr-defined]  # as `scales` has seen
        scale, states = float(scaler.get_scale()), scaler._per_optimizer_states  # noqa: SLF001 - nothing else tells
        unscaled = {number for number, state in states.items() if state["stage"].name != "READY"}
        return {
            id(parameter): scale
            for optimizer in self._trainer.optimizers
            if id(optimizer) not in unscaled
            for group in optimizer.param_groups
            for parameter in group["params"]
        }


def _above(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _of(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__))


def _loss_in(frame: FrameType) -> torch.Tensor | None:
    """Return the loss that one of Lightning's functions has in its hands."""
    if not is_lightnings(frame.f_globals.get("__name__")):
        return None
    found: Any = None
    match frame.f_code.co_name:
        case "closure":  # of Closure, while it runs
            found = getattr(frame.f_locals.get("step_output"), "closure_loss", None)
        case "run":  # of the automatic optimization: its closure has run
            closure = frame.f_locals.get("closure")
            found = getattr(getattr(closure, "_result", None), "closure_loss", None)
        case "manual_backward":
            found = frame.f_locals.get("loss")
        case "advance":  # of the epoch's loop: the batch is done
            output = frame.f_locals.get("batch_output")
            found = output.get("loss") if isinstance(output, dict) else None
    return found if isinstance(found, torch.Tensor) else None
