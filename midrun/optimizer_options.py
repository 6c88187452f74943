"""Optimizer options: weight decay, momentum, betas and others of a running optimizer.

An optimizer reads its options at each step, but checks them only when it is made, and makes its state at its first
step. So a new value is first given to a throwaway optimizer of the same class that is as far as the real one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from midrun.fs.faults import Invalid, Refused, invalid
from midrun.fs.tracebacks import last_line, message
from midrun.scalar import holds, json_of, number_of
from midrun.schedulers import walk
from midrun.targets import ChangeReport, Target, targets, untouched_randomness

_SCHEDULED = ("initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum")
"""What schedulers keep in parameter groups."""
_IMPLEMENTATION: dict[str, Any] = {"fused": None, "foreach": None, "capturable": False, "differentiable": False}
"""How a step is computed, and the values that work everywhere. The state of an optimizer is made for one of them."""
_PARAMETERS = ("params", "param_names")
"""What is optimized."""
_GRADIENTS = (1.0, 10.0, 0.1, 1.0, 0.01, 5.0)
"""How large the gradients of a trial are: a wrong alpha or beta gives NaN only after some change."""
_FIXED: list[tuple[type[Optimizer], str, str]] = [
    (Adagrad, "initial_accumulator_value", "it is read once, when the optimizer is made"),
    (AdamW, "decoupled_weight_decay", "it is what makes it AdamW"),
    (torch.optim.LBFGS, "history_size", "its history has been laid out for the present one"),
]
"""What a trial does not find."""


class _OptionMove(NamedTuple):
    """The option of one group and its new value."""

    number: int
    group: dict[str, Any]
    old: Any
    new: Any


class _Untriable(Exception):  # noqa: N818 - a finding, not an error
    """No throwaway optimizer like this one could be made to step."""


# ---- values


def _typed(option: str, old: object, value: object, *, floats: bool) -> Any:  # noqa: ANN401 - as the option's type
    """Return the new value in the type of the present one.

    Raises `Invalid` for another type, `Refused` where the present one tells none. `floats` says that an int may become
    a float: many options have the default 0.
    """
    if isinstance(old, bool):
        if isinstance(value, bool):
            return value
        raise _wrong(option, old, value, "true or false")
    if isinstance(old, str):
        if isinstance(value, str):
            return value
        raise _wrong(option, old, value, "a text")
    if isinstance(old, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(old):
            raise _wrong(option, old, value, f"a list of {len(old)}")
        return type(old)([_typed_item(option, o, v) for o, v in zip(old, value, strict=True)])
    return _typed_number(option, old, value, floats=floats)


def _typed_number(option: str, old: object, value: object, *, floats: bool) -> float:
    """As `_typed`, for a number or a tensor of one."""
    if number_of(old) is None:
        raise Refused(
            f"{option} is {json_of(old)!r} now, which does not tell what else it may be: set it in configure_optimizers"
        )
    if isinstance(old, int) and isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(old, int) and not floats:
        raise _wrong(option, old, value, "a whole number")
    number = _finite(value)
    if number is None:
        raise _wrong(option, old, value, "a finite number")
    if isinstance(old, torch.Tensor) and not holds(old.dtype, number):
        raise _wrong(option, old, value, f"a number that {old.dtype} holds")
    return number


def _typed_item(option: str, old: object, value: object) -> Any:  # noqa: ANN401 - as the item's type
    """Return an item of a tuple; None, which Adafactor's eps has, stays None."""
    if old is None and value is None:
        return None
    new = _typed(option, old, value, floats=True)
    return torch.full_like(old, new) if isinstance(old, torch.Tensor) else new


def _finite(value: object) -> float | None:
    """Return a finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    with suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None


def _wrong(option: str, old: object, value: object, wanted: str) -> Invalid:
    return invalid("value", f"{option} can't be {value!r}: it is {json_of(old)!r} now and takes {wanted}", "type")


# ---- the trial


def _parameters(kind: type[Optimizer]) -> dict[str, inspect.Parameter]:
    """Return what an optimizer's constructor takes by name."""
    with suppress(TypeError, ValueError):
        return dict(inspect.signature(kind.__init__).parameters)
    return {}


def _takes_floats(kind: type[Optimizer], option: str) -> bool | None:
    """Whether the constructor says that an option may be a float; None if it says nothing."""
    parameter = _parameters(kind).get(option)
    if parameter is None or parameter.annotation is inspect.Parameter.empty:
        return None
    return "float" in str(parameter.annotation)


