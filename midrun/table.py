"""The table: which commands are known, those that are open and the last ones that are over."""

from __future__ import annotations

from collections.abc import Iterable

from midrun.command import Command, CommandRecord
from midrun.fs.spool import MOST_RECORDS
from midrun.hold import is_hold

SHOWN = 100
"""Commands that are over and are listed with their records; each of the last 1000 can be asked for."""


def unknown(id_: str) -> str:
    """Return what is said of an id that no command has."""
    return f"no command has the id {id_!r:.200}; the last {MOST_RECORDS} are kept"


class Table:
    """The commands of a run. One thread writes it, the spool's; any may read it."""

    def __init__(self) -> None:
        self._open: dict[str, Command] = {}
        self._over: dict[str, CommandRecord] = {}

    def __contains__(self, id_: str) -> bool:
        return id_ in self._open or id_ in self._over

    @property
    def ids(self) -> list[str]:
        """The ids of the commands that are known, the oldest first."""
        return list(dict.fromkeys((*list(self._over), *list(self._open))))

    @property
    def newest(self) -> list[CommandRecord]:
        """The records of what is over lately and of all that is not, the oldest first."""
        over = {record["id"]: record for record in list(self._over.values())[-SHOWN:]}
        return list((over | {command.id: command.record for command in self.unfinished}).values())

    @property
    def unfinished(self) -> list[Command]:
        """The commands that are not over."""
        return list(self._open.values())

    @property
    def queued(self) -> list[Command]:
        """The commands that wait."""
        return [command for command in self.unfinished if command.status == "queued"]

    @property
    def held(self) -> Command | None:
        """The hold that training has taken up."""
        begun = (c for c in self.unfinished if c.is_claimed and c.status in {"queued", "executing"})
        return next((command for command in begun if is_hold(command.record["kind"])), None)

    def record(self, id_: str) -> CommandRecord | None:
        """Return the record of a command, or None where nothing is known of it any more."""
        command = self._open.get(id_)
        return self._over.get(id_) if command is None else command.record

    # ---- the spool's thread

    def add(self, command: Command) -> None:
        """Add a command that is not over."""
        self._open[command.id] = command

    def close(self, record: CommandRecord) -> None:
        """Note that a command is over."""
        self._over[record["id"]] = record
        while len(self._over) > MOST_RECORDS:
            del self._over[next(iter(self._over))]
        self._open.pop(record["id"], None)

    def remember(self, records: Iterable[CommandRecord]) -> None:
        """Add what earlier sessions have done, before what this one has."""
        earlier = {record["id"]: record for record in records}
        self._over = dict(list((earlier | self._over).items())[-MOST_RECORDS:])
