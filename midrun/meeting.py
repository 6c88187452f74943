"""Meetings: where all ranks stand at the same safe point, and do together what rank zero says.

Rank zero, the `chair`, *calls* a meeting at a safe point that is yet to come, by its number: the optimizer step or the
batch that it belongs to, which is the same on all ranks. Training goes on. Another rank, a `member`, that comes to
this point says that it is *here*, and waits; one that had passed it when it heard of it says so. Once all are here,
the chair *opens* the meeting; where one has passed the point, or others have waited for too long, somebody calls it
*off*, and the chair calls another one. Which of the two it is, is decided once, by whoever comes first, in the store.
So what is done is done by all ranks between the same two operations of training, or by none, whatever they are late
by: no rank is asked to be anywhere by the clock. In an open meeting the ranks do one thing after the other, and may
stand for as long as a hold lasts: no collective operation of theirs is under way meanwhile, so none runs into its
timeout.

With nothing to do the training threads pay nothing for it: each member has a thread that waits to hear of a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from midrun.command import STEP
from midrun.fs.faults import Fault

if TYPE_CHECKING:
    from midrun.loop import Loop

HERE, PASSED, ENDED = "here", "passed", "ended"
"""What a rank says of a meeting."""
OPEN, OFF = "open", "off"
"""What becomes of it."""
ADMIT, DO, ADJOURN, END = "admit", "do", "adjourn", "end"
"""What the chair says in it: whether a command can be done, to do it, to go on training; to end, as by SIGTERM."""

BEAT = "beat"
"""Where the chair shows that it lives."""
BEAT_EVERY = 1.0
"""Seconds between two signs of that."""
PATIENCE = 1800.0
"""Seconds without any sign of another rank after which it is given up."""
_SHORTEST, _LONGEST = 0.0002, 0.02


class Meeting(NamedTuple):
    """A meeting that was called, and where in the store what is said of it stands."""

    id: int
    point: str
    """The kind of safe point."""
    number: int
    """Which of those, see `Numbers`."""
    patience: float
    """Seconds for which a rank waits there for the others before it calls the meeting off."""

    @property
    def decision(self) -> str:
        """Whether it is open or off."""
        return f"{self.id}/decision"

    def vote(self, rank: int) -> str:
        """What a rank says of it."""
        return f"{self.id}/vote/{rank}"

    def item(self, number: int) -> str:
        """What the chair says in it, one after the other."""
        return f"{self.id}/item/{number}"

    def answer(self, number: int, rank: int) -> str:
        """What came of an item on a rank."""
        return f"{self.id}/answer/{number}/{rank}"

    def leaving(self, rank: int) -> str:
        """Why a rank has left it, or is to."""
        return f"{self.id}/leaving/{rank}"


def news(rank: int, number: int) -> str:
    """Return where a rank hears of a meeting by its id."""
    return f"news/{rank}/{number}"


class Answer(TypedDict, total=False):
    """What came of something on one rank: one of the two."""

    result: dict[str, Any] | None
    error: str


class Uneven(Fault):
    """Something was done on some ranks, and not on the others."""

    status = 409


class Numbers:
    """The number that each safe point has, or will have when it is next reached; the same on every rank.

    An optimizer step has the number of those before it, the end of a batch that of the batch; others are counted.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._counted: Counter[str] = Counter()
        self._stepped = self._ended = -1
        """The numbers of the last optimizer step and the last end of a batch that are over."""

    def of(self, point: str) -> int:
        """Return the number of a safe point: of the one that training is at or was at last, else of the next."""
        if point == STEP:
            return self._loop.step
        return self._loop.batches_begun if point == "train_batch_end" else self._counted[point]

    def leave(self, point: str) -> None:
        """Note that a safe point is over."""
        if point == STEP:
            self._stepped = self._loop.step
        elif point == "train_batch_end":
            self._ended = self._loop.batches_begun
        else:
            self._counted[point] += 1

    def is_over(self, point: str, number: int) -> bool:
        """Whether the safe point of a number is over."""
        now = self.of(point)
        last = {STEP: self._stepped, "train_batch_end": self._ended}.get(point)
        return now > number or now == number == last


def pauses() -> Iterator[float]:
    """Iterate over the seconds to sleep between two looks at the store: short at first, then longer."""
    pause = _SHORTEST
    while True:
        yield pause
        pause = min(_LONGEST, 2 * pause)
