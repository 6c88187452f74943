"""Safe points: where in training commands are done and runs are held, all of it in the training thread.

With nothing to do a safe point costs a look at one mark.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

from midrun.command import EVALUATION, STEP, Command, ErrorRecord, Place
from midrun.commands.kind import Kind, Shared
from midrun.control_log import line_of
from midrun.fs.faults import Conflict, Fault
from midrun.fs.tracebacks import message, trace
from midrun.hold import Active, Cancelled, Caught, Released, is_hold
from midrun.tasks import Errand, Steps, Task, Tasks

if TYPE_CHECKING:
    from midrun.ending import ExceptionRecord
    from midrun.run import Run

_NEVER = (float("inf"), float("inf"))
"""The step and epoch of what is never due."""
_MANY = 32
"""Training batches without an announced optimizer step after which none is waited for: a model may make its own."""
_LOOK = 0.1
"""Seconds between two looks of a held run at what may end the hold and tells nobody: a signal."""


class SafePoints:
    """The safe points of one run.

    Parameters
    ----------
    run
        The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = run.loop
        self._chair = run.chair
        self._inbox = run.queue.inbox
        self.is_awaited = False
        """Whether a safe point may have something to do. Whoever puts something into the inbox sets it afterwards."""
        self._waiting: list[Command] = []
        """Commands that wait, in the order they came."""
        self._errands: list[Errand] = []
        """What readers wait for that has yet to begin."""
        self._tasks = Tasks()
        self._soonest: dict[str, tuple[float, float]] = {}
        """For each safe point, the step and the epoch from which one of those may be due."""
        self._step: int | None = None
        self._is_stale = False
        """Something was taken out since that was noted."""
        self._unannounced = _MANY
        """Training batches since an optimizer step was announced."""
        self.at: str | None = None
        """The safe point of the command that is being done; None between commands, and where an exception holds."""

    # ---- what training tells

    def reach_step(self) -> None:
        """Reach an optimizer step. One that evaluates its closure again is the same step."""
        step = self._loop.step
        if step != self._step:
            self._step, self._unannounced = step, 0
            if self.is_awaited:
                self.reach(STEP)

    def reach_batch_end(self) -> None:
        """Reach the end of a training batch."""
        self._unannounced += 1
        if self.is_awaited:
            self.reach("train_batch_end")

    def reach_evaluation(self) -> None:
        """Reach the end of a batch of `trainer.validate`, `test` or `predict`; within training it is no safe point."""
        if self._loop.is_fitting:
            return
        if self.is_awaited:
            self.reach(EVALUATION)
        elif self._chair is not None:
            self._chair.numbers.leave(EVALUATION)

    def reach(self, point: str) -> None:
        """Do what is due at a safe point."""
        with self._run.pipeline.within():
            self._reach(point)

    def _reach(self, point: str) -> None:
        try:
            self._drain()
            if self._tasks or self._errands:
                self._go_on(point)
            if self._is_stale:
                self._sum_up()
            if self._chair is not None:
                self._chair.attend(point)
            self._do_due(point)
        finally:
            # Whatever was raised: the others stand, or count this safe point too.
            if self._chair is not None:
                self._chair.leave(point)
        self._loop.check_whole()
        self._call_others()

    def _do_due(self, point: str) -> None:
        step, epoch = self._loop.step, self._loop.epoch
        from_step, from_epoch = self._soonest.get(point, _NEVER)
        if step >= from_step or epoch >= from_epoch:
            for command in [command for command in self._waiting if self._is_due(command, point)]:
                waits = command.kind.on_every_rank and self._chair is not None and not self._chair.is_open
                # Those behind one that waits for the other ranks wait too: they are done in their order.
                if waits or (command in self._waiting and not self._run_one(command, point)):
                    return

    def _call_others(self) -> None:
        """Call the other ranks together, for what all must do."""
        commands = [command for command in self._waiting if command.kind.on_every_rank]
        if self._chair is None:
            return
        if not commands:
            self._chair.call_off()
        elif (why := self._run.roll.refusal) is not None:
            for command in commands:
                self._drop(command)
                if command.claim():
                    self._failed(command, Conflict(f"not all ranks can do it: {why}"))
        elif self._run.roll.is_complete:
            self._chair.plan(commands, steps=self._loop.announces_steps or self._unannounced <= _MANY)

    def place(self, point: str | None) -> Place:
        """Return where training is."""
        loop = self._loop
        return Place(
            safe_point=point,
            global_step=loop.step,
            epoch=loop.epoch,
            batch=self._run.batch,
        )

    def _go_on(self, point: str) -> None:
        """Do the next piece of each task, and begin those that readers wait for."""
        outer, self.at = self.at, point
        try:
            self._tasks.reach(partial(self._stands_for, point))
            while self._errands:
                self._tasks.begin(self._errands.pop(0).task())
        finally:
            self.at = outer
            self._run.turns.refresh()

    def end_tasks(self) -> None:
        """End what goes on from safe point to safe point: none comes any more."""
        self._tasks.end("the session has ended before it was done")
        while self._errands:
            self._errands.pop(0).later.set_exception(Conflict("the session has ended before it was made"))

    # ---- holding

    def hold(self, command: Command) -> dict[str, object]:
        """Stand still until the hold is let go, the run is stopped, or the process is told to end."""
        run, holds = self._run, self._run.holds
        if holds.stopped:
            raise Conflict("a stop has run: there is nothing more to hold")
        if holds.active is not None:
            holds.active.joined_ids.append(command.id)
            run.queue.note_hold(holds.active.record())
            run.queue.log_line(line_of(command.record, "joined", holds.active.place))
            return {"active_hold_id": holds.active.command.id}
        run.pipeline.spoil()
        point = self.at or STEP
        active = Active(command, self.place(point))
        # Told before anybody can see it, and let it go: the control log has it first.
        run.queue.log_line(line_of(command.record, "held", active.place))
        holds.active = active
        run.turns.refresh()
        run.queue.note_hold(active.record())
        run.write_down()
        run.log.say(_standing(active, run.directory))
        try:
            self._stand(command, point)
        except BaseException as error:
            command.released_by = self._name_of(error)
            raise
        finally:
            holds.active = None
            by = command.released_by or "midrun"
            run.queue.log_line({**line_of(command.record, "released", active.place), "source": by})
            run.log.say(f"released by {by} after {active.held_s:,.0f} s")
            run.turns.refresh()
            run.write_down()
        return {"held_s": active.held_s, "released_by": command.released_by, "joined_ids": active.joined_ids}

    def hold_exception(self, error: BaseException, record: ExceptionRecord) -> None:
        """Stand still with an exception of a backward pass that ends the loop, until it is let go."""
        run, holds = self._run, self._run.holds
        if holds.stopped or self._loop.told_to_end_by is not None:
            return  # Somebody wants the run to end.
        caught = Caught(record, self.place(None))
        # The other ranks wait in what this one does not do any more, and so they would in Lightning's handler.
        self._loop.sigterm.leave()
        try:
            holds.exception = caught
            run.void_cached()
            run.write_down()
            run.log.alert(_standing_with(caught, run.directory), f"exception {record['time']}")
            run.log.note(record["traceback"].rstrip())
            with self._loop.flight.after(error):
                self._stand(caught, None)
        except BaseException as told:  # noqa: BLE001 - a Ctrl-C, say: what comes of it is the exception that is held
            caught.released_by = self._name_of(told)
        finally:
            holds.exception = None
            run.log.say(f"the exception is released by {caught.released_by} after {caught.held_s:,.0f} s")
            run.turns.refresh()
            run.write_down()

    def _stand(self, hold: Command | Caught, point: str | None) -> None:
        """Do what comes, in the order in which it comes, until the hold is over."""
        while True:
            for command in list(self._waiting):
                if self._runs_while_held(command, point):
                    if not self._run_one(command, point):
                        break
                    if hold.release_arrived:
                        return  # It was a stop.
            if (teller := self._loop.told_to_end_by or self._left_by()) is not None:
                hold.released_by = teller
                return
            with suppress(Empty):
                self._keep(self._inbox.get(timeout=_LOOK))
            if hold.release_arrived:
                return

    def _name_of(self, error: BaseException) -> str:
        """Return what has ended a hold that raised: for SIGTERM Lightning's handler may raise what it meets with."""
        return self._loop.told_to_end_by or type(error).__name__

    def _left_by(self) -> str | None:
        """Return who does not stand any more, and why; None where all ranks do."""
        return None if self._chair is None else self._chair.keep_watch()

    def runs_now(self, command: Command) -> bool:
        """Whether a command runs while the run is held as it is. Any thread may ask."""
        standing = self._run.holds.standing
        return standing is not None and self._runs_while_held(command, standing.place["safe_point"])

    def _runs_while_held(self, command: Command, point: str | None) -> bool:
        if is_hold(command.kind.name):
            if point is None:
                return False  # There is no hold to join, and there will be nothing to hold.
        elif not (command.kind.while_held or (point is None and command.kind.in_exception_hold)):
            return False
        return not command.is_scheduled or command.is_due(point, self._loop.step, self._loop.epoch)

    # ---- doing

    def _is_due(self, command: Command, point: str) -> bool:
        if command.is_due(point, self._loop.step, self._loop.epoch):
            return True
        return not command.is_scheduled and STEP in command.points and self._stands_for(point, STEP)

    def _stands_for(self, point: str, wanted: str) -> bool:
        """Whether a safe point is the wanted one, or the next best.

        Where the model steps its optimizers past Lightning, nothing announces a step.
        """
        return point == wanted or (
            wanted == STEP
            and point in {"train_batch_end", "train_epoch_end"}
            and self._unannounced > _MANY
            and not self._loop.announces_steps
        )

    def _run_one(self, command: Command, point: str | None) -> bool:
        """Do a command, if it is still there to be done; return False where the disk is too slow to know of it yet.

        Then those behind it wait as well: they are done in their order, and training does not wait for each.
        """
        if command.written is None and not command.claim():
            self._drop(command)
            return True
        if not self._run.queue.write_executing(command):
            return False
        self._drop(command)
        outer, self.at = self.at, point
        try:
            result = self._do(command)
        except BaseException as error:
            self._failed(command, error)
            if not isinstance(error, Exception):
                raise
        else:
            if isinstance(result, Generator):
                self._tasks.begin(Task(result, partial(self._succeeded, command), partial(self._failed, command)))
            else:
                self._succeeded(command, result)
        finally:
            self.at = outer
            self._run.turns.refresh()
        return True

    def _do(self, command: Command) -> dict[str, Any] | Steps:
        """Do a command: on all ranks, where they stand together and it is for them."""
        if self._chair is not None and isinstance(command.kind, Shared):
            if self._chair.is_open:
                return self._chair.do(command)
            if command.kind.name != "stop":  # Which ends this rank's exception hold, and the others with it.
                raise Conflict("an exception holds rank zero alone, and this must be done by every rank")
        if isinstance(command.kind, Shared):
            command.kind.prepare_here(self._run, command.args)
        return command.kind.do(self._run, command.args, command)

    def _succeeded(self, command: Command, result: dict[str, Any]) -> None:
        if command.kind.lasts:
            self._run.resume.control[command.kind.name] = command.record["args"]
        self._run.queue.finish(command, "succeeded", result=result, place=self.place(self.at))

    def _failed(self, command: Command, error: BaseException) -> None:
        """Have a command failed; whatever a command does, training goes on."""
        left = None
        if isinstance(error, Exception):
            told = self._error_of(command, error)
        else:
            told = ErrorRecord(type=type(error).__name__, message="the process was told to end")
            left = None if command.released_by is None else {"released_by": command.released_by}
        self._run.queue.finish(command, "failed", result=left, error=told, place=self.place(self.at))

    def _error_of(self, command: Command, error: Exception) -> ErrorRecord:
        """Return why a command failed; what is not the sender's mistake goes to the log whole."""
        if not isinstance(error, Fault):
            _detach_context(error, self._loop.flight.error)
            text = f"the command {command.id} ({command.kind.name}) failed:\n{trace(error)}"
            self._run.log.alert(text, command.id)
        return ErrorRecord(type=type(error).__name__, message=message(error))

    # ---- what waits

    def _drain(self) -> None:
        # Before it is emptied: what comes meanwhile sets it again.
        self.is_awaited = False
        with suppress(Empty):
            while True:
                self._keep(self._inbox.get_nowait())
        if self._waiting or self._tasks or self._errands or self._loop.broken is not None:
            self.is_awaited = True

    def _keep(self, told: Command | Released | Cancelled | Errand) -> None:
        match told:
            case Released():
                told.hold.release_arrived = True
            case Cancelled():
                self._drop(told.command)
            case Errand():
                self._errands.append(told)
            case _:
                self._waiting.append(told)
                self._add(told)

    def _drop(self, command: Command) -> None:
        if command in self._waiting:
            self._waiting.remove(command)
            self._is_stale = True

    def _sum_up(self) -> None:
        """Note for each safe point from where on something may be due: scheduled commands may wait for days."""
        self._soonest, self._is_stale = {}, False
        for command in self._waiting:
            self._add(command)

    def _add(self, command: Command) -> None:
        step = float("inf") if command.from_step is None else command.from_step
        epoch = float("inf") if command.from_epoch is None else command.from_epoch
        if command.from_step is None and command.from_epoch is None:
            epoch = 0
        for point in command.points or Kind.points:
            known = self._soonest.get(point, _NEVER)
            self._soonest[point] = (min(known[0], step), min(known[1], epoch))
        if not command.is_scheduled and STEP in command.points:
            self._soonest["train_batch_end"] = self._soonest["train_epoch_end"] = (0, 0)


def _detach_context(error: BaseException, held: BaseException | None) -> None:
    """Part an exception from the one that is held: it does not come from that, it only comes while that is handled."""
    while error.__context__ is not None and error.__context__ is not held:
        error = error.__context__
    error.__context__ = None


def _standing(active: Active, directory: Path) -> str:
    """Return what somebody who sees a run stand still wants to know."""
    record, place = active.command.record, active.place
    reason = record["args"].get("reason")
    why = "" if reason is None else f" ({reason})"
    where = f"{place['safe_point']}, step {place['global_step']}"
    return f"held by {record['source']} at {where}{why}; to let it go on: midrun continue {directory}"


def _standing_with(caught: Caught, directory: Path) -> str:
    """Return the same of a run that stands still with an exception."""
    record = caught.record
    return (
        f"backward() raised {record['type']}: {record['message']}\nThe run is held at step {record['global_step']}, so"
        f" that it can be inspected. To let it end: midrun send {directory} release_exception"
    )
