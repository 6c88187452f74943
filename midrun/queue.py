"""The queue: the commands of a run, from whoever sends them to the safe point, and their records.

Every command comes through `accept`, whichever way it came, in the thread that owns the spool: so there is one order,
and whoever is told of a command's id can rely on it. The training thread gets commands from `inbox`, and waits for the
disk only where it is about to do one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any, cast

from midrun.command import IN_REQUEST, Command, ErrorRecord, Place, Status
from midrun.commands.standstill import Hold, Reason
from midrun.control_log import CONTROL_LOG, ControlLog, Line, line_of
from midrun.drops import Drops, Stays
from midrun.fs.faults import Conflict, Fault, Invalid, Refused, Unavailable
from midrun.fs.later import Later
from midrun.fs.tracebacks import last_line
from midrun.hold import Cancelled, HoldRecord, Released, is_hold
from midrun.mailbox import Mailbox
from midrun.table import Table
from midrun.tasks import Errand
from midrun.worker import Worker

if TYPE_CHECKING:
    from midrun.commands.kind import Arguments, Kind
    from midrun.run import Run

LONGEST = 1000
"""Commands that may be queued at one time."""
_POLL = 0.25
"""Seconds between two looks for new files."""
_WRITE_PATIENCE = 1.0
"""Seconds that training waits for the disk to take down that a command is being done, before it goes on without."""
_CLOSED = "the session has ended, and takes no more commands"


class Queue:
    """The commands of one run.

    Parameters
    ----------
    run
        The run.
    directory
        The run directory.
    """

    def __init__(self, run: Run, directory: Path) -> None:
        self._run = run
        self._worker = Worker("midrun-spool", run.log_crash, self._look, _POLL)
        self._drops = Drops(run, self, directory / "spool", self._worker)
        self.table = Table()
        self._closed = self._ended = False
        self.control_log = ControlLog(directory / CONTROL_LOG, run.session["started"])
        self.begun = threading.Event()
        """Files that are put in from now on are this session's."""
        self.inbox: Mailbox[Command | Released | Cancelled | Errand] = Mailbox()
        """What the training thread is told: commands, that a hold is over, that one is cancelled, what to make."""

    # ---- any thread

    @property
    def is_taken(self) -> bool:
        """Whether the spool is taken by another run, which lives in the directory."""
        return self._drops.is_taken

    def submit(self, command: Command) -> Later:
        """Take in a command; what comes later is its record, once the disk has it, or the fault that keeps it out."""
        return self._later(partial(self.accept, command))

    def tell_training(self, what: Command | Released | Cancelled | Errand) -> None:
        """Tell the training thread something, at its next safe point or in the hold in which it stands."""
        self.inbox.put(what)
        self._run.points.is_awaited = True

    def hold(self, reason: str, points: frozenset[str], source: str) -> Later:
        """Submit a hold of midrun's own, which may begin at any of these safe points."""
        command = Command(Hold(), Reason(reason=reason), source=source)
        command.points = points
        return self.submit(command)

    def check(self, kind: Kind, args: Arguments, within: tuple[str, ...] = IN_REQUEST) -> Later:
        """Only ask whether a command would be taken in now: what comes later is None, or the fault."""
        return self._later(partial(self._admit, kind, args, within))

    def _later(self, do: Callable[[], object]) -> Later:
        later = Later()
        self._worker.put(partial(self._do_later, do, later))
        if self._ended:
            later.set_exception(Conflict(_CLOSED))
        return later

    # ---- the run's life

    def start(self) -> None:
        """Begin to take commands."""
        self._worker.start()
        self._worker.put(self._begin)

    def stop(self, patience: float) -> None:
        """Take no more, expire what waits, and end in `patience` seconds. The training thread calls it at its end."""
        self._closed = True
        self._worker.put(self._end)
        self._worker.stop(patience)

    # ---- the training thread

    def write_executing(self, command: Command) -> bool:
        """Have it written down that a command is being done; return False if the disk does not take that in time.

        Only then may it be done: after a crash nobody may think that it was not. Asked again, it waits no more.
        """
        if command.written is None:
            command.written = Mailbox()
            command.change(status="executing", started=time.time())
            self._worker.put(partial(self._write_executing, command, command.written))
            patience = _WRITE_PATIENCE
        else:
            patience = 0.0
        try:
            command.written.get(timeout=patience)
        except Empty:
            return False
        return True

    def finish(
        self,
        command: Command,
        status: Status,
        *,
        result: dict[str, Any] | None = None,
        error: ErrorRecord | None = None,
        place: Place | None = None,
    ) -> None:
        """Say what came of a command that was taken."""
        command.change(status=status, finished=time.time(), result=result, error=error, place=place)
        self._worker.put(partial(self._finished, command))
        self._run.void_cached()

    def look(self, patience: float) -> None:
        """Have what is in `new/` taken in, so that the next safe point has it; wait `patience` seconds at most."""
        done: Mailbox[None] = Mailbox()
        self._worker.put(self._look)
        self._worker.put(partial(done.put, None))
        with suppress(Empty):
            done.get(timeout=patience)

    def cancel(self, commands: Iterable[Command], by: str) -> list[str]:
        """Cancel commands that wait, and return the ids of those that still did."""
        taken = [command for command in commands if command.claim()]
        for command in taken:
            self.finish(command, "cancelled", error=ErrorRecord(type="cancelled", message=f"cancelled by {by}"))
            self.tell_training(Cancelled(command))
        return [command.id for command in taken]

    def log_line(self, line: Line) -> None:
        """Put a line into the control log."""
        self._worker.put(partial(self.add_line, line))

    def note_hold(self, hold: HoldRecord) -> None:
        """Write down how a hold stands."""
        self._worker.put(partial(self._drops.note_hold, hold))

    # ---- the spool's thread

    def _begin(self) -> None:
        """Read what earlier sessions have left, and take the spool."""
        try:
            self._attempt(self.control_log.open)
            self._drops.own()
        finally:
            self.begun.set()

    def _look(self) -> None:
        if not self._closed and self._drops.look():
            self._worker.put(self._look)

    def _do_later(self, do: Callable[[], object], later: Later) -> None:
        try:
            later.set_result(do())
        except Fault as fault:
            later.set_exception(fault)
        except Exception as error:  # noqa: BLE001 - whoever waits must be told
            why = "it was not taken in, by a mistake of midrun's own; please report it"
            later.set_exception(Fault(f"{why}: {last_line(error)}"))

    def accept(self, command: Command, *, is_dropped: bool = False) -> dict[str, Any]:
        """Take in a command, and return what its sender is told. Raises `Fault`, and `Stays` for a file that stays."""
        known = self.table.record(command.id)
        if not is_dropped and known is not None and command.is_same(known):
            return {**known, **(known["result"] or {})} if command.kind.at_once else dict(known)
        if self._closed:
            raise Conflict(_CLOSED)
        self.refuse_used(command)
        self._admit(command.kind, command.args, command.within)
        if command.kind.at_once:
            return self._do_at_once(command)
        if len(self.table.unfinished) >= LONGEST and not command.kind.ignores_limit:
            if is_dropped:
                raise Stays
            raise Unavailable(f"{LONGEST} commands wait already: cancel some, or send this one later")
        if not self._drops.put("queued", command) and is_dropped:
            raise Stays
        self.table.add(command)
        self.tell_training(command)
        self._run.void_cached()
        return dict(command.record)

    def _admit(self, kind: Kind, args: Arguments, within: tuple[str, ...]) -> None:
        """Raise the `Fault` with which a kind refuses arguments now."""
        if kind.on_every_rank and (why := self._run.roll.refusal) is not None:
            raise Refused(f"{kind.name} must be done by every rank, and not all can: {why}")
        try:
            kind.admit(self._run, args)
        except Invalid as invalid:
            raise invalid.below(*within) from None
        except Fault:
            raise
        except Exception as error:
            raise Fault(f"{kind.name} failed: {last_line(error)}") from error

    def _do_at_once(self, command: Command) -> dict[str, Any]:
        place, now = self._run.points.place(None), time.time()
        result = cast("dict[str, Any]", command.kind.do(self._run, command.args, command))
        command.change(status="succeeded", result=result, place=place, started=now, finished=time.time())
        self.table.add(command)
        self._finished(command)
        self._run.void_cached()
        return {**command.record, **result}

    def refuse_used(self, command: Command) -> None:
        """Raise `Conflict` where another command has the id, or had it."""
        if command.id in self.table or command.id in self._drops.used:
            raise Conflict(f"the id {command.id!r} is used already: send it with another id, or without one")

    def _write_executing(self, command: Command, written: Mailbox[bool]) -> None:
        self._drops.put("executing", command)
        written.put(True)

    def _finished(self, command: Command) -> None:
        record = command.record
        if record["status"] in {"succeeded", "failed"} and not is_hold(command.kind.name):
            self.add_line(line_of(record, "done" if record["status"] == "succeeded" else "failed", record["place"]))
        self._drops.put("done", command)
        self.table.close(command.record)

    def _end(self) -> None:
        """Expire what waits. What the disk has not taken down in time to be done is not done either."""
        place = self._run.points.place(None)
        where = f"at step {place['global_step']}, epoch {place['epoch']}"
        ended = ErrorRecord(type="expired", message=f"the session has ended {where}, before it was due")
        for command in self.table.unfinished:
            if command.claim() or command.status == "executing":
                command.change(status="expired", finished=time.time(), error=ended)
                self._finished(command)
        self._ended = True
        self._drops.disown()

    def add_line(self, line: Line) -> None:
        """Put a line into the control log now, in the spool's thread."""
        self._attempt(partial(self.control_log.add, line))
        self._run.void_cached()

    def _attempt(self, do: Callable[[], object]) -> None:
        try:
            do()
        except OSError as error:
            self._run.log.alert(f"{CONTROL_LOG} can't be used: {error}", once=CONTROL_LOG)
