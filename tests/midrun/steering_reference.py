"""Commands and holds as the documents describe them, in plain Python: what a real fit is held against.

What a document leaves open is said where it is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BATCHES = 4
PATIENCE = 10.0
"""Seconds after which what has not come will not come."""
STEP, BATCH, VALIDATION = "before_optimizer_step", "train_batch_end", "validation_epoch_end"
EPOCH, END = "train_epoch_end", "fit_end"
HOLDS = ("hold", "pause")
AT_ONCE = ("continue", "release", "cancel")
WHILE_HELD = (*HOLDS, "stop", "checkpoint", "snapshot", "set_learning_rate", "set_hparam", "reset_momentum")
CONFLICT, UNKNOWN, INVALID = 409, 404, 422


# ---- what the documents say


class Place(NamedTuple):
    """Where in training something was done."""

    safe_point: str | None
    global_step: int
    epoch: int
    batch: int | None


@dataclass
class Asked:
    """A command."""

    id: str
    kind: str
    args: dict[str, Any] = field(default_factory=dict)
    when: dict[str, Any] | None = None
    source: str = "rest"
    via: str = "rest"
    status: str = "queued"
    is_late: bool = False
    """It was in `new/` before the session began."""
    place: Place | None = None
    result: dict[str, Any] = field(default_factory=dict)
    """What is known of its result."""

    @property
    def content(self) -> tuple[object, ...]:
        """What is asked, whoever asks."""
        return self.kind, self.args, self.when


class Line(NamedTuple):
    """A line of the control log."""

    event: str
    id: str
    kind: str
    source: str
    via: str
    place: Place
    changes: list[dict[str, Any]]


@dataclass
class Standing:
    """The hold that is active."""

    hold: Asked
    place: Place
    joined: list[str] = field(default_factory=list)
    released_by: str | None = None


def true_changes(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the changes that are some."""
    return [change for change in changes if change["old"] != change["new"]]


