"""`control/`, `commands/` and `holds/`: what steers the run, and how it stands.

The files of `control/` come from the kinds of commands, one each. A face needs to know no kind by its name: only REST's
short routes, such as `/checkpoints`, and buttons of the dashboard do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from midrun.command import Command, CommandRecord
from midrun.commands import ANY, KINDS, command_of
from midrun.commands.kind import Arguments, Kind
from midrun.ending import ExceptionRecord
from midrun.fs.faults import Fault, FieldError, Gone, Invalid
from midrun.fs.form import Form
from midrun.fs.guesses import meant
from midrun.fs.later import Later
from midrun.fs.spool import MOST_RECORDS
from midrun.fs.tree import Control, Dir, file
from midrun.fs.write import LEGAL_ID, LEGAL_ID_WORDS, Writer
from midrun.hold import HoldRecord, hold_of, is_hold
from midrun.table import unknown

if TYPE_CHECKING:
    from midrun.run import Run

_BODY = ("body",)
"""Where the arguments are in what is written to a file of one kind."""
_ERRORS = 100
"""Refused writes that are kept: the newest."""
_QUOTED = 1000
"""Characters of what was written that are shown of one."""


class ErrorEntry(TypedDict):
    """A write that was refused."""

    time: float
    """When that was. Seconds since 1970."""
    path: str
    via: str
    text: str
    """What was written, cut to 1,000 characters."""
    message: str
    errors: list[FieldError]


class ErrorList(TypedDict):
    """The writes that were refused."""

    errors: list[ErrorEntry]


class CommandList(TypedDict):
    """The commands."""

    commands: list[CommandRecord]


class HoldList(TypedDict):
    """How the run is held."""

    active: HoldRecord | None
    exception: ExceptionRecord | None
    """The exception that holds the run, as `/run` shows it."""
    pending: list[HoldRecord]
    """Holds that are not active yet."""
    waiting: list[CommandRecord]
    """While the run is held: the commands that do not run meanwhile, but after it; with an exception, never."""
    stopped: bool
    """A stop has run, and there is nothing more to hold."""


class ControlErrors:
    """The writes that were refused, the newest ones: a shell shows no more of a mistake than an errno."""

    def __init__(self) -> None:
        self._newest: deque[ErrorEntry] = deque(maxlen=_ERRORS)

    def add(self, path: str, data: bytes, writer: Writer, fault: Fault) -> None:
        """Note a write that was refused."""
        entry = ErrorEntry(
            time=time.time(),
            path=path,
            via=writer.via,
            text=data.decode(errors="backslashreplace")[:_QUOTED],
            message=fault.message,
            errors=fault.errors or [],
        )
        self._newest.append(entry)

    def newest(self) -> list[ErrorEntry]:
        """Return them, the newest first."""
        return list(self._newest)[::-1]


class _ControlDir(Dir):
    """What can be written to steer the run: one file for each kind of command, and `commands` for any of them.

    A command without a time is done at the next safe point. What a file shows is how to write to it.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def missing(self, name: str) -> str:
        """Say which command may have been meant."""
        return f"there is no command {name!r:.200}: {meant(name, KINDS)}"

    @file("errors.json", cached=False)
    def errors(self) -> ErrorList:
        """The newest writes that were refused, with the reasons."""
        return ErrorList(errors=self.run.control_errors.newest())


def _declared(kind: Kind) -> Control:
    """Return the control file of a kind."""

    def store(owner: _ControlDir, args: Arguments, writer: Writer) -> Later:
        return owner.run.queue.submit(_written(kind, args, writer))

    def admit(owner: _ControlDir, args: Arguments) -> Later:
        return owner.run.queue.check(kind, args, _BODY)

    return Control(Form(kind.name, kind.doc, kind.Arguments, kind.bare), store, admit, CommandRecord)


def _store_any(owner: _ControlDir, request: Any, writer: Writer) -> Later:  # noqa: ANN401 - a model of `commands`
    return owner.run.queue.submit(command_of(request, id_=_key(writer), via=writer.via))


def _admit_any(owner: _ControlDir, request: Any) -> Later:  # noqa: ANN401 - as above
    asked = request.root
    return owner.run.queue.check(KINDS[asked.kind], asked.args)


ControlDir: type[_ControlDir] = type(
    "ControlDir",
    (_ControlDir,),
    {
        "__doc__": _ControlDir.__doc__,
        "commands": Control(ANY, _store_any, _admit_any, CommandRecord),
        **{kind.name: _declared(kind) for kind in KINDS.values()},
    },
)
"""`control/`, with a file for each kind."""


