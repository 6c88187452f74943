"""Targets: which optimizers and parameter groups a command is meant for, and what is reported of a change to them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch.optim import Optimizer

from midrun.command import Change
from midrun.fs.faults import Conflict, invalid


def path_of(optimizer: int, group: int, option: str) -> str:
    """Return what the control log and the history call an option of an optimizer's group."""
    return f"optimizers/{optimizer}/groups/{group}/{option}"


class ChangeReport(TypedDict):
    """What a change to the optimizers did."""

    changes: list[Change]
    will_be_overwritten_by: list[str]
    """Classes of the schedulers that set the same themselves: the change does not last under them, or may not."""
    notes: list[str]


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

    def path(self, group: int, option: str) -> str:
        """Return what the control log calls an option of a group."""
        return path_of(self.number, group, option)


def targets(optimizers: Sequence[Optimizer], optimizer: int | None, group: int | None = None) -> list[Target]:
    """Return the optimizers and groups that two arguments name; None names all.

    Raises `Conflict` where there is no optimizer, and `Invalid` for a number out of range, and for a group where
    there are several optimizers and none is named.
    """
    if not optimizers:
        raise Conflict("the run has no optimizer: it does not train now, or configure_optimizers gives none")
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
