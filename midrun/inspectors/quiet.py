"""Quiet: a forward pass besides the one of training, of which nothing is left.

The pass runs in eval mode. What it changes is put back: the modules' modes, attributes, buffers and hooks, what lists
and dictionaries among the attributes hold, the random numbers' states, and the gradients.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from midrun.loop import Loop

_MISSING = object()
_LOGGING = ("log", "log_dict", "print")
"""What a model's forward may call of the model itself, and would then log the pass of an inspector."""


@contextmanager
def quiet(loop: Loop, *, gradients: bool = False) -> Iterator[None]:
    """Run the block so that a forward pass in it leaves nothing behind.

    Parameters
    ----------
    loop
        The loop whose model it is.
    gradients
        Whether the pass makes an autograd graph.

    Raises RuntimeError where a parameter has been changed in place, which is not put back: the block's own modules do
    that, in eval mode.
    """
    model = loop.module
    with ExitStack() as stack:
        stack.enter_context(_random_states(loop.strategy.root_device))
        stack.enter_context(_state(model))
        for name in _LOGGING:
            vars(model)[name] = _nothing
        for module in model.modules():
            vars(module)["training"] = False
        stack.enter_context(_uncompiled())
        stack.enter_context(loop.precision())
        stack.enter_context(torch.set_grad_enabled(gradients))
        yield


def _nothing(*_: object, **__: object) -> None:
    """Log nothing."""


@contextmanager
def _state(model: nn.Module) -> Iterator[None]:
    """Put back what the modules of a model hold."""
    parameters = list(model.parameters())
    versions, gradients = [parameter._version for parameter in parameters], [p.grad for p in parameters]  # noqa: SLF001 - nothing else tells
    saved = [_Saved(module) for module in model.modules()]
    try:
        yield
    finally:
        for module in saved:
            module.put_back()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient
    if versions != [parameter._version for parameter in parameters]:  # noqa: SLF001 - as above
        raise RuntimeError("the model's forward has changed a parameter in place, also in eval mode")


class _Saved:
    """What one module holds: its attributes, what containers among them hold, and the numbers of its tensors."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = dict(vars(module))
        held = [*self._attributes.values()]
        self._containers = [(value, value.copy()) for value in held if type(value) in _CONTAINERS]
        tensors = [*held, *module._buffers.values()]  # noqa: SLF001 - without those of modules below
        self._tensors = [
            (value, value._version, value.detach().clone())  # noqa: SLF001 - as above
            for value in tensors
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter) and not value.is_inference()
        ]
        self._generators = [(value, value.get_state()) for value in held if isinstance(value, torch.Generator)]

    def put_back(self) -> None:
        attributes = vars(self._module)
        for name in [name for name in attributes if name not in self._attributes]:
            del attributes[name]
        for name, value in self._attributes.items():
            if attributes.get(name, _MISSING) is not value:
                attributes[name] = value
        for container, copy in self._containers:
            if not _is_same(container, copy):
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(copy)
        for tensor, version, copy in self._tensors:
            if tensor._version != version:  # noqa: SLF001 - as above
                with torch.no_grad():
                    tensor.copy_(copy)
        for generator, state in self._generators:
            generator.set_state(state)


_CONTAINERS = {list, dict, set, OrderedDict}
"""Of exactly these types: one that is derived from them may do what it likes when it is changed."""


def _is_same(container: Any, copy: Any) -> bool:  # noqa: ANN401 - a list, a dictionary or a set
    """Whether a container holds what it did, member by member: to compare tensors would compute."""
    if len(container) != len(copy):
        return False
    if isinstance(container, set):
        return bool(container == copy)
    if isinstance(container, dict):
        return list(container) == list(copy) and all(container[key] is copy[key] for key in copy)
    return all(one is other for one, other in zip(container, copy, strict=True))


@contextmanager
def _random_states(device: torch.device) -> Iterator[None]:
    """Put back the states of the random numbers of Python, NumPy, torch, and the device."""
    here, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - what user code draws from
    module: Any = None if device.type in ("cpu", "meta") else torch.get_device_module(device)
    there = None if module is None else module.get_rng_state(device)
    try:
        yield
    finally:
        torch.set_rng_state(here)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 - as above
        if module is not None:
            module.set_rng_state(there, device)


def _uncompiled() -> AbstractContextManager[object]:
    """Have `torch.compile` leave what is called alone. Who has compiled nothing pays for no import of it."""
    stance = getattr(torch.compiler, "set_stance", None)
    return nullcontext() if stance is None or "torch._dynamo" not in sys.modules else stance("force_eager")
