"""Meetings: where all ranks stand at the same safe point, and do together what rank zero says.

Rank zero *calls* a meeting at a safe point that is yet to come, by its number: the optimizer step or the batch that it
belongs to, which is the same on all ranks. Training goes on. A rank that comes to this point says that it is *here*,
and waits; one that has passed it when it hears of it says so. Once all are here, rank zero *opens* the meeting; where
one has passed the point, or the others have waited for too long, somebody *calls it off*, and rank zero calls another
one. Which of the two it is, is decided once, by whoever comes first, in the store. So what is done is done by all ranks
between the same two operations of training, or by none, whatever they are late by: no rank is asked to be anywhere by
the clock. In an open meeting the ranks do one thing after the other, and may stand for as long as a hold lasts: no
collective operation of theirs is under way meanwhile, so none runs into its timeout.

With nothing to do nothing of this costs training anything: later ranks have a thread that hears of a call.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from midrun.command import EVALUATION, STEP, Command
from midrun.fs.faults import Conflict, Fault

if TYPE_CHECKING:
    from midrun.loop import Loop
    from midrun.ranks import Ranks
    from midrun.run import Run

_AHEAD = 0.03
"""Seconds of training from a call to its meeting, about: a rank hears of it within some milliseconds."""
_FURTHEST = 4096
"""Steps, or batches, from a call to its meeting, at most."""
GATHER = 10.0
"""Seconds for which a rank waits for the others before it calls the meeting off."""
_SHARE = 0.05
"""Of training that may be lost in meetings to which somebody does not come: one that only some ranks train, say."""
PATIENCE = 1800.0
"""Seconds without any sign of another rank after which it is given up, as by torch's own timeout."""
BEAT = 1.0
"""Seconds between two signs of rank zero while it is held."""
SHORTEST, LONGEST = 0.0002, 0.02
"""Seconds between two looks of a rank that waits: at first, and later."""

_GRACE = 2.0
"""Seconds in which an answer may come from a rank that was told to end, and it is known of one that it has ended."""

HERE, PASSED, ENDED = "here", "passed", "ended"
"""What a rank says of a call."""
OPEN, OFF = "open", "off"
"""What becomes of it."""
END = "end"
"""What rank zero says where all are to end, as by SIGTERM."""


class Call(NamedTuple):
    """The call of a meeting."""

    id: int
    point: str
    """The kind of safe point."""
    number: int
    """Which of those, see `Numbers`."""


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
        return now > number or (
            now == number and now == {STEP: self._stepped, "train_batch_end": self._ended}.get(point)
        )


