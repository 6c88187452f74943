"""The attachment: what a model carries of midrun, and midrun's part of each Lightning hook.

It is the one thing of midrun's in a model. A copy or a pickle of the model carries the options and nothing that runs.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

from midrun.config import MidrunConfig
from midrun.directory import logger_directory, mountpoint, new_run_id, run_directory
from midrun.fs import mounts

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from midrun.loop import Ending
    from midrun.run import Run

_TURNS = (
    "on_fit_start",
    "on_fit_end",
    "on_train_start",
    "on_train_end",
    "on_train_epoch_end",
    "on_validation_epoch_end",
    "on_test_start",
    "on_test_end",
    "on_predict_start",
    "on_predict_end",
)
"""Hooks at which the loop turns from one thing to another."""
SAFE_POINTS = ("on_before_optimizer_step", "on_train_batch_end")
"""Hooks at which what a batch has logged is shown."""
_EVALUATED = ("on_validation_batch_end", "on_test_batch_end", "on_predict_batch_end")
"""Hooks after a batch of evaluation."""
HOOKS = (
    "configure_callbacks",
    "setup",
    "teardown",
    "on_train_epoch_start",
    "on_train_batch_start",
    *SAFE_POINTS,
    "on_validation_start",
    "on_validation_end",
    *_TURNS,
    *_EVALUATED,
)
"""The Lightning hooks that midrun has a part in. `Attachment` has a method for each, with the hook's arguments."""


