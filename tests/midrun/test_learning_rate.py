"""Learning rates: what is set stays set, under every scheduler of torch and whatever else drives the rate."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.optim.lr_scheduler as S
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import SWALR

from midrun.fs.faults import Conflict, Invalid, Refused
from midrun.rates import set_learning_rate

STEPS = 20
CHANGE = 6
FACTOR = 3.0
RATES = (0.1, 0.04)

Make = Callable[[Optimizer], Any]

TABLE: dict[str, Make] = {
    "StepLR": lambda o: S.StepLR(o, 4, 0.5),
    "MultiStepLR": lambda o: S.MultiStepLR(o, [4, 9, 14], 0.5),
    "ExponentialLR": lambda o: S.ExponentialLR(o, 0.9),
    "ConstantLR": lambda o: S.ConstantLR(o, 0.5, 10),
    "LinearLR": lambda o: S.LinearLR(o, 0.2, 1, 12),
    "PolynomialLR": lambda o: S.PolynomialLR(o, 18, 2),
    "LambdaLR": lambda o: S.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "MultiplicativeLR": lambda o: S.MultiplicativeLR(o, lambda _: 0.95),
    "CosineAnnealingLR": lambda o: S.CosineAnnealingLR(o, 18),
    "CosineAnnealingLR up again": lambda o: S.CosineAnnealingLR(o, 9),
    "CosineAnnealingLR eta_min": lambda o: S.CosineAnnealingLR(o, 9, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 8),
    "CosineAnnealingWarmRestarts eta_min": lambda o: S.CosineAnnealingWarmRestarts(o, 4, 2, eta_min=0.01),
    "OneCycleLR": lambda o: S.OneCycleLR(o, max_lr=[0.2, 0.3][: len(o.param_groups)], total_steps=30),
    "OneCycleLR linear": lambda o: S.OneCycleLR(
        o, max_lr=0.2, total_steps=30, anneal_strategy="linear", cycle_momentum=False
    ),
    "OneCycleLR three phases": lambda o: S.OneCycleLR(o, max_lr=0.2, total_steps=30, three_phase=True),
    "CyclicLR": lambda o: S.CyclicLR(o, base_lr=0.01, max_lr=0.1, step_size_up=5),
    "CyclicLR from 0": lambda o: S.CyclicLR(o, base_lr=0.0, max_lr=0.1, step_size_up=5),
    "CyclicLR triangular2": lambda o: S.CyclicLR(o, base_lr=0.01, max_lr=0.1, step_size_up=4, mode="triangular2"),
    "CyclicLR exp_range": lambda o: S.CyclicLR(
        o, base_lr=0.01, max_lr=0.1, step_size_up=4, mode="exp_range", gamma=0.9, cycle_momentum=False
    ),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, patience=1, factor=0.5, min_lr=0.004),
    "SequentialLR": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1, 8), S.CosineAnnealingLR(o, 12)], [8]),
    "SequentialLR of three": lambda o: S.SequentialLR(
        o, [S.ConstantLR(o, 0.1, 3), S.StepLR(o, 3, 0.5), S.LambdaLR(o, lambda epoch: 0.9**epoch)], [4, 10]
    ),
    "ChainedScheduler of a SequentialLR": lambda o: S.ChainedScheduler(
        [S.SequentialLR(o, [S.LinearLR(o, 0.5, 1, 5), S.ExponentialLR(o, 0.8)], [10]), S.ExponentialLR(o, 0.95)], o
    ),
    "ChainedScheduler": lambda o: S.ChainedScheduler([S.LinearLR(o, 0.5, 1, 5), S.ExponentialLR(o, 0.95)], o),
    "SWALR": lambda o: SWALR(o, 0.03, anneal_epochs=10),
    "SWALR linear": lambda o: SWALR(o, 0.05, anneal_epochs=10, anneal_strategy="linear"),
    "no scheduler": lambda _: None,
}


def sgd(groups: int = 1, *, tensors: bool = False) -> Optimizer:
    return torch.optim.SGD(
        [
            {"params": [nn.Parameter(torch.ones(2))], "lr": torch.tensor(rate) if tensors else rate}
            for rate in RATES[:groups]
        ],
        momentum=0.9,
    )


def rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def step(optimizer: Optimizer, scheduler: Any) -> None:
    optimizer.step()
    if isinstance(scheduler, S.ReduceLROnPlateau):
        scheduler.step(1.0)
    elif scheduler is not None:
        scheduler.step()


def stepped(optimizer: Optimizer, scheduler: Any, count: int) -> list[list[float]]:
    """The rates after each of so many steps."""
    found = []
    for _ in range(count):
        step(optimizer, scheduler)
        found.append(rates(optimizer))
    return found


def driven(make: Make, groups: int = 1, *, tensors: bool = False, count: int = CHANGE) -> tuple[Optimizer, Any]:
    """An optimizer and its scheduler after some steps."""
    optimizer = sgd(groups, tensors=tensors)
    scheduler = make(optimizer)
    stepped(optimizer, scheduler, count)
    return optimizer, scheduler


def of(scheduler: Any) -> list[Any]:
    return [] if scheduler is None else [scheduler]


def times(factors: list[float], curve: list[list[float]]) -> list[Any]:
    return [pytest.approx([f * rate for f, rate in zip(factors, step, strict=True)], rel=1e-5) for step in curve]


# ---- the table


def test_the_table_has_every_scheduler_of_torch() -> None:
    known = {
        name
        for module in (S, torch.optim.swa_utils)
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, S.LRScheduler) and not name.startswith("_")
    }
    assert known - {"LRScheduler"} == {name.split()[0] for name in TABLE} - {"no"}


@pytest.mark.parametrize("tensors", [False, True], ids=["floats", "tensors"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", TABLE)
def test_a_change_of_all_groups_lasts(name: str, groups: int, tensors: bool) -> None:
    untouched = stepped(*driven(TABLE[name], groups, tensors=tensors), STEPS)
    optimizer, scheduler = driven(TABLE[name], groups, tensors=tensors)
    before = rates(optimizer)
    report = set_learning_rate([optimizer], of(scheduler), FACTOR * before[0])
    assert rates(optimizer) == pytest.approx([FACTOR * rate for rate in before])
    assert stepped(optimizer, scheduler, STEPS) == times([FACTOR] * groups, untouched)
    assert report["will_be_overwritten_by"] == []
    assert report["notes"] == []
    for number in range(groups):
        change = next(c for c in report["changes"] if c["what"] == f"optimizers/0/groups/{number}/lr")
        assert change["old"] == before[number]
        assert change["new"] == pytest.approx(FACTOR * before[number])


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("name", TABLE)
def test_a_change_of_one_group_lasts_and_leaves_the_other(name: str, group: int) -> None:
    untouched = stepped(*driven(TABLE[name], 2), STEPS)
    optimizer, scheduler = driven(TABLE[name], 2)
    report = set_learning_rate([optimizer], of(scheduler), FACTOR * rates(optimizer)[group], group=group)
    changed = stepped(optimizer, scheduler, STEPS)
    factors = [FACTOR if number == group else 1.0 for number in range(2)]
    if "eta_min" in name:
        assert [r[1 - group] for r in changed] == [r[1 - group] for r in untouched]
        assert any(name.split(maxsplit=1)[0] in note and "0.01" in note for note in report["notes"])
    else:
        assert changed == times(factors, untouched)
        assert report["notes"] == []
    assert report["will_be_overwritten_by"] == []


@pytest.mark.parametrize("name", TABLE)
def test_a_change_survives_a_checkpoint(name: str) -> None:
    untouched = stepped(*driven(TABLE[name], 2), STEPS)
    optimizer, scheduler = driven(TABLE[name], 2)
    set_learning_rate([optimizer], of(scheduler), FACTOR * rates(optimizer)[0])
    again = sgd(2)
    resumed = TABLE[name](again)
    if scheduler is not None:
        resumed.load_state_dict(scheduler.state_dict())
    again.load_state_dict(optimizer.state_dict())
    assert stepped(again, resumed, STEPS) == times([FACTOR] * 2, untouched)


@pytest.mark.parametrize("name", TABLE)
def test_a_rate_of_0_stays_0(name: str) -> None:
    optimizer, scheduler = driven(TABLE[name], 2)
    report = set_learning_rate([optimizer], of(scheduler), 0)
    assert stepped(optimizer, scheduler, STEPS) == [[0.0, 0.0]] * STEPS
    assert bool(report["notes"]) == (scheduler is not None)


@pytest.mark.parametrize("name", TABLE)
def test_a_schedule_comes_back_from_a_rate_of_0(name: str) -> None:
    untouched = stepped(*driven(TABLE[name], 2), STEPS)
    optimizer, scheduler = driven(TABLE[name], 2)
    before = rates(optimizer)[0]
    set_learning_rate([optimizer], of(scheduler), 0.0)
    set_learning_rate([optimizer], of(scheduler), 0.0)
    report = set_learning_rate([optimizer], of(scheduler), before)
    assert stepped(optimizer, scheduler, STEPS) == times([1.0] * 2, untouched)
    assert report["notes"] == report["will_be_overwritten_by"] == []


def test_a_schedule_comes_back_where_it_would_be_by_now() -> None:
    untouched = stepped(*driven(TABLE["LambdaLR"], 2), STEPS)
    optimizer, scheduler = driven(TABLE["LambdaLR"], 2)
    before = rates(optimizer)[0]
    set_learning_rate([optimizer], of(scheduler), 0.0)
    stepped(optimizer, scheduler, 5)
    set_learning_rate([optimizer], of(scheduler), before)
    assert stepped(optimizer, scheduler, STEPS - 5) == times([1.0] * 2, untouched[5:])


# ---- from 0


def test_a_warm_up_from_0_is_scaled_by_its_base_rate() -> None:
    def make(o: Optimizer) -> Any:
        return S.LambdaLR(o, lambda epoch: min(1.0, epoch / 5))

    untouched = stepped(*driven(make, 2, count=0), STEPS)
    optimizer, scheduler = driven(make, 2, count=0)
    assert rates(optimizer) == [0, 0]
    report = set_learning_rate([optimizer], [scheduler], 0.3)
    assert rates(optimizer) == pytest.approx([0.3, 0.12])
    assert stepped(optimizer, scheduler, STEPS) == times([3.0, 3.0], untouched)
    assert "base rate" in report["notes"][0]
    assert report["will_be_overwritten_by"] == []


def test_without_a_base_rate_every_group_gets_the_value() -> None:
    optimizer = sgd(2)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    report = set_learning_rate([optimizer], [], 0.3)
    assert rates(optimizer) == [0.3, 0.3]
    assert "itself" in report["notes"][0]


def test_a_base_rate_of_0_becomes_the_value() -> None:
    optimizer = sgd()
    optimizer.param_groups[0]["lr"] = 0.0
    scheduler = S.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    report = set_learning_rate([optimizer], [scheduler], 0.4)
    assert stepped(optimizer, scheduler, 2) == [[0.2], [0.1]]
    assert report["will_be_overwritten_by"] == []


def test_a_group_with_a_rate_keeps_its_schedule_beside_one_without() -> None:
    optimizer = sgd(2)
    optimizer.param_groups[0]["lr"] = 0.0
    scheduler = S.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    set_learning_rate([optimizer], [scheduler], 0.4)
    assert stepped(optimizer, scheduler, 2) == [pytest.approx([0.2, 0.2]), pytest.approx([0.1, 0.1])]


def test_a_cycle_that_begins_at_0_is_said_to_go_on() -> None:
    optimizer, scheduler = driven(TABLE["CyclicLR from 0"], count=0)
    untouched = stepped(*driven(TABLE["CyclicLR from 0"], count=0), 5)
    report = set_learning_rate([optimizer], [scheduler], 0.4)
    assert report["will_be_overwritten_by"] == ["CyclicLR"]
    assert stepped(optimizer, scheduler, 5) == untouched


def test_a_rate_set_by_others_since_is_no_longer_the_one_from_before_0() -> None:
    optimizer = sgd(2)
    set_learning_rate([optimizer], [], 0.0)
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 1.0, 0.5
    set_learning_rate([optimizer], [], 2.0)
    assert rates(optimizer) == [2.0, 1.0]


# ---- which


def test_only_the_optimizer_that_is_named_changes() -> None:
    one, two = sgd(2), sgd(2)
    schedulers = [S.StepLR(one, 3), S.LambdaLR(two, lambda _: 1.0)]
    report = set_learning_rate([one, two], schedulers, 0.2, optimizer=1)
    assert rates(one) == list(RATES)
    assert rates(two) == pytest.approx([0.2, 0.08])
    assert schedulers[0].base_lrs == list(RATES)
    assert all(c["what"].startswith(("optimizers/1/", "schedulers/1/")) for c in report["changes"])


def test_all_optimizers_change_where_none_is_named() -> None:
    one, two = sgd(2), sgd()
    set_learning_rate([one, two], [], 0.2)
    assert rates(one) + rates(two) == pytest.approx([0.2, 0.08, 0.2])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"value": math.nan}, "nan"),
        ({"value": math.inf}, "inf"),
        ({"value": 10**400}, "10000"),
        ({"value": -0.1}, "-0.1"),
        ({"value": "fast"}, "'fast'"),
        ({"value": True}, "True"),
        ({"value": 0.1, "optimizer": 2}, "0 to 1"),
        ({"value": 0.1, "optimizer": -1}, "-1"),
        ({"value": 0.1, "optimizer": True}, "True"),
        ({"value": 0.1, "optimizer": 0, "group": 2}, "0 to 1"),
        ({"value": 0.1, "group": 0}, "which optimizer"),
    ],
)
def test_a_wrong_argument_is_quoted_and_changes_nothing(arguments: dict[str, Any], words: str) -> None:
    optimizers = [sgd(2), sgd(2)]
    with pytest.raises(Invalid) as caught:
        set_learning_rate(optimizers, [], **arguments)
    assert words in caught.value.message
    assert caught.value.errors
    assert caught.value.errors[0]["loc"][0] in arguments or caught.value.errors[0]["loc"] == ["optimizer"]
    assert [rates(optimizer) for optimizer in optimizers] == [list(RATES)] * 2


def test_without_an_optimizer_it_is_not_now() -> None:
    with pytest.raises(Conflict):
        set_learning_rate([], [], 0.1)


def test_a_rate_that_is_no_number_is_refused() -> None:
    optimizer = sgd()
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(Refused, match="None"):
        set_learning_rate([optimizer], [], 0.1)


def test_a_schedule_that_would_overflow_changes_nothing() -> None:
    optimizer = sgd(2)
    scheduler = S.LambdaLR(optimizer, lambda _: 1e-300)
    before = rates(optimizer)
    with pytest.raises(Invalid, match="initial_lr"):
        set_learning_rate([optimizer], [scheduler], 1e10)
    assert rates(optimizer) == before
    assert scheduler.base_lrs == list(RATES)


def test_a_tensor_that_cannot_hold_the_rate_changes_nothing() -> None:
    optimizer = sgd(2)
    optimizer.param_groups[1]["lr"] = torch.tensor(0.5, dtype=torch.float16)
    with pytest.raises(Invalid, match="float16"):
        set_learning_rate([optimizer], [], 1e5)
    assert rates(optimizer) == [0.1, 0.5]


def test_a_steep_schedule_is_said() -> None:
    optimizer, scheduler = driven(lambda o: S.LambdaLR(o, lambda epoch: 0.5**epoch))
    report = set_learning_rate([optimizer], [scheduler], 0.1)
    assert "initial_lr" in report["notes"][0]


# ---- tensors


def test_a_tensor_stays_the_same_tensor() -> None:
    optimizer, scheduler = driven(TABLE["LambdaLR"], 2, tensors=True)
    tensors = [group["lr"] for group in optimizer.param_groups]
    lists = scheduler.base_lrs
    set_learning_rate([optimizer], [scheduler], 0.3)
    assert all(group["lr"] is tensor for group, tensor in zip(optimizer.param_groups, tensors, strict=True))
    assert scheduler.base_lrs is lists
    assert all(isinstance(rate, torch.Tensor) for rate in lists)


def adam_with_one_tensor() -> Optimizer:
    parameters = [{"params": [nn.Parameter(torch.ones(2))]} for _ in range(2)]
    return torch.optim.Adam(parameters, lr=torch.tensor(0.1))


def test_groups_that_share_a_tensor_change_together() -> None:
    optimizer = adam_with_one_tensor()
    tensor = optimizer.param_groups[0]["lr"]
    assert optimizer.param_groups[1]["lr"] is tensor
    report = set_learning_rate([optimizer], [], 0.37)
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"] is tensor
    assert rates(optimizer) == pytest.approx([0.37, 0.37])
    assert report["notes"] == []


def test_a_group_that_leaves_a_shared_tensor_gets_its_own() -> None:
    optimizer = adam_with_one_tensor()
    report = set_learning_rate([optimizer], [], 0.3, group=1)
    assert rates(optimizer) == pytest.approx([0.1, 0.3])
    assert isinstance(optimizer.param_groups[1]["lr"], torch.Tensor)
    assert "groups/1/lr" in report["notes"][0]


# ---- schedulers that torch does not have


class Halving(S.LRScheduler):
    """Computes from what is scaled."""

    def get_lr(self) -> Any:
        random.random()  # noqa: S311 - as users do it
        torch.rand(1)
        return [base * 0.5**self.last_epoch for base in self.base_lrs]


class Fixed(S.LRScheduler):
    """Has numbers of its own."""

    def get_lr(self) -> Any:
        return [0.1 / (1 + self.last_epoch) for _ in self.base_lrs]


class Named(S.StepLR):
    """Is torch's but for its name."""


