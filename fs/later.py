"""Later: a value that is not there yet, for files that are made on demand and values that a device still computes."""

from __future__ import annotations

from collections.abc import Callable

from midrun.fs.faults import Fault


class Later:
    """A value that is not there yet.

    It is resolved or failed by one thread and awaited by another without a lock, so that a thread that must never
    wait, or that a signal handler may interrupt, can resolve it.
    """

    def __init__(self) -> None:
        self._outcome: tuple[object, Fault | None] | None = None
        self._told: list[Callable[[], object]] = []

    def resolve(self, value: object) -> None:
        """Give the value."""
        self._settle((value, None))

    def fail(self, fault: Fault) -> None:
        """Give the fault that the value's readers get."""
        self._settle((None, fault))

    def tell(self, told: Callable[[], object]) -> None:
        """Call `told`, once, when the outcome is given, in the thread that gives it; at once if it is there."""
        self._told.append(told)
        if self._outcome is not None:
            self._call()

    def then(self, function: Callable[[object], object]) -> Later:
        """Return the later value that `function` makes of this one, in the thread that asks for the result."""
        return _Made(self, function)

    @property
    def settled(self) -> bool:
        """Whether the outcome is there."""
        return self._outcome is not None

    def result(self) -> object:
        """Return the value, or raise the fault.

        Raises RuntimeError where neither is there yet: it never waits.
        """
        if self._outcome is None:
            raise RuntimeError("this value is not there yet")
        value, fault = self._outcome
        if fault is not None:
            raise fault
        return value

    def _settle(self, outcome: tuple[object, Fault | None]) -> None:
        # A store and a load on either side, each atomic: whichever of _settle and tell comes second sees the other.
        if self._outcome is None:
            self._outcome = outcome
            self._call()

    def _call(self) -> None:
        # Both sides may get here at once. A pop is atomic, so each function is called by one of them.
        while self._told:
            try:
                told = self._told.pop(0)
            except IndexError:
                return
            told()


class _Made(Later):
    """What a function makes of a later value."""

    def __init__(self, later: Later, function: Callable[[object], object]) -> None:
        super().__init__()
        self._later = later
        self._function = function

    def tell(self, told: Callable[[], object]) -> None:
        self._later.tell(told)

    @property
    def settled(self) -> bool:
        return self._later.settled

    def result(self) -> object:
        return self._function(self._later.result())
