"""What is in flight: the batch and the loss that training has in its hands, and a backward pass that fails.

Nothing here makes any of them live longer: the batch is the one that Lightning keeps for its logging, and of the loss
there is a weak reference.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from midrun.wrap import Wrap

if TYPE_CHECKING:
    from types import FrameType

    import torch
    from lightning.pytorch import Trainer

Raised = Callable[[Exception], object]
"""Is told of an exception, before it is raised again."""
Inner = Callable[..., Any]

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
        self._evaluated: Any = None
        self._loss: Callable[[], torch.Tensor | None] = lambda: None
        self._raised: Raised = lambda _: None
        self._wraps: list[Wrap] = []

    def watch(self, raised: Raised | None) -> None:
        """Know the loss from now on, and tell `raised` of each exception that a backward pass raises."""
        strategy, plugin = self._trainer.strategy, self._trainer.precision_plugin
        # The strategy's is given the loss as it is; a GradScaler has scaled it when it comes to the plugin's.
        self._wraps.append(Wrap(strategy, "backward", partial(self._pass, strategy.backward)))
        if raised is not None:
            self._raised = raised
            self._wraps.append(Wrap(plugin, "backward", partial(self._backward, plugin.backward)))

    def undo(self) -> None:
        """Watch no more."""
        for wrap in self._wraps:
            wrap.undo()
        # Whoever keeps the exception keeps this object, by its traceback, and is to keep no more of the run.
        self._raised = lambda _: None

    @contextmanager
    def at(self, batch: Any) -> Iterator[None]:  # noqa: ANN401 - a batch may be anything
        """Know the batch whose end has been reached: Lightning's `predict` keeps none."""
        self._evaluated = batch
        try:
            yield
        finally:
            self._evaluated = None

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
        """The loss of the last backward pass, divided by `accumulate_grad_batches`, while Lightning keeps it."""
        return self._loss()

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

    def _pass(self, inner: Inner, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the strategy's own
        with suppress(TypeError):  # It is no tensor, and Lightning says so.
            self._loss = weakref.ref(args[0] if args else kwargs.get("closure_loss"))
        return inner(*args, **kwargs)

    def _backward(self, inner: Inner, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the plugin's own
        try:
            return inner(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is raised below
            raised = error
        # Here it is no longer handled: what a command raises meanwhile does not come from it.
        try:
            if not _is_search(sys._getframe()):  # noqa: SLF001 - the way to the frames above
                self._raised(raised)
            raise raised
        finally:
            del raised  # Else it would hold itself, by its traceback and this frame.


def _is_search(frame: FrameType | None) -> bool:
    """Whether somebody above wants to see whether training fails: a search for the largest batch."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_TUNERS):
            return True
        frame = frame.f_back
    return False
