"""The attachment: what a model carries of midrun.

It is the one thing of midrun's in a model. A copy or a pickle of the model carries the options and nothing that runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midrun.checkpoints.faults import CheckpointError
from midrun.checkpoints.shelf import Shelf
from midrun.config import MidrunConfig
from midrun.directory import logger_directory, mountpoint, new_run_id, run_directory
from midrun.fs import mounts
from midrun.fs.tracebacks import trace
from midrun.hooks import PARTS, quick_parts
from midrun.log import tell
from midrun.records import close

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from midrun.checkpoints.resume import Resume
    from midrun.checkpoints.rewinds import Rewind
    from midrun.ending import Ending, Outcome
    from midrun.follower import Follower
    from midrun.follower import Turns as FollowerTurns
    from midrun.loop import Loop
    from midrun.ranks import Ranks
    from midrun.run import Run
    from midrun.turns import Turns


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
        self.under_way: set[str] = set()
        """The hooks whose overrides are running."""
        self.reached: set[str] = set()
        """The hooks whose part has run, or is running, while an override was under way."""
        self.run: Run | None = None
        """The run while it is live, else None."""
        self.quick: dict[str, Callable[..., None]] = {}
        """What the hooks of each batch call, see `hooks.quick_parts`; empty while nothing runs."""
        self.quick_class: type | None = None
        """The class of model for which that is right."""
        self._ranks: Ranks | None = None
        self._run_id: str | None = None
        self._last_directory: str | None = None
        """The directory of the present run, or of the last one."""
        self._port: int | None = None
        self._ending: Ending | None = None
        self._follower: Follower | None = None
        self._outcome: Outcome = "finished"
        """How training has ended, on a later rank."""
        self._missed: set[str] = set()
        self._resume: Resume | None = None
        self._nested: list[Trainer] = []
        """Trainers that have taken up the model while another one trains it."""

    def __reduce__(self) -> tuple[type[Attachment], tuple[MidrunConfig, tuple[str, ...]]]:
        return type(self), (self.config, self.given)

    @property
    def run_dir(self) -> str | None:
        """The run directory, the same on every rank, or None while nothing runs, or until rank zero has told it."""
        return None if self._ranks is None else self._ranks.directory

    @property
    def url(self) -> str | None:
        """Address of the REST API, or None while it does not run."""
        return None if self.run is None else self.run.rest_url

    @property
    def turns(self) -> Turns | FollowerTurns | None:
        """What is told of the loop's turns while the run is live, on whatever rank."""
        if self.run is not None:
            return self.run.turns
        return None if self._follower is None else self._follower.turns

    def missed(self, override: str, hook: str) -> None:
        """Say, once, that an override did not call `super()`."""
        if override not in self._missed and self.config.midrun_enabled:
            self._missed.add(override)
            self._tell(f"{override} does not call super().{hook}(); midrun ran its part itself, but please call it")

    def quicken(self, module: LightningModule) -> None:
        """Look anew at what the hooks of each batch may call, since classes and modules can be changed at run time."""
        if self.turns is None:
            return
        self.quick, self.quick_class = quick_parts(module, self.turns), type(module)
        for hook in PARTS:
            if hook in vars(module):
                message = f"{hook} is set on the model itself, past midrun's part of it: override it in the class"
                self._tell(message, message)

    def broke(self, hook: str, error: Exception) -> None:
        """Say that midrun's part of a hook failed. Training goes on, unless `inspection_strict` wants the error."""
        if hook == "setup" and self.config.inspection_strict:
            raise error
        self._tell(f"midrun's part of {hook} failed, and training goes on without it:\n{trace(error)}", f"broke {hook}")

    # ---- checkpoints

    @property
    def resume(self) -> Resume:
        """What the model's checkpoints have of midrun."""
        if self._resume is None:
            from midrun.checkpoints.resume import Resume  # noqa: PLC0415 - it loads torch

            self._resume = Resume(self._at_step)
        return self._resume

    @property
    def extra(self) -> Any:  # noqa: ANN401 - what the user gave
        """What was given to `save_checkpoint` as `extra`, from the checkpoint that was loaded last; else None."""
        return None if self._resume is None else self._resume.extra

    def save_checkpoint(self, extra: Any = None, *, label: str | None = None) -> str | None:  # noqa: ANN401 - as above
        """Write a checkpoint into the run's `artifacts/checkpoints/`. Each rank calls it, in the same hook.

        Parameters
        ----------
        extra
            What a later process is to get with it, as `extra`: tensors, numbers, texts, and lists and dictionaries of
            them.
        label
            A word that its file name has.

        Returns the artifact's id on rank zero, and None on the others. Raises RuntimeError where no run is live,
        TypeError where `extra` is something else, and OSError where the disk does not take it.
        """
        from midrun.checkpoints.plain import refusal  # noqa: PLC0415 - it loads torch

        loop = self._live("save_checkpoint")
        try:
            why = refusal(extra, "extra")
        except RecursionError:
            why = "extra is nested too deeply, or holds itself"
        if why is not None:
            raise TypeError(f"save_checkpoint: {why}, which torch.load(weights_only=True) refuses: give plain values")
        loop.strategy.barrier("midrun.save_checkpoint")
        if self.run is None:
            loop.save_checkpoint("")
            return None
        return str(self.run.store.save_checkpoint(None, label, extra)["artifact"]["id"])

    def load_checkpoint(self, which: str = "latest") -> Any:  # noqa: ANN401 - as above
        """Go back to a checkpoint, and return its `extra`. Each rank calls it, in `on_train_batch_end`.

        The data goes on where it is, and so do the batch and the epoch.

        Parameters
        ----------
        which
            `latest`, the newest; `resume`, the one that somebody has chosen, once, else the newest; or the id, the
            label or the path of one.

        Raises CheckpointError on every rank where one of them can't read it, and then nothing is changed; or where it
        failed halfway, and then at each further step too. Raises RuntimeError where no run is live.
        """
        loop = self._live("load_checkpoint")
        directory = self.run_dir
        if directory is None:
            raise RuntimeError("load_checkpoint: rank zero has not told yet where the run is")
        try:
            self.resume.load_together(which, Path(directory))
        finally:
            if loop.broken is not None and self.run is not None:
                self.run.points.is_awaited = True
        if self.run is not None:
            self.run.turns.refresh()
        return self.extra

    def finish(self, *, close_run: bool = True) -> None:
        """End midrun's part in a run: in a fit that goes on, which then goes on without it, or after it.

        Parameters
        ----------
        close_run
            Whether nobody is to go on with the run, ever; else it stays open, as it does when a fit ends.

        On later ranks it does nothing but end their part. Raises OSError where the disk does not take it.
        """
        self._stop()
        if close_run and self._last_directory is not None:
            close(Path(self._last_directory))

    def on_rewind(self, callback: Callable[[Rewind], object]) -> None:
        """Have `callback` called on this rank whenever the run has gone back to an earlier step, live or resumed."""
        self.resume.listeners.append(callback)

    def _live(self, what: str) -> Loop:
        loop = self._loop
        if loop is None:
            raise RuntimeError(f"{what}: no run is live; it works from `setup` to `teardown`")
        return loop

    def on_save_checkpoint(self, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put into a checkpoint what is needed in order to go on from it as if training had never stopped."""
        if self.config.midrun_enabled and module._trainer is not None:  # noqa: SLF001 - as in `setup`
            self.resume.save(module, checkpoint, {"run_id": self._run_id})

    def on_load_checkpoint(self, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take it from there. Raises CheckpointError where the checkpoint can't be this model's."""
        if self.config.midrun_enabled:
            self.resume.load(module, checkpoint)

    def _at_step(self, act: Callable[[], None]) -> None:
        """Have something done at the next optimizer step, in the model's hook, before anything else is."""
        turns, loop = self.turns, self._loop
        if turns is None or loop is None:
            return

        def begin_step(optimizer: Any) -> None:  # noqa: ANN401 - as the hook has it
            vars(turns).pop("begin_step", None)
            self.quicken(loop.module)
            act()
            turns.begin_step(optimizer)

        vars(turns)["begin_step"] = begin_step
        self.quicken(loop.module)

    @property
    def _loop(self) -> Loop | None:
        live = self.run or self._follower
        return None if live is None else live.loop

    # ---- the hooks at which a run begins and ends

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
        # Without a Trainer, somebody calls the hook by hand. Modules nest, and only the one that the Trainer trains has
        # a run.
        trainer = module._trainer  # noqa: SLF001 - `module.trainer` raises
        if not self.config.midrun_enabled or trainer is None or trainer.strategy._lightning_module is not module:  # noqa: SLF001 - no other way
            return
        loop = self._loop
        if loop is not None and loop.module is module and loop.is_running and not loop.is_of(trainer):
            # Another Trainer has the model in a hook of this one: this one goes on, and is the run.
            self._nested.append(trainer)
            message = "another Trainer uses the model while it is trained; midrun goes on showing the training"
            self._tell(message, message)
            return
        if loop is not None and loop.module is not module:
            # A shallow copy of a model that is being trained: its run is another.
            vars(module)["_midrun"] = type(self)(self.config, self.given)
            vars(module)["_midrun"].setup(module, stage)
            return
        if (why := _is_spawned(trainer)) is not None:
            if self.config.inspection_strict:
                raise RuntimeError(why)
            if trainer.is_global_zero:
                self._tell(f"{why}. Training goes on without midrun")
            return
        try:
            self._start(trainer, module, stage)
        except Exception as error:
            self._raised(error, "failed")
            self._stop()
            raise

    def teardown(self, module: LightningModule, stage: str) -> None:
        """Stop the run, unless it is another Trainer's part in it that ends."""
        while self._nested:
            if self._nested.pop().state.status == "running":
                return
        self._stop()

    def _start(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        from midrun.ending import Ending  # noqa: PLC0415 - these load torch
        from midrun.loop import Loop  # noqa: PLC0415
        from midrun.ranks import Ranks  # noqa: PLC0415
        from midrun.run import Run  # noqa: PLC0415

        self._stop()
        self._outcome = "finished"
        self._run_id = self._run_id or new_run_id()
        ranks = self._ranks = Ranks(trainer)
        if not trainer.is_global_zero:
            self._follow(trainer, module, ranks)
            return
        directory = ranks.directory = self._last_directory = self._directory(trainer, self._run_id)
        loop = Loop(trainer, module)
        run = self.run = Run(self.config, self._run_id, directory, loop, ranks, self.resume, port=self._port)
        self.resume.begin(loop, ranks, run.note_resume, run.note_rewind)
        self._ending = Ending(trainer, raised=self._raised, over=self._stop)
        run.start()
        self.quicken(module)
        # Lightning calls all callbacks' before the model's own, in which the run begins.
        run.shell_hooks.call("setup", {"stage": stage})

    def _directory(self, trainer: Trainer, run_id: str) -> str:
        """Return the run directory: that of the run that is resumed, whose id this one then has, or its own."""
        if self.config.resume is None:
            return run_directory(trainer, run_id)
        shelf = Shelf(self.config.resume)
        if shelf.is_closed:
            raise CheckpointError(
                f"the run in {str(shelf.directory)!r} is closed, and nobody goes on with it: leave `resume` out"
            )
        if shelf.is_live:
            raise CheckpointError(
                f"the run in {str(shelf.directory)!r} is live: wait until it has ended, or leave `resume` out"
            )
        self._run_id = str(shelf.record["run_id"])
        return str(shelf.directory)

    def _follow(self, trainer: Trainer, module: LightningModule, ranks: Ranks) -> None:
        """Do what a later rank does: what all ranks must do, and the shell hooks, where it is to."""
        from midrun.ending import Ending  # noqa: PLC0415 - these load torch
        from midrun.follower import Follower  # noqa: PLC0415
        from midrun.loop import Loop  # noqa: PLC0415

        if ranks.is_many:
            loop = Loop(trainer, module)
            self.resume.begin(loop, ranks, lambda _: None, None)
            self._follower = Follower(self.config, loop, ranks, self.resume)
            self._ending = Ending(trainer, raised=self._raised, over=self._stop)
            self._follower.start()
            self.quicken(module)

    def _raised(self, exception: BaseException, outcome: Outcome) -> None:
        """Note the exception that ends the loop; it goes on its way, whatever becomes of the note."""
        try:
            self._outcome = outcome
            if self.run is not None:
                self.run.raised(exception, outcome)
        except Exception as error:  # noqa: BLE001 - as said
            self.broke("on_exception", error)

    def _stop(self) -> None:
        """Stop the run, if one is live; never raises an error of midrun's own."""
        run, self.run, self.quick = self.run, None, {}
        self._ranks = None
        if self._resume is not None:
            self._resume.end()
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.undo()
        follower, self._follower = self._follower, None
        if follower is not None:
            try:
                follower.stop(self._outcome)
            except Exception as error:  # noqa: BLE001 - training has ended well, or as it has
                self._tell(f"a part of midrun failed:\n{trace(error)}")
        if run is not None:
            try:
                run.stop()
            finally:
                self._port = run.rest.port

    def _tell(self, message: str, once: str | None = None) -> None:
        if self.run is not None:
            self.run.log.alert(message, once)
        else:
            tell(logging.WARNING, message)


def _is_spawned(trainer: Trainer) -> str | None:
    """Return why there is no run where the ranks are copies of a process that has pickled the model, or was forked."""
    method = getattr(trainer.strategy.launcher, "_start_method", None)
    if method is None:
        return None
    return (
        f"the ranks were made by {method!r}, as with strategy='ddp_{method}', which midrun does not support: use "
        "strategy='ddp', or set midrun_enabled=False"
    )
