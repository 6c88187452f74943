"""Learning rates: a new one for a running optimizer that its schedulers keep.

A scheduler holds rates of its own, and computes the next rate from them: whoever writes the optimizer's alone is undone
at the next step or the next milestone. Every scheduler of torch is linear in its rates, so a new rate lasts when each
rate that belongs to a parameter group, wherever it is kept, is scaled by the same ratio. What others have written is
asked, on a copy, whether it keeps the change.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.optim import ASGD, LBFGS, Optimizer, Rprop

from midrun.command import Change
from midrun.fs.faults import Refused, invalid
from midrun.scalar import holds, json_of, number_of
from midrun.schedulers import family_of, forecast, has_fixed_rates, is_torchs, owner_of
from midrun.targets import ChangeReport, Target, targets

_GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""The rates that a parameter group holds."""
_LIST_RATES = ("base_lrs", "_last_lr", "max_lrs", "min_lrs")
"""The rates that a scheduler holds, one for each group."""
_SINGLE_RATES = ("eta_min", "default_min_lr")
"""The rates that a scheduler holds, one for all groups."""
_STEEP = 10.0
"""How far above the rate that was asked for a schedule may go before a note says so."""

_before_zero: WeakKeyDictionary[Optimizer, dict[int, dict[str, float]]] = WeakKeyDictionary()
"""The rates that a change to 0 has wiped out, by group (-1 for all) and place: no ratio brings them back from 0."""


@dataclass(frozen=True)
class _Rate:
    """One rate in a parameter group or a scheduler."""

    what: str
    holder: dict[str, Any]
    """The group, or the scheduler's own attributes: its properties are never run."""
    key: str
    index: int | None = None
    """Which one, in a list of rates."""

    @property
    def raw(self) -> object:
        held = self.holder[self.key]
        return held if self.index is None else held[self.index]

    def write(self, value: float, *, in_place: bool) -> None:
        """Set the rate; a tensor stays one, and the same one if `in_place`."""
        raw = self.raw
        if isinstance(raw, torch.Tensor):
            if in_place:
                raw.fill_(value)
                return
            new: object = torch.full_like(raw, value)
        else:
            new = value
        held = self.holder[self.key]
        if self.index is None:
            self.holder[self.key] = new
        elif isinstance(held, list):
            held[self.index] = new
        else:
            self.holder[self.key] = (*held[: self.index], new, *held[self.index + 1 :])


class _Move(NamedTuple):
    """One rate and where it goes."""

    rate: _Rate
    old: float
    new: float
    in_place: bool


