"""The loop that is watched: what midrun asks of Lightning's Trainer, in one place.

What leans on Lightning's insides is here and in `flight`, but for how a Trainer ends (`ending`), the list of its
callbacks (`callbacks`), what is in checkpoints (`checkpoints`), and two attributes that `attachment` needs before there
is a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from midrun.callbacks import Call, Caller
from midrun.checkpoints.faults import CheckpointError
from midrun.checkpoints.position import Position
from midrun.command import Change
from midrun.flight import Flight
from midrun.fs.tracebacks import last_line
from midrun.hooks import is_reached
from midrun.sample import Sample, Scalar, copies_of
from midrun.scalar import is_real_scalar
from midrun.sigterm import Sigterm

if TYPE_CHECKING:
    from lightning.fabric.plugins import CheckpointIO
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.profilers import Profiler

    from midrun.checkpoints.back import Read


class Limits(NamedTuple):
    """Where a loop ends; None where that is open."""

    max_epochs: int | None
    max_steps: int | None
    batches: int | None
    """Batches in an epoch."""


class Loop:
    """The loop of a Trainer that runs a LightningModule."""

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._trainer, self.strategy = trainer, trainer.strategy
        self.module = module
        self.flight = Flight(trainer)
        self.position = Position(trainer, module)
        self.sigterm = Sigterm()
        """What the ranks do about it together, where there are several."""
        self._on_device = trainer.strategy.root_device.type != "cpu"
        self._connector = trainer._logger_connector  # noqa: SLF001 - see `sample`
        epoch_loop = trainer.fit_loop.epoch_loop
        # The two numbers behind `trainer.global_step`, which takes several times as long as all else in a sample.
        self._steps = epoch_loop.automatic_optimization.optim_progress.optimizer.step
        self._manual_steps = epoch_loop.manual_optimization.optim_step_progress
        self._epochs = trainer.fit_loop.epoch_progress.current
        self._batches, self._all_batches = epoch_loop.batch_progress.current, epoch_loop.batch_progress.total
        # Outside of fit these would be what an earlier fit left behind.
        fits = trainer.state.fn == "fit"
        self._results: dict[str, Any] = epoch_loop._results if fits else {}  # noqa: SLF001 - as above
        self._named: list[tuple[dict[str, Any], tuple[str, ...]]] = []
        self._least: tuple[Any, Any] | None = None
        """The least numbers of epochs and steps, once the loop was stopped before."""
        self.broken: CheckpointError | None = None
        """Why the model can't be trained on; None while it can."""
        self.ends_after_batch = False
        """Whether the end of this batch is the end of the stage."""

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The model's optimizers. The one with which Lightning stands in for none is none."""
        return [optimizer for optimizer in self._trainer.optimizers if type(optimizer).__name__ != _STAND_IN]

    @property
    def status(self) -> str:
        """`initializing`, `running`, `finished` or `interrupted`."""
        return str(self._trainer.state.status.value)

    @property
    def stage(self) -> str | None:
        """`sanity_check`, `train`, `validate`, `test`, `predict`, or None between them."""
        stage = self._trainer.state.stage
        return None if stage is None else str(stage.value)

    @property
    def function(self) -> str:
        """What the Trainer was called for: `fit`, `validate`, `test` or `predict`."""
        return str(self._trainer.state.fn.value) if self._trainer.state.fn else "fit"

    @property
    def limits(self) -> Limits:
        """Where the loop ends."""
        batches = self._trainer.num_training_batches
        return Limits(_limit(self._trainer.max_epochs), _limit(self._trainer.max_steps), _limit(batches) or None)

    @property
    def batch(self) -> int | None:
        """Index of the training batch that is under way; None between two batches."""
        batches = self._batches
        return batches.ready - 1 if batches.ready > batches.completed else None

    @property
    def batches_begun(self) -> int:
        """Number of training batches that have begun, in the whole fit; at the end of one, its number."""
        return self._all_batches.ready

    @property
    def batches_in_step(self) -> int:
        """Training batches to an optimizer step."""
        return max(1, self._trainer.accumulate_grad_batches) if self.announces_steps else 1

    @property
    def training_batch(self) -> int | None:
        """Number of the training batch that is under way, in the whole fit; None while none is, and in a validation."""
        batches = self._batches
        is_under_way = batches.ready > batches.completed and self._trainer.training
        return self._all_batches.ready if is_under_way else None

    @property
    def profiler(self) -> Profiler:
        """Lightning's profiler, which may be set at the end of a batch: between its beginnings and ends."""
        return self._trainer.profiler  # type: ignore[attr-defined,no-any-return]  # set by one of its connectors

    @profiler.setter
    def profiler(self, profiler: Profiler) -> None:
        self._trainer.profiler = profiler  # type: ignore[attr-defined]  # as above

    def precision(self) -> AbstractContextManager[Any]:
        """Return the context in which Lightning calls a forward pass, with the precision of training."""
        return self.strategy.precision_plugin.forward_context()

    @property
    def is_steady(self) -> bool:
        """Whether any thread may take a sample between an optimizer step and the end of its batch.

        Then the step itself is all that changes until the batch ends; an optimizer that evaluates again shows its
        newest evaluation. With manual optimization a batch goes on after a step, and logs; a scheduler may step before
        the batch ends; and a device's scalars are copied in the order of its work, which is the training thread's.
        """
        return (
            not self._on_device
            and bool(self.module.automatic_optimization)
            and all(scheduler.interval != "step" for scheduler in self._trainer.lr_scheduler_configs)
            and is_reached(self.module, "on_train_batch_end")
        )

    @property
    def step(self) -> int:
        """Optimizer steps completed."""
        steps = self._steps if self.module._automatic_optimization else self._manual_steps  # noqa: SLF001 - as below
        return steps.total.completed

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self._epochs.completed

    @property
    def is_fitting(self) -> bool:
        """Whether it trains, or validates within training."""
        return bool(self._trainer.state.fn == "fit")

    @property
    def is_running(self) -> bool:
        """Whether it has begun and not ended."""
        return bool(self._trainer.state.status == "running")

    def is_of(self, trainer: object) -> bool:
        """Whether it is this Trainer's."""
        return self._trainer is trainer

    @property
    def announces_steps(self) -> bool:
        """Whether every optimizer step is announced before it is made: a model may make its own, past Lightning."""
        return bool(self.module.automatic_optimization) and not is_overridden("optimizer_step", self.module)

    @property
    def told_to_end_by(self) -> str | None:
        """What has told the process to end.

        SIGTERM, which Lightning notes in order to raise at the end of the batch; or the end of a rank that it has
        started, for then it kills the others within seconds.
        """
        if self._trainer.received_sigterm or self.sigterm.is_told:
            return "SIGTERM"
        others: list[Any] = getattr(self.strategy.launcher, "procs", [])
        return "the end of another rank" if any(other.poll() is not None for other in others) else None

    @property
    def schedulers(self) -> list[Any]:
        """The learning rate schedulers."""
        return [config.scheduler for config in self._trainer.lr_scheduler_configs]

    def stop(self) -> None:
        """Have the loop end cleanly, soon."""
        fit_loop = self._trainer.fit_loop
        self._least = self._least or (fit_loop.min_epochs, fit_loop.epoch_loop.min_steps)
        self._trainer.should_stop = True
        # Else it would go on until these are reached: whoever asks a run to stop means now.
        fit_loop.min_epochs, fit_loop.epoch_loop.min_steps = 0, None
        self.ends_after_batch = not self.is_fitting

    def stop_again(self) -> None:
        """Have a loop that was told to end and has forgotten it end all the same: a tuner resets its Trainer."""
        if self._least is not None and self.is_fitting and not self._trainer.should_stop:
            self.stop()

    def close(self) -> None:
        """Give the Trainer back what stopping it took."""
        if self._least is not None:
            self._trainer.fit_loop.min_epochs, self._trainer.fit_loop.epoch_loop.min_steps = self._least

    def save_checkpoint(self, path: str) -> None:
        """Write a checkpoint, as `trainer.save_checkpoint` does; it is whole when this returns.

        The ranks do not wait for each other: they meet anyway, and one whose disk is full would never come.
        """
        plugin = self.strategy.checkpoint_io
        self.strategy.checkpoint_io = self._innermost(plugin)
        own = vars(self.strategy)
        kept = {name: own[name] for name in ("barrier",) if name in own}
        own["barrier"] = lambda *_, **__: None
        try:
            self._trainer.save_checkpoint(path, weights_only=False)
        finally:
            del own["barrier"]
            own.update(kept)
            self.strategy.checkpoint_io = plugin

    def watch_checkpoints(
        self, written: Callable[[str, dict[str, Any]], None], removed: Callable[[str], None]
    ) -> Callable[[], None]:
        """Have it told of each checkpoint that Lightning has written, whole, or removed; return what ends that.

        It may be told in another thread. What begins with a dot is nobody's to see: Lightning's tuner makes such files,
        and midrun before it renames them.
        """
        plugin = self._innermost(self.strategy.checkpoint_io)
        save, remove = plugin.save_checkpoint, plugin.remove_checkpoint

        def save_checkpoint(checkpoint: dict[str, Any], path: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a plugin's own
            result = save(checkpoint, path, *args, **kwargs)
            if not PurePath(str(path)).name.startswith("."):
                written(str(path), checkpoint)
            return result

        def remove_checkpoint(path: Any) -> None:  # noqa: ANN401 - as above
            remove(path)
            removed(str(path))

        vars(plugin).update(save_checkpoint=save_checkpoint, remove_checkpoint=remove_checkpoint)

        def end() -> None:
            for name in ("save_checkpoint", "remove_checkpoint"):
                vars(plugin).pop(name, None)

        return end

    @staticmethod
    def _innermost(plugin: CheckpointIO) -> CheckpointIO:
        """Return what writes a checkpoint, where another plugin has it written in a thread of its own."""
        while isinstance(plugin, AsyncCheckpointIO) and plugin.checkpoint_io is not None:
            plugin = plugin.checkpoint_io
        return plugin

    def read_checkpoint(self, path: str) -> Read:
        """Read a checkpoint that is to be gone back to. Raises CheckpointError; nothing is changed."""
        from midrun.checkpoints import back  # noqa: PLC0415 - seldom wanted

        return back.read(path, self._trainer, self.module)

    def go_back(self, read: Read) -> None:
        """Be what a checkpoint has. Where that fails halfway, the model is `broken`. Raises CheckpointError."""
        from midrun.checkpoints import back  # noqa: PLC0415 - as above

        try:
            back.apply(read, self._trainer, self.module)
        except Exception as error:
            self.break_off(f"{read.path!r} could not be loaded ({last_line(error)})")
            raise CheckpointError(str(self.broken)) from error

    def break_off(self, why: str) -> None:
        """Have nothing trained on: the model is partly one and partly another."""
        self.broken = self.broken or CheckpointError(
            f"{why}, and the model is partly what it was: it can't be trained on"
        )

    def check_whole(self) -> None:
        """Raise CheckpointError where the model can't be trained on."""
        if self.broken is not None:
            raise self.broken

    def refuses_clip(self, value: float | None) -> str | None:
        """Return why gradient clipping can't be set to `value`, or None.

        Where Lightning itself would raise at the next step, the run would end.
        """
        trainer = self._trainer
        if not self.module.automatic_optimization:
            return "the model optimizes manually, and clips gradients by itself"
        if is_overridden("configure_gradient_clipping", self.module):
            return "the model clips gradients by itself, in configure_gradient_clipping"
        if type(self.strategy).__name__ not in _PLAIN_STRATEGIES:
            return f"{type(self.strategy).__name__} has gradients that only it can clip"
        if value and any(_handles_unscaling(optimizer) for optimizer in trainer.optimizers):
            return "a fused optimizer under a GradScaler unscales gradients by itself, so they can't be clipped before"
        return None

    def set_gradient_clip(self, value: float | None, algorithm: str | None) -> list[Change]:
        """Set how gradients are clipped, and return what changed."""
        trainer = self._trainer
        changes = [Change(what="gradient_clip_val", old=trainer.gradient_clip_val, new=value)]
        trainer.gradient_clip_val = value
        if algorithm is not None:
            before = trainer.gradient_clip_algorithm
            old = None if before is None else str(before.value)
            changes.append(Change(what="gradient_clip_algorithm", old=old, new=algorithm))
            trainer.gradient_clip_algorithm = GradClipAlgorithmType(algorithm)
        return [change for change in changes if change["old"] != change["new"]]

    def sample(self, batch: int | None) -> Sample:
        """Take a sample at a safe point, where `batch` is the index of the batch.

        It runs once or twice a batch in the training thread, where nothing of it is in the processor's cache: hence the
        shortcuts past Lightning's properties, the loops in place of comprehensions, and all of it in one function.

        The metrics have the names that `trainer.callback_metrics` gives. That property computes everything afresh,
        which costs up to 240 µs, and its cached dictionary is one batch behind. So this takes the cached dictionary and
        puts over it what the present batch has logged, which Lightning keeps, as a clone of its own, in each metric's
        `_forward_cache`.
        """
        rates = []
        for optimizer in self.strategy.optimizers:
            row: list[Scalar | None] = []
            for group in optimizer.param_groups:
                rate = group.get("lr")
                row.append(rate if type(rate) is float else _now(rate))
            rates.append(row)
        steps = self._steps if self.module._automatic_optimization else self._manual_steps  # noqa: SLF001 - as said
        results = self._results
        metrics: dict[str, Scalar] = {**self._connector._callback_metrics}  # noqa: SLF001 - as said
        if len(results) != len(self._named):
            self._named = [(vars(result), _names(result.meta)) for result in list(results.values())]
        for result, names in self._named:
            if names and not result["has_reset"]:
                value = result["_forward_cache"]
                if isinstance(value, Tensor):
                    if value.requires_grad:  # Samples wait to be written down, and a graph holds a batch's activations.
                        value = value.detach()
                    for name in names:
                        metrics[name] = value
        copies = copies_of(metrics, rates) if self._on_device else ()
        taken = (steps.total.completed, self._epochs.completed, batch, time.time(), metrics, rates, copies)
        return tuple.__new__(Sample, taken)

    def caller(self, call: Call) -> Caller:
        """Return what has the Trainer call at each of its callbacks, once it is attached."""
        return Caller(self._trainer, call)


_STAND_IN = "_MockOptimizer"
"""The class that Lightning has optimize nothing, where `configure_optimizers` returns None."""
_PLAIN_STRATEGIES = {"SingleDeviceStrategy", "DDPStrategy", "SingleDeviceXLAStrategy"}


def _handles_unscaling(optimizer: torch.optim.Optimizer) -> bool:
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _now(rate: Any) -> Scalar | None:  # noqa: ANN401 - an optimizer's options have no types
    """Return a learning rate that stays as it is: schedulers change a tensor in place. A device's is copied later."""
    if isinstance(rate, Tensor) and rate.device.type == "cpu" and is_real_scalar(rate):
        return float(rate.item())
    return rate  # type: ignore[no-any-return]  # a number, or what is not shown


def _names(meta: Any) -> tuple[str, ...]:  # noqa: ANN401 - Lightning's metadata has no public type
    """Return the names under which a metric's step values go: none when it is only logged per epoch."""
    if not meta.on_step:
        return ()
    return (meta.name, f"{meta.name}_step") if meta.on_epoch else (meta.name,)


def _limit(value: float | None) -> int | None:
    return None if value is None or value < 0 or value == float("inf") else int(value)
