"""Endings: how a loop ends, and the exception that ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from lightning.pytorch.utilities.exceptions import SIGTERMException

from midrun.fs.tracebacks import message, trace

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from midrun.sample import Sample

Outcome = Literal["finished", "interrupted", "failed"]
"""How a loop ended."""


class ExceptionRecord(TypedDict):
    """The exception that ends the loop, or holds it, and where the loop was."""

    type: str
    message: str
    traceback: str
    global_step: int
    epoch: int
    batch: int | None
    time: float
    """When it was raised. Seconds since 1970."""


def exception_record(exception: BaseException, sample: Sample) -> ExceptionRecord:
    """Return the record of an exception that comes now, after this sample."""
    kind = type(exception)
    return ExceptionRecord(
        # As Python itself names it.
        type=kind.__qualname__
        if kind.__module__ in {"builtins", "__main__"}
        else f"{kind.__module__}.{kind.__qualname__}",
        message=message(exception),
        traceback=f"{trace(exception)}\n",
        global_step=sample.global_step,
        epoch=sample.epoch,
        batch=sample.batch,
        time=time.time(),
    )


class Ending:
    """Tells how a Trainer ended, by wrapping two methods of its strategy.

    Lightning calls no teardown hook of the model after an exception; it calls the strategy's `on_exception`
    and then its `teardown`, which come after success too, but without an exception before.

    Parameters
    ----------
    raised
        Called with the exception, and with how it ends the loop.
    over
        Called when the Trainer has taken everything down after an exception.
    """

    def __init__(
        self, trainer: Trainer, raised: Callable[[BaseException, Outcome], object], over: Callable[[], object]
    ) -> None:
        self._raised, self._over = raised, over
        self._failed = False
        self._on_exception = _Wrap(trainer.strategy, "on_exception", self._told)
        self._teardown = _Wrap(trainer.strategy, "teardown", self._taken_down)

    def undo(self) -> None:
        """Give the strategy its own methods back."""
        self._on_exception.undo()
        self._teardown.undo()

    def _told(self, exception: BaseException) -> None:
        self._failed = True
        self._raised(exception, _outcome(exception))
        self._on_exception.inner(exception)

    def _taken_down(self) -> None:
        try:
            self._teardown.inner()
        finally:
            if self._failed:
                self._over()


def _outcome(exception: BaseException) -> Outcome:
    """Return how an exception ends the loop: being told to end, by a key or a signal, is no failure."""
    told = isinstance(exception, KeyboardInterrupt | SystemExit | SIGTERMException)
    return "interrupted" if told else "failed"


class _Wrap:
    """A method of one object, replaced until it is given back.

    Parameters
    ----------
    owner, name
        Whose method, and its name.
    by
        What is called in its place; `inner` is what was there.
    """

    def __init__(self, owner: object, name: str, by: Callable[..., Any]) -> None:
        self._owner, self._name, self._by = owner, name, by
        self.inner: Callable[..., Any] = getattr(owner, name)
        """The method as it was."""
        setattr(owner, name, by)  # On this object alone, not in its class.

    def undo(self) -> None:
        """Give the method back, unless somebody else has wrapped it since."""
        if vars(self._owner).get(self._name) != self._by:
            return
        if getattr(self.inner, "__func__", None) is getattr(type(self._owner), self._name, None):
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self.inner)
