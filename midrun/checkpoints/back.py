"""Going back: a live run takes up what a checkpoint has of model, optimizers and chance, and trains on from there.

It is done at the end of a batch, where nothing is in flight. The loaders stay where they are, and so do the numbers of
the batch and the epoch: the data goes on.
"""

from __future__ import annotations

import pickle
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.trainer import call

from midrun.checkpoints import bundle, generators, results
from midrun.checkpoints.faults import CheckpointError
from midrun.checkpoints.position import BATCH_END, IN_VALIDATION, VALIDATED, VALIDATION_END, gradients_into
from midrun.checkpoints.shelf import check
from midrun.fs.tracebacks import last_line

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

_LOOPS = (
    "epoch_loop.automatic_optimization.optim_progress",
    "epoch_loop.manual_optimization.optim_step_progress",
    "epoch_loop.scheduler_progress",
)
"""Of Lightning's loops, what counts steps."""


class Read(NamedTuple):
    """A checkpoint that was read, and what this rank has in it."""

    path: str
    checkpoint: dict[str, Any]
    part: dict[str, Any]


def read(path: str, trainer: Trainer, module: LightningModule) -> Read:
    """Read a checkpoint, and hold it against the live run. Raises CheckpointError where it can't be gone back to."""
    check(path)
    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path!r} can't be read: {last_line(error)}") from error
    found = bundle.read(checkpoint)
    if found is None:
        raise CheckpointError(
            f"the checkpoint {path!r} has nothing of midrun: a live run can't go back to it; start another process "
            "with trainer.fit(ckpt_path=...)"
        )
    part, why = bundle.part_of(found, trainer.global_rank, trainer.world_size)
    why = why or bundle.of_another_model(checkpoint, module) or _of_other_optimizers(checkpoint, trainer)
    if part is None or why is not None:
        raise CheckpointError(f"the checkpoint {path!r} is not one of this run: {why}")
    return Read(path, checkpoint, part)


def _of_other_optimizers(checkpoint: dict[str, Any], trainer: Trainer) -> str | None:
    theirs = checkpoint.get("optimizer_states", [])
    if len(theirs) != len(trainer.optimizers):
        return f"it has {len(theirs)} optimizers, and the run {len(trainer.optimizers)}"
    for number, (state, optimizer) in enumerate(zip(theirs, trainer.optimizers, strict=True)):
        had, has = (
            [len(group["params"]) for group in groups] for groups in (state["param_groups"], optimizer.param_groups)
        )
        lacks = [name for name in optimizer.defaults if name not in state["param_groups"][0]]
        if lacks:
            return f"its optimizer {number} has no {lacks[0]!r}: it is of another kind than {type(optimizer).__name__}"
        if had != has:
            return f"its optimizer {number} has groups of {had} parameters, and the run's of {has}"
    theirs, ours = checkpoint.get("lr_schedulers", []), trainer.lr_scheduler_configs
    return None if len(theirs) == len(ours) else f"it has {len(theirs)} schedulers, and the run {len(ours)}"


def apply(back: Read, trainer: Trainer, module: LightningModule) -> None:
    """Be what the checkpoint has. Raises whatever stands in the way, and then the model is in pieces."""
    checkpoint, part, strategy = back.checkpoint, back.part, trainer.strategy
    call._call_lightning_module_hook(trainer, "on_load_checkpoint", checkpoint)  # noqa: SLF001 - as Lightning loads one
    strategy.load_model_state_dict(checkpoint, strict=module.strict_loading)
    call._call_callbacks_on_load_checkpoint(trainer, checkpoint)  # noqa: SLF001 - as above
    call._call_callbacks_load_state_dict(trainer, checkpoint)  # noqa: SLF001 - as above
    strategy.load_optimizer_state_dict(checkpoint)
    for config, state in zip(trainer.lr_scheduler_configs, checkpoint["lr_schedulers"], strict=True):
        config.scheduler.load_state_dict(state)
    precision = trainer.precision_plugin
    if (state := checkpoint.get(type(precision).__qualname__)) is not None:
        precision.load_state_dict(state)
    _count_again(trainer, checkpoint["loops"]["fit_loop"], part["where"])
    results.accumulate(module, part["metrics"])
    gradients_into(module, part.get("gradients", {}) if part["where"] == BATCH_END else {})
    generators.restore(part["rng"])


def _count_again(trainer: Trainer, told: dict[str, Any], where: str) -> None:
    """Have as many steps done as the checkpoint has."""
    epoch: Any = trainer.fit_loop.epoch_loop
    for name in _LOOPS:
        attrgetter(name)(trainer.fit_loop).load_state_dict(told[name])
    automatic = epoch.automatic_optimization.optim_progress.optimizer
    for progress in (automatic.step, automatic.zero_grad, epoch.manual_optimization.optim_step_progress):
        progress.total.reset_on_restart()
        progress.current.reset_on_restart()
    # Lightning counts one more at the end of this batch, which comes next.
    is_counted = where not in {BATCH_END, IN_VALIDATION, VALIDATED, VALIDATION_END}
    epoch._batches_that_stepped = told["epoch_loop.state_dict"]["_batches_that_stepped"] - is_counted  # noqa: SLF001 - Lightning's step for loggers
