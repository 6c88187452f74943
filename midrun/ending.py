"""Endings: how a loop ends, and the exception that ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from lightning.pytorch.utilities.exceptions import SIGTERMException

from midrun.fs.tracebacks import message, trace
from midrun.lightnings import is_empty

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
    """Tells how a Trainer ended, by wrapping methods of its strategy and of those that it tells of an exception.

    Lightning calls no teardown hook of the model after an exception. It tells the callbacks, the data and the strategy
    (`on_exception`), lets the loggers finish (`finalize`), which may take minutes, and takes the strategy down
    (`teardown`). An exception of one of them, as on a full disk, keeps it from all the rest: then the run ends at once.

    Parameters
    ----------
    raised
        Called with the exception, and with how it ends the loop.
    over
        Called when the Trainer has taken everything down after an exception, or will not.
    """

    def __init__(
        self, trainer: Trainer, raised: Callable[[BaseException, Outcome], object], over: Callable[[], object]
    ) -> None:
        self._raised, self._over = raised, over
        self._failed = False
        callbacks: list[object] = trainer.callbacks  # type: ignore[attr-defined]  # as in `callbacks`
        datamodule: object = trainer.datamodule  # type: ignore[attr-defined]  # as above
        self._wraps = [
            _Wrap(trainer.strategy, "on_exception", self._told),
            _Wrap(trainer.strategy, "teardown", self._taken_down),
            *(_Wrap(owner, "on_exception", self._watched) for owner in (*callbacks, datamodule) if _is_told(owner)),
            *(_Wrap(logger, "finalize", self._watched) for logger in trainer.loggers if hasattr(logger, "__dict__")),
        ]

    def undo(self) -> None:
        """Give all their own methods back."""
        for wrap in self._wraps:
            wrap.undo()

    def _told(self, inner: Callable[..., None], exception: BaseException) -> None:
        self._fails(exception)
        self._watched(inner, exception)

    def _watched(self, inner: Callable[..., None], *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        """Call a method; where it raises in the end of a loop that has failed, nothing is called behind it."""
        try:
            inner(*args, **kwargs)
        except BaseException:
            for exception in (*args, *kwargs.values()):
                if isinstance(exception, BaseException):  # The one that ends the loop, and maybe nobody told us yet.
                    self._fails(exception)
            if self._failed:
                self._over()
            raise

    def _taken_down(self, inner: Callable[[], None]) -> None:
        try:
            inner()
        finally:
            if self._failed:
                self._over()

    def _fails(self, exception: BaseException) -> None:
        if not self._failed:
            self._failed = True
            self._raised(exception, _outcome(exception))


def _is_told(owner: object) -> bool:
    """Whether a callback, or the data, does anything when it is told of an exception."""
    hook = getattr(owner, "on_exception", None)
    nothing = is_empty(hook, ".callbacks.callback", ".core.datamodule")
    return hasattr(hook, "__func__") and not nothing and hasattr(owner, "__dict__")


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
        What is called in its place, with the method as it was and then its arguments.
    """

    def __init__(self, owner: object, name: str, by: Callable[..., None]) -> None:
        self._owner, self._name = owner, name
        self._inner: Callable[..., Any] = getattr(owner, name)
        self._by = partial(by, self._inner)
        setattr(owner, name, self._by)  # On this object alone, not in its class.

    def undo(self) -> None:
        """Give the method back, unless somebody else has wrapped it since."""
        if vars(self._owner).get(self._name) is not self._by:
            return
        if getattr(self._inner, "__func__", None) is getattr(type(self._owner), self._name, None):
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._inner)
