"""The site: the run that a web face shows, as the threads that answer requests reach it.

Requests are answered in worker threads, the view of the tree lives in the face's trio loop. What is at hand in the view
needs no hop between the two; all else is asked for in the loop, and given up at once when the face closes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from midrun.fs.faults import ENDED, Gone
from midrun.fs.view import View

T = TypeVar("T")


@dataclass
class Site:
    """What every answer is made from. It is made in the trio loop of its view."""

    view: View
    run: Mapping[str, str] = field(default_factory=dict)
    """What the face knows of the run by itself: `id` and `dir`."""
    version: str = ""
    """midrun's."""
    waiting: int = 0
    """Clients that wait for files made on demand; counted in the loop."""
    polling: int = 0
    """Polls that wait for the run; counted in the loop too."""

    def __post_init__(self) -> None:
        self._loop = trio.lowlevel.current_trio_token()
        self._asking: set[trio.CancelScope] = set()
        self._closed = False

    def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return what `question` returns, run in the loop. Worker threads call it.

        Raises what `question` raises, and `Gone` when the face closes before there is an answer.
        """
        try:
            return trio.from_thread.run(self._answer, question, trio_token=self._loop)
        except (trio.RunFinishedError, trio.Cancelled):
            raise _closing() from None

    def close(self) -> None:
        """Give up every question that waits, and every later one. The loop's thread calls it."""
        self._closed = True
        for scope in self._asking:
            scope.cancel()

    async def _answer(self, question: Callable[[], Awaitable[T]]) -> T:
        if self._closed:
            raise _closing()
        with trio.CancelScope() as scope:
            self._asking.add(scope)
            try:
                return await question()
            finally:
                self._asking.discard(scope)
        raise _closing()


def _closing() -> Gone:
    return Gone(f"{ENDED}, or its REST server is restarting")