class Reference:
    """A run directory with one fit after another."""

    def __init__(self) -> None:
        self.commands: dict[str, Asked] = {}
        """All commands that were taken in, in this order."""
        self.lines: list[Line] = []
        self.rejected: list[bytes] = []
        """Files that are in `rejected/`."""
        self.refused: list[str] = []
        """Paths of the writes that this session has refused."""
        self.gain = 1.0
        self.position: object = "over"
        """Where training stands still: `over`, ("batch", how many have begun) or ("held", the hold's id)."""
        self.seen: list[tuple[float, float]] = []
        """For each batch of the fit, the learning rate and the gain that its step saw."""
        self.active: Standing | None = None
        self.stopped = False
        self._begin()

    def _begin(self) -> None:
        self.rate, self.step, self.epoch = 0.125, 0, 0
        self.batch: int | None = None
        self.seen = []
        self.refused = []
        self.stopped = False
        self._stops = False

    # ---- training

    def begin(self, max_epochs: int) -> None:
        """Begin a fit."""
        self._begin()
        self._fit = self._train(max_epochs)
        self.go()

    def go(self) -> None:
        """Go on to the next standstill."""
        self.position = next(self._fit, "over")
        if self.position == "over":
            for asked in self._queued(lambda _: True):
                asked.status = "expired"

    def _train(self, max_epochs: int) -> Iterator[object]:
        for self.epoch in range(max_epochs):
            for batch in range(BATCHES):
                self.batch = batch
                self.seen.append((self.rate, self.gain))
                yield "batch", len(self.seen)
                if batch % 2:  # Gradients are accumulated over two batches.
                    yield from self._reach(STEP)
                    self.step += 1
                yield from self._reach(BATCH)
                if self._stops:
                    break
            last, self.batch = self.batch, None  # A validation counts batches of its own, and is through with them.
            yield from self._reach(VALIDATION)
            self.batch = last
            yield from self._reach(EPOCH)
            if self._stops:
                break
        self.epoch += 1  # `state/epoch` counts those that are completed.
        yield from self._reach(END)

    def _reach(self, point: str) -> Iterator[object]:
        for asked in self._queued(lambda asked: self._is_due(asked, point)):
            if asked.status == "queued":  # A stop that came before it may have cancelled it.
                yield from self._do(asked, point)

    def _is_due(self, asked: Asked, point: str) -> bool:
        if asked.when is None:
            return point == (STEP if asked.kind in HOLDS else BATCH if asked.kind == "checkpoint" else point)
        is_there = bool(asked.when.get("safe_point", point) == point)
        return is_there and self.epoch >= asked.when.get("epoch", 0) and self.step >= asked.when.get("global_step", 0)

    def _runs_while_held(self, asked: Asked, point: str) -> bool:
        # The documents do not say whether the safe point at which a run is held is the "next occurrence" of itself for
        # what is sent meanwhile. Here it is. What has no time is done, or joins, wherever the run is held.
        return asked.kind in WHILE_HELD and (asked.when is None or self._is_due(asked, point))

    def _queued(self, which: Callable[[Asked], bool]) -> list[Asked]:
        return [asked for asked in self.commands.values() if asked.status == "queued" and which(asked)]

    def _place(self, point: str | None) -> Place:
        return Place(point, self.step, self.epoch, self.batch)

    def _do(self, asked: Asked, point: str) -> Iterator[object]:
        asked.place, asked.status = self._place(point), "succeeded"
        changes: list[dict[str, Any]] = []
        if asked.kind in HOLDS and self.active is None:
            yield from self._hold(asked, point)
            return
        if self.active is not None and asked.kind in HOLDS:
            self.active.joined.append(asked.id)
            asked.result = {"active_hold_id": self.active.hold.id}
            self._log("joined", asked)
            return
        if asked.kind == "stop":
            self.stopped = self._stops = True
            asked.result = {"cancelled_holds": self._cancel(HOLDS), "released": self._release("stop")}
        elif asked.kind == "set_hparam":
            old, self.gain = self.gain, float(asked.args["value"])
            changes.append({"what": "gain", "old": old, "new": self.gain})
        elif asked.kind == "set_learning_rate":
            if asked.args.get("optimizer", 0):  # There is one optimizer.
                asked.status = "failed"
                self._log("failed", asked)
                return
            old, self.rate = self.rate, asked.args["value"]
            changes.append({"what": "optimizers/0/groups/0/lr", "old": old, "new": self.rate})
        self._log("done", asked, true_changes(changes))

    def _hold(self, asked: Asked, point: str) -> Iterator[object]:
        asked.status = "executing"
        self.active = standing = Standing(asked, self._place(point))
        self._log("held", asked)
        while standing.released_by is None:
            ready = self._queued(lambda other: self._runs_while_held(other, point))
            if ready:
                yield from self._do(ready[0], point)
            else:
                yield "held", asked.id
        asked.status = "succeeded"
        asked.result = {"released_by": standing.released_by, "joined_ids": standing.joined}
        self.active = None
        self._log("released", asked, by=standing.released_by)

    def _log(
        self, event: str, asked: Asked, changes: list[dict[str, Any]] | None = None, *, by: str | None = None
    ) -> None:
        assert asked.place is not None
        self.lines.append(Line(event, asked.id, asked.kind, by or asked.source, asked.via, asked.place, changes or []))

    def _release(self, by: str) -> str | None:
        if self.active is None:
            return None
        self.active.released_by = by
        return self.active.hold.id

    def _cancel(self, kinds: tuple[str, ...]) -> list[str]:
        pending = self._queued(lambda asked: asked.kind in kinds)
        for asked in pending:
            asked.status = "cancelled"
        return [asked.id for asked in pending]

    # ---- being asked

    def refuses(self, asked: Asked) -> int | None:
        """Return the status with which a command is refused, or None."""
        if asked.id in self.commands:
            return CONFLICT
        if asked.kind == "set_hparam" and not 0 <= asked.args["value"] <= 4:
            return INVALID
        if asked.kind in HOLDS and self.stopped:
            return CONFLICT
        id_ = asked.args.get("id", "")
        if asked.kind == "release" and not (self.active and id_ in {self.active.hold.id, *self.active.joined}):
            return CONFLICT if id_ in self.commands else UNKNOWN
        if asked.kind == "cancel" and (id_ not in self.commands or self.commands[id_].status != "queued"):
            return CONFLICT if id_ in self.commands else UNKNOWN
        return None

    def take(self, asked: Asked) -> None:
        """Take in a command that is not refused, and go on to the next standstill."""
        self.commands[asked.id] = asked
        if asked.kind in AT_ONCE:
            asked.status, asked.place = "succeeded", self._place(None)
            if asked.kind == "cancel":
                self.commands[asked.args["id"]].status = "cancelled"
                asked.result = {"cancelled": asked.args["id"]}
            else:
                pauses = self._cancel(("pause",)) if asked.kind == "continue" else []
                released = self._release(asked.source)
                asked.result = {"cancelled_holds": pauses, "released": released}
                if asked.kind == "continue" and not (pauses or released):
                    asked.result["notes"] = ["nothing was held"]
            self._log("done", asked)
        if self.active is not None:
            self.go()

    def expire(self, asked: Asked) -> None:
        """Take in a file that was there before the session began."""
        asked.status, asked.is_late = "expired", True
        self.commands[asked.id] = asked
