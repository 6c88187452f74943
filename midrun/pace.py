"""Pace: how fast training goes, and how long the rest will take at that pace.

It is noted by the thread that keeps the history, a few times a second, so training pays nothing for it. Time in which
the run is held does not count; validation does, as it comes again. What is shown is as of the last step, as all that
is shown of a run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from midrun.loop import Limits
from midrun.sample import Sample

RECENT = 30.0
"""Seconds of training over which the rate of steps is taken."""
LONG = 600.0
"""Seconds of training from which the time that is left is taken: several epochs with their validations, mostly."""
_APART = 1.0
"""Seconds of training between two marks, at least."""
_LEAST = 2.0
"""Seconds of training before anything is said."""


class Mark(NamedTuple):
    """How far training was at one moment."""

    seconds: float
    """Of training, without holds."""
    steps: int
    batches: int
    """Training batches of all epochs; 0 where an epoch has no number of them."""


class Pace:
    """The pace of one session.

    Parameters
    ----------
    limits
        Return where training is to end.
    clock
        Return seconds that never go back.
    """

    def __init__(self, limits: Callable[[], Limits], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._marks: deque[Mark] = deque(maxlen=int(LONG / _APART) + 1)
        self._trained = 0.0
        self._looked: float | None = None
        """When training was last seen to go on; None while it is held."""
        self._seen: Sample | None = None

    # ---- the history's thread

    def note(self, sample: Sample | None, *, held: bool) -> None:
        """Note how far training is; `sample` is None where it does not train."""
        now = self._clock()
        if self._looked is not None:
            self._trained += now - self._looked
        self._looked = None if held else now
        if sample is None or sample is self._seen or sample.batch is None or held:
            return
        batches = self._limits().batches
        if self._is_between(sample, batches):
            return
        self._seen = sample
        if not self._marks or self._trained - self._marks[-1].seconds >= _APART:
            done = 0 if batches is None else sample.epoch * batches + sample.batch + 1
            self._marks.append(Mark(self._trained, sample.global_step, done))

    def _is_between(self, sample: Sample, batches: int | None) -> bool:
        """Whether a sample may be from between two epochs: the next one's number beside the last one's last batch."""
        is_last = batches is not None and batches > 1 and sample.batch == batches - 1
        return is_last and self._seen is not None and sample.epoch > self._seen.epoch

    # ---- any thread

    @property
    def steps_per_second(self) -> float | None:
        """Optimizer steps in a second, over half a minute of training; None before it is known."""
        rate = _rate(self._since(RECENT), lambda mark: mark.steps)
        return None if rate is None else float(f"{rate:.4g}")

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training until `max_steps` or `max_epochs`, whichever comes first; None without either.

        It is at the pace of the last ten minutes. `max_time` and callbacks that stop training are not foreseen.
        """
        marks, limits = self._since(LONG), self._limits()
        ends = []
        if limits.max_steps is not None:
            ends.append(_seconds_to(limits.max_steps, marks, lambda mark: mark.steps))
        if limits.max_epochs is not None and limits.batches is not None:
            ends.append(_seconds_to(limits.max_epochs * limits.batches, marks, lambda mark: mark.batches))
        return min((round(seconds, 1) for seconds in ends if seconds is not None), default=None)

    @property
    def progress(self) -> float | None:
        """How far training is, from 0 to 1, towards the end that is nearest; None where no end is known."""
        seen, limits = self._seen, self._limits()
        if seen is None or seen.batch is None:
            return None
        parts = [seen.global_step / limits.max_steps] if limits.max_steps else []
        if limits.max_epochs and limits.batches:
            parts.append((seen.epoch * limits.batches + seen.batch + 1) / (limits.max_epochs * limits.batches))
        return round(min(1.0, max(parts)), 4) if parts else None

    def _since(self, seconds: float) -> list[Mark]:
        """Return the marks of the last seconds of training; two at least, as a step may take longer than that."""
        marks = list(self._marks)
        late = [mark for mark in marks if mark.seconds >= marks[-1].seconds - seconds]
        return late if len(late) > 1 else marks[-2:]


def _rate(marks: list[Mark], count: Callable[[Mark], int]) -> float | None:
    if len(marks) < 2:  # noqa: PLR2004 - a rate is between two
        return None
    seconds = marks[-1].seconds - marks[0].seconds
    return max(0, count(marks[-1]) - count(marks[0])) / seconds if seconds >= _LEAST else None


def _seconds_to(end: int, marks: list[Mark], count: Callable[[Mark], int]) -> float | None:
    rate = _rate(marks, count)
    return max(0, end - count(marks[-1])) / rate if rate else None
