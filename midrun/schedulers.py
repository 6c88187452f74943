"""Schedulers: whose rates they set, where they keep them, and what they would set next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import SWALR

from midrun.scalar import number_of
from midrun.targets import untouched_randomness

_FORECAST = 20
"""How many rates a scheduler that is not torch's is asked for."""
_STEPPING = ("get_lr", "_get_closed_form_lr", "step", "_update_lr", "_reduce_lr")
"""The methods of a scheduler that its rates come from."""


def owner_of(scheduler: object) -> object:
    """Return the optimizer that a scheduler says it belongs to; None if it does not say."""
    with suppress(Exception):  # anybody's property
        return getattr(scheduler, "optimizer", None)
    return None


def walk(place: str, scheduler: object, above: frozenset[int] = frozenset()) -> Iterator[tuple[str, object]]:
    """Iterate over a scheduler and all inside it, each with its place; one that holds itself is not entered again."""
    if id(scheduler) in above:
        return
    yield place, scheduler
    inner = vars(scheduler).get("_schedulers") if hasattr(scheduler, "__dict__") else None
    for number, child in enumerate(inner if isinstance(inner, (list, tuple)) else ()):
        yield from walk(f"{place}/_schedulers/{number}", child, above | {id(scheduler)})


def family_of(place: str, scheduler: object, optimizer: Optimizer, *, sole: bool) -> Iterator[tuple[str, object]]:
    """Iterate over a scheduler and those inside it that belong to an optimizer, each with its place."""
    for where, one in walk(place, scheduler):
        owner = owner_of(one)
        if owner is optimizer or (owner is None and sole):
            yield where, one


def is_torchs(scheduler: object) -> bool:
    """Whether a scheduler's rates come from torch's code alone."""
    for name in _STEPPING:
        found = next((kind for kind in type(scheduler).__mro__ if name in vars(kind)), None)
        if found is not None and not _in_torch(found):
            return False
    return any(_in_torch(kind) for kind in type(scheduler).__mro__)


def _in_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def has_fixed_rates(scheduler: object, group: dict[str, Any], number: int) -> bool:
    """Whether a scheduler has rates above 0 that it returns to whatever the group's base rate is."""
    held = vars(scheduler) if hasattr(scheduler, "__dict__") else {}
    tops = held.get("max_lrs")
    rates = [held.get("eta_min"), tops[number] if isinstance(tops, list) and number < len(tops) else None]
    if isinstance(scheduler, OneCycleLR):
        rates.append(group.get("max_lr"))
    if isinstance(scheduler, SWALR):
        rates.append(group.get("swa_lr"))
    return any(number_of(rate) for rate in rates)


def _copied(value: object) -> Any:  # noqa: ANN401 - whatever it is given
    """Return a copy of a container or tensor, and anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.copy() if isinstance(value, (dict, set)) else value


def forecast(scheduler: object, optimizer: Optimizer) -> list[list[float]] | None:
    """Return the next rates of each group, by a copy of the scheduler; None where that cannot be known.

    What overrides `step` is not asked: a copy that does not share the scheduler's files and logs cannot be made.
    """
    stepping = next((kind for kind in type(scheduler).__mro__ if "step" in vars(kind)), None)
    if stepping is None or not _in_torch(stepping):
        return None
    groups = [
        {key: _copied(value) for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]
    rates = []
    with suppress(Exception), untouched_randomness():  # anybody's code, and it may need what a copy has not
        twin: Any = object.__new__(type(scheduler))
        vars(twin).update({key: _copied(value) for key, value in vars(scheduler).items() if key != "optimizer"})
        vars(twin).update(
            optimizer=SimpleNamespace(param_groups=groups, defaults=dict(optimizer.defaults)),
            _get_lr_called_within_step=True,  # else get_lr warns
        )
        for _ in range(_FORECAST):
            vars(twin).update(last_epoch=twin.last_epoch + 1, _step_count=twin._step_count + 1)  # noqa: SLF001 - a twin's
            for group, rate in zip(groups, twin.get_lr(), strict=True):
                group["lr"] = rate
            rates.append([float(group["lr"]) for group in groups])
        return rates
    return None
