"""Commands: one thing that somebody asks of a run, how it stands and what came of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from midrun.mailbox import Mailbox

if TYPE_CHECKING:
    from midrun.commands.kind import Arguments, Kind, When

Status = Literal["queued", "executing", "succeeded", "failed", "cancelled", "expired"]
SafePoint = Literal["train_batch_end", "train_epoch_end", "validation_epoch_end", "before_optimizer_step", "fit_end"]
"""Where in training a command can run."""
POINTS: tuple[str, ...] = get_args(SafePoint)
STEP = "before_optimizer_step"
"""The safe point at which gradients are there and the step is not made."""
EVALUATION = "evaluation_batch_end"
"""The end of a batch of `trainer.validate`, `test` or `predict`.

The other safe points are `fit`'s, but for the end of a validation, which `validate` has too."""
IN_REQUEST = ("body", "args")
"""Where the arguments are in a request that names its kind."""
OVER = ("succeeded", "failed", "cancelled", "expired")


class Change(TypedDict):
    """One value of the control state that was changed."""

    what: str
    """Where it is, for example "optimizers/0/groups/1/lr"."""
    old: Any
    """JSON values, both; a number that JSON has no form for is its text, "nan" say."""
    new: Any


class ErrorRecord(TypedDict):
    """Why a command came to nothing."""

    type: str
    """The kind of mistake: the exception's name, or `expired`, `cancelled`, `interrupted`."""
    message: str


class Place(TypedDict):
    """Where in training something happened."""

    safe_point: str | None
    global_step: int
    epoch: int
    batch: int | None


class CommandRecord(TypedDict):
    """A command as everybody sees it."""

    id: str
    kind: str
    args: dict[str, Any]
    execution: dict[str, Any]
    status: Status
    source: str
    """Who asks: rest, fuse, spool, command line, hook, script, python or finite check."""
    via: str
    """The way it came."""
    submitted: float
    """When it came. Seconds since 1970."""
    started: float | None
    """When it began to be done. Seconds since 1970."""
    finished: float | None
    """When it was over. Seconds since 1970."""
    place: Place | None
    """Where in training it was done."""
    result: dict[str, Any] | None
    error: ErrorRecord | None
    durable: bool
    """Whether the spool has it: after a crash of the process, the next one says what became of it."""


class Command:
    """One command. Its record is replaced whole, so any thread may read it.

    Whoever decides what becomes of it claims it first (`claim`), and only one can.
    """

    def __init__(
        self,
        kind: Kind,
        args: Arguments,
        when: When | None = None,
        *,
        id_: str | None = None,
        source: str = "python",
        via: str = "python",
        within: tuple[str, ...] = IN_REQUEST,
    ) -> None:
        self.kind, self.args = kind, args
        self.within = within
        """Where its arguments are in what was sent, for telling which of them is wrong."""
        given = {} if when is None else when.model_dump(exclude_unset=True)
        point = given.get("safe_point")
        self.points: frozenset[str] = frozenset([point] if point else () if given else kind.points)
        """The safe points at which it may be due; empty for any."""
        self.is_scheduled = bool(given)
        self.from_step: int | None = given.get("global_step")
        self.from_epoch: int | None = given.get("epoch")
        self.record = CommandRecord(
            id=id_ or new_id(),
            kind=kind.name,
            args=args.model_dump(mode="json"),
            execution={"when": given} if given else {},
            status="queued",
            source=source,
            via=via,
            submitted=time.time(),
            started=None,
            finished=None,
            place=None,
            result=None,
            error=None,
            durable=True,
        )
        self.released_by: str | None = None
        """Who has let it go, if it is a hold."""
        self.release_arrived = False
        """Whether that has come to the training thread."""
        self.written: Mailbox[bool] | None = None
        """Where the training thread is told that the spool knows that it is being done."""
        self._unclaimed = [True]

    @property
    def id(self) -> str:
        """Its id."""
        return self.record["id"]

    @property
    def status(self) -> Status:
        """How it stands."""
        return self.record["status"]

    @property
    def is_claimed(self) -> bool:
        """Whether somebody has claimed it."""
        return not self._unclaimed

    def claim(self) -> bool:
        """Claim it, in order to do, cancel or expire it; return False if somebody else has. It never waits."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False

    def is_same(self, other: CommandRecord) -> bool:
        """Whether a record is of a command that asks for the same."""
        return all(self.record[key] == other[key] for key in ("kind", "args", "execution"))

    def is_due(self, point: str | None, step: int, epoch: int) -> bool:
        """Whether it is due at a safe point. Steps can jump, so due means reached or passed."""
        if self.points and point not in self.points:
            return False
        if self.from_step is not None:
            return step >= self.from_step
        return self.from_epoch is None or epoch >= self.from_epoch

    def change(self, **members: Any) -> None:  # noqa: ANN401 - members of the record
        """Replace members of its record."""
        self.record = {**self.record, **members}  # type: ignore[typeddict-item]  # its own members


def new_id() -> str:
    """Return an id that sorts by time and that nobody else has: `c-<time>-<random>`."""
    return f"c-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether a record has all that one of ours has."""
    return record.keys() >= CommandRecord.__required_keys__ and isinstance(record["args"], dict)


def undone(left: CommandRecord) -> CommandRecord:
    """Return the end of a command that the process's end found waiting."""
    error = ErrorRecord(type="expired", message="the process ended before it was due")
    return {**left, "status": "expired", "error": error, "finished": time.time()}
