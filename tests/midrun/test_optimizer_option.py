"""Optimizer options: what can be set takes effect, and what would break the next step is refused before it."""

from __future__ import annotations

import random
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.optim.lr_scheduler as S
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from midrun.fs.faults import Conflict, Invalid, Refused
from midrun.optimizer_options import set_optimizer_option

O = torch.optim  # noqa: E741 - short beside its classes
Make = Callable[[Any], Optimizer]

EVERY: dict[str, Make] = {
    "SGD": lambda p: O.SGD(p, momentum=0.9),
    "SGD foreach": lambda p: O.SGD(p, momentum=0.9, foreach=True),
    "SGD fused": lambda p: O.SGD(p, momentum=0.9, fused=True),
    "RMSprop": lambda p: O.RMSprop(p, momentum=0.9, centered=True),
    "Muon": O.Muon,
    "Adam": O.Adam,
    "Adam amsgrad": lambda p: O.Adam(p, amsgrad=True),
    "Adam foreach": lambda p: O.Adam(p, foreach=True),
    "Adam fused": lambda p: O.Adam(p, fused=True),
    "Adam tensor": lambda p: O.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": O.AdamW,
    "Adamax": O.Adamax,
    "NAdam": O.NAdam,
    "RAdam": O.RAdam,
    "SparseAdam": O.SparseAdam,
    "Adagrad": O.Adagrad,
    "Adadelta": O.Adadelta,
    "Adafactor": O.Adafactor,
    "ASGD": O.ASGD,
    "Rprop": O.Rprop,
    "LBFGS": O.LBFGS,
}


def built(make: Make) -> Optimizer:
    return make([{"params": [nn.Parameter(torch.full((2, 2), 0.5))]}])


def two_groups(kind: Any, **options: Any) -> Optimizer:
    made: Optimizer = kind([{"params": [nn.Parameter(torch.full((2, 2), 0.5))]} for _ in range(2)], **options)
    return made


def stepped(optimizer: Optimizer, steps: int = 2) -> Optimizer:
    for _ in range(steps):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = torch.tensor([[0.1, -0.2], [0.3, 0.4]])
                parameter.grad = gradient.to_sparse(1) if isinstance(optimizer, O.SparseAdam) else gradient
        optimizer.step(lambda: 1.0)
    return optimizer


def option(optimizer: Optimizer, name: str, value: Any, *schedulers: Any, **which: int) -> Any:
    return set_optimizer_option([optimizer], schedulers, name, value, **which)


# ---- every optimizer


