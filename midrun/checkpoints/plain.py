"""Plain values: what `torch.load(weights_only=True)` reads."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

_LEAVES = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, torch.Size),
)
_CONTAINERS = (dict, OrderedDict, list, tuple, set)


def refusal(value: Any, path: str) -> str | None:  # noqa: ANN401 - what a user gives
    """Return where in a value there is something that would not be read, and of what type; None if there is nothing."""
    if type(value) in _LEAVES:
        return None
    if type(value) not in _CONTAINERS:
        return f"{path} is of type {type(value).__name__}"
    if isinstance(value, dict):
        parts = [(f"the key {key!r} of {path}", key) for key in value]
        parts += [(f"{path}[{key!r}]", part) for key, part in value.items()]
    else:
        parts = [(f"{path}[{number}]", part) for number, part in enumerate(value)]
    return next((why for name, part in parts if (why := refusal(part, name)) is not None), None)
