"""The member: a later rank's part in the meetings that rank zero calls, see `meeting`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from midrun.channel import Gone
from midrun.meeting import (
    BEAT,
    END,
    ENDED,
    GATHER,
    HERE,
    LONGEST,
    OFF,
    OPEN,
    PASSED,
    PATIENCE,
    SHORTEST,
    Answer,
    Call,
    Numbers,
)

if TYPE_CHECKING:
    from midrun.log import RunLog
    from midrun.loop import Loop
    from midrun.ranks import Ranks

_WATCH = 0.005
"""Seconds between two looks whether training has heard of a call, or passed it before."""


class Member:
    """A later rank's part. The training thread calls `reach`, and a thread of its own `hear`.

    Parameters
    ----------
    loop
        What is trained.
    numbers
        Those of the safe points, counted since training began.
    ranks
        Who trains.
    answer
        Does what rank zero says, and returns what came of it.
    log
        Where it is said what goes wrong.
    """

    def __init__(
        self,
        loop: Loop,
        numbers: Numbers,
        ranks: Ranks,
        answer: Callable[[dict[str, Any]], Answer],
        log: RunLog,
    ) -> None:
        self._loop, self._numbers, self._rank, self._answer, self._log = loop, numbers, ranks.own["rank"], answer, log
        self._channel = ranks.connect()
        self._ears = ranks.connect()
        self.is_awaited = False
        """Whether there is a call of a meeting: whoever adds one sets it afterwards."""
        self._calls: list[Call] = []
        self._lock = threading.Lock()
        """Held while calls are added or taken out, which is seldom."""
        self._heard = 0
        """How much it has heard of."""
        self._is_news = False
        """Whether the training thread has yet to hear the last."""
        self._is_over = False

    # ---- a thread of its own

    def hear(self) -> None:
        """Hear of meetings, until `stop`, or until rank zero has ended."""
        with suppress(Gone):
            while not self._is_over:
                news = f"news/{self._rank}/{self._heard + 1}"
                watches = self._is_news
                told = self._ears.get(news) if watches else self._ears.wait(news)
                if told is not None:
                    self._heard += 1
                    with self._lock:
                        self._calls.append(Call(*told))
                    self._is_news = self.is_awaited = True
                elif watches:
                    time.sleep(_WATCH)
                    self._pass()
                else:
                    return

    def _pass(self) -> None:
        """Say for training which safe points it had passed before it heard of them: it may be waiting for rank zero."""
        with self._lock:
            for call in [*self._calls]:
                if self._numbers.is_over(call.point, call.number):
                    self._calls.remove(call)
                    self._ears.put(f"{call.id}/{self._rank}", PASSED)

    def stop(self) -> None:
        """Hear of no more, and come to none."""
        self._is_over = True
        with suppress(Gone), self._lock:
            for call in self._calls:
                self._channel.put(f"{call.id}/{self._rank}", ENDED)
            # What `hear` waits for, or is about to.
            for number in (self._heard + 1, self._heard + 2):
                self._channel.put(f"news/{self._rank}/{number}", None)

    # ---- the training thread

    def reach(self, point: str) -> None:
        """Meet the others, where a meeting was called for this safe point."""
        self._is_news = self.is_awaited = False
        met = None
        with self._lock:
            for call in [*self._calls]:
                if self._numbers.is_over(call.point, call.number):
                    self._calls.remove(call)
                    self._channel.put(f"{call.id}/{self._rank}", PASSED)
                elif call.point == point and self._numbers.of(point) == call.number:
                    self._calls.remove(call)
                    met = call
            if self._calls:
                self.is_awaited = True
        if met is None:
            return
        try:
            self._attend(met)
        except Gone as error:
            self._log.alert(f"rank zero has ended while the ranks stood, and its store with it: {error}")

    def _attend(self, call: Call) -> None:
        sigterm = self._loop.sigterm
        sigterm.defers = True
        try:
            self._channel.put(f"{call.id}/{self._rank}", HERE)
            decided = self._await(f"{call.id}/decision", GATHER)
            if decided is None:
                decided = self._channel.decide(f"{call.id}/decision", OFF)
            if decided == OPEN:
                self._do_as_told(call)
        finally:
            sigterm.defers = False
            if sigterm.is_told:
                sigterm.act()

    def _do_as_told(self, call: Call) -> None:
        turn, has_left, sigterm = 1, False, self._loop.sigterm
        while True:
            told = self._await(f"{call.id}/turn/{turn}", PATIENCE, is_patient=has_left)
            if told is None:
                why = "SIGTERM" if sigterm.is_told and not has_left else "no sign of rank zero"
                self._channel.put(f"{call.id}/left/{self._rank}", why)
                if has_left or not sigterm.is_told:
                    self._log.alert(f"left rank zero's hold, or what it does: {why}")
                    return
                has_left = True  # Rank zero has all ranks end at once.
            elif told["word"] in {"adjourn", END}:
                sigterm.is_told = sigterm.is_told or told["word"] == END
                return
            else:
                self._channel.put(f"{call.id}/{turn}/{self._rank}", self._answer(told))
                turn += 1

    def _await(self, key: str, patience: float, *, is_patient: bool = False) -> Any:  # noqa: ANN401 - any JSON value
        """Return what rank zero says.

        None where there is no sign of it for so long, or where this process is to end, unless that `is_patient`.
        """
        heard, beat, pause = time.monotonic(), None, SHORTEST
        looked = heard
        while (told := self._channel.get(key)) is None:
            now = time.monotonic()
            if self._loop.told_to_end_by is not None and not is_patient:
                return None
            if now - looked > BEAT:
                looked, before, beat = now, beat, self._channel.get("beat")
                heard = now if beat != before else heard
            if now - heard > patience:
                return None
            time.sleep(pause)
            pause = min(LONGEST, 2 * pause)
        return told