class _Plan:
    """All that a change does to one optimizer and its schedulers; nothing is changed before `apply`."""

    def __init__(self, target: Target, schedulers: Sequence[object], value: float, *, sole: bool) -> None:
        self.target = target
        self.notes: list[str] = []
        self.overwriting: list[str] = []
        self.moves: list[_Move] = []
        self._wiped: dict[int, dict[str, float]] = {}
        self._remembered = _remembered(target)
        self._family = [
            found
            for number, scheduler in enumerate(schedulers)
            for found in family_of(f"schedulers/{number}", scheduler, target.optimizer, sole=sole)
        ]
        self.overwriting += [type(one).__name__ for one in schedulers if not sole and owner_of(one) is None]
        self.ratios: dict[int, float | None] = {}
        self._rates(value)
        for place, scheduler in self._family:
            self._plan_scheduler(place, scheduler)
        self._check(value)

    # ---- the ratios

    def _read(self, rate: _Rate, group: int) -> tuple[float, float] | None:
        """Return a rate as it is and as it counts: a rate that was set to 0 counts as it was before."""
        if (old := number_of(rate.raw)) is None:
            return None
        return old, self._remembered.get(group, {}).get(rate.what, old) if old == 0 else old

    def _group_rate(self, group: int, key: str) -> _Rate:
        held = self.target.optimizer.param_groups[group]
        return _Rate(self.target.path(group, key), held, key)

    def _counted(self, group: int, key: str) -> float:
        """Return a group's rate as it counts; 0 where no ratio can be taken from it."""
        if key not in self.target.optimizer.param_groups[group]:
            return 0.0
        read = self._read(self._group_rate(group, key), group)
        return read[1] if read is not None and 0 < read[1] < math.inf else 0.0

    def _rates(self, value: float) -> None:
        """Find the ratio and the new rate of each group."""
        first = self.target.groups[0]
        for group in self.target.groups:
            raw = self.target.optimizer.param_groups[group].get("lr")
            if number_of(raw) is None:
                raise Refused(
                    f"group {group} of {self.target.name} has the learning rate {raw!r}, which is no number: make it "
                    "one in configure_optimizers, or name another group"
                )
        present, base = self._counted(first, "lr"), self._counted(first, "initial_lr")
        ratio = value / present if present else value / base if base else None
        if ratio is None:
            self.notes.append(
                f"The rate of {self.target.name} was 0 and there is no base rate to take a proportion from: each group "
                f"that changes got {value!r} itself."
            )
        elif not present:
            self.notes.append(
                f"The rate of {self.target.name} was 0: its base rate was taken as the measure, and the schedule was "
                f"scaled by {value!r}/{base!r}."
            )
        for group in self.target.groups:
            own = value
            counts = self._counted(group, "lr") or self._counted(group, "initial_lr")
            self.ratios[group] = ratio if ratio is not None else value / counts if counts else None
            measure = "lr" if present else "initial_lr"
            # Equal rates stay equal to the last bit: groups of one optimizer often share one tensor.
            if ratio is not None and (counted := self._counted(group, measure)) != self._counted(first, measure):
                own = ratio * counted
            self._plan_group(group, own)

    # ---- the moves

    def _plan_group(self, group: int, own: float) -> None:
        """Plan the rates of one group, whose learning rate becomes `own`."""
        held = self.target.optimizer.param_groups[group]
        for key in _GROUP_RATES:
            if key in held:
                self._plan(self._group_rate(group, key), group, own, exact=key == "lr", base=key == "initial_lr")

    def _plan(self, rate: _Rate, group: int, own: float, *, exact: bool = False, base: bool = False) -> None:
        """Plan one rate: to `own` if `exact`, else by the group's ratio, or to `own` if it is a base without one."""
        if (read := self._read(rate, group)) is None:
            return
        old, counted = read
        ratio = self.ratios[group]
        if exact:
            new = own
        elif ratio is not None:
            new = counted * ratio
        elif base and not 0 < counted < math.inf:
            new = own
        else:
            return
        if new == 0 and counted != 0:
            self._wiped.setdefault(group, {})[rate.what] = counted
        self.moves.append(_Move(rate, old, new, in_place=rate.key in _GROUP_RATES))

    def _plan_scheduler(self, place: str, scheduler: object) -> None:
        """Plan the rates that a scheduler holds itself."""
        held = vars(scheduler) if hasattr(scheduler, "__dict__") else {}
        own = {move.rate.what: move.new for move in self.moves}
        for group, ratio in self.ratios.items():
            fixed = ratio is None and has_fixed_rates(scheduler, self.target.optimizer.param_groups[group], group)
            if fixed:
                self.overwriting.append(type(scheduler).__name__)
            for key in _LIST_RATES:
                rates = held.get(key)
                if isinstance(rates, (list, tuple)) and group < len(rates):
                    self._plan(
                        _Rate(f"{place}/{key}/{group}", held, key, group),
                        group,
                        own[self.target.path(group, "lr")],
                        exact=key == "_last_lr",
                        base=key == "base_lrs" and not fixed,
                    )
        for key in _SINGLE_RATES:
            self._plan_single(place, scheduler, held, key)

    def _plan_single(self, place: str, scheduler: object, held: dict[str, Any], key: str) -> None:
        """Plan a rate that counts for all groups: right for all only if one ratio is."""
        if number_of(held.get(key)) is None:
            return
        rate = _Rate(f"{place}/{key}", held, key)
        old, counted = self._read(rate, -1) or (0.0, 0.0)
        ratios = {self.ratios.get(group, 1.0) for group in range(len(self.target.optimizer.param_groups))}
        ratio = ratios.pop()
        if ratios or ratio is None:
            if counted and key == "eta_min":
                self.notes.append(
                    f"{type(scheduler).__name__} keeps its {key} of {old!r}, one for all groups: these were not all "
                    "scaled alike, and the rates near it are not."
                )
            return
        if ratio == 0 and counted:
            self._wiped.setdefault(-1, {})[rate.what] = counted
        self.moves.append(_Move(rate, old, counted * ratio, in_place=False))

    def _check(self, value: float) -> None:
        """Raise `Invalid` unless every rate can hold its new value, and give what shares a tensor its own."""
        for move in self.moves:
            raw = move.rate.raw
            fits = math.isfinite(move.new)
            if fits and isinstance(raw, torch.Tensor):
                # An integer is no rate: a scheduler would round it at each step.
                fits = raw.is_floating_point() and holds(raw.dtype, move.new)
            if not fits:
                raise invalid(
                    "value",
                    f"{value!r} would make {move.rate.what} {move.new!r} (it is {move.old!r}), which "
                    f"{getattr(raw, 'dtype', 'a float')} can't hold: give a value nearer to the present rate",
                )
        self._part_shared_tensors()
        for move in self.moves:
            if move.rate.key != "initial_lr" or move.new <= move.old or not self._family:
                continue
            own = next(m.new for m in self.moves if m.rate.holder is move.rate.holder and m.rate.key == "lr")
            if move.new > _STEEP * own > 0:
                self.notes.append(
                    f"{move.rate.what} is now {move.new!r}: the rate was small beside it, and the whole schedule was "
                    "scaled. A scheduler that goes up again goes up to that."
                )

    def _part_shared_tensors(self) -> None:
        """Give a rate a tensor of its own where one tensor would have to take two values."""
        planned = {(id(move.rate.holder), move.rate.key): move.new for move in self.moves if move.in_place}
        wanted: dict[int, set[float | None]] = {}
        for group in self.target.optimizer.param_groups:
            for key in _GROUP_RATES:
                if isinstance(raw := group.get(key), torch.Tensor):
                    wanted.setdefault(id(raw), set()).add(planned.get((id(group), key)))
        for place, move in enumerate(self.moves):
            if move.in_place and len(wanted.get(id(move.rate.raw), ())) > 1:
                self.moves[place] = move._replace(in_place=False)
                self.notes.append(
                    f"{move.rate.what} was one tensor with other rates; it has a tensor of its own now, which a step "
                    "captured in a CUDA graph does not see."
                )

    # ---- the change

    def apply(self) -> list[Change]:
        """Make all changes and return them; finds out which schedulers undo them."""
        strange = [scheduler for _, scheduler in self._family if not is_torchs(scheduler)]
        before = [forecast(scheduler, self.target.optimizer) for scheduler in strange]
        for move in self.moves:
            move.rate.write(move.new, in_place=move.in_place)
        self._remember()
        self._adjust_state()
        for scheduler, rates in zip(strange, before, strict=True):
            if not self._lasts(rates, forecast(scheduler, self.target.optimizer)):
                self.overwriting.append(type(scheduler).__name__)
        return [
            {"what": move.rate.what, "old": json_of(move.old), "new": move.new}
            for move in self.moves
            if move.old != move.new
        ]

    def _lasts(self, before: list[list[float]] | None, after: list[list[float]] | None) -> bool:
        """Whether a scheduler's next rates are scaled; not if they are unknown."""
        if before is None or after is None or None in self.ratios.values():
            return False
        return all(
            # From 0 comes no ratio: a scheduler that multiplies the rate begins anew there.
            old == 0 or math.isclose(new, old * (self.ratios.get(group, 1.0) or 0.0), rel_tol=1e-5)
            for olds, news in zip(before, after, strict=True)
            for group, (old, new) in enumerate(zip(olds, news, strict=True))
        )

    def _remember(self) -> None:
        """Keep what a change to 0 wipes out, and say what that means."""
        kept = {group: rates for group, rates in self._remembered.items() if group not in {*self.ratios, -1}}
        if kept and -1 in self._remembered:
            kept[-1] = self._remembered[-1]
        kept |= self._wiped
        if kept:
            _before_zero[self.target.optimizer] = kept
        else:
            _before_zero.pop(self.target.optimizer, None)
        if self._wiped and self._family:
            self.notes.append(
                "At 0 the schedulers hold nothing but zeros. midrun knows the schedule and brings it back with the "
                "next rate above 0; a checkpoint that is written meanwhile does not."
            )

    def _adjust_state(self) -> None:
        """Pass the change on to the rates that an optimizer keeps in its state."""
        optimizer = self.target.optimizer
        if isinstance(optimizer, LBFGS):
            self.notes.append("LBFGS reads its rate as a step begins: inside a step, a change counts from the next on.")
        elif isinstance(optimizer, ASGD):
            count = sum(_adjust_asgd(optimizer, optimizer.param_groups[group]) for group in self.ratios)
            if count:
                self.notes.append(
                    f"ASGD computes a step's rate (eta) in the step before: that of {count} parameters was made anew."
                )
        elif isinstance(optimizer, Rprop):
            count = sum(_adjust_rprop(optimizer, optimizer.param_groups[g], ratio) for g, ratio in self.ratios.items())
            if count:
                self.notes.append(
                    f"Rprop reads its rate only before the first step: the step sizes of {count} parameters were "
                    "scaled instead. It goes on adapting them, within step_sizes; schedulers do not reach them."
                )


