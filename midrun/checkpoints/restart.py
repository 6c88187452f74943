"""Restart: takes training to where a checkpoint was written, and has it go on from there as if it had never stopped.

Lightning goes back to the beginning of the loader, to the next batch, and to neither validation nor epoch end that were
due. So its loops are taken over for one turn: the generators get the states that they had when the loaders were made,
and when the epoch was begun; the loader is advanced; what was logged, accumulated and computed so far is put back; and
what was still to come of the batch, the validation or the epoch is done by Lightning's own code, without the hooks that
had run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from lightning.pytorch.callbacks import Callback, StochasticWeightAveraging
from lightning.pytorch.loops.fit_loop import RestartStage

from midrun.checkpoints import generators, position, results
from midrun.checkpoints.loaders import Begun, in_use, is_stateful
from midrun.checkpoints.position import (
    BETWEEN,
    EPOCH_END,
    IN_BATCH,
    OVER,
    STEP,
    SYNCHRONIZES,
    VALIDATED,
    VALIDATION_END,
    Position,
    gradients_into,
)

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch import Tensor

_LIMITLESS = -1
"""What Lightning has in place of a limit where there is none."""


class Asked(Protocol):
    """Who wants training to be where it was."""

    doubts: list[str]
    """Where it is told why training may go on in another way than it would have."""

    def at_step(self, act: Callable[[], None]) -> None:
        """Have something done at the next optimizer step, before anything else is."""

    def arrive(self) -> None:
        """Know that training is where it was."""


class Restart:
    """The way back to where a checkpoint was written, in one fit.

    Parameters
    ----------
    trainer
        The Trainer, whose loops have yet to be loaded and run.
    module
        The model.
    position
        Where training is, which is told of it.
    told
        What this rank has in the bundle, see `Position.told`.
    precise
        Weights of the checkpoint that are of another type than the model has before Lightning sets it up.
    asked
        Who wants it.
    """

    def __init__(
        self,
        trainer: Trainer,
        module: LightningModule,
        position: Position,
        told: dict[str, Any],
        precise: dict[str, Tensor],
        asked: Asked,
    ) -> None:
        self._trainer, self._module, self._position = trainer, module, position
        self._told, self._precise, self._asked = told, precise, asked
        self._doubts = asked.doubts
        self._fit: Any = trainer.fit_loop
        self._epoch: Any = trainer.fit_loop.epoch_loop
        self._limits: tuple[Any, Any] | None = None
        """Lightning's, while they are lifted."""

    def arm(self) -> bool:
        """Take over when the fit begins; return whether it does.

        A checkpoint of a fit that is over needs nothing of it.
        """
        where = self._told["where"]
        if where == BETWEEN:
            self._doubts.append("it was written where no epoch was under way")
        if where in {BETWEEN, OVER}:
            return False
        if where == IN_BATCH:
            self._doubts.append("it was written in the midst of a batch, which is done again from its beginning")
        if self._told["untold"]:
            self._doubts.append(f"what {', '.join(self._told['untold'])} had accumulated is lost")
        if where == position.BATCH_END:
            self._doubts += [f"what {name} does at the end of that batch is lost" for name in self._left_out()]
        self._position.adopt(self._told["data"])
        vars(self._fit)["run"] = self._run
        return True

    def _left_out(self) -> list[str]:
        """Return who has a part in the end of a batch that had not run, and has no batch to be called with any more."""
        hook = self._told["hook"]
        callbacks: list[Any] = self._trainer.callbacks  # type: ignore[attr-defined]  # set by one of its connectors
        left = [one for one in callbacks if one.state_key not in hook["callbacks"]]
        names = [type(one).__name__ for one in left if type(one).on_train_batch_end is not Callback.on_train_batch_end]
        has_own = not hasattr(type(self._module).on_train_batch_end, "behind")
        return [*names, *([type(self._module).__name__] if has_own and not hook["module"] else [])]

    def disarm(self) -> None:
        """Leave the loops alone."""
        for loop in (self._fit, self._epoch):
            for name in ("run", "reset", "on_run_start", "_load_combined_loader_states"):
                vars(loop).pop(name, None)
        self._limit_again()

    # ---- in the place of Lightning's loops, each once

    def _run(self) -> None:
        fit, data = self._fit, self._told["data"]
        del fit.run
        try:
            if data["made"] is not None:
                generators.restore(data["made"])
            vars(fit)["_load_combined_loader_states"] = self._load_states
            fit.setup_data()
            # Not before: whoever makes a loader may look at them.
            self._lift_limits()
            vars(fit).update(reset=self._reset, on_run_start=self._begin)
            self._exactly_as_it_was()
            fit.run()
        finally:
            self.disarm()

    def _load_states(self) -> None:
        """Have loaders go where they say that they were, if all of them do; else they are drawn from anew."""
        fit = self._fit
        del fit._load_combined_loader_states  # noqa: SLF001 - Lightning's own
        if self._uses_states():
            fit._load_combined_loader_states()  # noqa: SLF001 - as above
        else:
            fit._combined_loader_states_to_load = []  # noqa: SLF001 - as above

    def _exactly_as_it_was(self) -> None:
        """Load anew what Lightning has loaded before it gave the model its precision."""
        here = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        precise, self._precise = self._precise, {}
        _put(
            {name: tensor for name, tensor in here.items() if name in precise and tensor.dtype == precise[name].dtype},
            precise,
        )

    def _reset(self) -> None:
        """Be where the checkpoint was written, in place of what Lightning guesses."""
        fit, epoch = self._fit, self._epoch
        del fit.reset
        self._limit_again()
        torch.set_grad_enabled(True)
        for loop in (fit, epoch, epoch.val_loop):
            # Its properties would say otherwise where training has a limit of steps.
            vars(loop).update(_restarting=False, _loaded_from_state_dict=False, _resuming_from_checkpoint=False)
            loop.reset_restart_stage()
        if self._is_in_batch:
            automatic, manual = epoch.automatic_optimization.optim_progress.optimizer.step, epoch.manual_optimization
            for progress in (epoch.batch_progress, automatic, manual.optim_step_progress):
                progress.total.reset_on_restart()
                progress.current.reset_on_restart()
            epoch.batch_progress.is_last_batch = False
        if self._told["where"] != EPOCH_END:
            fit._restart_stage = RestartStage.RESTARTED_MID_EPOCH  # noqa: SLF001 - Lightning's own mark: the epoch has begun
        data = self._told["data"]
        if data["made"] is not None and self._trainer.num_sanity_val_steps:
            # The sanity check, which there is none of now, has the loaders of the validation made.
            generators.restore(data["made"])

    def _lift_limits(self) -> None:
        """Have Lightning go on where a fit was at its last step or epoch, to what was still to come of it."""
        self._limits = (self._fit.max_epochs, self._epoch.max_steps)
        self._fit.max_epochs, self._epoch.max_steps = _LIMITLESS, _LIMITLESS

    def _limit_again(self) -> None:
        limits, self._limits = self._limits, None
        if limits is not None:
            self._fit.max_epochs, self._epoch.max_steps = limits

    def _begin(self) -> None:
        """Begin training, or go on from the end of an epoch."""
        fit = self._fit
        del fit.on_run_start
        completed = fit.epoch_progress.current.completed
        fit.on_run_start()
        fit.epoch_progress.current.completed = completed
        self._average_again()
        if self._told["where"] == EPOCH_END:
            self._recall()
            self._asked.arrive()
            self._finish_epoch()
        else:
            vars(self._epoch)["run"] = self._run_epoch
            self._lift_limits()

    def _run_epoch(self, fetcher: Any) -> None:  # noqa: ANN401 - Lightning's own
        epoch, where = self._epoch, self._told["where"]
        del epoch.run
        self._limit_again()
        self._bring(fetcher)
        self._recall()
        self._asked.arrive()
        match where:
            case position.BATCH_END:
                self._finish_batch()
                epoch.on_advance_end(fetcher)
            case position.VALIDATED | position.VALIDATION_END:
                self._finish_validation()
                epoch._skip_next_val = True  # noqa: SLF001 - Lightning's own mark
                epoch.on_advance_end(fetcher)
            case position.IN_VALIDATION:
                epoch.on_advance_end(fetcher)
            case position.STEP:
                self._asked.at_step(self._overwrite)
        vars(epoch).update(reset=self._keep, on_run_start=self._enter_epoch)
        epoch.run(fetcher)

    def _keep(self) -> None:
        """Keep the progress, in place of beginning the epoch."""
        del self._epoch.reset

    def _enter_epoch(self, fetcher: Any) -> None:  # noqa: ANN401 - as above
        """Go on with the iterator that there is, in place of making a new one."""
        epoch = self._epoch
        del epoch.on_run_start
        vars(epoch)["_restarting"] = True
        try:
            epoch.on_run_start(fetcher)
        finally:
            vars(epoch)["_restarting"] = False

    def _average_again(self) -> None:
        """Have Lightning's weight averaging take up its work, as it only does at the beginning of an epoch.

        Then it changes learning rates and buffers, which are as they should be.
        """
        module = self._module
        for callback in self._trainer.callbacks:  # type: ignore[attr-defined]  # set by one of its connectors
            if isinstance(callback, StochasticWeightAveraging):
                groups = [dict(group) for optimizer in self._trainer.optimizers for group in optimizer.param_groups]
                buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
                callback.on_train_epoch_start(self._trainer, module)
                here = (group for optimizer in self._trainer.optimizers for group in optimizer.param_groups)
                for group, before in zip(here, groups, strict=True):
                    group.update(before)
                _put(dict(module.named_buffers()), buffers)
                if self._told["where"] == EPOCH_END:
                    callback.on_train_epoch_end(self._trainer)

    # ---- the way there

    @property
    def _is_in_batch(self) -> bool:
        """Whether the batch that was in flight is begun again."""
        return self._told["where"] in {STEP, IN_BATCH}

    def _uses_states(self) -> bool:
        """Whether all loaders know their own position, and are asked to go there.

        One that has counted the batch that is in flight would leave it out.
        """
        loaders = in_use(self._trainer).all
        return bool(loaders) and all(map(is_stateful, loaders)) and not self._is_in_batch

    def _bring(self, fetcher: Any) -> None:  # noqa: ANN401 - as above
        """Bring the loaders to where they were."""
        data, loaders, number = self._told["data"], in_use(self._trainer), self._trainer.current_epoch
        if data["begun"] is None:
            self._doubts.append("it has nothing of where its epoch began")
        elif not self._uses_states():
            generators.restore(data["begun"])
            if number > 0:
                self._doubts += [f"{path} is not in the loaders any more" for path in loaders.restore(data["marks"])]
                iter(fetcher)
            self._position.listen()
            cycle = self._position.cycle
            if cycle is not None:
                cycle.told = [Begun(number, rng, marks) for number, rng, marks in data["again"]]
            try:
                loaders.advance(fetcher, self._told["batches"])
            except StopIteration:
                # Lightning, too, would begin the loader anew.
                self._doubts.append(f"the loader ends before the {self._told['batches']} batches that were behind it")
                iter(fetcher)
            self._put_ahead()
            self._doubts += loaders.doubts(number)

    def _put_ahead(self) -> None:
        """Have the batches that were loaded before their turn, in place of those that are loaded now."""
        fetcher, ahead = self._fit._data_fetcher, self._told["data"]["ahead"]  # noqa: SLF001 - Lightning shows it nowhere
        if ahead and len(getattr(fetcher, "batches", ())) == len(ahead):
            fetcher.batches = list(ahead)

    def _recall(self) -> None:
        """Put back what was logged, accumulated and computed so far."""
        told, trainer, module = self._told, self._trainer, self._module
        self._doubts += results.restore(self._epoch._results, told["results"], trainer)  # noqa: SLF001 - Lightning shows it nowhere else
        results.show(trainer, told["shown"])
        lost = results.accumulate(module, told["metrics"])
        self._doubts += [f"the model has no {name} any more" for name in lost]
        modules = dict(module.named_modules())
        for name in told["evaluates"]:
            if name in modules:
                modules[name].training = False
        if "gradients" in told:
            gradients_into(module, told["gradients"])
        if not self._is_in_batch:  # Else they are as the batch has left them, which begins again.
            self._put_buffers()
        if told["synchronizes"] is not None and hasattr(trainer.strategy.model, SYNCHRONIZES):
            setattr(trainer.strategy.model, SYNCHRONIZES, told["synchronizes"])
        if told["where"] == EPOCH_END:
            in_use(trainer).restore(told["data"]["now"])
        validation = told["data"]["validation"]
        if self._is_in_batch:
            # The batch is begun again; and if it is the first, the order of all is drawn with it.
            if told["batches"]:
                generators.restore(told["rng"])
            if trainer._logger_connector._first_loop_iter:  # noqa: SLF001 - as above
                trainer._logger_connector._first_loop_iter = None  # noqa: SLF001 - as above
        else:
            generators.restore(told["rng"] if validation is None else validation)

    # ---- what was still to come

    def _finish_batch(self) -> None:
        """Do what comes between the last hook of a batch and what may follow it, as Lightning's `advance` does."""
        connector = self._trainer._logger_connector  # noqa: SLF001 - as above
        connector.on_batch_end()
        self._epoch.batch_progress.increment_completed()
        connector.update_train_step_metrics()

    def _finish_validation(self) -> None:
        trainer, loop, told = self._trainer, self._epoch.val_loop, self._told
        connector = trainer._logger_connector  # noqa: SLF001 - as above
        trainer.validating = True
        try:
            with self._muted():
                if told["where"] == VALIDATED:
                    results.restore(loop._results, told["validated"], trainer)  # noqa: SLF001 - as above
                    loop._logged_outputs = told["outputs"]  # noqa: SLF001 - as above
                    loop._module_mode.capture(self._module)  # noqa: SLF001 - what it gives back at the end
                    loop.on_run_end()
                elif told["where"] == VALIDATION_END:
                    loop._on_evaluation_end()  # noqa: SLF001 - as above
        finally:
            trainer.training = True
            connector._first_loop_iter = self._epoch.batch_progress.current.ready == 1  # noqa: SLF001 - as Lightning has it there

    def _finish_epoch(self) -> None:
        fit = self._fit
        for progress in (fit.epoch_progress.current, fit.epoch_progress.total):
            progress.processed -= 1
        with self._muted():
            fit.on_advance_end()
        fit.on_iteration_done()

    def _overwrite(self) -> None:
        """Have what the batch that was in flight had computed, in place of what it has now."""
        told, trainer = self._told, self._trainer
        if "gradients" in told:
            gradients_into(self._module, told["gradients"])
        self._put_buffers()
        results.restore(self._epoch._results, told["results"], trainer)  # noqa: SLF001 - as above
        results.accumulate(self._module, told["metrics"])
        results.show(trainer, told["shown"])
        self._put_ahead()
        generators.restore(told["rng"])

    def _put_buffers(self) -> None:
        _put(dict(self._module.named_buffers()), self._told.get("buffers", {}))

    @contextmanager
    def _muted(self) -> Iterator[None]:
        """Leave out those parts of the hook that had run."""
        hook, keys = self._told["hook"]["name"], list(self._told["hook"]["callbacks"])
        muted: list[Any] = [self._module] if self._told["hook"]["module"] else []
        for callback in self._trainer.callbacks:  # type: ignore[attr-defined]  # set by one of its connectors
            if callback.state_key in keys:
                keys.remove(callback.state_key)
                muted.append(callback)
        # Some have their hooks there anyway, as LambdaCallback has.
        own = [(vars(one), vars(one).get(hook)) for one in muted]
        for members, _ in own:
            members[hook] = _nothing
        try:
            yield
        finally:
            for members, before in own:
                if before is None:
                    del members[hook]
                else:
                    members[hook] = before


def _put(here: Mapping[str, Tensor], told: Mapping[str, Tensor]) -> None:
    """Give tensors the values that were told of them, by their names, where they have the shape."""
    with torch.no_grad():
        for name, tensor in here.items():
            if name in told and tensor.shape == told[name].shape:
                tensor.copy_(told[name])


def _nothing(*_: object, **__: object) -> None:
    """Be a hook that has run."""