def _detached(value: object) -> Any:  # noqa: ANN401 - as it came
    """Return an option without the real optimizer's tensors: they may be on a device."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return tuple(_detached(item) for item in value) if isinstance(value, tuple) else value


def _plain(value: object) -> Any:  # noqa: ANN401 - as it came
    """Return an option with numbers for tensors."""
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return number_of(value) if isinstance(value, torch.Tensor) else value


class _Trial:
    """A throwaway optimizer of the same class and options, as far as the real one, on the CPU.

    Raises `_Untriable` if it does not come that far.
    """

    def __init__(self, optimizer: Optimizer, group: dict[str, Any]) -> None:
        self._kind = type(optimizer)
        self._named = {name for name in _parameters(self._kind) if name not in ("self", "params")}
        self._options = {key: _detached(value) for key, value in group.items() if key not in _PARAMETERS}
        self._sparse = self._is_plain = False
        self._kept = _common_state(optimizer, group)
        plain = {key: _IMPLEMENTATION.get(key, _plain(value)) for key, value in self._options.items()}
        # What works on the real one's device may not on the CPU: then the same numbers by the plainest means.
        for options, sparse, is_plain in ((self._options, False, False), (plain, False, True), (plain, True, True)):
            with suppress(Exception):  # anybody's code
                self._run(options, {}, sparse=sparse)
                self._options, self._sparse, self._is_plain = options, sparse, is_plain
                return
        raise _Untriable

    def _make(self, parameter: torch.nn.Parameter, options: dict[str, Any]) -> Optimizer:
        """Make one; what its constructor does not take by name is put into its group."""
        made: Any = self._kind
        trial: Optimizer = made([parameter], **{key: options[key] for key in options if key in self._named})
        trial.param_groups[0].update(options)
        return trial

    def _run(self, options: dict[str, Any], change: dict[str, Any], *, sparse: bool) -> None:
        """Step, change, step on; raises what the optimizer raises, and ArithmeticError if it leaves no numbers."""
        parameter = torch.nn.Parameter(torch.tensor([[0.5, -0.3], [0.2, 0.7]]))
        trial = self._make(parameter, options)
        step: Any = type(trial).step
        # Hooks on the steps of all optimizers are not for this one.
        step = step.__wrapped__ if getattr(step, "hooked", False) else step

        def go(scale: float) -> None:
            gradient = scale * torch.tensor([[0.1, 0.2], [-0.3, 0.4]])
            parameter.grad = gradient.to_sparse(1) if sparse else gradient
            with torch.enable_grad():
                step(trial, lambda: torch.ones(()))

        if self._kept is not None:
            go(1.0)
            for key in self._kept:
                trial.state[parameter].setdefault(key, torch.zeros_like(parameter))
        trial.param_groups[0].update(change)
        for scale in _GRADIENTS:
            go(scale)
        if not bool(torch.isfinite(parameter).all()):
            raise ArithmeticError("it comes to NaN or infinity")

    def judge(self, option: str, new: object) -> None:
        """Raise `Invalid` with the constructor's own words, or `Refused` if the next step would fail."""
        new = _plain(new) if self._is_plain else _detached(new)
        if option in self._named:
            parameter = torch.nn.Parameter(torch.zeros(2, 2))
            try:
                self._make(parameter, {**self._options, option: new})
            except Exception as error:  # anybody's code
                raise invalid(
                    "value", f"{self._kind.__name__} does not take {option} {new!r}: {message(error)}"
                ) from error
        try:
            self._run(self._options, {option: new}, sparse=self._sparse)
        except Exception as error:  # as above
            raise Refused(
                f"{self._kind.__name__} can't go on with {option} {new!r}: in a trial its next steps "
                f"failed ({last_line(error)}); it would have to be made with it"
            ) from error


def _common_state(optimizer: Optimizer, group: dict[str, Any]) -> set[str] | None:
    """Return what the state of every parameter of a group has as tensors; None before the first step."""
    states: list[Any] = [optimizer.state[p] for p in group["params"] if p in optimizer.state]
    keys = [
        {key for key, value in state.items() if isinstance(key, str) and isinstance(value, torch.Tensor)}
        for state in states
        if isinstance(state, dict) and state
    ]
    return set.intersection(*keys) if keys else None


# ---- the change


def _check_option(chosen: list[Target], option: str) -> list[str]:
    """Raise `Refused` for an option that is not one to set, `Invalid` for an unknown one; return notes."""
    if option == "lr":
        raise Refused("the learning rate is set with set_learning_rate, which makes its schedulers keep it")
    if option in _SCHEDULED:
        raise Refused(f"{option} belongs to a scheduler: set_learning_rate scales the rates among them")
    if option in _PARAMETERS:
        raise Refused(f"{option} is what the optimizer optimizes, which is no option")
    if option in _IMPLEMENTATION:
        raise Refused(f"{option} says how a step is computed, and the optimizer's state was made for it: it stays")
    known = sorted(
        {key for target in chosen for number in target.groups for key in target.optimizer.param_groups[number]}
        - {"lr", *_PARAMETERS, *_SCHEDULED, *_IMPLEMENTATION}
    )
    if option not in known:
        names = ", ".join(target.name for target in chosen)
        raise invalid("option", f"there is no option {option!r} in {names}; there are: {', '.join(known) or 'none'}")
    for target in chosen:
        for kind, name, why in _FIXED:
            if name == option and isinstance(target.optimizer, kind):
                raise Refused(f"{option} of {target.name} can't be changed: {why}")
    return [
        f"{target.name} has no option {option} and was left as it is."
        for target in chosen
        if not any(option in target.optimizer.param_groups[number] for number in target.groups)
    ]