def _remembered(target: Target) -> dict[int, dict[str, float]]:
    """Return what changes to 0 have wiped out; nothing for a group whose rate has been set by others since."""
    found = _before_zero.get(target.optimizer, {})
    groups = target.optimizer.param_groups
    live = {g: rates for g, rates in found.items() if 0 <= g < len(groups) and number_of(groups[g].get("lr")) == 0}
    return live | ({-1: found[-1]} if live and -1 in found else {})


def _adjust_asgd(optimizer: Optimizer, group: dict[str, Any]) -> int:
    """Compute the rate of ASGD's next step anew from the group's rate, and return for how many parameters.

    Each step of `torch.optim.ASGD` ends with eta = lr / (1 + lambd * lr * step) ** alpha, which the next step uses.
    """
    count = 0
    rate = number_of(group["lr"]) or 0.0
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        eta, step = state.get("eta"), state.get("step")
        if isinstance(eta, torch.Tensor) and isinstance(step, torch.Tensor):
            # On the parameter's device: nothing waits for it.
            eta.copy_(rate / (1 + group["lambd"] * rate * step) ** group["alpha"])
            count += 1
    return count


def _adjust_rprop(optimizer: Optimizer, group: dict[str, Any], ratio: float | None) -> int:
    """Scale Rprop's step sizes, or set them to the group's rate without a ratio; returns for how many parameters."""
    count = 0
    for parameter in group["params"]:
        sizes = optimizer.state.get(parameter, {}).get("step_size")
        if isinstance(sizes, torch.Tensor):
            if ratio is None:
                rate = number_of(group["lr"]) or 0.0
                sizes.fill_(complex(rate, rate) if sizes.is_complex() else rate)
            else:
                sizes.mul_(ratio)
            count += 1
    return count


