"""SIGTERM on one of several ranks: all of them end together.

Lightning's handler has all ranks broadcast that they were told, so one that was told alone waits in it for the others,
and one that is told twice, by the launcher and by whoever else, broadcasts once too often. While ranks stand in a
meeting, the signal is put off until all can take it: rank zero then has everyone call their handler at the same point.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Sigterm:
    """What one rank does about SIGTERM; its training thread uses it."""

    def __init__(self) -> None:
        self.is_told = False
        """Whether the signal has come, or another rank's."""
        self.defers = False
        """Whether to note it only, for `act`."""
        self._inner: Callable[[int, FrameType | None], Any] | None = None
        self._once = [True]

    def install(self) -> None:
        """Come before the handler that there is, in the main thread; where there is none the signal ends the process.

        Whoever has set that handler sets back what was there before it.
        """
        inner = signal.getsignal(signal.SIGTERM)
        if callable(inner) and inner != self._handle and threading.current_thread() is threading.main_thread():
            self._inner = inner
            signal.signal(signal.SIGTERM, self._handle)

    def act(self) -> None:
        """Call the handler that was there, unless that was done."""
        if self._inner is None:
            return
        try:
            self._once.pop()
        except IndexError:
            return
        self.is_told = True
        self._inner(signal.SIGTERM, None)

    def leave(self) -> None:
        """Call that handler never more: the rank ends anyway, and the others can't broadcast with it."""
        self._once.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_told = True
        if not self.defers:
            self.act()
