"""Holds: training that stands still at a safe point until it is let go, and what can be done to it meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from midrun.command import Command, CommandRecord, Place

if TYPE_CHECKING:
    from midrun.ending import ExceptionRecord
    from midrun.run import Run


class HoldRecord(TypedDict):
    """A hold as everybody sees it; its id is its command's."""

    id: str
    status: str
    """`pending`, `active`, `released`, `joined`, `cancelled`, `expired` or `failed`."""
    reason: str | None
    is_pause: bool
    """Whether `continue` cancels it while it is pending."""
    source: str
    place: Place | None
    """Where training stands, or stood."""
    since: float | None
    """When it began. Seconds since 1970."""
    ended: float | None
    """When it ended. Seconds since 1970."""
    released_by: str | None
    joined_ids: list[str]
    """Holds that became due meanwhile: a release of any of them lets the run go on."""


class Standing:
    """What holds the run, from now on."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def held_s(self) -> float:
        """How long it has stood, in seconds, whatever becomes of the wall clock."""
        return time.monotonic() - self._began


class Active(Standing):
    """The hold that is active."""

    def __init__(self, command: Command, place: Place) -> None:
        super().__init__()
        self.command = command
        self.place = place
        self.since = time.time()
        self.joined_ids: list[str] = []

    def record(self) -> HoldRecord:
        """Return it as everybody sees it."""
        return {
            **hold_of(self.command.record),
            "status": "active",
            "place": self.place,
            "since": self.since,
            "released_by": self.command.released_by,
            "joined_ids": [*self.joined_ids],
        }


class Caught(Standing):
    """An exception of a backward pass that holds the run. Of the exception itself nothing is kept.

    Parameters
    ----------
    record
        How it is shown.
    place
        Where training stands, which is no safe point.
    """

    def __init__(self, record: ExceptionRecord, place: Place) -> None:
        super().__init__()
        self.record, self.place = record, place
        self.released_by: str | None = None
        """Who has let it go."""
        self.release_arrived = False
        """Whether that has come to the training thread."""


class Released(NamedTuple):
    """Tells the training thread, in the order of what it is told, that a hold is over."""

    hold: Command | Caught


class Cancelled(NamedTuple):
    """Tells the training thread that a command that it keeps for later is cancelled."""

    command: Command


class Holds:
    """The holds of a run.

    Parameters
    ----------
    run
        The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.active: Active | None = None
        self.exception: Caught | None = None
        """The exception that holds the run."""
        self.stopped = False
        """A stop has run: there is nothing more to hold."""

    @property
    def standing(self) -> Active | Caught | None:
        """What holds the run."""
        return self.active or self.exception

    def pending(self) -> list[Command]:
        """Return the holds that are not active yet."""
        return [command for command in self._run.queue.table.queued if is_hold(command.record["kind"])]

    def release(self, by: str) -> str | None:
        """Let the hold go that stands, or that is just beginning to, and return its id; None where there is none.

        It ends when training has come to this in the inbox: what was sent before is done before.
        """
        hold = self._unreleased()
        if hold is None:
            return None
        hold.released_by = by
        self._run.queue.tell_training(Released(hold))
        return hold.id

    def release_exception(self, by: str) -> str | None:
        """Let the exception go that holds the run, in the same order, and return its type; None where none does."""
        caught = self.exception
        if caught is None or caught.released_by is not None:
            return None
        caught.released_by = by
        self._run.queue.tell_training(Released(caught))
        return caught.record["type"]

    def end(self, by: str) -> str | None:
        """Let go at once what holds the run, in the training thread: what was sent meanwhile is for after it."""
        id_, active = self.release(by), self.active
        if active is not None:
            active.command.release_arrived = True
        elif self.exception is not None:
            self.release_exception(by)
            self.exception.release_arrived = True
        return id_

    def covers(self, id_: str) -> bool:
        """Whether an id is that of the hold that stands, or of one that has joined it."""
        active, hold = self.active, self._unreleased()
        return hold is not None and id_ in {hold.id, *(active.joined_ids if active is not None else ())}

    def _unreleased(self) -> Command | None:
        """Return the hold that stands, or that training has just taken up, unless somebody has let it go."""
        active = self.active
        hold = self._run.queue.table.held if active is None else active.command
        return hold if hold is not None and hold.released_by is None else None


def is_hold(kind: str) -> bool:
    """Whether commands of a kind are holds."""
    return kind in {"hold", "pause"}


def hold_of(record: CommandRecord) -> HoldRecord:
    """Return the hold of a command's record."""
    result = record["result"] or {}
    named = {"queued": "pending", "executing": "active", "succeeded": "released"}
    status = named.get(record["status"], record["status"])
    return HoldRecord(
        id=record["id"],
        status="joined" if "active_hold_id" in result else status,
        reason=record["args"].get("reason"),
        is_pause=record["kind"] == "pause",
        source=record["source"],
        place=record["place"],
        since=record["started"],
        ended=record["finished"],
        released_by=result.get("released_by"),
        joined_ids=result.get("joined_ids", []),
    )
