"""Momentum: a reset takes the first moments and leaves everything else that an optimizer knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from midrun.fs.faults import Conflict, Invalid, Refused
from midrun.momentum import reset_momentum

Make = Callable[[Any], Optimizer]

WITH: dict[str, tuple[Make, str]] = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum_buffer"),
    "SGD foreach": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True), "momentum_buffer"),
    "SGD fused": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), "momentum_buffer"),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True), "momentum_buffer"),
    "Muon": (torch.optim.Muon, "momentum_buffer"),
    "Adam": (lambda p: torch.optim.Adam(p, amsgrad=True), "exp_avg"),
    "Adam foreach": (lambda p: torch.optim.Adam(p, foreach=True), "exp_avg"),
    "Adam fused": (lambda p: torch.optim.Adam(p, fused=True), "exp_avg"),
    "AdamW": (torch.optim.AdamW, "exp_avg"),
    "AdamW fused": (lambda p: torch.optim.AdamW(p, fused=True), "exp_avg"),
    "Adamax": (torch.optim.Adamax, "exp_avg"),
    "NAdam": (torch.optim.NAdam, "exp_avg"),
    "RAdam": (torch.optim.RAdam, "exp_avg"),
    "SparseAdam": (torch.optim.SparseAdam, "exp_avg"),
}
WITHOUT: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "LBFGS": torch.optim.LBFGS,
}


def built(make: Make, count: int = 2) -> Optimizer:
    return make([nn.Parameter(torch.full((2, 2), 0.5)) for _ in range(count)])


def stepped(optimizer: Optimizer, steps: int = 3) -> Optimizer:
    sparse = isinstance(optimizer, torch.optim.SparseAdam)
    for _ in range(steps):
        for parameter in optimizer.param_groups[0]["params"]:
            gradient = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
            parameter.grad = gradient.to_sparse(1) if sparse else gradient
        optimizer.step(lambda: 1.0)
    return optimizer


def test_the_tables_have_every_optimizer_of_torch() -> None:
    known = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    assert known == {name.split()[0] for name in (*WITH, *WITHOUT)}


@pytest.mark.parametrize("name", WITH)
def test_only_first_moments_become_zero(name: str) -> None:
    make, key = WITH[name]
    optimizer = stepped(built(make))
    before = {
        p: {k: (v, v.clone()) for k, v in state.items() if isinstance(v, torch.Tensor)}
        for p, state in optimizer.state.items()
    }
    report = reset_momentum([optimizer])
    assert report == {"optimizers": [{"optimizer": 0, "name": name.split(maxsplit=1)[0], "tensors": 2}], "without": []}
    for parameter, states in before.items():
        assert states[key][1].any()
        for k, (tensor, copy) in states.items():
            assert optimizer.state[parameter][k] is tensor
            assert torch.equal(tensor, torch.zeros_like(copy) if k == key else copy)
    stepped(optimizer)


@pytest.mark.parametrize("name", WITH)
def test_before_the_first_step_nothing_is_there(name: str) -> None:
    optimizer = built(WITH[name][0])
    assert reset_momentum([optimizer])["optimizers"][0]["tensors"] == 0
    assert not optimizer.state
    stepped(optimizer)


def test_a_parameter_that_never_had_a_gradient_has_no_buffer() -> None:
    optimizer = built(WITH["SGD"][0])
    used, unused = optimizer.param_groups[0]["params"]
    used.grad = torch.ones(2, 2)
    optimizer.step()
    optimizer.state[unused]["momentum_buffer"] = None
    assert reset_momentum([optimizer])["optimizers"][0]["tensors"] == 1


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("name", WITHOUT)
def test_an_optimizer_without_momentum_is_refused(name: str, steps: int) -> None:
    optimizer = stepped(built(WITHOUT[name]), steps)
    with pytest.raises(Refused, match=rf"optimizer 0 \({name}\) has"):
        reset_momentum([optimizer])


def test_of_several_those_without_are_listed() -> None:
    optimizers = [stepped(built(WITHOUT["Adagrad"])), stepped(built(WITH["Adam"][0]))]
    report = reset_momentum(optimizers)
    assert report["optimizers"] == [{"optimizer": 1, "name": "Adam", "tensors": 2}]
    assert report["without"] == [{"optimizer": 0, "name": "Adagrad", "found": "the state step, sum"}]
    with pytest.raises(Refused, match="Adagrad"):
        reset_momentum(optimizers, optimizer=0)


def test_only_the_optimizer_that_is_named_is_reset() -> None:
    optimizers = [stepped(built(WITH["Adam"][0])) for _ in range(2)]
    reset_momentum(optimizers, optimizer=1)
    first, second = (next(iter(optimizer.state.values()))["exp_avg"] for optimizer in optimizers)
    assert first.any()
    assert not second.any()


def test_a_number_out_of_range_is_invalid() -> None:
    with pytest.raises(Invalid, match="0 to 0"):
        reset_momentum([built(WITH["Adam"][0])], optimizer=1)


def test_without_an_optimizer_it_is_not_now() -> None:
    with pytest.raises(Conflict):
        reset_momentum([])
