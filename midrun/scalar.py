"""Scalars: single numbers, wherever they are kept, as Python's numbers and as JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch


def is_here(value: torch.Tensor) -> bool:
    """Whether a tensor can be read without another rank's help.

    A subclass may be a wrapper, such as a DTensor, whose value is spread over ranks: reading it would wait for them.
    """
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def is_real_scalar(value: torch.Tensor) -> bool:
    """Whether a tensor is one real number that can be read here."""
    return is_here(value) and value.numel() == 1 and not value.is_complex()


def number_of(value: object) -> float | None:
    """Return a number of a parameter group or scheduler as a float; None for what is none.

    Waits for the device of a tensor. One that is spread over ranks, such as a DTensor, is none: see `is_real_scalar`.
    """
    if isinstance(value, torch.Tensor):
        return float(value.item()) if is_real_scalar(value) else None
    return float(value) if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) else None


def json_of(value: object) -> Any:  # noqa: ANN401 - JSON is of many types
    """Return a value of a parameter group as JSON can show it."""
    if isinstance(value, (list, tuple)):
        return [json_of(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    number = number_of(value)
    if number is None:
        return repr(value)
    return number if math.isfinite(number) else repr(number)


def holds(dtype: torch.dtype, value: float) -> bool:
    """Whether a tensor of this type can hold a number, rounded as floats are.

    Not one that is too large, one so small that it becomes 0, or, among integers, one that becomes another: -1 is 255
    in a uint8.
    """
    try:
        held = torch.tensor(value, dtype=dtype, device="cpu").item()
    except (RuntimeError, OverflowError, ValueError):
        return False
    return math.isfinite(held) and (held == 0) == (value == 0) if dtype.is_floating_point else held == value
