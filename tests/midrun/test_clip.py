"""Gradient clipping: set it, and the next step is clipped so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from midrun.fs.faults import Invalid, Refused
from tests.midrun.models import settled
from tests.midrun.steering import Steered, aside, done, fit, held, where


class Clipped(Steered):
    """Has gradients that are always (3, 4, 0), and notes what is left of them when the step is made."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []
        self.stepped: list[list[float]] = []

    def loss(self, batch: list[Tensor]) -> Tensor:
        return (self.net.weight * torch.tensor([3.0, 4.0, 0.0])).sum()

    def on_before_zero_grad(self, optimizer: Any) -> None:
        # Lightning zeroes the gradients when the next batch begins.
        if self.net.weight.grad is not None:
            self.stepped.append(self.net.weight.grad.squeeze().tolist())

    def ask(self, **args: Any) -> None:
        self.sent.append(self.give("set_gradient_clip", **args))

    def on_train_end(self) -> None:
        super().on_train_end()
        assert self.net.weight.grad is not None
        self.stepped.append(self.net.weight.grad.squeeze().tolist())


FULL = pytest.approx([3.0, 4.0, 0.0])
SCALED = pytest.approx([0.6, 0.8, 0.0], abs=1e-4)
CUT = pytest.approx([1.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("args", "then"),
    [
        ({"value": 1}, SCALED),
        ({"value": 1.0}, SCALED),
        ({"value": 1.0, "algorithm": "norm"}, SCALED),
        ({"value": 1.0, "algorithm": "value"}, CUT),
        ({"value": 100.0}, FULL),
        ({"value": 0}, FULL),
        ({"value": None}, FULL),
    ],
)
def test_the_next_step_is_clipped(args: dict[str, Any], then: Any, tmp_path: Path) -> None:
    model = Clipped()
    model.plan[1] = lambda: model.ask(**args)
    fit(model, tmp_path, 3)
    assert where(model.live, model.sent[0]) == ("before_optimizer_step", 1, 0, 1)
    assert model.stepped == [FULL, then, then]


def test_clipping_that_is_there_is_changed_and_ended(tmp_path: Path) -> None:
    model = Clipped()
    model.plan[1] = lambda: model.ask(value=2.5)
    model.plan[2] = lambda: model.ask(value=None)
    model.plan[3] = lambda: model.ask(value=1.0)
    fitting = fit(model, tmp_path, 4, gradient_clip_val=1.0, gradient_clip_algorithm="value")
    assert model.stepped == [CUT, pytest.approx([2.5, 2.5, 0.0]), FULL, CUT]
    assert fitting.gradient_clip_val == 1.0


def test_the_result_says_what_was_changed(tmp_path: Path) -> None:
    model = Clipped()
    model.plan[0] = lambda: model.ask(value=2.5)
    model.plan[1] = lambda: model.ask(value=1.5, algorithm="value")
    model.plan[2] = lambda: model.ask(value=None, algorithm="norm")
    fit(model, tmp_path, 3)
    assert [done(model.live, command)["changes"] for command in model.sent] == [
        [{"what": "gradient_clip_val", "old": None, "new": 2.5}],
        [
            {"what": "gradient_clip_val", "old": 2.5, "new": 1.5},
            {"what": "gradient_clip_algorithm", "old": None, "new": "value"},
        ],
        [
            {"what": "gradient_clip_val", "old": 1.5, "new": None},
            {"what": "gradient_clip_algorithm", "old": "value", "new": "norm"},
        ],
    ]


def test_a_clip_set_while_held_is_of_the_step_that_is_held(tmp_path: Path) -> None:
    model = Clipped()
    model.plan[1] = lambda: model.give("pause")

    def act() -> None:
        held(model)
        model.ask(value=1.0)
        done(model.live, model.sent[0])
        model.give("continue")

    with aside(model, act):
        fit(model, tmp_path, 3)
    assert model.stepped == [FULL, SCALED, SCALED]


def test_it_is_refused_where_the_model_steps_by_hand(tmp_path: Path) -> None:
    class Model(Clipped):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    assert_refused(Model(), "manually", tmp_path)


def test_it_is_refused_where_the_model_clips_by_itself(tmp_path: Path) -> None:
    class Model(Clipped):
        def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
            """Clip nothing."""

    assert_refused(Model(), "configure_gradient_clipping", tmp_path)


def assert_refused(model: Clipped, text: str, root: Path) -> None:
    refused = []

    def send() -> None:
        for value in (1.0, None):
            with pytest.raises(Refused, match=text):
                model.ask(value=value)
            refused.append(value)

    model.plan[1] = send
    fitting = fit(model, root, 3)
    assert refused == [1.0, None]
    assert (fitting.global_step, fitting.gradient_clip_val) == (3, None)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"value": -1.0},
        {"value": "1"},
        {"value": True},
        {"value": [1.0]},
        {"value": 1.0, "algorithm": "l2"},
        {"value": 1.0, "algorithm": 2},
        {"value": 1.0, "optimizer": 0},
        {"algorithm": "norm"},
    ],
)
def test_any_other_argument_is_invalid(args: dict[str, Any], tmp_path: Path) -> None:
    assert_invalid(json.dumps(args), tmp_path)


@pytest.mark.parametrize("text", ['{"value": NaN}', '{"value": Infinity}', "nan", "much"])
def test_no_clip_is_no_number(text: str, tmp_path: Path) -> None:
    assert_invalid(text, tmp_path)


def assert_invalid(text: str, root: Path) -> None:
    model, refused = Clipped(), []

    def send() -> None:
        with pytest.raises(Invalid):
            settled(model.live.tree.write("control/set_gradient_clip", text.encode()))
        refused.append(text)

    model.plan[0] = send
    fit(model, root, 1)
    assert refused == [text]


@pytest.mark.parametrize(("text", "then"), [("1", SCALED), ("1.0\n", SCALED), ("null", FULL)])
def test_a_bare_value_is_the_largest_norm(text: str, then: Any, tmp_path: Path) -> None:
    model = Clipped()
    model.plan[0] = lambda: settled(model.live.tree.write("control/set_gradient_clip", text.encode()))
    fit(model, tmp_path, 1)
    assert model.stepped == [then]