class Attachment:
    """What a model carries of midrun.

    Parameters
    ----------
    config
        The options.
    given
        The names of the options that were given, which are no hyperparameters of the model.
    """

    def __init__(self, config: MidrunConfig, given: tuple[str, ...] = ()) -> None:
        self.config = config
        self.given = given
        self.reached: dict[str, bool] = {}
        """For each hook, whether midrun's part has run since this was last set to False."""
        self._run: Run | None = None
        self._directory: str | None = None
        self._run_id: str | None = None
        self._port: int | None = None
        self._ending: Ending | None = None
        self._train_batch: int | None = None
        self._missed: set[str] = set()

    def __reduce__(self) -> tuple[type[Attachment], tuple[MidrunConfig, tuple[str, ...]]]:
        return type(self), (self.config, self.given)

    @property
    def run(self) -> Run | None:
        """The run while it is live, with its tree's `Root` to be made from it; else None."""
        return self._run

    @property
    def run_dir(self) -> str | None:
        """The run directory, the same on every rank, or None while nothing runs."""
        return self._directory

    @property
    def url(self) -> str | None:
        """Address of the REST API, or None while it does not run."""
        return None if self._run is None else self._run.rest_url

    def missed(self, override: str, hook: str) -> None:
        """Say, once, that an override did not call `super()`."""
        if override not in self._missed and self.config.midrun_enabled:
            self._missed.add(override)
            message = f"{override} does not call super().{hook}(); midrun ran its part itself, but please call it"
            if self._run is not None:
                self._run.log.alert(message)
            else:
                _warn(message)

    def broke(self, hook: str, error: Exception) -> None:
        """Say that midrun's part of a hook failed. Training goes on, unless `inspection_strict` wants the error."""
        if hook == "setup" and self.config.inspection_strict:
            raise error
        message = f"midrun's part of {hook} failed:\n{_told(error)}"
        if self._run is not None:
            self._run.log.alert(message)
        else:
            _warn(message)

    # ---- the hooks: setup and teardown

    def configure_callbacks(self, module: LightningModule) -> None:
        """Take away a mount that a killed run left: loggers scan their directory before `setup`, and fail on it."""
        trainer = module._trainer  # noqa: SLF001 - as in `setup`
        if trainer is None or not (self.config.midrun_enabled and self.config.fuse_enabled):
            return
        directory = logger_directory(trainer) if trainer.is_global_zero else None
        if directory is not None:
            mounts.clean(mounts.resolve(mountpoint(self.config, directory)))

    def setup(self, module: LightningModule, stage: str) -> None:
        """Start the run."""
        del stage
        if not self.config.midrun_enabled:
            return
        try:
            # Without a Trainer, somebody calls the hook by hand. Modules nest, and only the one that the Trainer trains
            # has a run.
            trainer = module._trainer  # noqa: SLF001 - `module.trainer` raises
            if trainer is not None and trainer.strategy._lightning_module is module:  # noqa: SLF001 - no other way
                self._start(trainer, module)
        except Exception as error:
            self._raised(error)
            self._stop()
            if self.config.inspection_strict:
                raise
            _warn(f"midrun did not start, and training goes on without it:\n{_told(error)}")

    def teardown(self, module: LightningModule, stage: str) -> None:
        """Stop the run."""
        del module, stage
        self._stop()

    def _start(self, trainer: Trainer, module: LightningModule) -> None:
        from midrun.loop import Ending, LightningLoop  # noqa: PLC0415 - these load torch
        from midrun.ranks import all_ranks  # noqa: PLC0415
        from midrun.run import Run  # noqa: PLC0415

        self._stop()
        self._run_id = self._run_id or new_run_id()
        # Rank zero chooses, and must not fail to tell: the others wait for it.
        chosen = run_directory(trainer, self._run_id) if trainer.is_global_zero else ""
        directory = self._directory = trainer.strategy.broadcast(chosen)
        ranks = all_ranks(trainer)
        if not trainer.is_global_zero:
            return
        run = self._run = Run(
            self.config, self._run_id, directory, LightningLoop(trainer, module), port=self._port, ranks=ranks
        )
        self._ending = Ending(trainer, raised=self._raised, over=self._stop)
        run.start()

    def _raised(self, exception: BaseException) -> None:
        """Note the exception that ends the loop; it goes on its way, whatever becomes of the note."""
        try:
            if self._run is not None:
                self._run.raised(exception)
        except Exception as error:  # noqa: BLE001 - as said
            self.broke("on_exception", error)

    def _stop(self) -> None:
        """Stop the run, if one is live; never raises an error of midrun's own."""
        run, self._run = self._run, None
        self._directory = None
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.undo()
        if run is not None:
            try:
                run.stop()
            except Exception as error:  # noqa: BLE001 - the loop has ended well, whatever became of midrun
                _warn(f"midrun did not stop cleanly:\n{_told(error)}")
            self._port = run.port

    # ---- the hooks: safe points

    def on_train_batch_start(self, module: LightningModule, batch: object, batch_idx: int) -> None:
        """Note which batch is under way."""
        del module, batch
        if self._run is not None:
            self._run.batch = batch_idx

    def on_before_optimizer_step(self, module: LightningModule, optimizer: object) -> None:
        """Safe point."""
        del module, optimizer
        if self._run is not None:
            self._run.safe_point()

    def on_train_batch_end(self, module: LightningModule, outputs: object, batch: object, batch_idx: int) -> None:
        """Safe point."""
        del module, outputs, batch, batch_idx
        if self._run is not None:
            self._run.safe_point()

    def refresh(self) -> None:
        """Show what an override of a safe point's hook has logged after midrun's part: it is this batch's too."""
        if self._run is not None:
            self._run.publish()

    # ---- the hooks: turns of the loop

    def on_validation_start(self, module: LightningModule) -> None:
        """Count validation's own batches."""
        del module
        if self._run is not None:
            self._train_batch = self._run.batch
            self._run.turn(None)

    def on_validation_end(self, module: LightningModule) -> None:
        """Go back to where training is."""
        del module
        if self._run is not None:
            self._run.turn(self._train_batch)

    def on_train_epoch_start(self, module: LightningModule) -> None:
        """Count the new epoch's batches."""
        del module
        if self._run is not None:
            self._run.turn(None)

    def _turned(self, module: LightningModule) -> None:
        del module
        if self._run is not None:
            self._run.turn(None if self._run.loop.stage != "train" else self._run.batch)

    def _evaluated(
        self, module: LightningModule, outputs: object, batch: object, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        del module, outputs, batch, dataloader_idx
        if self._run is not None:
            self._run.batch = batch_idx
            self._run.safe_point()


for _hook in _TURNS:
    setattr(Attachment, _hook, Attachment._turned)  # noqa: SLF001 - its own class
for _hook in _EVALUATED:
    setattr(Attachment, _hook, Attachment._evaluated)  # noqa: SLF001 - its own class


def _warn(message: str) -> None:
    logging.getLogger("midrun").warning(message)


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
