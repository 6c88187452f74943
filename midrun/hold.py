"""Holds: training that stands still at a safe point until it is let go, and what can be done to it meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypedDict

from midrun.command import Command, CommandRecord, ErrorRecord, Place

if TYPE_CHECKING:
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
    ended: float | None
    released_by: str | None
    joined_ids: list[str]
    """Holds that became due meanwhile: a release of any of them lets the run go on."""


class Active:
    """The hold that is active. Any thread may let it go."""

    def __init__(self, command: Command, place: Place) -> None:
        self.command = command
        self.place = place
        self.since = time.time()
        self.joined_ids: list[str] = []
        self.released_by: str | None = None

    @property
    def is_released(self) -> bool:
        """Whether somebody has let it go."""
        return self.released_by is not None

    def record(self) -> HoldRecord:
        """Return it as everybody sees it."""
        return {
            **of_command(self.command.record),
            "status": "active",
            "place": self.place,
            "since": self.since,
            "released_by": self.released_by,
            "joined_ids": [*self.joined_ids],
        }


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
        self.stopped = False
        """A stop has run: there is nothing more to hold."""

    def pending(self) -> list[Command]:
        """Return the holds that are not active yet."""
        return [command for command in self._run.queue.queued() if is_hold(command.record["kind"])]

    def release(self, by: str) -> str | None:
        """Let the active hold go, and return its id; None where none is active."""
        active = self.active
        if active is None or active.released_by is not None:
            return None
        active.released_by = by
        self._run.queue.wake()
        return active.command.id

    def names(self, id_: str) -> bool:
        """Whether an id is the active hold's, or one's that has joined it."""
        active = self.active
        return active is not None and active.released_by is None and id_ in {active.command.id, *active.joined_ids}

    def cancel(self, commands: list[Command], by: str) -> list[str]:
        """Cancel pending holds, and return the ids of those that were."""
        taken = [command for command in commands if command.take()]
        for command in taken:
            error = ErrorRecord(type="cancelled", message=f"cancelled by {by}")
            self._run.queue.finish(command, "cancelled", error=error)
        return [command.id for command in taken]


def is_hold(kind: str) -> bool:
    """Whether commands of a kind are holds."""
    return kind in {"hold", "pause"}


def of_command(record: CommandRecord) -> HoldRecord:
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
