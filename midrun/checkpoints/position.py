"""Position: where training is, as a checkpoint has it: its place in Lightning's loops, in its data, and in the batch.

Little is noted while training goes on: the states of the generators at the beginning of a fit and of an epoch. All else
is looked up when a checkpoint is written.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping

from midrun.checkpoints import generators, results
from midrun.checkpoints.loaders import Cycle, Marks, cycle_of, give, in_use, marks_of
from midrun.checkpoints.plain import refusal
from midrun.lightnings import is_lightnings

if TYPE_CHECKING:
    from types import FrameType

    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor

STEP, BATCH_END, VALIDATED, VALIDATION_END, EPOCH_END = (
    *("on_before_optimizer_step", "on_train_batch_end", "on_validation_epoch_end", "on_validation_end"),
    "on_train_epoch_end",
)
"""The hooks from which training goes on exactly."""
IN_BATCH, IN_VALIDATION, BETWEEN, OVER = "in a batch", "in a validation", "between epochs", "over"
"""Where else a checkpoint may be written."""
SYNCHRONIZES = "require_forward_param_sync"
"""Of DDP's model: whether rank zero's buffers are everybody's at the next forward pass."""
ENDS = ("on_train_end", "on_fit_end", "teardown")


class Spot(NamedTuple):
    """Where in Lightning's code a checkpoint is written."""

    where: str
    """One of the hooks above, or of the places beside them."""
    hook: str | None
    """The hook that writes it; None where none does."""
    callbacks: list[str]
    """The callbacks whose part of that hook has run, by their `state_key`, in their order."""
    module: bool
    """Whether the model's part of it has run."""


