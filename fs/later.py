"""Later: a value that is not there yet, for files that are made on demand and values that a device still computes."""

from __future__ import annotations

from collections.abc import Callable

from midrun.fs.faults import Fault


class Later:
    """A value that is not there yet: a future, whose methods are named as those of the standard library's.

    Those of `concurrent.futures` take a lock. This one is set by one thread and awaited by another without, so that a
    thread that must never wait, or that a signal handler may interrupt, can set it.
    """

    def __init__(self) -> None:
        self._outcome: tuple[object, Fault | None] | None = None
        self._callbacks: list[Callable[[Later], object]] = []

    def set_result(self, value: object) -> None:
        """Give the value. The first outcome counts, and any later one does nothing."""
        self._set((value, None))

    def set_exception(self, fault: Fault) -> None:
        """Give the fault that the value's readers get. The first outcome counts, as above."""
        self._set((None, fault))

    def add_done_callback(self, callback: Callable[[Later], object]) -> None:
        """Call `callback` with this, once: when the outcome comes, in the thread that gives it, or now if it has."""
        self._callbacks.append(callback)
        if self._outcome is not None:
            self._call()

    def then(self, function: Callable[[object], object]) -> Later:
        """Return the later value that `function` makes of this one, in the thread that asks for the result."""
        return _Made(self, function)

    def result(self) -> object:
        """Return the value, or raise the fault.

        Raises RuntimeError where neither is there yet: it never waits.
        """
        if self._outcome is None:
            raise RuntimeError("this value is not there yet: ask in a callback")
        value, fault = self._outcome
        if fault is not None:
            raise fault
        return value

    def _set(self, outcome: tuple[object, Fault | None]) -> None:
        # A store and a load on either side, each atomic: of this and add_done_callback, the second sees the other.
        if self._outcome is None:
            self._outcome = outcome
            self._call()

    def _call(self) -> None:
        # Both sides may get here at once. A pop is atomic, so each callback is called by one of them.
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            callback(self)


class _Made(Later):
    """What a function makes of a later value."""

    def __init__(self, later: Later, function: Callable[[object], object]) -> None:
        super().__init__()
        self._later = later
        self._function = function

    def add_done_callback(self, callback: Callable[[Later], object]) -> None:
        self._later.add_done_callback(lambda _: callback(self))

    def result(self) -> object:
        return self._function(self._later.result())
