"""The callbacks: which calls of Lightning's there are, and what has a Trainer make them only while somebody wants them.

Lightning calls every callback that a Trainer has at every hook, which costs a small model a hundredth of its step. So
the one that is here is the Trainer's only while a shell hook is executable, or batches are checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

UNSERVED = {
    "state_dict": "it has no part in a checkpoint: midrun leaves no trace in one",
    "load_state_dict": "Lightning calls it only with what `state_dict` gave",
}
"""Methods of a callback that are no call at which something happens, and why no script runs at them."""

_OWN = 3
"""Arguments that every callback has: itself, the Trainer and the model."""


def _arguments() -> dict[str, tuple[str, ...]]:
    methods = inspect.getmembers(Callback, inspect.isfunction)
    return {
        name: tuple(inspect.signature(method).parameters)[_OWN:]
        for name, method in methods
        if not name.startswith("_") and name not in UNSERVED
    }


ARGUMENTS = _arguments()
"""The names of the callbacks that are served, each with the names of its arguments."""

Call = Callable[[str, dict[str, Any]], object]
"""Is called with a callback's name and its arguments."""


class Caller(Callback):
    """A callback that is a Trainer's only while it is attached.

    Parameters
    ----------
    trainer
        The Trainer.
    call
        Is called at each of Lightning's calls.
    """

    def __init__(self, trainer: Trainer, call: Call) -> None:
        self._trainer = trainer
        self._call = call

    @property
    def _callbacks(self) -> list[Callback]:
        # Lightning declares them only when it is made.
        callbacks: list[Callback] = self._trainer.callbacks  # type: ignore[attr-defined]
        return callbacks

    def attach(self) -> None:
        """Be called from the next callback on. Any thread may call it, one at a time: an append is atomic."""
        if not any(callback is self for callback in self._callbacks):
            self._callbacks.append(self)

    def detach(self) -> None:
        """Be called no more. The list is another then: one that is being gone through loses no one."""
        others = [callback for callback in self._callbacks if callback is not self]
        self._trainer.callbacks = others  # type: ignore[attr-defined]  # as above


def _method(name: str, arguments: tuple[str, ...]) -> Callable[..., None]:
    def method(self: Caller, trainer: Trainer, module: object, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Lightning's
        self._call(name, dict(zip(arguments, args, strict=False)) | kwargs)

    method.__name__, method.__qualname__ = name, f"Caller.{name}"
    return method


for _name, _arguments_of in ARGUMENTS.items():
    if _name != "setup":  # The run begins in the model's own, which comes after all callbacks'.
        setattr(Caller, _name, _method(_name, _arguments_of))
