"""The queue: the commands of a run, from whoever sends them to the safe point, and their records.

Every command comes through `_accept`, whichever way it came, in the thread that owns the spool: so there is one order,
and who is told of a command's id can rely on it. The training thread gets commands from `inbox`, and waits for the disk
only where it is about to do one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from midrun.command import IN_REQUEST, Command, CommandRecord, ErrorRecord, Place, Status, is_record, undone
from midrun.commands import ANY, KINDS, command_of
from midrun.fs.faults import Conflict, Fault, Invalid, Unavailable, message
from midrun.fs.later import Later
from midrun.fs.spool import Drop, Owned, Spool
from midrun.fs.write import LEGAL_ID, LEGAL_ID_WORDS, Writer
from midrun.hold import Gone, HoldRecord, LetGo, is_hold, of_command
from midrun.ledger import Entry, Ledger, entry_of
from midrun.table import Table
from midrun.worker import Worker

if TYPE_CHECKING:
    from midrun.commands.kind import Arguments, Kind
    from midrun.run import Run

LONGEST = 1000
"""Commands that may be queued at one time."""
_POLL = 0.25
"""Seconds between two looks for new files."""
_RETRY = 2.0
"""Seconds between two attempts to own the spool."""
_CLAIM_PATIENCE = 1.0
"""Seconds that training waits for the disk to take down that a command is being done, before it goes on without."""
_STAYING = 50
"""Files that are looked at in one look although there is no place for them: one behind them may need none."""
_CLOSED = "the stage has ended, and takes no more commands"


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
        self._spool = Spool(directory / "spool")
        self._owns = False
        self._worker = Worker("midrun-spool", run.note_fault, self._look, _POLL)
        self.table = Table()
        self._closed = self._ended = False
        self._is_blind = False
        """New files could not be looked for the last time."""
        self._is_begun = False
        """What was there when the stage began has been looked at."""
        self._asked_at = 0.0
        self.ledger = Ledger(directory / "control-log.jsonl", run.session["started"])
        self.begun = threading.Event()
        """Files that are put in from now on are this stage's."""
        self.inbox: SimpleQueue[Command | LetGo | Gone] = SimpleQueue()
        """What the training thread is told: commands, that a hold is over, and that a command is cancelled."""

    # ---- any thread

    def submit(self, command: Command) -> Later:
        """Take in a command; what comes later is its record, once the disk has it, or the fault that keeps it out."""
        return self._later(partial(self._accept, command))

    def tell_training(self, what: Command | LetGo | Gone) -> None:
        """Tell the training thread something, at its next safe point or in the hold in which it stands."""
        self.inbox.put(what)
        self._run.points.is_awaited = True

    def check(self, kind: Kind, args: Arguments, within: tuple[str, ...] = IN_REQUEST) -> Later:
        """Only ask whether a command would be taken in now: what comes later is None, or the fault."""
        return self._later(partial(self._admit, kind, args, within))

    def _later(self, do: Callable[[], object]) -> Later:
        later = Later()
        self._worker.put(partial(self._do_later, do, later))
        if self._ended:
            later.fail(Conflict(_CLOSED))
        return later

    # ---- the run's life

    def start(self) -> None:
        """Begin to take commands."""
        self._worker.start()
        self._worker.put(self._begin)

    def stop(self, patience: float) -> None:
        """Take no more, expire what waits, and end. The training thread, which does no more, calls it."""
        self._closed = True
        self._worker.put(self._end)
        self._worker.stop(patience)

    # ---- the training thread

    def claim(self, command: Command) -> bool:
        """Have it written down that a command is being done; return False if the disk does not take that in time.

        Only then may it be done: after a crash nobody may think that it was not. Asked again, it waits no more.
        """
        if command.claim is None:
            command.claim = SimpleQueue()
            command.change(status="executing", started=time.time())
            self._worker.put(partial(self._claimed, command, command.claim))
            patience = _CLAIM_PATIENCE
        else:
            patience = 0.0
        try:
            command.claim.get(timeout=patience)
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
        self._run.changed()

    def look(self, patience: float) -> None:
        """Take in what was put into `new/` up to now, so that the next safe point has it."""
        done: SimpleQueue[None] = SimpleQueue()
        self._worker.put(self._look)
        self._worker.put(partial(done.put, None))
        with suppress(Empty):
            done.get(timeout=patience)

    def cancel(self, commands: Iterable[Command], by: str) -> list[str]:
        """Cancel commands that wait, and return the ids of those that still did."""
        taken = [command for command in commands if command.take()]
        for command in taken:
            self.finish(command, "cancelled", error=ErrorRecord(type="cancelled", message=f"cancelled by {by}"))
            self.tell_training(Gone(command))
        return [command.id for command in taken]

    def tell(self, entry: Entry) -> None:
        """Put a line into the ledger."""
        self._worker.put(partial(self._tell, entry))

    def note_hold(self, hold: HoldRecord) -> None:
        """Write down how a hold stands."""
        self._worker.put(partial(self._note_hold, hold))

    # ---- the spool's thread

    def _begin(self) -> None:
        """Read what earlier sessions have left, and take the spool."""
        try:
            self._attempt("the ledger", self.ledger.open)
            self._own()
        finally:
            self.begun.set()

    def _own(self) -> None:
        self._asked_at = time.monotonic()
        service = self._run.services["spool"]
        try:
            self._spool.open()
            self._owns = True
            self._recover()
        except OSError as error:
            self._disown()
            self._is_begun = True
            is_taken = isinstance(error, Owned)
            why = f"takes no files: {error.strerror}; end the other run" if is_taken else f"can't be used: {error}"
            service.fail(f"{self._spool.directory} {why}")
        except BaseException:
            self._disown()
            raise
        else:
            service.run()

    def _disown(self) -> None:
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
                if left["id"] in self.table:
                    continue  # It is this run's: its lock was deleted, and is made anew.
                end = over[left["id"]] = outcome(left)
                taken.add(left["id"])
                self._spool.put("done", end)
                if is_hold(end["kind"]):
                    self._note_hold(of_command(end))
        self.table.remember(over.values())
        began, self._is_begun = self._run.session["started"], True
        for drop in self._spool.drops():
            # Where the spool is had only later, what came meanwhile is this stage's.
            is_late = is_first or drop.came < began
            self._take_drop(drop, late=taken if is_late else None)

    def _left(self, state: str) -> list[CommandRecord]:
        """Return the records that a state's directory holds; those that others have put there are left alone."""
        return [cast("CommandRecord", record) for record in self._spool.left(state) if is_record(record)]

    def _interrupted(self, left: CommandRecord) -> CommandRecord:
        """Return the end of a command that the process's end found being done: the ledger may know of it."""
        line = self.ledger.last(left["id"])
        if line is not None:
            status: Status = "succeeded" if line["event"] == "done" else "failed"
            return {**left, "status": status, "error": line["error"], "place": line["place"], "finished": line["time"]}
        unknown = ErrorRecord(type="interrupted", message="outcome unknown: the process ended while it was being done")
        end: CommandRecord = {**left, "status": "failed", "error": unknown, "finished": time.time()}
        self._tell(entry_of(end, "failed", end["place"]))
        return end

    def _look(self) -> None:
        """Take in what was put into `new/`, as long as nobody waits for this thread."""
        if self._closed:
            return
        if self._owns and not self._spool.is_ours:
            self._disown()
        if not self._owns:
            if time.monotonic() - self._asked_at > _RETRY:
                self._own()
            return
        try:
            self._take_drops()
        except OSError as error:
            self._is_blind = True
            self._run.services["spool"].fail(f"{self._spool.directory}/new can't be read: {error}")
        else:
            if self._is_blind:
                self._is_blind = False
                self._run.services["spool"].run()

    def _take_drops(self) -> None:
        stay = 0
        for drop in self._spool.drops():
            try:
                self._take_drop(drop)
            except _Stays:
                self._spool.leave(drop)
                stay += 1
            if self._worker.is_awaited:
                self._worker.put(self._look)
                return
            if stay >= _STAYING:
                return

    def _take_drop(self, drop: Drop, *, late: Container[str] | None = None) -> None:
        """Take in a file, or reject it. One that may still be being written is left alone.

        Parameters
        ----------
        late
            For a file that was there before the stage: the ids whose files may have been taken in already.
        """
        if drop.is_unfinished or (not drop.name.endswith(".json") and not drop.settled):
            return
        try:
            command, session = self._read_drop(drop)
            known = None if late is None else self.table.record(drop.id)
            # It was taken in before: what is put in again comes after its command.
            if known and command.is_same(known) and (drop.id in (late or ()) or drop.came <= known["submitted"]):
                self._spool.take(drop)
            elif late is not None and session != "next":
                self._expire_drop(command, drop)
            else:
                self._accept(command, drop)
        except Fault as fault:
            if not drop.settled and isinstance(fault, Invalid) and not drop.is_json:
                return
            reason = {"detail": fault.detail, "status": fault.status, "time": time.time()}
            if self._write(partial(self._spool.reject, drop, reason)):
                self._run.control_errors.add(f"spool/new/{drop.name}", drop.data, Writer("spool"), fault)
                self._run.log.note(f"spool: {drop.name!a:.200} is rejected: {fault.message:.1000}")

    def _expire_drop(self, command: Command, drop: Drop) -> None:
        """Expire a file that was there before the stage: what was meant for one run must not hit the next."""
        self._refuse_used(command)
        late = ErrorRecord(
            type="expired",
            message='it was there before the run took its spool; "session": "next" lets it wait for the next stage',
        )
        command.change(status="expired", error=late, finished=time.time())
        self._spool.put("done", command.record)
        self.table.close(command.record)
        if is_hold(command.kind.name):
            self._note_hold(of_command(command.record))
        self._spool.take(drop)

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

    def _do_later(self, do: Callable[[], object], later: Later) -> None:
        try:
            later.resolve(do())
        except Fault as fault:
            later.fail(fault)
        except Exception as error:  # noqa: BLE001 - who waits must be told
            later.fail(Fault(f"it could not be taken in: {type(error).__name__}: {message(error)}"))

    def _accept(self, command: Command, drop: Drop | None = None) -> dict[str, Any]:
        """Take in a command, and return what its sender is told. Raises `Fault`, and `_Stays` for a file that stays."""
        known = self.table.record(command.id)
        if drop is None and known is not None and command.is_same(known):
            return {**known, **(known["result"] or {})} if command.kind.at_once else dict(known)
        if self._closed:
            raise Conflict(_CLOSED)
        self._refuse_used(command)
        self._admit(command.kind, command.args, command.within)
        if command.kind.at_once:
            return self._do_at_once(command, drop)
        if len(self.table.unfinished) >= LONGEST and not command.kind.always:
            if drop is not None:
                raise _Stays
            raise Unavailable(f"{LONGEST} commands wait already: cancel some, or send this one later")
        if not self._put("queued", command) and drop is not None:
            raise _Stays
        self.table.add(command)
        if drop is not None:
            self._spool.take(drop)
        self.tell_training(command)
        self._run.changed()
        return dict(command.record)

    def _admit(self, kind: Kind, args: Arguments, within: tuple[str, ...]) -> None:
        """Raise the `Fault` with which a kind refuses arguments now."""
        try:
            kind.admit(self._run, args)
        except Invalid as invalid:
            raise invalid.below(*within) from None
        except Fault:
            raise
        except Exception as error:
            raise Fault(f"{kind.name} failed: {type(error).__name__}: {message(error)}") from error

    def _do_at_once(self, command: Command, drop: Drop | None) -> dict[str, Any]:
        place, now = self._run.points.place(None), time.time()
        result = command.kind.do(self._run, command.args, command)
        command.change(status="succeeded", result=result, place=place, started=now, finished=time.time())
        self.table.add(command)
        self._finished(command)
        if drop is not None:
            self._spool.take(drop)
        self._run.changed()
        return {**command.record, **result}

    def _refuse_used(self, command: Command) -> None:
        if command.id in self.table or command.id in self._spool.used:
            raise Conflict(f"the id {command.id!r} is used: each command has one of its own")

    def _claimed(self, command: Command, claim: SimpleQueue[bool]) -> None:
        self._put("executing", command)
        claim.put(True)

    def _finished(self, command: Command) -> None:
        record = command.record
        if record["status"] in {"succeeded", "failed"} and not is_hold(command.kind.name):
            self._tell(entry_of(record, "done" if record["status"] == "succeeded" else "failed", record["place"]))
        self._put("done", command)
        self.table.close(command.record)

    def _end(self) -> None:
        """Expire what waits. What the disk has not taken down in time to be done is not done either."""
        place = self._run.points.place(None)
        where = f"at step {place['global_step']}, epoch {place['epoch']}"
        ended = ErrorRecord(type="expired", message=f"the stage has ended {where}, before it was due")
        for command in self.table.unfinished:
            if command.take() or command.status == "executing":
                command.change(status="expired", finished=time.time(), error=ended)
                self._finished(command)
        self._ended = True
        if self._owns:
            self._disown()

    def _put(self, state: str, command: Command) -> bool:
        """Write a command's record; return whether it is on the disk."""
        durable = self._write(lambda: self._spool.put(state, {**command.record, "durable": True}))
        if durable != command.record["durable"]:
            command.change(durable=durable)
        if state != "executing" and is_hold(command.record["kind"]):
            self._note_hold(of_command(command.record))
        return durable

    def _note_hold(self, hold: HoldRecord) -> None:
        self._write(partial(self._spool.note, "holds", hold["id"], hold))

    def _write(self, write: Callable[[], object]) -> bool:
        """Write something; return whether that worked. What can't be written is told, and the run goes on."""
        if not self._owns:
            return False
        service = self._run.services["spool"]
        try:
            write()
        except OSError as error:
            if service.state != "failed":
                service.fail(f"the spool can't be written: {error}; what comes by a face is done all the same")
            return False
        service.run()
        return True

    def _tell(self, entry: Entry) -> None:
        self._attempt("control-log.jsonl", partial(self.ledger.add, entry))
        self._run.changed()

    def _attempt(self, what: str, do: Callable[[], object]) -> None:
        try:
            do()
        except OSError as error:
            self._run.log.alert(f"{what} can't be used: {error}", what)


class _Stays(OSError):  # noqa: N818 - it says what becomes of the file
    """A file stays in `new/`, since the disk does not take its record."""