class Position:
    """Where a Trainer is in its training.

    Parameters
    ----------
    trainer
        The Trainer.
    module
        The model.
    """

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._trainer, self._module = trainer, module
        self._made: generators.States | dict[str, Any] | None = None
        """The generators before the loaders were made."""
        self._begun: generators.States | dict[str, Any] | None = None
        """The generators before the first batch of the epoch."""
        self._first: list[Marks] = []
        """What the loaders had of their own when they were made."""
        self._marks: list[Marks] = []
        """What they had at the beginning of the epoch."""
        self._adopted: list[Marks] | None = None
        """What they are to have when they are made, where another process has made them before."""
        self.cycle: Cycle | None = None
        """What listens to loaders that begin again within an epoch."""
        self._steps_before = 0
        """Steps before the batch, of a model that optimizes manually."""
        self._validation: generators.States | None = None
        """The generators before the validation that is under way."""

    # ---- what training tells

    def begin_fit(self) -> None:
        """Note where the fit begins: its loaders are yet to be made."""
        if self._adopted is None:
            self._made = generators.states()
        elif isinstance(self._made, dict):
            generators.restore(self._made)
        self._first, self._steps_before = [], self._manual.total.completed
        vars(self._trainer.fit_loop.epoch_loop.manual_optimization)["on_run_start"] = self._begin_manual
        strategy = self._trainer.strategy
        vars(strategy).pop("process_dataloader", None)
        process = strategy.process_dataloader

        def process_dataloader(loader: object) -> object:
            loader = process(loader)
            if self._trainer.training:
                self._note(loader)
            return loader

        vars(strategy)["process_dataloader"] = process_dataloader

    @property
    def _manual(self) -> Any:  # noqa: ANN401 - Lightning's own
        return self._trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress

    def _begin_manual(self) -> None:
        """Note how many steps there were before a batch of a model that optimizes manually, as Lightning begins it."""
        self._steps_before = self._manual.total.completed
        loop = self._trainer.fit_loop.epoch_loop.manual_optimization
        type(loop).on_run_start(loop)

    def _note(self, loader: object) -> None:
        """Note what a loader has of its own, which Lightning takes its first batches from next."""
        number = len(self._first)
        with suppress(Exception):  # Anybody's loader, in the midst of Lightning's code.
            self._note_own(loader, number)

    def _note_own(self, loader: object, number: int) -> None:
        if self._adopted is not None and number < len(self._adopted):
            give(loader, self._adopted[number])
        self._first.append(marks_of(loader))

    def begin_epoch(self) -> None:
        """Note where an epoch begins."""
        vars(self._trainer.strategy).pop("process_dataloader", None)
        self._begun = generators.states()
        self._marks = in_use(self._trainer).marks()
        self.listen()

    def listen(self) -> None:
        """Listen to loaders that begin again within an epoch."""
        combined = self._trainer.fit_loop._combined_loader  # noqa: SLF001 - Lightning shows only what the user gave
        if combined is not None and (self.cycle is None or not self.cycle.is_of(combined)):
            if self.cycle is not None:
                self.cycle.end()
            self.cycle = cycle_of(combined)

    def end(self) -> None:
        """Leave the loaders and the loops as they were."""
        vars(self._trainer.strategy).pop("process_dataloader", None)
        vars(self._trainer.fit_loop.epoch_loop.manual_optimization).pop("on_run_start", None)
        cycle, self.cycle = self.cycle, None
        if cycle is not None:
            cycle.end()

    def begin_validation(self) -> None:
        """Note where a validation begins."""
        self._validation = generators.states()

    def adopt(self, data: dict[str, Any]) -> None:
        """Be in an epoch that another process has begun."""
        self._made, self._begun, self._marks = data["made"], data["begun"], data["marks"]
        self._adopted = data["first"]

    # ---- what a checkpoint has

    def told(self) -> dict[str, Any]:
        """Return what this rank needs in order to go on from here, as tensors and plain values."""
        fit_loop = self._trainer.fit_loop
        epoch_loop, spot = fit_loop.epoch_loop, self.spot()
        progress: Any = epoch_loop.batch_progress.current
        trained, missing = results.told(epoch_loop._results)  # noqa: SLF001 - Lightning shows it nowhere else
        validated, more = results.told(epoch_loop.val_loop._results)  # noqa: SLF001 - as above
        told: dict[str, Any] = {
            "where": spot.where,
            "hook": {"name": spot.hook, "callbacks": spot.callbacks, "module": spot.module},
            "rng": generators.states().plain(),
            "data": {
                "made": _plain(self._made),
                "begun": _plain(self._begun),
                "first": self._first,
                "marks": self._marks,
                "now": in_use(self._trainer).marks(),
                "again": [tuple(begun) for begun in self.cycle.begun] if self.cycle is not None else [],
                "ahead": self._ahead(),
                "validation": _plain(self._validation) if spot.where == IN_VALIDATION else None,
            },
            "batches": progress.processed,
            "at": [int(self._trainer.global_step), progress.ready, spot.where],
            "of": float(self._trainer.num_training_batches),
            "results": trained,
            "validated": validated if spot.where == VALIDATED else [],
            "outputs": [dict(row) for row in epoch_loop.val_loop._logged_outputs] if spot.where == VALIDATED else [],  # noqa: SLF001 - as above
            "untold": [*missing, *more],
            "shown": results.shown(self._trainer),
            "metrics": results.accumulated(self._module),
            "evaluates": self._evaluating(),
            "synchronizes": getattr(self._trainer.strategy.model, SYNCHRONIZES, None),
        }
        if self._has_gradients(spot.where):
            told["gradients"] = {
                name: parameter.grad.detach().to("cpu", copy=True)
                for name, parameter in self._module.named_parameters()
                if parameter.grad is not None
            }
        if spot.where == STEP or self._trainer.world_size > 1:
            # Those of a later rank, such as the means of its batches, are not what Lightning saves.
            told["buffers"] = {name: buffer.detach().clone() for name, buffer in self._module.named_buffers()}
        return told

    def _ahead(self) -> list[Any]:
        """Return the batches that were loaded before their turn: a loader without a length is one ahead."""
        batches: list[Any] = getattr(self._trainer.fit_loop._data_fetcher, "batches", [])  # noqa: SLF001 - as above
        return list(batches) if refusal(batches, "the next batch") is None else []

    def _evaluating(self) -> list[str]:
        """Return the names of the modules that are in evaluation mode in training."""
        if self._trainer.validating:
            mode: dict[str, bool] = self._trainer.fit_loop.epoch_loop.val_loop._module_mode.mode  # noqa: SLF001 - what Lightning goes back to
            return [name for name, is_training in mode.items() if not is_training]
        return [name for name, part in self._module.named_modules() if not part.training]

    def _has_gradients(self, where: str) -> bool:
        """Whether there are gradients that a step is yet to use."""
        if where == STEP or not self._module.automatic_optimization:
            return where != OVER
        return where in {BATCH_END, VALIDATED, VALIDATION_END} and self._trainer.fit_loop._should_accumulate()  # noqa: SLF001 - as above

    def spot(self) -> Spot:
        """Return where in Lightning's code training is."""
        trainer = self._trainer
        hook, callback = _hook_above(sys._getframe())  # noqa: SLF001 - Lightning keeps no other track of it
        if trainer.state.fn != "fit" or trainer.state.status == "finished" or hook in ENDS:
            return Spot(OVER, hook, [], module=False)
        # What a model that optimizes manually has done between two steps of a batch can't be done again.
        is_first = bool(self._module.automatic_optimization) or self._manual.total.completed == self._steps_before
        # Nor can what an optimizer has tried that evaluates the loss several times in a step.
        tries = any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in trainer.optimizers)
        is_exact = hook != STEP or (is_first and not tries)
        if hook in {STEP, BATCH_END, VALIDATED, VALIDATION_END, EPOCH_END} and is_exact and not trainer.sanity_checking:
            return Spot(hook, hook, *self._done(hook, callback))
        batch: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        if trainer.validating:
            where = IN_VALIDATION
        elif batch.ready > batch.processed and hook != "on_train_epoch_start":
            where = IN_BATCH
        else:
            where = BETWEEN
        return Spot(where, hook, [], module=False)

    def _done(self, hook: str, callback: object) -> tuple[list[str], bool]:
        """Return whose parts of a hook have run, where one of these parts writes a checkpoint."""
        order: list[Any] = list(self._trainer.callbacks)  # type: ignore[attr-defined]  # set by one of its connectors
        module_at = len(order)
        if hook == EPOCH_END:
            last = [one for one in order if isinstance(one, EarlyStopping | Checkpoint)]
            order = [one for one in order if one not in last] + last
            module_at = len(order) - len(last)
        at = module_at if callback is None else order.index(callback) + 1
        return [one.state_key for one in order[:at]], callback is None or at > module_at


def _hook_above(frame: FrameType | None) -> tuple[str | None, Any]:
    """Return the hook of Lightning's that is under way, and the callback whose part of it that is; None the model's."""
    while frame is not None:
        name = frame.f_code.co_name
        if name in {"_call_callback_hooks", "_call_lightning_module_hook"} and is_lightnings(
            frame.f_globals.get("__name__")
        ):
            hook = str(frame.f_locals["hook_name"])
            if hook != "on_save_checkpoint":
                return hook, frame.f_locals.get("callback")
        frame = frame.f_back
    return None, None


def _plain(states: generators.States | dict[str, Any] | None) -> dict[str, Any] | None:
    return states.plain() if isinstance(states, generators.States) else states


def gradients_into(module: LightningModule, gradients: dict[str, Tensor]) -> None:
    """Give a model's parameters these gradients, and the others none."""
    for name, parameter in module.named_parameters():
        grad = gradients.get(name)
        fits = grad is not None and grad.shape == parameter.shape
        parameter.grad = None if grad is None or not fits else grad.to(parameter.device, copy=True)
