"""Calls: with what training calls a model's modules, which is what an inspector repeats.

How a forward pass is fed can't be guessed: `training_step` hands its network a member of the batch, or several, or
what it has made of them. So one pass is watched as it happens. The watch is in `nn.Module.__call__`, where `torch.fx`
has its own: `torch.compile` would notice hooks on the modules, and compile anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn


class Call(NamedTuple):
    """One call of a module by what is no module itself: the arguments and what came of them."""

    name: str
    """The module's name in the model; "" for the model itself."""
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


class Watch:
    """Notes the calls of a model's modules in one pass: those that come from `training_step` itself.

    Only the pass of the newest batch is kept, and of the modules only those that compute with parameters: a loss or a
    metric that is a module too is no part of the network.

    Parameters
    ----------
    model
        The model.
    batch
        Returns what tells one batch from another, None where no batch is trained on.
    """

    def __init__(self, model: nn.Module, batch: Callable[[], object]) -> None:
        self._model, self._batch = model, batch
        self._names: dict[int, str] = {}
        self._calls: list[Call] = []
        self._noted: object = None
        self._begun: object = None
        """The batch in which the watch has begun: of its pass a part is over."""
        self._original: Callable[..., Any] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._names = {id(module): name for name, module in self._model.named_modules()}
        self._begun, self._original = self._batch(), nn.Module.__call__
        self._put(self._watched(self._original, threading.get_ident()))

    def stop(self) -> None:
        """Watch no more, and forget what was seen."""
        if self._original is not None:
            self._put(self._original)
        self._original, self._calls, self._noted = None, [], None

    @property
    def is_whole(self) -> bool:
        """Whether the whole pass of the batch that is in flight has been watched."""
        return self._batch() not in (None, self._begun)

    @property
    def calls(self) -> list[Call]:
        """The calls in the pass of the batch that is in flight, in their order."""
        return list(self._calls) if self._noted == self._batch() else []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have no watch in the block: a tool keeps what it finds in its place, and puts that back later."""
        watched = nn.Module.__call__
        if self._original is not None:
            self._put(self._original)
        try:
            yield
        finally:
            if self._original is not None:
                self._put(watched)

    def _watched(self, original: Callable[..., Any], thread: int) -> Callable[..., Any]:
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, N807 - as the original
            if torch.compiler.is_compiling() or threading.get_ident() != thread or not self._is_noted(module):
                return original(module, *args, **kwargs)
            with self.paused():
                output = original(module, *args, **kwargs)
            self._calls.append(Call(self._names[id(module)], module, args, kwargs, output))
            return output

        return __call__

    def _is_noted(self, module: nn.Module) -> bool:
        """Whether a call is noted. It never raises, in the midst of a forward pass of training."""
        if id(module) not in self._names:
            return False
        try:
            # A strategy that wraps the model has it called for its `training_step`.
            if not self.is_whole or (module is self._model and "forward" in vars(module)):
                return False
            if self._noted != (batch := self._batch()):
                self._calls, self._noted = [], batch
            return next(module.parameters(), None) is not None
        except Exception:  # noqa: BLE001 - a module is anybody's code
            return False

    @staticmethod
    def _put(call: Callable[..., Any]) -> None:
        if nn.Module.__call__ is not call:
            nn.Module.__call__ = call  # type: ignore[method-assign]  # that is the watch