def test_the_table_has_every_optimizer_of_torch() -> None:
    known = {
        name
        for name, kind in vars(O).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    assert known == {name.split(maxsplit=1)[0] for name in EVERY}


def candidates(value: Any) -> list[Any]:
    """Values to try in the place of one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [0, 0.5, 3, -1, 1e6, 1.0]
    if isinstance(value, tuple):
        return [[0.25, 0.75, 1.5][: len(value)], [1.0, 1.0, 1.0][: len(value)], [0.5, 1.5, 2.5][: len(value)]]
    return [None, "text", 1]


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # what torch thinks of odd values
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("name", EVERY)
def test_whatever_is_set_the_next_steps_go_on(name: str, steps: int) -> None:
    model = stepped(built(EVERY[name]), steps)
    tried = 0
    for key in sorted(set(model.param_groups[0]) - {"params"}):
        for value in candidates(model.param_groups[0][key]):
            optimizer = stepped(built(EVERY[name]), steps)
            before = dict(optimizer.param_groups[0])
            tried += 1
            try:
                option(optimizer, key, value)
            except (Invalid, Refused):
                assert optimizer.param_groups[0] == before
            stepped(optimizer, 3)
            parameter = optimizer.param_groups[0]["params"][0]
            assert torch.isfinite(parameter).all(), (key, value)
    assert tried


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("SparseAdam", "Rprop", "LBFGS")])
def test_weight_decay_of_every_optimizer_takes_effect(name: str) -> None:
    optimizer = stepped(built(EVERY[name]))
    twin = stepped(built(EVERY[name]))
    old = optimizer.param_groups[0]["weight_decay"]
    report = option(optimizer, "weight_decay", 0.25)
    assert report == {
        "changes": [{"what": "optimizers/0/groups/0/weight_decay", "old": old, "new": 0.25}],
        "will_be_overwritten_by": [],
        "notes": [],
    }
    twin.param_groups[0]["weight_decay"] = 0.25
    changed, expected = (stepped(one).param_groups[0]["params"][0] for one in (optimizer, twin))
    assert torch.equal(changed, expected)


@pytest.mark.parametrize("name", EVERY)
def test_the_real_optimizer_and_the_randomness_are_left_alone(name: str) -> None:
    optimizer = stepped(built(EVERY[name]))
    parameter = optimizer.param_groups[0]["params"][0]
    before = parameter.detach().clone()
    states = [v.clone() for v in optimizer.state[parameter].values() if isinstance(v, torch.Tensor)]
    torchs, python = torch.get_rng_state(), random.getstate()
    key, value = ("max_iter", 3) if name == "LBFGS" else ("maximize", True)
    if key in optimizer.param_groups[0]:
        option(optimizer, key, value)
    assert torch.equal(parameter, before)
    now = [v for v in optimizer.state[parameter].values() if isinstance(v, torch.Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(states, now, strict=True))
    assert torch.equal(torch.get_rng_state(), torchs)
    assert random.getstate() == python


# ---- what would break


@pytest.mark.parametrize(
    ("make", "key", "value"),
    [
        (O.Adam, "amsgrad", True),
        (O.RMSprop, "centered", True),
        (O.RMSprop, "momentum", 0.9),
        (lambda p: O.RMSprop(p, alpha=0.5), "alpha", 1.9),
        (O.AdamW, "decoupled_weight_decay", False),
        (O.Adagrad, "initial_accumulator_value", 0.5),
        (O.LBFGS, "history_size", 5),
        *[(O.Adam, key, True) for key in ("fused", "foreach", "capturable", "differentiable")],
        (O.LBFGS, "line_search_fn", "strong_wolfe"),
    ],
)
def test_an_option_that_breaks_the_next_step_is_refused(make: Make, key: str, value: object) -> None:
    optimizer = stepped(built(make))
    before = dict(optimizer.param_groups[0])
    with pytest.raises(Refused, match=key):
        option(optimizer, key, value)
    assert optimizer.param_groups[0] == before
    stepped(optimizer)


@pytest.mark.parametrize(
    ("make", "key", "value"),
    [(O.Adam, "amsgrad", True), (O.RMSprop, "centered", True), (O.RMSprop, "momentum", 0.9)],
)
def test_before_the_first_step_the_state_is_still_to_be_made(make: Make, key: str, value: object) -> None:
    optimizer = built(make)
    option(optimizer, key, value)
    stepped(optimizer)
    assert optimizer.param_groups[0][key] == value


@pytest.mark.parametrize(
    ("make", "key", "off", "on"),
    [
        (EVERY["Adam amsgrad"], "amsgrad", False, True),
        (EVERY["RMSprop"], "centered", False, True),
        (EVERY["RMSprop"], "momentum", 0, 0.9),
    ],
)
def test_what_was_switched_off_can_be_switched_on_again(make: Make, key: str, off: object, on: object) -> None:
    optimizer = stepped(built(make))
    option(optimizer, key, off)
    stepped(optimizer)
    report = option(optimizer, key, on)
    stepped(optimizer)
    assert optimizer.param_groups[0][key] == on
    assert bool(report["notes"]) == (key == "momentum")


def test_sgd_takes_up_momentum() -> None:
    optimizer = stepped(built(O.SGD))
    option(optimizer, "momentum", 0.9)
    stepped(optimizer)
    assert optimizer.state[optimizer.param_groups[0]["params"][0]]["momentum_buffer"] is not None


def test_fused_sgd_does_not_mix_old_and_new_buffers() -> None:
    optimizer = O.SGD([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))], momentum=0.9, fused=True)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    option(optimizer, "momentum", 0)
    with pytest.raises(Refused, match="buffer"):
        option(optimizer, "momentum", 0.9)


@pytest.mark.parametrize(
    ("make", "key", "value", "words"),
    [
        (O.Adam, "betas", [0.9, 1.0], "Invalid beta"),
        (O.Adam, "eps", -1.0, "Invalid epsilon"),
        (O.SGD, "weight_decay", -0.1, "Invalid weight_decay"),
        (O.SGD, "nesterov", True, "Nesterov"),
        (O.Adafactor, "d", 0.5, "Clipping"),
    ],
)
def test_the_constructor_judges_the_value(make: Make, key: str, value: object, words: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        option(stepped(built(make)), key, value)
    assert caught.value.errors
    assert caught.value.errors[0]["loc"] == ["value"]


# ---- types


@pytest.mark.parametrize(
    ("make", "key", "value"),
    [
        (O.SGD, "nesterov", 1),
        (O.SGD, "nesterov", "yes"),
        (O.SGD, "momentum", True),
        (O.SGD, "momentum", "0.9"),
        (O.SGD, "momentum", None),
        (O.SGD, "momentum", [0.9]),
        (O.Adam, "eps", float("nan")),
        (O.Adam, "eps", float("inf")),
        (O.Adam, "eps", 10**400),
        (O.Adam, "betas", 0.9),
        (O.Adam, "betas", [0.9]),
        (O.Adam, "betas", [0.9, "0.99"]),
        (O.Adam, "betas", [0.9, None]),
        (O.LBFGS, "max_iter", 2.5),
        (O.Muon, "ns_steps", 2.5),
        (lambda p: O.LBFGS(p, line_search_fn="strong_wolfe"), "line_search_fn", 1),
    ],
)
def test_a_value_of_another_type_is_invalid(make: Make, key: str, value: object) -> None:
    optimizer = built(make)
    before = dict(optimizer.param_groups[0])
    with pytest.raises(Invalid, match=key):
        option(optimizer, key, value)
    assert optimizer.param_groups[0] == before


@pytest.mark.parametrize(
    ("make", "key", "value", "kept"),
    [
        (O.Adam, "weight_decay", 0.1, 0.1),
        (O.Adam, "eps", 1, 1.0),
        (O.Adam, "betas", [0.8, 0.9], (0.8, 0.9)),
        (O.Adafactor, "eps", [None, 0.01], (None, 0.01)),
        (O.LBFGS, "max_iter", 3, 3),
        (lambda p: O.SGD(p, momentum=0.9), "nesterov", True, True),
    ],
)
def test_a_value_takes_the_type_that_is_there(make: Make, key: str, value: object, kept: object) -> None:
    optimizer = stepped(built(make))
    option(optimizer, key, value)
    assert optimizer.param_groups[0][key] == kept
    assert type(optimizer.param_groups[0][key]) is type(kept)
    stepped(optimizer)


def test_a_tensor_stays_the_same_tensor() -> None:
    tensor = torch.tensor(0.1)
    optimizer = stepped(built(lambda p: O.SGD(p, weight_decay=tensor)))
    report = option(optimizer, "weight_decay", 0.5)
    assert optimizer.param_groups[0]["weight_decay"] is tensor
    assert float(tensor) == 0.5
    assert report["changes"][0]["old"] == pytest.approx(0.1)
    assert report["changes"][0]["new"] == 0.5


# ---- which


@pytest.mark.parametrize(
    "key", ["lr", "params", "initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"]
)
def test_what_belongs_to_others_is_refused(key: str) -> None:
    optimizer = built(O.SGD)
    with pytest.raises(Refused):
        option(optimizer, key, 0.1)


def test_an_unknown_option_lists_those_there_are() -> None:
    with pytest.raises(Invalid, match=r"'beta'.*amsgrad, betas, decoupled_weight_decay, eps, maximize, weight_decay"):
        option(built(O.Adam), "beta", 0.1)


def test_all_groups_or_one_change() -> None:
    optimizer = two_groups(O.SGD, weight_decay=0.1)
    option(optimizer, "weight_decay", 0.2, group=1)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.2]
    report = option(optimizer, "weight_decay", 0.3)
    assert [change["old"] for change in report["changes"]] == [0.1, 0.2]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.3]


def test_a_group_that_cannot_change_keeps_the_others_from_changing() -> None:
    optimizer = two_groups(O.SGD)
    optimizer.param_groups[0].update(momentum=0.9)
    with pytest.raises(Invalid, match="Nesterov"):
        option(optimizer, "nesterov", True)
    assert [group["nesterov"] for group in optimizer.param_groups] == [False, False]


def test_of_several_optimizers_those_that_have_it_change() -> None:
    optimizers = [built(O.SGD), built(O.Adam)]
    report = set_optimizer_option(optimizers, [], "betas", [0.5, 0.9])
    assert [change["what"] for change in report["changes"]] == ["optimizers/1/groups/0/betas"]
    assert "optimizer 0 (SGD)" in report["notes"][0]
    with pytest.raises(Invalid):
        set_optimizer_option(optimizers, [], "betas", [0.5, 0.9], optimizer=0)


def test_numbers_out_of_range_are_invalid() -> None:
    optimizers = [built(O.SGD), built(O.SGD)]
    wrong: list[dict[str, Any]] = [{"optimizer": 2}, {"optimizer": 0, "group": 1}, {"group": 0}]
    for which in wrong:
        with pytest.raises(Invalid):
            set_optimizer_option(optimizers, [], "weight_decay", 0.1, **which)


def test_without_an_optimizer_it_is_not_now() -> None:
    with pytest.raises(Conflict):
        set_optimizer_option([], [], "weight_decay", 0.1)


# ---- schedulers


@pytest.mark.parametrize(
    ("make", "key", "value"),
    [(lambda p: O.SGD(p, momentum=0.9), "momentum", 0.5), (O.Adam, "betas", [0.5, 0.9])],
)
def test_schedulers_that_cycle_the_momentum_are_named(make: Make, key: str, value: object) -> None:
    def names(schedule: Callable[[Optimizer], Any], key: str = key, value: object = value) -> Any:
        optimizer = built(make)
        return option(optimizer, key, value, schedule(optimizer))["will_be_overwritten_by"]

    assert names(lambda o: S.OneCycleLR(o, 0.1, 10)) == ["OneCycleLR"]
    assert names(lambda o: S.CyclicLR(o, 0.1, 0.2)) == ["CyclicLR"]
    assert names(lambda o: S.ChainedScheduler([S.CyclicLR(o, 0.1, 0.2)], o)) == ["CyclicLR"]
    assert names(lambda o: S.OneCycleLR(o, 0.1, 10, cycle_momentum=False)) == []
    assert names(lambda o: S.StepLR(o, 3)) == []
    assert names(lambda o: S.OneCycleLR(o, 0.1, 10), "weight_decay", 0.1) == []


# ---- optimizers of others


class OfModel(O.SGD):
    """Cannot be made from its options, as many cannot."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1, momentum=0.9)


class Bare(Optimizer):
    """Says nothing about its options."""

    made = 0

    @typing.no_type_check  # as many are
    def __init__(self, params, lr=0.1, decay=0, rounds=2):
        type(self).made += 1
        super().__init__(params, {"lr": lr, "decay": decay, "rounds": rounds})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                for _ in range(group["rounds"]):
                    parameter.data.mul_(1 - group["decay"])


def test_without_a_trial_only_numbers_change() -> None:
    optimizer = OfModel(nn.Linear(2, 2))
    report = option(optimizer, "momentum", 0.5)
    assert optimizer.param_groups[0]["momentum"] == 0.5
    assert "could not be tried" in report["notes"][0]
    with pytest.raises(Refused, match="try"):
        option(optimizer, "nesterov", True)


def test_where_the_constructor_says_nothing_the_trial_does() -> None:
    optimizer: Optimizer = Bare([nn.Parameter(torch.ones(2))])
    option(optimizer, "decay", 0.5)
    assert optimizer.param_groups[0]["decay"] == 0.5
    with pytest.raises(Refused, match="rounds"):
        option(optimizer, "rounds", 1.5)
    assert optimizer.param_groups[0]["params"][0].tolist() == [1, 1]


def test_what_works_only_on_the_real_device_is_tried_by_plain_means() -> None:
    optimizer = two_groups(O.Adam, lr=torch.tensor(0.1))
    for group in optimizer.param_groups:
        group.update(capturable=True, weight_decay=0.1)
    report = option(optimizer, "betas", [0.5, 0.9])
    assert report["notes"] == []
    with pytest.raises(Invalid, match="Invalid beta"):
        option(optimizer, "betas", [0.5, 1.0])


def test_hooks_on_all_optimizers_do_not_see_the_trial() -> None:
    seen: list[Optimizer] = []

    def note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        seen.append(optimizer)

    handle = register_optimizer_step_pre_hook(note)
    try:
        option(stepped(built(O.Adam), 1), "eps", 0.1)
    finally:
        handle.remove()
    assert len(seen) == 1