class Commands(Dir):
    """The commands, each a directory: those that wait or run, and the last 1000 that are over."""

    placeholder = "<id>"

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("index.json", cached=False)
    def index(self) -> CommandList:
        """The commands that wait or run, and the newest 100 that are over, the oldest first."""
        return CommandList(commands=self._run.queue.table.newest)

    def members(self) -> Iterable[str]:
        """Return the ids."""
        return self._run.queue.table.ids

    def missing(self, name: str) -> str:
        """Say that there is no such command."""
        return unknown(name)

    def member(self, name: str) -> Dir | None:
        """Return the directory of one command."""
        return None if self._run.queue.table.record(name) is None else CommandDir(self._run, name)


class _OneCommand(Dir):
    """What can be done to one command."""

    def __init__(self, run: Run, id_: str) -> None:
        self.run, self.id = run, id_

    def _record(self) -> CommandRecord:
        record = self.run.queue.table.record(self.id)
        if record is None:
            raise Gone(f"the command {self.id!r} is over, and only the last {MOST_RECORDS} are kept")
        return record


def _about(kind: str) -> Control:
    """Return the control file that does a kind of command to one command."""
    kind_ = KINDS[kind]

    def target(owner: _OneCommand) -> Arguments:
        return kind_.Arguments.model_validate({"id": owner.id})

    def store(owner: _OneCommand, _: Arguments, writer: Writer) -> Later:
        return owner.run.queue.submit(_written(kind_, target(owner), writer))

    def admit(owner: _OneCommand, _: Arguments) -> Later:
        return owner.run.queue.check(kind_, target(owner), _BODY)

    return Control(Form(kind, kind_.doc, Arguments), store, admit, CommandRecord)


class CommandDir(_OneCommand):
    """One command."""

    @file("command.json", cached=False)
    def command(self) -> CommandRecord:
        """The command: what is asked, how it stands, and its result or error."""
        return self._record()

    @file("status", cached=False)
    def status(self) -> str:
        """`queued`, `executing`, `succeeded`, `failed`, `cancelled` or `expired`."""
        return self._record()["status"]

    cancel = _about("cancel")


class HoldFiles(Dir):
    """The holds, each a directory: pending, active, and over."""

    placeholder = "<id>"

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("index.json", cached=False)
    def index(self) -> HoldList:
        """How the run is held, what will hold it, and what waits for that to end."""
        run = self._run
        active, caught, is_held = run.holds.active, run.holds.exception, run.holds.standing is not None
        queued = [command for command in run.queue.table.queued if not is_hold(command.record["kind"])]
        return HoldList(
            active=None if active is None else active.record(),
            exception=None if caught is None else caught.record,
            pending=[hold_of(command.record) for command in run.holds.pending()],
            waiting=[command.record for command in queued if is_held and not run.points.runs_now(command)],
            stopped=run.holds.stopped,
        )

    def members(self) -> Iterable[str]:
        """Return the ids."""
        return [id_ for id_ in self._run.queue.table.ids if self.member(id_) is not None]

    def missing(self, name: str) -> str:
        """Say that there is no such hold."""
        return f"no hold has the id {name!r:.200}; the last {MOST_RECORDS} commands are kept"

    def member(self, name: str) -> Dir | None:
        """Return the directory of one hold."""
        record = self._run.queue.table.record(name)
        return HoldDir(self._run, name) if record is not None and is_hold(record["kind"]) else None


class HoldDir(_OneCommand):
    """One hold."""

    @file("hold.json", cached=False)
    def hold(self) -> HoldRecord:
        """The hold, and where training stands or stood."""
        active = self.run.holds.active
        if active is not None and active.command.id == self.id:
            return active.record()
        return hold_of(self._record())

    cancel = _about("cancel")
    release = _about("release")


def _written(kind: Kind, args: Arguments, writer: Writer) -> Command:
    """Return the command that is written to a file of its kind, which takes the arguments alone."""
    return Command(kind, args, id_=_key(writer), source=writer.via, via=writer.via, within=_BODY)


def _key(writer: Writer) -> str | None:
    """Return the id that a face has chosen for what it writes."""
    if writer.key is not None and not LEGAL_ID.fullmatch(writer.key):
        raise Invalid(f"{writer.key!a:.200} is no id of a command: {LEGAL_ID_WORDS}")
    return writer.key
