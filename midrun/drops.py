"""Drops: the files that are dropped into the spool of a run, and all else that is in it.

The thread that owns the spool does all of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from midrun.command import Command, CommandRecord, ErrorRecord, Status, is_record, undone
from midrun.commands import ANY, KINDS, command_of
from midrun.control_log import line_of
from midrun.fs.faults import Fault, Invalid
from midrun.fs.lock import Owned
from midrun.fs.spool import Drop, Spool
from midrun.fs.write import LEGAL_ID, LEGAL_ID_WORDS, Writer
from midrun.hold import HoldRecord, hold_of, is_hold
from midrun.worker import Worker

if TYPE_CHECKING:
    from midrun.queue import Queue
    from midrun.run import Run

_RETRY = 2.0
"""Seconds between two attempts to own the spool."""
_HOLDS = "holds"
"""The directory of the spool that has a file of each hold."""
_ADVICE = "give this run a directory of its own, with another version of its logger, or end the other"
_STAYING = 50
"""Files that are looked at in one look although there is no place for them: one behind them may need none."""


class Stays(OSError):  # noqa: N818 - it says what becomes of the file
    """A file stays in `new/`, since the disk does not take its record."""


class Drops:
    """The spool of one run.

    Parameters
    ----------
    run
        The run.
    queue
        Where commands are taken in.
    directory
        The spool.
    worker
        The thread that does all of this.
    """

    def __init__(self, run: Run, queue: Queue, directory: Path, worker: Worker) -> None:
        self._run, self._queue, self._worker = run, queue, worker
        self._spool = Spool(directory, notes=(_HOLDS,))
        self._owns = False
        self.is_taken = False
        """Another run lives in the directory, and has taken the spool."""
        self._is_blind = False
        """New files could not be looked for the last time."""
        self._is_begun = False
        """What was there when the session began has been looked at."""
        self._asked_at = 0.0

    @property
    def used(self) -> Container[str]:
        """The ids that are used and no longer kept."""
        return self._spool.used

    # ---- the run's life

    def own(self) -> None:
        """Take the spool, and what earlier sessions have left in it; where that can't be done, `look` tries again."""
        self._asked_at = time.monotonic()
        service = self._run.services["spool"]
        try:
            self._spool.open()
            self._owns, self.is_taken = True, False
            self._recover()
        except OSError as error:
            self.disown()
            self._is_begun = True
            self.is_taken = isinstance(error, Owned)
            why = f"can't be used: {error}"
            if self.is_taken:
                why = f"and the records beside it are another run's: {error.strerror}; {_ADVICE}"
            service.fail(f"{self._spool.directory} {why}")
        except BaseException:
            self.disown()
            raise
        else:
            service.run()

    def disown(self) -> None:
        """Leave the spool to others."""
        self._owns = False
        self._spool.close()

    def _recover(self) -> None:
        """Say what became of commands that an earlier session left, and which of the files in `new/` come too late."""
        is_first = not self._is_begun
        over = {record["id"]: record for record in self._left("done")}
        # The process may have ended after it had taken in a file and before the file was gone.
        taken = {id_ for id_, record in over.items() if getattr(KINDS.get(record["kind"]), "at_once", False)}
        for state, outcome in (("executing", self._interrupted), ("queued", undone)):
            for left in self._left(state):
                if left["id"] in self._queue.table:
                    continue  # It is this run's: its lock was deleted, and is made anew.
                end = over[left["id"]] = outcome(left)
                taken.add(left["id"])
                self._spool.put("done", end)
                if is_hold(end["kind"]):
                    self.note_hold(hold_of(end))
        self._queue.table.remember(over.values())
        began, self._is_begun = self._run.session["started"], True
        for drop in self._spool.drops():
            # Where the spool is had only later, what came meanwhile is this session's.
            is_late = is_first or drop.came < began
            self._take_drop(drop, late=taken if is_late else None)

    def _left(self, state: str) -> list[CommandRecord]:
        """Return the records that a state's directory holds; those that others have put there are left alone."""
        return [cast("CommandRecord", record) for record in self._spool.left(state) if is_record(record)]

    def _interrupted(self, left: CommandRecord) -> CommandRecord:
        """Return the end of a command that the process's end found being done: the control log may know of it."""
        line = self._queue.control_log.last(left["id"])
        if line is not None:
            status: Status = "succeeded" if line["event"] == "done" else "failed"
            return {**left, "status": status, "error": line["error"], "place": line["place"], "finished": line["time"]}
        unknown = ErrorRecord(type="interrupted", message="outcome unknown: the process ended while it was being done")
        end: CommandRecord = {**left, "status": "failed", "error": unknown, "finished": time.time()}
        self._queue.add_line(line_of(end, "failed", end["place"]))
        return end

    def look(self) -> bool:
        """Take in what was put into `new/`, as long as nobody waits for this thread; return whether some is left."""
        if self._owns and not self._spool.is_ours:
            self.disown()
        if not self._owns:
            if time.monotonic() - self._asked_at > _RETRY:
                self.own()
            return False
        is_left = False
        try:
            is_left = self._take_drops()
        except OSError as error:
            self._is_blind = True
            self._run.services["spool"].fail(f"{self._spool.directory}/new can't be read: {error}")
        else:
            if self._is_blind:
                self._is_blind = False
                self._run.services["spool"].run()
        return is_left

    def _take_drops(self) -> bool:
        stay = 0
        for drop in self._spool.drops():
            try:
                self._take_drop(drop)
            except Stays:
                self._spool.leave(drop)
                stay += 1
            if self._worker.is_awaited:
                return True
            if stay >= _STAYING:
                break
        return False

    def _take_drop(self, drop: Drop, *, late: Container[str] | None = None) -> None:
        """Take in a file, or reject it. One that may still be being written is left alone.

        Parameters
        ----------
        late
            For a file that was there before the session: the ids whose files may have been taken in already.
        """
        if drop.is_unfinished or (not drop.name.endswith(".json") and not drop.settled):
            return
        try:
            command, session = self._read_drop(drop)
            known = None if late is None else self._queue.table.record(drop.id)
            # It was taken in before: what is put in again comes after its command.
            if known and command.is_same(known) and (drop.id in (late or ()) or drop.came <= known["submitted"]):
                pass
            elif late is not None and session != "next":
                self._expire(command)
            else:
                self._queue.accept(command, is_dropped=True)
            self._spool.take(drop)
        except Fault as fault:
            if not drop.settled and isinstance(fault, Invalid) and not drop.is_json:
                return
            reason = {"detail": fault.detail, "status": fault.status, "time": time.time()}
            if self._write(partial(self._spool.reject, drop, reason)):
                self._run.control_errors.add(f"spool/new/{drop.name}", drop.data, Writer("spool"), fault)
                self._run.log.note(f"spool: {drop.name!a:.200} is rejected: {fault.message:.1000}")

    def _expire(self, command: Command) -> None:
        """Expire a file that was there before the session: what was meant for one run must not hit the next."""
        self._queue.refuse_used(command)
        late = ErrorRecord(
            type="expired",
            message='it was there before the run took its spool; "session": "next" lets it wait for the next session',
        )
        command.change(status="expired", error=late, finished=time.time())
        self._spool.put("done", command.record)
        self._queue.table.close(command.record)
        if is_hold(command.kind.name):
            self.note_hold(hold_of(command.record))

    def _read_drop(self, drop: Drop) -> tuple[Command, str | None]:
        """Return the command in a file, and the session it is for. Raises `Fault`."""
        if drop.problem is not None:
            raise Invalid(drop.problem)
        if not drop.name.endswith(".json"):
            raise Invalid(f"{drop.name!a:.200} is no command: a command's file is named <id>.json")
        if not LEGAL_ID.fullmatch(drop.id):
            raise Invalid(f"{drop.id!a:.200} is no id: {LEGAL_ID_WORDS}")
        request: Any = ANY.parse(drop.data)
        asked = request.root
        if asked.id is not None and asked.id != drop.id:
            raise Invalid(f"the id is {asked.id!r} in the file and {drop.id!r} by its name: leave it out, or rename it")
        return command_of(request, id_=drop.id, via="spool"), asked.session

    # ---- what becomes of commands

    def put(self, state: str, command: Command) -> bool:
        """Write a command's record; return whether it is on the disk."""
        durable = self._write(lambda: self._spool.put(state, {**command.record, "durable": True}))
        if durable != command.record["durable"]:
            command.change(durable=durable)
        if state != "executing" and is_hold(command.record["kind"]):
            self.note_hold(hold_of(command.record))
        return durable

    def note_hold(self, hold: HoldRecord) -> None:
        """Write down how a hold stands."""
        self._write(partial(self._spool.note, _HOLDS, hold["id"], hold))

    def _write(self, write: Callable[[], object]) -> bool:
        """Write something; return whether that worked. What can't be written is told, and the run goes on."""
        if not self._owns:
            return False
        service = self._run.services["spool"]
        try:
            write()
        except OSError as error:
            if service.state != "failed":
                done = "commands that come by REST or the mount are done all the same"
                service.fail(f"the spool can't be written: {error}; {done}")
            return False
        service.run()
        return True
