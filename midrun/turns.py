"""Turns: what the loop tells of itself, in the training thread, and the sample of it that is shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from midrun.command import STEP
from midrun.fs.tracebacks import trace
from midrun.hooks import Halt
from midrun.logged import Noted
from midrun.sample import NOTHING, Sample

if TYPE_CHECKING:
    from midrun.fs.page import Page
    from midrun.run import Run

_LOSES = "steps are missing in it from now on: the disk does not answer, or they come faster than they can be written"
_GIL_BREAK = 0.0002
"""Seconds for which the training thread gives the GIL away when a face waits for it."""


class Turns:
    """The turns of a run's loop: each is a method, called with the arguments of the hook that has it, see `hooks`.

    Parameters
    ----------
    run
        The run, with all that a turn may have to do with.
    page
        Where faces are told that what they have kept is void.
    """

    def __init__(self, run: Run, page: Page) -> None:
        self._run, self._loop, self._points, self._pipeline = run, run.loop, run.points, run.pipeline
        self._page, self._asks = page, page.asks
        self._sample: Sample = NOTHING
        self.noted = Noted(lambda: run.services["history"].warn(_LOSES))
        """The samples of the history: of the end of each batch, and of what comes between batches."""
        self._waiting = self.noted.waiting
        self._steady = False
        """Whether whoever looks may take the sample of a safe point before an optimizer step."""
        self._stepping: list[Sample] | None = None
        """While that is the last safe point: its sample, once somebody has looked."""
        self._batch_aside: int | None = None
        self._untimed = 1 if run.config.pipeline_pressure_enabled else -1
        """Batches until the end of one at which a timing begins or ends; none comes where timing is off."""

    def begin_step(self, optimizer: object) -> None:
        """Show a sample before an optimizer step.

        Where nothing that it shows changes until the batch ends, whoever looks takes it: in the training thread, right
        after a backward pass, it costs a small model half a percent of its step.
        """
        if self._steady:
            # Not None yet: an optimizer that evaluates its closure again, in the same step.
            is_again, self._stepping = self._stepping is not None, []
            if self._points.is_awaited and not is_again:
                self._points.reach(STEP)
                self._stepping = []
        else:
            self.publish(self._loop.batch)
            self._points.reach_step()

    def end_batch(self, outputs: object, batch: object, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Show a sample at the end of a training batch, and do what is due.

        It is `publish` and `_yield_gil` in one: of a small model's step each call costs a thousandth, as it comes to
        code that is not in the processor's cache.
        """
        try:
            sample = self._sample = self._loop.sample(batch_idx)
            if len(self._waiting) < self.noted.room:  # As `Noted.add`.
                self._waiting.append(sample)
            else:
                self.noted.add(sample)
        except Exception as error:  # noqa: BLE001 - as in `publish`
            self._unreadable(error)
        self._stepping = None
        asks = self._asks
        if asks[0] != asks[1]:
            self._yield_gil()
        if self._points.is_awaited or not self._steady:
            self._points.reach_batch_end()
        self._untimed -= 1
        if not self._untimed:
            self._untimed = self._pipeline.turn()

    def time_next_batch(self) -> None:
        """Have the next batch timed, whatever the draw has said."""
        self._untimed = 1

    def end_evaluation_batch(self, outputs: object, batch: object, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Show a sample at the end of a batch of another stage, and do what is due where there is nothing else."""
        self.publish(batch_idx)
        self.note()
        self._yield_gil()
        with self._loop.flight.at(batch):
            self._points.reach_evaluation()
        if self._loop.ends_after_batch:
            raise Halt

    def _yield_gil(self) -> None:
        """Let a face that waits have its turn: this loop may be one that never leaves the GIL for long."""
        asks = self._asks
        if asks[0] != asks[1]:
            with self._pipeline.within():
                time.sleep(_GIL_BREAK)

    def resample(self) -> None:
        """Show also what has been logged since the last safe point, in what came after it in the same hook."""
        if self._stepping is None:
            self.publish(self._sample.batch)
            self.note()
        elif self._stepping:
            self._stepping = []  # Somebody has looked before it was logged.

    def begin_epoch(self) -> None:
        """Show a sample before the first batch of an epoch; of one before it, Lightning has the metrics only now."""
        self._pipeline.spoil()
        self._loop.stop_again()
        self._loop.position.begin_epoch()
        has_trained = self._sample.batch is not None
        self._turn(None)
        if has_trained:
            self.noted.add(self._sample)

    def begin_fit(self) -> None:
        """Show a sample before the data is loaded."""
        self._loop.position.begin_fit()
        self.turn()

    def begin_training(self) -> None:
        """Show a sample where training begins, and remember the step: by then a checkpoint is loaded."""
        self.noted.began = self._loop.step
        self.turn()

    def turn(self) -> None:
        """Show a sample where a stage begins or ends."""
        if self._run.chair is not None:
            self._loop.sigterm.install()
        self._turn(self.sample.batch if self._loop.stage == "train" else None)
        self.note()

    def end_epoch(self) -> None:
        """Show a sample, and do what is due, at the end of an epoch of training."""
        self._pipeline.spoil()
        self.turn()
        self._points.reach("train_epoch_end")

    def end_validation(self) -> None:
        """Show a sample, and do what is due, at the end of a validation. The sanity check is none."""
        self.turn()
        if self._loop.stage != "sanity_check":
            self._points.reach("validation_epoch_end")

    def end_fit(self) -> None:
        """Show a sample, and do what is due, at the end of training."""
        self.turn()
        self._points.reach("fit_end")

    def enter_validation(self) -> None:
        """Count another stage's batches, and remember where training is."""
        if self._run.chair is not None:
            self._loop.sigterm.install()
        self._loop.position.begin_validation()
        self._pipeline.spoil()
        self._batch_aside = self.sample.batch
        self._turn(None)

    def leave_validation(self) -> None:
        """Go back to where training is."""
        self._turn(self._batch_aside)
        self.note()

    def publish(self, batch: int | None) -> None:
        """Take a sample, where `batch` is the index of the batch, and show it."""
        try:
            self._sample = self._loop.sample(batch)
        except Exception as error:  # noqa: BLE001 - whatever the loop's insides do, training goes on
            self._unreadable(error)
        self._stepping = None

    def note(self) -> None:
        """Have the history note the sample that is shown, unless it tells of nothing that counts.

        Until a fit has its first batch there is nothing but what the sanity check has logged, which Lightning forgets.
        """
        sample = self._sample
        try:
            if self._loop.stage != "sanity_check" and not (sample.batch is None and self._loop.is_fitting):
                self.noted.add(sample)
        except Exception as error:  # noqa: BLE001 - as in `publish`
            self._unreadable(error)

    def _turn(self, batch: int | None) -> None:
        """Show a sample, and void what faces have kept."""
        self._steady = self._loop.is_steady
        self.publish(batch)
        self._page.bump()

    def refresh(self) -> None:
        """Show a sample where training is, after something was done to it.

        The history does not note it: what a batch has logged belongs to the step that ends the batch.
        """
        self._turn(self.batch)

    def _unreadable(self, error: Exception) -> None:
        self._run.log.alert(f"the state of the loop could not be read, and stays as it was:\n{trace(error)}", "sample")

    # ---- any thread

    @property
    def sample(self) -> Sample:
        """What the run looked like at the last safe point."""
        stepping = self._stepping
        if stepping is None:
            return self._sample
        if not stepping:
            try:
                # The step counts from the end of its batch on.
                taken = self._loop.sample(self._loop.batch)._replace(global_step=self._sample.global_step)
            except Exception as error:  # noqa: BLE001 - as in `publish`
                if self._stepping is stepping:
                    self._unreadable(error)
                return self._sample
            if self._stepping is not stepping:
                return self._sample  # The batch has ended meanwhile.
            stepping.append(taken)
        return stepping[0]

    def look(self) -> bool:
        """Have the pace of training noted, as another thread does a few times a second; tell whether it may go on.

        While an inspector watches all that torch does, what another thread does with tensors would be part of it.
        """
        before, sample = self._loop.stage, self._sample
        is_training = before == self._loop.stage == "train" and (sample.batch is not None or not self._loop.is_fitting)
        self._run.pace.note(sample if is_training else None, held=self._run.holds.standing is not None)
        return not self._run.inspection.is_drawing

    @property
    def batch(self) -> int | None:
        """Index of the batch that is under way, or was the last; None before the first of an epoch."""
        batch = self._loop.batch
        return self.sample.batch if batch is None else batch
