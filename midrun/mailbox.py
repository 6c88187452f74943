"""Mailboxes: what one thread puts in, another one takes out, and waits for no longer than it wants to."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue that one thread takes from.

    A `SimpleQueue` whose `get` keeps to its timeout. Before Python 3.13 the queue's own waits for ever, or until
    something is put in, where a signal's handler runs beyond the end of the timeout: a held run did not end by SIGTERM.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()
        self._bell = threading.Lock()
        """Open while there may be something: nobody ever waits to open it."""
        self._bell.acquire()

    def put(self, item: T) -> None:
        """Put something in. It never waits; a signal handler may call it."""
        self._items.put(item)
        with suppress(RuntimeError):  # It is open already.
            self._bell.release()

    def get_nowait(self) -> T:
        """Take the oldest item out. Raises `queue.Empty` where there is none."""
        return self._items.get_nowait()

    def get(self, timeout: float) -> T:
        """Take the oldest item out, and wait for one for some seconds at most. Raises `queue.Empty` behind those."""
        deadline = time.monotonic() + timeout
        while True:
            with suppress(Empty):
                return self._items.get_nowait()
            if not self._bell.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return self._items.get_nowait()

    def empty(self) -> bool:
        """Whether nothing is in it."""
        return self._items.empty()
