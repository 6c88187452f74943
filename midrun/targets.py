"""Changes: what a command did to the optimizers of a run, and which of them it was meant for."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.optim import Optimizer

from midrun.fs.faults import Conflict, Invalid
from midrun.sample import is_real_scalar


class Target(NamedTuple):
    """An optimizer that a command is meant for."""

    number: int
    optimizer: Optimizer
    groups: list[int]
    """The numbers of its parameter groups that the command names; all of them where it names none."""

    @property
    def name(self) -> str:
        """What an error or a note calls it."""
        return f"optimizer {self.number} ({type(self.optimizer).__name__})"


def invalid(argument: str, message: str, kind: str = "value_error") -> Invalid:
    """Return the fault of an argument that a command does not take."""
    return Invalid(message, errors=[{"loc": [argument], "msg": message, "type": kind}])


def targets(optimizers: Sequence[Optimizer], optimizer: int | None, group: int | None = None) -> list[Target]:
    """Return the optimizers and groups that two arguments name; None names all.

    Raises `Conflict` where there is no optimizer, and `Invalid` for a number out of range and for a group of nobody
    knows which optimizer.
    """
    if not optimizers:
        raise Conflict("the run has no optimizer now: ask again when it trains")
    if optimizer is None and group is not None and len(optimizers) > 1:
        raise invalid(
            "optimizer",
            f"group {group} of which optimizer? There are {len(optimizers)}: name one from 0 to {len(optimizers) - 1}",
            "missing",
        )
    if optimizer is not None:
        _check_number("optimizer", optimizer, len(optimizers), "the run")
    found = []
    for number in range(len(optimizers)) if optimizer is None else [optimizer]:
        count = len(optimizers[number].param_groups)
        if group is not None:
            _check_number("group", group, count, f"optimizer {number}")
        found.append(Target(number, optimizers[number], list(range(count)) if group is None else [group]))
    return found


def _check_number(argument: str, number: int, count: int, owner: str) -> None:
    """Raise `Invalid` unless a number names one of so many things."""
    if type(number) is not int:
        raise invalid(argument, f"{argument} is {number!r}; it must be a whole number", "int_type")
    if not 0 <= number < count:
        raise invalid(
            argument,
            f"there is no {argument} {number}: {owner} has {count}, so give a number from 0 to {count - 1}",
            "out_of_range",
        )


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


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Give the CPU's random generators back as they were: what runs inside may be anybody's code."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one that users' code draws from
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002 - as above
