"""Momentum: forget where an optimizer was going, and nothing else that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch.optim import Optimizer

from midrun.fs.faults import Refused
from midrun.scalar import number_of
from midrun.targets import Target, targets

_FIRST_MOMENTS = ("momentum_buffer", "exp_avg")
"""Where optimizers keep the mean of their gradients: SGD, RMSprop and Muon, and the family of Adam."""


class Reset(TypedDict):
    """What was reset in one optimizer."""

    optimizer: int
    name: str
    """Its class."""
    tensors: int
    """How many buffers were set to zero; 0 before its first step."""


class Without(TypedDict):
    """An optimizer that has no momentum."""

    optimizer: int
    name: str
    found: str
    """What it has instead."""


class MomentumReport(TypedDict):
    """What a reset of the momentum did."""

    optimizers: list[Reset]
    without: list[Without]


def _states(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the state of each parameter that has any; looking for one that has none would make it."""
    states: list[Any] = [
        optimizer.state[parameter]
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in optimizer.state
    ]
    return [state for state in states if isinstance(state, dict) and state]


def _has_momentum(optimizer: Optimizer) -> bool:
    """Whether an optimizer keeps a first moment, or will from its first step on."""
    states = _states(optimizer)
    if states:
        return any(key in state for state in states for key in _FIRST_MOMENTS)
    return any("betas" in group or number_of(group.get("momentum")) for group in optimizer.param_groups)


def _without(target: Target) -> Without:
    """Describe an optimizer without momentum."""
    keys = sorted({str(key) for state in _states(target.optimizer) for key in state})
    momentum = [group["momentum"] for group in target.optimizer.param_groups if "momentum" in group]
    parts = [f"momentum {momentum[0]!r}"] if momentum else []
    parts.append(f"the state {', '.join(keys)}" if keys else "no state")
    return {
        "optimizer": target.number,
        "name": type(target.optimizer).__name__,
        "found": " and ".join(parts),
    }


def _buffers(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the first moments of an optimizer, each once; SGD's is None where a parameter had no gradient yet."""
    found = (state.get(key) for state in _states(optimizer) for key in _FIRST_MOMENTS)
    return list({id(buffer): buffer for buffer in found if isinstance(buffer, torch.Tensor)}.values())


def reset_momentum(optimizers: Sequence[Optimizer], *, optimizer: int | None = None) -> MomentumReport:
    """Set the first moments of the optimizers, or of one, to zero in place.

    Step counts and second moments stay, so Adam does not begin anew: its next steps are small until its mean has built
    up. The training thread calls this, between steps. Raises `Refused` if none of the optimizers keeps momentum,
    `Invalid` for the number of an optimizer that does not exist, `Conflict` without any. A fault has changed nothing.
    """
    chosen = targets(optimizers, optimizer)
    having = [target for target in chosen if _has_momentum(target.optimizer)]
    without = [_without(target) for target in chosen if not _has_momentum(target.optimizer)]
    if not having:
        found = "; ".join(f"optimizer {one['optimizer']} ({one['name']}) has {one['found']}" for one in without)
        raise Refused(
            f"there is no momentum to reset: {found}; momentum is what is kept as {' or '.join(_FIRST_MOMENTS)}"
        )
    resets: list[Reset] = []
    with torch.no_grad():
        for target in having:
            buffers = _buffers(target.optimizer)
            for buffer in buffers:
                buffer.zero_()
            resets.append(
                {"optimizer": target.number, "name": type(target.optimizer).__name__, "tensors": len(buffers)}
            )
    return {"optimizers": resets, "without": without}