class Stepping(S.StepLR):
    """Nobody knows what its step does."""

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)


class Foreign:
    """Without a base class, as timm's."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.base_lrs = tuple(group["lr"] for group in optimizer.param_groups)
        self.count = 0

    def step(self) -> None:
        self.count += 1
        for group, rate in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = rate * 0.9**self.count


def test_a_scheduler_that_keeps_the_change_is_not_named() -> None:
    untouched = stepped(*driven(Halving, 2), STEPS)
    optimizer, scheduler = driven(Halving, 2)
    report = set_learning_rate([optimizer], [scheduler], FACTOR * rates(optimizer)[0])
    assert report["will_be_overwritten_by"] == []
    assert stepped(optimizer, scheduler, STEPS) == times([FACTOR] * 2, untouched)


def test_asking_a_scheduler_leaves_it_and_the_randomness_as_they_were() -> None:
    optimizer, scheduler = driven(Halving, 2)
    held, python, torchs = dict(vars(scheduler)), random.getstate(), torch.get_rng_state()
    set_learning_rate([optimizer], [scheduler], rates(optimizer)[0])
    assert vars(scheduler) == held
    assert random.getstate() == python
    assert torch.equal(torch.get_rng_state(), torchs)


def test_a_scheduler_with_numbers_of_its_own_is_named() -> None:
    optimizer, scheduler = driven(Fixed)
    report = set_learning_rate([optimizer], [scheduler], 0.5)
    assert rates(optimizer) == [0.5]
    assert report["will_be_overwritten_by"] == ["Fixed"]


def test_a_child_with_numbers_of_its_own_is_named() -> None:
    optimizer, scheduler = driven(lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.5, 3), Fixed(o)], [8]))
    assert set_learning_rate([optimizer], [scheduler], 0.5)["will_be_overwritten_by"] == ["Fixed"]


def test_a_subclass_that_changes_nothing_counts_as_torchs() -> None:
    optimizer, scheduler = driven(lambda o: Named(o, 4))
    assert set_learning_rate([optimizer], [scheduler], 0.5)["will_be_overwritten_by"] == []


def test_a_scheduler_that_cannot_be_asked_is_named() -> None:
    optimizer, scheduler = driven(lambda o: Stepping(o, 4))
    assert set_learning_rate([optimizer], [scheduler], 0.5)["will_be_overwritten_by"] == ["Stepping"]


def test_a_scheduler_without_a_base_class_is_scaled_and_named() -> None:
    untouched = stepped(*driven(Foreign, 2), STEPS)
    optimizer, scheduler = driven(Foreign, 2)
    report = set_learning_rate([optimizer], [scheduler], FACTOR * rates(optimizer)[0])
    assert report["will_be_overwritten_by"] == ["Foreign"]
    assert stepped(optimizer, scheduler, STEPS) == times([FACTOR] * 2, untouched)


class Ownerless:
    """Does not say whose rates it sets."""

    def __init__(self) -> None:
        self.base_lrs = [0.1]

    @property
    def optimizer(self) -> Optimizer:
        raise RuntimeError


def test_a_scheduler_that_names_no_optimizer_belongs_to_the_only_one() -> None:
    scheduler = Ownerless()
    report = set_learning_rate([sgd()], [scheduler], 0.2)
    assert scheduler.base_lrs == pytest.approx([0.2])
    assert report["will_be_overwritten_by"] == ["Ownerless"]


def test_a_scheduler_that_names_no_optimizer_is_left_alone_beside_several() -> None:
    scheduler = Ownerless()
    report = set_learning_rate([sgd(), sgd()], [scheduler], 0.2)
    assert scheduler.base_lrs == [0.1]
    assert report["will_be_overwritten_by"] == ["Ownerless"]


# ---- optimizers with a rate of their own


def moved(optimizer: Optimizer, count: int) -> list[float]:
    """How far the first number goes in each of so many steps with a constant gradient."""
    parameter = optimizer.param_groups[0]["params"][0]
    distances = []
    for _ in range(count):
        before = parameter.detach().clone()
        parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
        distances.append(float((before - parameter.detach()).abs().max()))
    return distances


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
def test_asgd_takes_the_rate_in_its_next_step(steps: int, foreach: bool) -> None:
    optimizer = torch.optim.ASGD([nn.Parameter(torch.zeros(2, dtype=torch.double))], lr=0.1, lambd=0.1, foreach=foreach)
    moved(optimizer, steps)
    # What the last step would have left at this rate.
    eta = 0.3 / (1 + 0.1 * 0.3 * steps) ** 0.75
    report = set_learning_rate([optimizer], [], 0.3)
    parameter = optimizer.param_groups[0]["params"][0]
    expected = eta * float((0.5 + 0.1 * parameter.detach()).abs().max())
    assert moved(optimizer, 1) == pytest.approx([expected], rel=1e-4)
    assert bool(report["notes"]) == bool(steps)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
def test_rprop_scales_its_steps(steps: int, foreach: bool) -> None:
    def fresh() -> Optimizer:
        return torch.optim.Rprop([nn.Parameter(torch.zeros(2))], lr=0.1, foreach=foreach)

    untouched = fresh()
    moved(untouched, steps)
    optimizer = fresh()
    moved(optimizer, steps)
    report = set_learning_rate([optimizer], [], 0.3)
    assert moved(optimizer, 4) == pytest.approx([3 * distance for distance in moved(untouched, 4)], rel=1e-4)
    assert bool(report["notes"]) == bool(steps)


def test_lbfgs_says_when_it_reads_its_rate() -> None:
    optimizer = torch.optim.LBFGS([nn.Parameter(torch.ones(2))], lr=0.1)
    report = set_learning_rate([optimizer], [], 0.3)
    assert "LBFGS" in report["notes"][0]
    assert rates(optimizer) == [0.3]