class Chair:
    """Rank zero's part. The training thread uses it.

    Parameters
    ----------
    run
        The run.
    ranks
        Who trains.
    """

    def __init__(self, run: Run, ranks: Ranks) -> None:
        self._run, self._loop, self._others = run, run.loop, ranks.others
        self._channel = ranks.connect()
        self.numbers = Numbers(run.loop)
        self._calls: list[Call] = []
        self._open: Call | None = None
        """The meeting that is open."""
        self._called = 0
        self._heard = 0
        """The last call of which all have heard for sure, and whose news is forgotten."""
        self._spent: list[str] = []
        """Keys of the last meeting that was open."""
        self._turn = 0
        self._is_missed: str | None = None
        """Who has left the meeting that is open, and why."""
        self._lead = 0
        """Steps ahead for which it is called, beyond what the pace says: a rank had passed a closer one."""
        self._rests_until = 0.0
        self._beat = 0.0
        self._seen = ("", 0, 0.0)
        """A safe point at which somebody waited, its number and when that was."""
        self._rate = 0.0
        """How many of these a second there are."""

    @property
    def is_open(self) -> bool:
        """Whether all ranks stand at this safe point."""
        return self._open is not None

    # ---- calling

    def plan(self, commands: Iterable[Command], *, steps: bool) -> None:
        """Call a meeting for each command that has none, of those that all ranks must do.

        Parameters
        ----------
        commands
            Those that wait.
        steps
            Whether optimizer steps are announced: else the ends of batches stand for them.
        """
        if time.monotonic() < self._rests_until:
            return
        for command in commands:
            for point, number in self._targets(command, steps=steps):
                if not any(call.point == point and call.number <= number for call in self._calls):
                    self._call(point, number)

    def _targets(self, command: Command, *, steps: bool) -> Iterable[tuple[str, int]]:
        """Iterate over the safe points at which a command may be done next: one of those that are frequent, or all."""
        loop, points = self._loop, {*(command.points or command.kind.points)}
        if command.from_epoch is not None and loop.epoch < command.from_epoch:
            return
        if STEP in points and not steps and not command.is_scheduled:
            points.add("train_batch_end")
        frequent = self._most_frequent(points, steps=steps)
        if frequent is None:
            yield from ((point, self.numbers.of(point)) for point in points)
            return
        ahead, left = self._ahead(frequent), 0
        if command.from_step is not None:
            left = (command.from_step - loop.step) * (loop.batches_in_step if frequent == "train_batch_end" else 1)
        # One that is far away is called when it is near: later ranks look at each safe point until it is over.
        if left <= 4 * ahead:
            yield frequent, self.numbers.of(frequent) + max(ahead, left)

    def _most_frequent(self, points: set[str], *, steps: bool) -> str | None:
        """Return the safe point among some that comes soonest again; None where each is one that seldom comes."""
        if not self._loop.is_fitting:
            return EVALUATION if EVALUATION in points else None
        if STEP in points and steps and (self._loop.batches_in_step == 1 or "train_batch_end" not in points):
            return STEP
        return "train_batch_end" if "train_batch_end" in points else None

    def _ahead(self, point: str) -> int:
        """Return how many safe points of a kind there are in the time that others take to hear of a call."""
        now, number = time.monotonic(), self.numbers.of(point)
        seen_point, seen_number, seen = self._seen
        if seen_point != point:
            self._rate, self._seen = self._run.pace.steps_per_second or 0.0, (point, number, now)
        elif number > seen_number:
            self._rate, self._seen = (number - seen_number) / (now - seen), (point, number, now)
        return min(_FURTHEST, max(1, math.ceil(self._rate * _AHEAD), self._lead))

    def _call(self, point: str, number: int) -> None:
        self._called += 1
        call = Call(self._called, point, number)
        self._calls.append(call)
        for rank in self._others:
            self._channel.put(f"news/{rank}/{call.id}", call)

    # ---- meeting

    def attend(self, point: str) -> bool:
        """Meet the others, where a meeting was called for this safe point; return whether it is open."""
        for call in [*self._calls]:
            is_over = self.numbers.is_over(call.point, call.number)
            if is_over or (call.point == point and self.numbers.of(point) == call.number):
                self._calls.remove(call)
                if is_over:
                    self._off(call)
                    continue
                self._open, self._turn, self._is_missed = call, 0, None
                if self._gathers(call):
                    self._loop.sigterm.defers = True
                    return True
                self._open = None
        return False

    def _gathers(self, call: Call) -> bool:
        """Wait until all are here; return whether the meeting is open."""
        began, pause, missing = time.monotonic(), SHORTEST, [*self._others]
        while missing:
            votes = {rank: self._channel.get(f"{call.id}/{rank}") for rank in missing}
            if ENDED in votes.values():
                self._rests_until = time.monotonic() + _GRACE  # By then it is known, see `Roll.refusal`.
                return self._off(call)
            if PASSED in votes.values():
                self._lead = min(_FURTHEST, 2 * max(1, self._lead, self._ahead(call.point)))
                return self._off(call)
            missing = [rank for rank, vote in votes.items() if vote is None]
            waited = time.monotonic() - began
            if missing and (waited > GATHER or self._loop.told_to_end_by is not None):
                self._rests_until = time.monotonic() + waited / _SHARE
                who = ", ".join(map(str, missing[:5]))
                text = f"rank {who} did not come to {call.point} {call.number} in {waited:.0f} s"
                self._run.log.alert(f"{text}; what all ranks must do waits, and is tried again", "meeting")
                return self._off(call)
            time.sleep(pause if missing else 0)
            pause = min(LONGEST, 2 * pause)
        return self._channel.decide(f"{call.id}/decision", OPEN) == OPEN

    def _off(self, call: Call) -> bool:
        self._channel.decide(f"{call.id}/decision", OFF)
        return False

    def do(self, command: Command) -> dict[str, Any]:
        """Have all ranks do a command, and return what came of it.

        Raises what it raises here, where it fails on every rank alike, and Uneven where it does not.
        """
        run, kind, args = self._run, command.kind, command.args
        self._round("admit", command, lambda: kind.admit(run, args))
        result, others = self._round("do", command, lambda: kind.do(run, args, command))
        shown: dict[str, Any] = result if isinstance(result, dict) else {}
        odd = {str(rank): other for rank, other in others.items() if not _is_same(other, shown)}
        return {**shown, "ranks": odd} if odd else shown

    def _round(self, word: str, command: Command, own: Callable[[], object]) -> tuple[Any, dict[int, Any]]:
        """Have the others do something, do it, and return what came of it here and there."""
        if self._open is None:
            raise Conflict("the other ranks do not stand at this safe point")
        call, self._turn = self._open, self._turn + 1
        told = {"word": word, "id": command.id, "kind": command.kind.name, "args": command.record["args"]}
        self._channel.put(f"{call.id}/turn/{self._turn}", told)
        error: Exception | None = None
        result: object = None
        try:
            result = own()
        except Exception as raised:  # noqa: BLE001 - raised again, once it is known what the others have done
            error = raised
        answers = self._answers(call)
        failed = {rank: answer["error"] for rank, answer in answers.items() if "error" in answer}
        if error is not None and (word == "admit" or len(failed) == len(answers)):
            raise error
        if error is not None:
            raise Uneven(f"rank 0: {error}{_done_on(set(answers) - set(failed), word)}") from error
        if failed:
            why = "; ".join(f"rank {rank}: {text}" for rank, text in failed.items())
            raise Uneven(why + _done_on({0, *answers} - set(failed), word))
        return result, {rank: answer.get("result") for rank, answer in answers.items()}

    def _answers(self, call: Call) -> dict[int, Answer]:
        """Wait for what came of it on the others."""
        began, pause, answers, missing = time.monotonic(), SHORTEST, dict[int, Answer](), [*self._others]
        while True:
            for rank in missing:
                answer = self._channel.get(f"{call.id}/{self._turn}/{rank}")
                if answer is not None:
                    answers[rank] = answer
            missing = [rank for rank in missing if rank not in answers]
            if not missing:
                return answers
            waited = time.monotonic() - began
            why = self._loop.told_to_end_by if waited > _GRACE else None
            if waited > PATIENCE:
                why = f"no answer in {PATIENCE / 60:.0f} minutes"
            if why is not None:
                return {**answers, **{rank: Answer(error=f"it has left: {why}") for rank in missing}}
            time.sleep(pause)
            pause = min(LONGEST, 2 * pause)

    def missed(self) -> str | None:
        """Show the others that this rank lives; return who has left the meeting that is open, and why."""
        now = time.monotonic()
        if self._open is None:
            return None
        if now - self._beat < BEAT:
            return self._is_missed
        self._beat = now
        self._channel.put("beat", now)
        for rank in self._others:
            why = self._channel.get(f"{self._open.id}/left/{rank}")
            if why is not None and self._is_missed is None:
                self._is_missed = f"{why} on rank {rank}"
        return self._is_missed

    def leave(self, point: str) -> None:
        """Have everyone go on training from a safe point, if they stand there."""
        self.numbers.leave(point)
        call, self._open = self._open, None
        if call is None:
            return
        self._off(call)  # It is open by now, unless something was raised before.
        sigterm = self._loop.sigterm
        word = END if sigterm.is_told or (self._is_missed or "").startswith("SIGTERM") else "adjourn"
        self._channel.put(f"{call.id}/turn/{self._turn + 1}", {"word": word})
        self._lead = max(0, self._lead - 1)
        self._forget(call)
        sigterm.defers = False
        if word == END:
            sigterm.act()

    def _forget(self, call: Call) -> None:
        """Free what the last meeting has left in the store: all have left it, since they came to this one."""
        self._channel.forget(*self._spent)
        turns = range(1, self._turn + 2)
        answers = (f"{call.id}/{turn}/{rank}" for turn in turns for rank in self._others)
        news = (f"news/{rank}/{id_}" for id_ in range(self._heard + 1, call.id + 1) for rank in self._others)
        votes = (f"{call.id}/{rank}" for rank in self._others)
        self._spent = [f"{call.id}/decision", *votes, *(f"{call.id}/turn/{turn}" for turn in turns), *answers, *news]
        self._heard = max(self._heard, call.id)

    def call_off(self) -> None:
        """Call every meeting off: this rank comes to none of them, and the others are not to wait for it."""
        while self._calls:
            self._off(self._calls.pop())

    def close(self) -> None:
        """Call every meeting off, and no other."""
        self.call_off()
        for rank in self._others:
            self._channel.put(f"news/{rank}/{self._called + 1}", None)


def _is_same(other: object, own: dict[str, Any]) -> bool:
    """Whether a result is that of rank zero, or none: files, say, are rank zero's alone."""
    return other is None or json.dumps(other, sort_keys=True) == json.dumps(own, sort_keys=True)


def _done_on(ranks: set[int], word: str) -> str:
    if word == "admit" or not ranks:
        return ""
    return f"; done on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, sorted(ranks)[:5]))}"