# ---- the command


def set_learning_rate(
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[object],
    value: float,
    *,
    optimizer: int | None = None,
    group: int | None = None,
) -> ChangeReport:
    """Set the learning rate, and scale what the schedulers hold so that it lasts.

    Without `group` the first group of each optimizer gets `value` and its other groups keep their proportion to it.
    The training thread calls this, between steps. Raises `Invalid` for a value that is no finite number from 0 up, or
    that a rate can't hold, and for the number of an optimizer or group that does not exist; `Refused` where a group's
    rate is no number; `Conflict` without an optimizer. A fault has changed nothing.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise invalid("value", f"the learning rate {value!r} is no number: give one from 0 up", "float_type")
    if not 0 <= value <= sys.float_info.max:
        raise invalid("value", f"the learning rate can't be {value!r}: give a finite number from 0 up")
    with torch.no_grad():
        plans = [
            _Plan(target, schedulers, float(value), sole=len(optimizers) == 1)
            for target in targets(optimizers, optimizer, group)
            if target.groups
        ]
        changes = [change for plan in plans for change in plan.apply()]
    return {
        "changes": changes,
        "will_be_overwritten_by": list(dict.fromkeys(name for plan in plans for name in plan.overwriting)),
        "notes": list(dict.fromkeys(note for plan in plans for note in plan.notes)),
    }
