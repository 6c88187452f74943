"""Live files: what is made at a safe point, on demand, once for all who ask before it is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from midrun.fs.faults import Conflict, TimedOut
from midrun.fs.later import Later
from midrun.fs.view import LIVE_PATIENCE
from midrun.tasks import Errand, Steps

if TYPE_CHECKING:
    from midrun.run import Run


class Live:
    """The live files that somebody waits for. Any thread may ask; the tasks are the training thread's."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asked: dict[str, Later] = {}

    def made(self, name: str, steps: Callable[[], Steps]) -> Later:
        """Return what a task makes, which begins at the next safe point.

        Raises Conflict where nothing is being trained, so that no optimizer step is to come.
        """
        asked = self._asked.get(name)
        if asked is not None:
            return asked
        if not self._run.loop.is_fitting:
            raise Conflict("it is made at an optimizer step, and none is coming: nothing is being trained")
        later = self._asked[name] = Later()
        later.add_done_callback(lambda _: self._asked.pop(name, None))
        self._run.queue.tell_training(Errand(_in_time(steps, time.monotonic()), later))
        return later


def _in_time(steps: Callable[[], Steps], asked: float) -> Steps:
    """Do a task, unless it begins so late, after a hold, that who has asked has gone."""
    if time.monotonic() > asked + LIVE_PATIENCE:
        raise TimedOut("nobody waits for it any more")
    return (yield from steps())
