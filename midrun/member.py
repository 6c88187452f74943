"""The member: a later rank's part in the meetings that rank zero calls, see `meeting`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from midrun.channel import Gone
from midrun.meeting import (
    ADJOURN,
    BEAT,
    BEAT_EVERY,
    END,
    ENDED,
    HERE,
    OFF,
    OPEN,
    PASSED,
    PATIENCE,
    Answer,
    Meeting,
    Numbers,
    news,
    pauses,
)

if TYPE_CHECKING:
    from midrun.log import RunLog
    from midrun.loop import Loop
    from midrun.ranks import Ranks

_WATCH, _LONGEST_WATCH = 0.005, 0.1
"""Seconds between two looks whether training has heard of a call, or had passed it before: at first, and later."""


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
        self._channel = ranks.channel
        self._ears = ranks.connect()
        """Its own: it waits for the next call."""
        self.is_awaited = False
        """Whether there is a call: whoever adds one sets it afterwards."""
        self._calls: list[Meeting] = []
        self._lock = threading.Lock()
        """Held while calls are added or taken out, which is seldom and takes no time."""
        self._heard = 0
        """How many calls it has heard of."""
        self._is_news = False
        """Whether the training thread has yet to hear of the last."""
        self._is_over = False

    # ---- a thread of its own

    def hear(self) -> None:
        """Hear of meetings, until `stop`, or until rank zero has ended."""
        watch = _WATCH
        with suppress(Gone):
            while not self._is_over:
                key, watches = news(self._rank, self._heard + 1), self._is_news
                told = self._ears.get(key) if watches else self._ears.wait(key)
                if told is not None:
                    self._heard += 1
                    with self._lock:
                        self._calls.append(Meeting(*told))
                    self._is_news = self.is_awaited = True
                    watch = _WATCH
                elif watches:
                    # Training may have passed it before it was heard of, and be waiting for rank zero by now.
                    time.sleep(watch)
                    watch = min(_LONGEST_WATCH, 2 * watch)
                    self._take(at=None)
                else:
                    return

    def stop(self) -> None:
        """Hear of no more, and come to none."""
        self._is_over = True
        with self._lock:
            calls, self._calls = self._calls, []
        with suppress(Gone):
            for call in calls:
                self._channel.put(call.vote(self._rank), ENDED)
            # What `hear` waits for, or is about to.
            for number in (self._heard + 1, self._heard + 2):
                self._channel.put(news(self._rank, number), None)

    # ---- the training thread

    def reach(self, point: str) -> None:
        """Meet the others, where a meeting was called for this safe point."""
        self._is_news = self.is_awaited = False
        met = self._take(at=point)
        if met is None:
            return
        try:
            self._attend(met)
        except Gone as error:
            self._log.alert(f"rank zero has ended while the ranks stood, and its store with it: {error}")
        except BaseException as error:
            with suppress(Gone):
                self._channel.put(met.leaving(self._rank), type(error).__name__)
            raise

    def _take(self, at: str | None) -> Meeting | None:
        """Take out what is over, and say so of each; take out and return the meeting at this safe point."""
        with self._lock:
            over = [call for call in self._calls if self._numbers.is_over(call.point, call.number)]
            rest = [call for call in self._calls if call not in over]
            met = next((c for c in rest if c.point == at and self._numbers.of(c.point) == c.number), None)
            self._calls = [call for call in rest if call is not met]
            if self._calls and at is not None:
                self.is_awaited = True
        channel = self._ears if at is None else self._channel
        for call in over:
            channel.put(call.vote(self._rank), PASSED)
        return met

    def _attend(self, call: Meeting) -> None:
        sigterm = self._loop.sigterm
        sigterm.defers = True
        try:
            self._channel.put(call.vote(self._rank), HERE)
            decided = self._await(call.decision, call.patience)
            if decided is None:
                decided = self._channel.decide(call.decision, OFF)
            if decided == OPEN:
                self._do_as_told(call)
        finally:
            sigterm.defers = False
            if sigterm.is_told:
                sigterm.act()

    def _do_as_told(self, call: Meeting) -> None:
        item, is_leaving, sigterm = 1, False, self._loop.sigterm
        while True:
            told = self._await(call.item(item), PATIENCE, is_patient=is_leaving)
            if told is None:
                by = self._loop.told_to_end_by
                why = "no sign of rank zero" if by is None or is_leaving else by
                self._channel.put(call.leaving(self._rank), why)
                if not sigterm.is_told or is_leaving:
                    self._log.alert(f"left rank zero's hold, or what it does: {why}")
                    return
                is_leaving = True  # Rank zero has all ranks end at once.
            elif told["word"] in {ADJOURN, END}:
                sigterm.is_told = sigterm.is_told or told["word"] == END
                if told.get("broken") is not None:
                    self._loop.break_off(told["broken"])
                return
            else:
                self._channel.put(call.answer(item, self._rank), self._answer(told))
                item += 1

    def _await(self, key: str, patience: float, *, is_patient: bool = False) -> Any:  # noqa: ANN401 - any JSON value
        """Return what rank zero says.

        None where there is no sign of it for so long, or where this process is to end, unless that `is_patient`.
        """
        looked = heard = time.monotonic()
        beat = None
        for pause in pauses():
            told = self._channel.get(key)
            if told is not None:
                return told
            if self._loop.told_to_end_by is not None and not is_patient:
                return None
            now = time.monotonic()
            if now - looked > BEAT_EVERY:
                looked, before, beat = now, beat, self._channel.get(BEAT)
                heard = now if beat != before else heard
            if now - heard > patience:
                return None
            time.sleep(pause)
        raise AssertionError  # It never ends by itself.
