"""What is in flight: the batch and the loss that training has in its hands, and a backward pass that fails.

Nothing here makes any of them live longer: the batch is the one that Lightning keeps for its logging, and of the loss
there is a weak reference.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from midrun.wrap import Wrap

if TYPE_CHECKING:
    from types import FrameType

    import torch
    from lightning.pytorch import Trainer

Caught = Callable[[Exception], object]
"""Is told of an exception, before it is raised again."""

_TUNERS = ("lightning.pytorch.tuner.", "pytorch_lightning.tuner.")
"""Where Lightning trains to see whether that fails, and takes the exception."""


class Flight:
    """What a Trainer has in flight.

    Parameters
    ----------
    trainer
        The Trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.evaluated: Any = None
        """The batch whose end has been reached: Lightning's `predict` keeps none."""
        self._loss: Callable[[], torch.Tensor | None] = lambda: None
        # The strategy's is given the loss as it is; a GradScaler has scaled it when it comes to the plugin's.
        self._passing = Wrap(trainer.strategy, "backward", self._pass)
        self._failing: Wrap | None = None
        self._caught: Caught = lambda _: None

    def watch(self, caught: Caught) -> None:
        """Tell `caught` of each exception that a backward pass raises."""
        self._caught = caught
        plugin = self._trainer.precision_plugin
        self._failing = Wrap(plugin, "backward", partial(self._backward, plugin.backward))

    def undo(self) -> None:
        """Watch no more."""
        self._passing.undo()
        if self._failing is not None:
            self._failing.undo()
        # Whoever keeps the exception keeps this object, by its traceback, and is to keep no more of the run.
        self._caught = lambda _: None

    @property
    def batch(self) -> Any:  # noqa: ANN401 - a batch may be anything
        """The batch that is under way, on its device; None between two batches."""
        if self.evaluated is not None:
            return self.evaluated
        with suppress(RuntimeError):  # A fit that neither trains nor validates just now has none.
            results = self._trainer._results  # noqa: SLF001 - the one reference that Lightning gives up in time
            return None if results is None else results.batch
        return None

    @property
    def loss(self) -> torch.Tensor | None:
        """The loss of the last backward pass, divided by `accumulate_grad_batches`, while Lightning keeps it."""
        return self._loss()

    def gradient_scales(self) -> dict[int, float]:
        """Return by how much a GradScaler has multiplied gradients, by the ids of the parameters whose they are.

        It knows for each optimizer whether they are still scaled; between two optimizer steps it has forgotten that of
        those that are no more. Reading it waits for the device.
        """
        scaler = getattr(self._trainer.precision_plugin, "scaler", None)
        if scaler is None or not scaler.is_enabled():
            return {}
        scale = float(scaler.get_scale())
        states = scaler._per_optimizer_states  # noqa: SLF001 - nothing else tells whether they are scaled
        return {
            id(parameter): scale
            for optimizer in self._trainer.optimizers
            if states[id(optimizer)]["stage"].name == "READY"
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def _pass(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the strategy's own
        self._loss = weakref.ref(loss)
        return self._passing.inner(loss, *args, **kwargs)

    def _backward(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the plugin's own
        try:
            return inner(*args, **kwargs)
        except Exception as error:
            if not _is_search(sys._getframe()):  # noqa: SLF001 - the way to the frames above
                self._caught(error)
            raise


def _is_search(frame: FrameType | None) -> bool:
    """Whether somebody above wants to see whether training fails: a search for the largest batch."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_TUNERS):
            return True
        frame = frame.f_back
    return False
