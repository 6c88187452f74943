"""Endings: how a loop ends, and the exception that ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from lightning.pytorch.utilities.exceptions import SIGTERMException

from midrun.fs.tracebacks import message, trace
from midrun.lightnings import is_lightnings

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from midrun.sample import Sample

_NAME = "on_exception"

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
    """Tells how a Trainer ended, by wrapping a method of its strategy.

    Lightning calls no teardown hook of the model after an exception. It calls `on_exception` of the callbacks, the data
    and then the strategy, and takes all down behind that; but an exception of one of those calls, or of a logger that
    finishes, keeps it from all the rest. A full disk may be the reason of both. So the run ends as soon as the strategy
    is told, or when one of those before it raises.

    Parameters
    ----------
    raised
        Called with the exception, and with how it ends the loop.
    over
        Called when the loop has ended with an exception.
    """

    def __init__(
        self, trainer: Trainer, raised: Callable[[BaseException, Outcome], object], over: Callable[[], object]
    ) -> None:
        self._raised, self._over = raised, over
        self._on_exception = _Wrap(trainer.strategy, _NAME, self._told)
        callbacks: list[object] = trainer.callbacks  # type: ignore[attr-defined]  # as in `callbacks`
        datamodule: object = trainer.datamodule  # type: ignore[attr-defined]  # as above
        self._before = [self._watched(owner) for owner in (*callbacks, datamodule) if _has_own(owner)]

    def undo(self) -> None:
        """Give all their own methods back."""
        for wrap in (self._on_exception, *self._before):
            wrap.undo()

    def _told(self, exception: BaseException) -> None:
        try:
            self._raised(exception, _outcome(exception))
            self._on_exception.inner(exception)
        finally:
            self._over()

    def _watched(self, owner: object) -> _Wrap:
        """Wrap a method that is called before the strategy's."""

        def call(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
            try:
                wrap.inner(*args, **kwargs)
            except BaseException:
                # What ends the loop is the exception that it was called with.
                exception = next(value for value in (*args, *kwargs.values()) if isinstance(value, BaseException))
                try:
                    self._raised(exception, _outcome(exception))
                finally:
                    self._over()
                raise

        wrap = _Wrap(owner, _NAME, call)
        return wrap


def _has_own(owner: object) -> bool:
    """Whether a callback, or the data, does anything when it is told of an exception: Lightning's own do nothing."""
    function = getattr(getattr(owner, _NAME, None), "__func__", None)
    module = str(getattr(function, "__globals__", {}).get("__name__"))
    nothing = is_lightnings(module) and module.endswith((".callbacks.callback", ".core.datamodule"))
    return function is not None and not nothing and hasattr(owner, "__dict__")


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