def _plan(target: Target, option: str, value: object) -> tuple[list[_OptionMove], list[str]]:
    """Return the moves of one optimizer and the notes to them; raises what `set_optimizer_option` raises."""
    moves: list[_OptionMove] = []
    notes: list[str] = []
    for number in target.groups:
        group = target.optimizer.param_groups[number]
        if option not in group:
            continue
        old = group[option]
        floats = _takes_floats(type(target.optimizer), option)
        trial = None
        with suppress(_Untriable):
            trial = _Trial(target.optimizer, group)
        # Where the constructor says nothing, the trial will.
        new = _typed(option, old, value, floats=floats or (floats is None and trial is not None))
        if trial is not None:
            trial.judge(option, new)
        elif isinstance(old, bool) or number_of(old) is None:
            raise Refused(
                f"{option} of {target.name} can't be changed: no throwaway optimizer of its class could be made to "
                "try it first, and without that only numbers may change"
            )
        else:
            notes.append(f"{target.name} could not be tried with the new value on a throwaway optimizer.")
        notes += _momentum_notes(target, group, option, old, new)
        moves.append(_OptionMove(number, group, old, new))
    return moves, notes


def _momentum_notes(target: Target, group: dict[str, Any], option: str, old: object, new: object) -> Iterator[str]:
    """Look at what is left of an earlier momentum; raises `Refused` where a step would fail for it."""
    if option != "momentum" or number_of(old) or not number_of(new):
        return
    states: list[Any] = [target.optimizer.state.get(parameter, {}) for parameter in group["params"]]
    kept = [isinstance(state.get("momentum_buffer"), torch.Tensor) for state in states]
    if isinstance(target.optimizer, SGD) and group.get("fused") and any(kept) and not all(kept):
        raise Refused(
            f"momentum of {target.name} can't be switched on again: some parameters have a buffer from before and "
            "some have none, which the fused step does not take"
        )
    if any(kept):
        yield f"{target.name} goes on with its momentum from before; reset_momentum sets that to zero."


def _overwriting(schedulers: Sequence[object], optimizer: Optimizer, option: str) -> Iterator[str]:
    """Iterate over the classes of the schedulers that set an option of an optimizer themselves."""
    for scheduler in schedulers:
        for _, one in walk("", scheduler):
            if isinstance(one, (OneCycleLR, CyclicLR)):
                cycled = "betas" if getattr(one, "use_beta1", False) else "momentum"
                if one.cycle_momentum and cycled == option and one.optimizer is optimizer:
                    yield type(one).__name__


def _apply(move: _OptionMove, option: str) -> None:
    """Make one change; a tensor stays the same tensor."""
    if isinstance(move.old, torch.Tensor):
        move.group[option].fill_(move.new)
    else:
        move.group[option] = move.new


def set_optimizer_option(
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[object],
    option: str,
    value: Any,  # noqa: ANN401 - any JSON value
    *,
    optimizer: int | None = None,
    group: int | None = None,
) -> ChangeReport:
    """Set an option, such as "weight_decay", in all parameter groups or in one.

    The training thread calls this, between steps. Raises `Invalid` for an unknown option, a value of another
    type than the present one or one that the optimizer's constructor does not take; `Refused` for an option that
    belongs to others, and where the next steps would fail; `Conflict` without an optimizer. A fault changes nothing.
    """
    chosen = targets(optimizers, optimizer, group)
    notes = _check_option(chosen, option)
    planned: list[tuple[Target, list[_OptionMove]]] = []
    with torch.no_grad():
        # The CPU, whatever torch's default device is now.
        with untouched_randomness(), torch.device("cpu"):
            for target in chosen:
                moves, more = _plan(target, option, value)
                planned.append((target, moves))
                notes += more
        old = {id(move.group): json_of(move.old) for _, moves in planned for move in moves}
        for _, moves in planned:
            for move in moves:
                _apply(move, option)
    return {
        "changes": [
            {
                "what": target.path(move.number, option),
                "old": old[id(move.group)],
                "new": json_of(move.group[option]),
            }
            for target, moves in planned
            for move in moves
            if old[id(move.group)] != json_of(move.group[option])
        ],
        "will_be_overwritten_by": list(
            dict.fromkeys(
                name
                for target, moves in planned
                if moves
                for name in _overwriting(schedulers, target.optimizer, option)
            )
        ),
        "notes": list(dict.fromkeys(notes)),
    }
