"""The chair: rank zero's part in the meetings of the ranks, see `meeting`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from midrun.command import EVALUATION, STEP, Command
from midrun.commands.kind import Shared
from midrun.fs.faults import Conflict
from midrun.fs.tracebacks import last_line
from midrun.meeting import (
    ADJOURN,
    ADMIT,
    BEAT,
    BEAT_EVERY,
    DO,
    END,
    ENDED,
    OFF,
    OPEN,
    PASSED,
    PATIENCE,
    Answer,
    Meeting,
    Numbers,
    Uneven,
    news,
    pauses,
)

if TYPE_CHECKING:
    from midrun.ranks import Ranks
    from midrun.run import Run

_AHEAD = 0.03
"""Seconds of training from a call to its meeting, about: a rank hears of it within some milliseconds."""
_FURTHEST = 4096
"""Steps, or batches, from a call to its meeting, at most."""
GATHER, _LONGEST_GATHER = 10.0, 600.0
"""Seconds for which a rank waits for the others before it calls a meeting off: at first, and at most."""
_SHARE = 0.05
"""Of training that may be lost in meetings to which somebody does not come: one that only some ranks train, say."""
_GRACE = 2.0
"""Seconds in which an answer may come from a rank that was told to end, and it is known of one that it has ended."""


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
        self._channel = ranks.channel
        self.numbers = Numbers(run.loop)
        self._called = 0
        self._calls: list[Meeting] = []
        """Those that are yet to come."""
        self._meeting: Meeting | None = None
        """The one that ranks gather for, or that is open."""
        self.is_open = False
        """Whether all ranks stand at this safe point."""
        self._item = 0
        """What was last said in it."""
        self._leaving: dict[int, str] = {}
        """Who has left it, or is to, and why."""
        self._beat = 0.0
        self._gather = GATHER
        self._rests_until = 0.0
        self._lead = 0
        """Steps ahead for which it is called, beyond what the pace says: a rank had passed a closer one."""
        self._seen = ("", 0, 0.0)
        """A safe point at which somebody waited, its number and when that was."""
        self._rate = 0.0
        """How many of these a second there are."""
        self._heard = 0
        """The last meeting of which all have heard for sure."""
        self._spent: list[str] = []
        """Keys of the last one that was open."""

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
            # Who wants a run to stand, or to end, wants it now.
            commands = [command for command in commands if command.kind.ignores_limit]
        first: set[str] | None = None
        for command in commands:
            targets = [*self._targets(command, steps=steps)]
            if not command.is_scheduled:
                # They are done in their order: one that is done elsewhere, and sooner, waits for those before it.
                where = {point for point, _ in targets}
                if first is not None and where != first:
                    return
                first = where
            for point, number in targets:
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
            # Where no step is announced there is none to meet at.
            yield from ((point, self.numbers.of(point)) for point in points if point != STEP or steps)
            return
        ahead, left = self._ahead(frequent), 0
        if command.from_step is not None:
            left = (command.from_step - loop.step) * (loop.batches_in_step if frequent == "train_batch_end" else 1)
        # One that is far away is called when it is near: members look at each safe point until it is over.
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
        call = Meeting(self._called, point, number, self._gather)
        self._calls.append(call)
        for rank in self._others:
            self._channel.put(news(rank, call.id), call)

    def call_off(self) -> None:
        """Call every meeting off: this rank comes to none of them, and the others are not to wait for it."""
        while self._calls:
            self._off(self._calls.pop())

    def close(self) -> None:
        """Call every meeting off, and no other."""
        self.call_off()
        for rank in self._others:
            self._channel.put(news(rank, self._called + 1), None)

    def _off(self, call: Meeting) -> bool:
        """Call a meeting off, unless it is open; return whether it is."""
        return self._channel.decide(call.decision, OFF) == OPEN

    # ---- meeting

    def attend(self, point: str) -> bool:
        """Meet the others, where a meeting was called for this safe point; return whether it is open."""
        for call in [*self._calls]:
            if self.numbers.is_over(call.point, call.number):
                self._calls.remove(call)
                self._off(call)
            elif call.point == point and self.numbers.of(point) == call.number:
                self._calls.remove(call)
                self._meeting, self._item, self._leaving = call, 0, {}
                self._loop.sigterm.defers = True
                self.is_open = self._gathers(call)
                if self.is_open:
                    self._gather = GATHER
                    return True
                self._adjourn()
        return False

    def _gathers(self, call: Meeting) -> bool:
        """Wait until all are here; return whether the meeting is open."""
        began, missing = time.monotonic(), [*self._others]
        for pause in pauses():
            votes = {rank: self._channel.get(call.vote(rank)) for rank in missing}
            missing = [rank for rank, vote in votes.items() if vote is None]
            waited = time.monotonic() - began
            if self._loop.told_to_end_by is not None:
                return self._off(call)
            if ENDED in votes.values():
                self._rests_until = time.monotonic() + _GRACE  # By then it is known, see `Roll.refusal`.
                return self._off(call)
            if PASSED in votes.values():
                if call.point in {STEP, "train_batch_end", EVALUATION}:
                    self._lead = min(_FURTHEST, 2 * max(1, self._lead, self._ahead(call.point)))
                return self._off(call)
            if not missing:
                return self._opens(call)
            if waited > call.patience:
                self._give_up(call, waited, f"rank {', '.join(map(str, missing[:5]))} did not come")
                return self._off(call)
            time.sleep(pause)
        raise AssertionError  # It never ends by itself.

    def _opens(self, call: Meeting) -> bool:
        if self._channel.decide(call.decision, OPEN) == OPEN:
            return True
        self._give_up(call, call.patience, "rank 0 came too late")
        return False

    def _give_up(self, call: Meeting, waited: float, why: str) -> None:
        """Wait for longer the next time, and not at once: somebody may have something to do alone, again and again."""
        self._rests_until = time.monotonic() + waited / _SHARE
        self._gather = min(_LONGEST_GATHER, 2 * self._gather)
        text = f"{why} to {call.point} {call.number}, where the others waited for {waited:.0f} s"
        again = f"is tried again in {waited / _SHARE:.0f} s, but for a stop or a pause"
        self._run.log.alert(f"{text}; what all ranks must do waits, and {again}", "meeting")

    def do(self, command: Command) -> dict[str, Any]:
        """Have all ranks do a command, and return what came of it.

        Raises what it raises here, where it fails on every rank alike, and Uneven where it does not.
        """
        run, kind, args = self._run, command.kind, command.args
        self._round(ADMIT, command, lambda: self._prepare(command))
        try:
            result, others = self._round(DO, command, lambda: kind.do(run, args, command))
        except Exception as error:
            # Before anybody has begun it is a plain conflict.
            if isinstance(kind, Shared) and kind.breaks and type(error) is not Conflict:
                self._loop.break_off(last_line(error))
            raise
        shown: dict[str, Any] = result if isinstance(result, dict) else {}
        odd = {str(rank): other for rank, other in others.items() if not _is_same(other, shown)}
        return {**shown, "ranks": odd} if odd else shown

    def _prepare(self, command: Command) -> None:
        command.kind.admit(self._run, command.args)
        if isinstance(command.kind, Shared):
            command.kind.prepare_here(self._run, command.args)

    def _round(self, word: str, command: Command, own: Callable[[], object]) -> tuple[Any, dict[int, Any]]:
        """Have the others do something, do it, and return what came of it here and there."""
        call = self._meeting
        if call is None or not self.is_open:
            raise Conflict("the other ranks do not stand at this safe point")
        if (who := self.keep_watch()) is not None:
            raise Conflict(f"not all ranks stand any more: {who}")
        self._item += 1
        told = {"word": word, "id": command.id, "kind": command.kind.name, "args": command.record["args"]}
        self._channel.put(call.item(self._item), told)
        error: Exception | None = None
        result: object = None
        try:
            result = own()
        except Exception as raised:  # noqa: BLE001 - raised again, once it is known what the others have done
            error = raised
        answers = self._answers(call)
        failed = {rank: answer["error"] for rank, answer in answers.items() if "error" in answer}
        # What has no result there is rank zero's alone, a file, say.
        done = {rank for rank, answer in answers.items() if word == DO and answer.get("result") is not None}
        if error is not None and not done:
            raise error
        if error is not None:
            raise Uneven(f"rank 0: {error}; {_done_on(done)}") from error
        if failed:
            why = "; ".join(f"rank {rank}: {text}" for rank, text in failed.items())
            raise Uneven(f"{why}; {_done_on({0, *done})}" if word == DO else why)
        return result, {rank: answer.get("result") for rank, answer in answers.items()}

    def _answers(self, call: Meeting) -> dict[int, Answer]:
        """Wait for what came of the last item on the others."""
        began, answers = time.monotonic(), dict[int, Answer]()
        for pause in pauses():
            for rank in self._others:
                if rank not in answers and (answer := self._channel.get(call.answer(self._item, rank))) is not None:
                    answers[rank] = answer
            missing = [rank for rank in self._others if rank not in answers]
            self.keep_watch()
            waited = time.monotonic() - began
            for rank in missing:
                why = f"it has left: {self._leaving[rank]}" if rank in self._leaving and waited > _GRACE else None
                if self._loop.told_to_end_by is not None and waited > _GRACE:
                    why = f"not waited for: {self._loop.told_to_end_by}"
                if waited > PATIENCE:
                    why = f"no answer in {PATIENCE / 60:.0f} minutes"
                if why is not None:
                    answers[rank] = Answer(error=why)
            if len(answers) == len(self._others):
                break
            time.sleep(pause)
        return answers

    def keep_watch(self) -> str | None:
        """Show the others that this rank lives; return who has left the meeting that is open, and why."""
        call, now = self._meeting, time.monotonic()
        if call is None or not self.is_open:
            return None
        if now - self._beat >= BEAT_EVERY:
            self._beat = now
            self._channel.put(BEAT, now)
            self._look_who_leaves(call)
        return next((f"{why} on rank {rank}" for rank, why in self._leaving.items()), None)

    def _look_who_leaves(self, call: Meeting) -> None:
        for rank in self._others:
            why = self._channel.get(call.leaving(rank))
            if why is not None:
                self._leaving[rank] = why

    def leave(self, point: str) -> None:
        """Have everyone go on training from a safe point, if they stand there."""
        self.numbers.leave(point)
        self._adjourn()

    def _adjourn(self) -> None:
        call, self._meeting = self._meeting, None
        if call is None:
            return
        sigterm, ends = self._loop.sigterm, False
        try:
            # What was raised may have come before anything was decided.
            if self._off(call):
                self._look_who_leaves(call)
                broken = None if self._loop.broken is None else str(self._loop.broken)
                ends = sigterm.is_told or "SIGTERM" in self._leaving.values()
                self._channel.put(call.item(self._item + 1), {"word": END if ends else ADJOURN, "broken": broken})
                self._lead //= 2
                self._forget(call)
        finally:
            self.is_open = sigterm.defers = False
            if ends or sigterm.is_told:
                sigterm.act()

    def _forget(self, call: Meeting) -> None:
        """Free what the last meeting has left in the store: all have left it, since they came to this one."""
        self._channel.forget(*self._spent)
        items = range(1, self._item + 2)
        self._spent = [
            call.decision,
            *(call.item(item) for item in items),
            *(call.answer(item, rank) for item in items for rank in self._others),
            *(key(rank) for key in (call.vote, call.leaving) for rank in self._others),
            *(news(rank, id_) for id_ in range(self._heard + 1, call.id + 1) for rank in self._others),
        ]
        self._heard = max(self._heard, call.id)


def _is_same(other: object, own: dict[str, Any]) -> bool:
    """Whether a result is that of rank zero, or none: files, say, are rank zero's alone."""
    return other is None or json.dumps(other, sort_keys=True) == json.dumps(own, sort_keys=True)


def _done_on(ranks: set[int]) -> str:
    return f"done on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, sorted(ranks)[:5]))}"
