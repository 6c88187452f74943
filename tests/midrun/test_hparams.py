"""Tunable hyperparameters: what the model declares can be set, to a value of its type and within its limits."""

from __future__ import annotations

import enum
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from midrun.fs.faults import Invalid
from midrun.tunables import admitted, declared, set_tunable, tunables
from tests.midrun.models import document, settled
from tests.midrun.steering import Steered, aside, done, failed, fit, give, held, outcome, where

# ---- what a model declares


class Plain:
    """Anything with attributes."""

    midrun_tunable_hparams: Any = ["value", "part.value", "nested", "nested.deep.value", "missing", "part.missing"]

    def __init__(self, value: Any = 1.0) -> None:
        self.value = value
        self.untold = 1.0
        self.nested = {"deep": {"value": value}, "other": 2}
        self.part = self if value is None else Plain(None)


def limited(**limits: Any) -> Plain:
    """Return something whose value has limits."""

    class Limited(Plain):
        midrun_tunable_hparams = {"value": limits}

    return Limited(limits.pop("value", 1.0))


def refusal(module: object, path: str, value: Any) -> tuple[str, str]:
    """Return which argument is refused, and the kind of mistake."""
    with pytest.raises(Invalid) as refused:
        set_tunable(module, path, value)
    assert refused.value.errors is not None
    (error,) = refused.value.errors
    assert error["msg"] == refused.value.message
    (argument,) = error["loc"]
    return str(argument), error["type"]


def test_a_list_or_a_dictionary_of_paths_may_be_declared() -> None:
    assert declared(Plain()) == {path: {} for path in Plain.midrun_tunable_hparams}
    assert declared(limited(min=0, max=1)) == {"value": {"min": 0, "max": 1}}
    assert declared(object()) == {}


@pytest.mark.parametrize(
    "path", ["untold", "value.real", "part", "", "nested.other", "__class__", "missing_altogether"]
)
def test_only_a_declared_path_can_be_set(path: str) -> None:
    assert refusal(Plain(), path, 1.0) == ("name", "not_tunable")


@pytest.mark.parametrize("path", ["missing", "part.missing"])
def test_a_declared_path_that_is_not_there_is_refused(path: str) -> None:
    module = Plain()
    assert refusal(module, path, 1.0) == ("name", "missing_attribute")
    assert not hasattr(module, "missing")


def test_a_message_says_what_can_be_set() -> None:
    with pytest.raises(Invalid, match=r"'untold' is not tunable in this model: it declares value, part\.value"):
        set_tunable(Plain(), "untold", 1.0)
    with pytest.raises(Invalid, match="it declares none"):
        set_tunable(object(), "value", 1.0)


# ---- types


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    first: float
    second: int


TAKEN: list[tuple[Any, Any, Any]] = [
    # present value, new value, what it is then
    (1.0, 2.5, 2.5),
    (1.0, 2, 2.0),
    (math.nan, 2.0, 2.0),
    (math.inf, 2.0, 2.0),
    (1, 2, 2),
    (1, -(10**30), -(10**30)),
    (True, False, False),
    ("adam", "sgd", "sgd"),
    ("", "ü", "ü"),
    (None, None, None),
    ([0.9, 0.99], [0.5, 1], [0.5, 1.0]),
    ((0.9, 0.99), [0.5, 1], (0.5, 1.0)),
    ([[1], [2]], [[3], [4]], [[3], [4]]),
    ([], [], []),
    (Pair(0.5, 1), [0.25, 2], Pair(0.25, 2)),
    ({"a": 1.0, "b": "x"}, {"b": "y", "a": 2}, {"a": 2.0, "b": "y"}),
    (np.float32(1), 0.1, np.float32(0.1)),
    (np.float64(1), 2, np.float64(2)),
    (np.int64(1), 2, np.int64(2)),
    (np.bool_(True), False, np.bool_(False)),
    (Level.LOW, 2, Level.HIGH),
]


@pytest.mark.parametrize(("present", "new", "then"), TAKEN)
def test_a_value_of_the_same_type_is_taken_and_stays_of_that_type(present: Any, new: Any, then: Any) -> None:
    module = Plain(present)
    before, after = set_tunable(module, "value", new)
    assert module.value == then
    assert type(module.value) is type(present)
    assert json.dumps([before, after])
    if isinstance(then, list | tuple):
        assert [type(item) for item in module.value] == [type(item) for item in present]


REFUSED: list[tuple[Any, Any, str]] = [
    (1, 7.0, "type"),
    (1, 7.9, "type"),
    (1, True, "type"),
    (1, "1", "type"),
    (1, None, "type"),
    (1, [1], "type"),
    (1.0, True, "type"),
    (1.0, "1.0", "type"),
    (1.0, None, "type"),
    (1.0, math.nan, "finite_number"),
    (1.0, math.inf, "finite_number"),
    (1.0, -math.inf, "finite_number"),
    (1.0, 10**400, "range"),
    (True, 1, "type"),
    (True, 0.0, "type"),
    (True, "false", "type"),
    (True, None, "type"),
    ("adam", 1, "type"),
    ("adam", None, "type"),
    ("adam", ["adam"], "type"),
    (None, 0, "type"),
    (None, "", "type"),
    ([0.9, 0.99], [0.5], "length"),
    ([0.9, 0.99], [0.5, "x"], "type"),
    ([0.9, 0.99], [0.5, math.nan], "finite_number"),
    ([0.9, 0.99], 0.5, "type"),
    ((0.9, 0.99), {"0": 0.5}, "type"),
    ([1, 2], [1, 2.0], "type"),
    (Pair(0.5, 1), [0.5, 1.5], "type"),
    ({"a": 1.0}, {"a": math.nan}, "finite_number"),
    ({"a": 1.0}, {"a": "x"}, "type"),
    ({"a": 1.0}, {"b": 1.0}, "keys"),
    ({"a": 1.0}, {"a": 1.0, "b": 1.0}, "keys"),
    ({"a": 1.0}, {}, "keys"),
    (np.float32(1), 1e300, "range"),
    (np.float32(1), True, "type"),
    (np.int8(1), 300, "range"),
    (np.int64(1), 1.0, "type"),
    (np.bool_(True), 1, "type"),
    (Level.LOW, 5, "range"),
    (nn.Linear(1, 1), "x", "type"),
    (object(), {}, "type"),
    (1 + 2j, 1.0, "type"),
]


@pytest.mark.parametrize(("present", "new", "kind"), REFUSED)
def test_a_value_of_another_type_is_refused_and_nothing_changes(present: Any, new: Any, kind: str) -> None:
    module = Plain(present)
    assert refusal(module, "value", new) == ("value", kind)
    assert module.value is present


def test_a_message_names_both_types_and_the_value() -> None:
    with pytest.raises(Invalid, match=r"'value' is of type int \(1\), not of type float: 7\.0"):
        set_tunable(Plain(1), "value", 7.0)
    with pytest.raises(Invalid, match=r"'value' is of type float .*, not null"):
        set_tunable(Plain(1.0), "value", None)


def test_a_message_says_what_was_given_and_what_would_do() -> None:
    with pytest.raises(Invalid, match=r"'value' takes a finite number, not nan"):
        set_tunable(Plain(1.0), "value", math.nan)
    with pytest.raises(Invalid, match=r"'value' has the members a, b, not a, c: give exactly these"):
        set_tunable(Plain({"a": 1, "b": 2}), "value", {"a": 1, "c": 2})
    with pytest.raises(Invalid, match=r"1e\+300 does not fit 'value', which is of type float32"):
        set_tunable(Plain(np.float32(1)), "value", 1e300)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.uint8, -1), (torch.uint8, 256), (torch.int8, -129), (torch.int64, 2**63), (torch.int32, 10**30)],
)
def test_a_tensor_of_integers_refuses_what_would_become_another_number(dtype: torch.dtype, value: int) -> None:
    module = Plain(torch.tensor(7, dtype=dtype))
    with pytest.raises(Invalid, match=rf"{value} does not fit 'value', which is of {dtype}"):
        set_tunable(module, "value", value)
    assert module.value.item() == 7


def test_a_path_that_is_declared_with_null_has_no_limits_and_is_shown() -> None:
    class Unlimited(Plain):
        midrun_tunable_hparams = {"value": None}

    module = Unlimited(1.0)
    assert tunables(module) == {"hparams": {"value": {"value": 1.0, "type": "float"}}}
    assert set_tunable(module, "value", 2.0) == (1.0, 2.0)


def test_an_error_of_the_model_s_that_has_no_words_is_told_all_the_same() -> None:
    class MuteError(AttributeError):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Moody:
        midrun_tunable_hparams = ("value",)

        @property
        def value(self) -> float:
            raise MuteError

        @value.setter
        def value(self, value: float) -> None:
            raise AssertionError("what can't be read is not set")

    shown = tunables(Moody())["hparams"]["value"]
    assert shown == {"error": "the model has no 'value': <exception str() failed>"}
    with pytest.raises(Invalid, match="'value' can't be read: MuteError"):
        set_tunable(Moody(), "value", 1.0)


def test_a_present_value_that_can_t_be_shown_does_no_harm() -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no words")

        __repr__ = __str__

    assert refusal(Plain(Mute()), "value", 1.0) == ("value", "type")


# ---- limits


@pytest.mark.parametrize(
    ("limits", "value", "is_taken"),
    [
        ({"min": 0.0, "max": 1.0}, 0.0, True),
        ({"min": 0.0, "max": 1.0}, 1.0, True),
        ({"min": 0.0, "max": 1.0}, 1, True),
        ({"min": 0.0, "max": 1.0}, 1.0000001, False),
        ({"min": 0.0, "max": 1.0}, -0.0000001, False),
        ({"min": 0}, -1, False),
        ({"min": 0}, 1e30, True),
        ({"max": 0}, 1, False),
        ({"max": 0}, -1e30, True),
        ({"label": "no limits"}, -1e30, True),
        ({"value": np.float32(0), "max": 0.1}, 0.1, True),
        ({"value": 5, "min": 1, "max": 10}, 10, True),
        ({"value": 5, "min": 1, "max": 10}, 11, False),
        ({"value": [0.1, 0.2], "max": 1.0}, [0.5, 2.0], False),
        ({"value": [0.1, 0.2], "max": 1.0}, [0.5, 1.0], True),
        ({"value": {"a": [0.1]}, "max": 1.0}, {"a": [2.0]}, False),
    ],
)
def test_limits_are_inclusive(limits: dict[str, Any], value: Any, is_taken: bool) -> None:
    module = limited(**limits)
    if is_taken:
        set_tunable(module, "value", value)
        assert module.value == value or math.isclose(module.value, value, rel_tol=1e-6)
    else:
        assert refusal(module, "value", value) == ("value", "range")


def test_a_message_says_what_the_limits_are() -> None:
    for limits, text in (
        ({"min": 0, "max": 1}, "between 0 and 1"),
        ({"min": 6}, "at least 6"),
        ({"max": 1}, "at most 1"),
    ):
        with pytest.raises(Invalid, match=f"'value' must be {text}: 5.0"):
            set_tunable(limited(**limits), "value", 5.0)


# ---- where it is


def test_a_dotted_path_goes_through_attributes_and_mappings() -> None:
    module = Plain(1.0)
    module.part.value = 1
    set_tunable(module, "part.value", 2)
    set_tunable(module, "nested.deep.value", 3)
    assert (module.part.value, module.nested) == (2, {"deep": {"value": 3.0}, "other": 2})


class Odd(nn.Module):
    """Keeps values in odd ways."""

    midrun_tunable_hparams = [
        "fixed",
        "checked",
        "raising",
        "buffer",
        "number",
        "flag",
        "small",
        "parameter",
        "vector",
        "dropout.p",
        "layers.0.p",
    ]

    def __init__(self) -> None:
        super().__init__()
        self.kept = 1.0
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList([nn.Dropout(0.2)])
        self.register_buffer("buffer", torch.tensor(1.0))
        self.register_buffer("number", torch.tensor(1))
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("small", torch.ones(1, dtype=torch.float16))
        self.register_buffer("vector", torch.ones(2))
        self.parameter = nn.Parameter(torch.tensor(1.0))

    @property
    def fixed(self) -> float:
        return 1.0

    @property
    def checked(self) -> float:
        return self.kept

    @checked.setter
    def checked(self, value: float) -> None:
        if value > 10:
            raise ValueError("above ten")
        self.kept = min(value, 5.0)

    @property
    def raising(self) -> float:
        raise RuntimeError("not now")

    @raising.setter
    def raising(self, value: float) -> None:
        self.kept = value


def test_a_property_is_set_by_its_setter_and_shown_as_it_is_then() -> None:
    module = Odd()
    assert set_tunable(module, "checked", 7) == (1.0, 5.0)


@pytest.mark.parametrize(
    ("path", "value", "refused"),
    [
        ("fixed", 2.0, ("name", "read_only")),
        ("checked", 11.0, ("value", "value_error")),
        ("raising", 2.0, ("name", "missing_attribute")),
    ],
)
def test_a_property_that_does_not_take_it_is_refused(path: str, value: float, refused: tuple[str, str]) -> None:
    module = Odd()
    assert refusal(module, path, value) == refused
    assert module.kept == 1.0


def test_what_a_property_forbids_is_known_before_it_is_queued() -> None:
    for path in ("fixed", "raising"):
        with pytest.raises(Invalid):
            admitted(Odd(), path, 2.0)


@pytest.mark.parametrize("path", ["dropout.p", "layers.0.p"])
def test_an_attribute_of_a_submodule_is_set(path: str) -> None:
    module = Odd()
    set_tunable(module, path, 0.5)
    assert 0.5 in {module.dropout.p, module.get_submodule("layers.0").p}


@pytest.mark.parametrize(
    ("path", "value", "then"),
    [
        ("buffer", 2, 2.0),
        ("buffer", 0.5, 0.5),
        ("number", 2, 2),
        ("flag", True, True),
        ("small", 0.5, 0.5),
        ("parameter", 0.5, 0.5),
    ],
)
def test_a_tensor_of_one_number_is_set_in_place(path: str, value: Any, then: Any) -> None:
    module = Odd()
    tensor = getattr(module, path)
    before, dtype = tensor.item(), tensor.dtype
    assert set_tunable(module, path, value) == (before, then)
    assert getattr(module, path) is tensor
    assert (tensor.item(), tensor.dtype) == (then, dtype)


@pytest.mark.parametrize(
    ("path", "value", "refused"),
    [
        ("buffer", "1", ("value", "type")),
        ("buffer", True, ("value", "type")),
        ("buffer", math.nan, ("value", "finite_number")),
        ("buffer", 1e300, ("value", "range")),
        ("small", 1e6, ("value", "range")),
        ("number", 1.0, ("value", "type")),
        ("number", 10**30, ("value", "range")),
        ("flag", 1, ("value", "type")),
        ("vector", 1.0, ("name", "type")),
        ("vector", [1.0, 2.0], ("name", "type")),
    ],
)
def test_a_tensor_takes_only_its_own_type(path: str, value: Any, refused: tuple[str, str]) -> None:
    module = Odd()
    before = getattr(module, path).clone()
    assert refusal(module, path, value) == refused
    assert torch.equal(getattr(module, path), before)


# ---- in a run


class Tuned(Steered):
    """Has tunables of several kinds, of which the loss is made."""

    midrun_tunable_hparams = {
        "hparams.l2": {"min": 0.0, "max": 1.0, "label": "L2"},
        "hparams.opt.name": {},
        "scale": {},
        "temperature": {},
    }

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"l2": 0.0, "opt": {"name": "sgd"}, "untold": 1.0})
        self.scale = 1.0
        self.register_buffer("temperature", torch.tensor(1.0))
        self.used: list[tuple[float, float, float]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        temperature = self.temperature
        assert isinstance(temperature, Tensor)
        self.used.append((self.hparams["l2"], self.scale, temperature.item()))
        return super().training_step(batch, batch_idx) * self.scale * temperature


def test_training_uses_a_new_value_at_once(tmp_path: Path) -> None:
    model = Tuned()
    sent: list[Any] = []

    def send() -> None:
        sent.append(model.give("set_hparam", name="hparams.l2", value=0.5))
        sent.append(model.give("set_hparam", name="scale", value=2))
        sent.append(model.give("set_hparam", name="temperature", value=3))

    model.plan[1] = send
    fit(model, tmp_path, 3)
    assert model.used == [(0.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.5, 2.0, 3.0)]
    assert [done(model.live, command)["changes"] for command in sent] == [
        [{"what": "hparams.l2", "old": 0.0, "new": 0.5}],
        [{"what": "scale", "old": 1.0, "new": 2.0}],
        [{"what": "temperature", "old": 1.0, "new": 3.0}],
    ]


def test_the_next_checkpoint_has_the_live_value_and_what_is_shown_too(tmp_path: Path) -> None:
    model = Tuned()
    sent: list[Any] = []

    def send() -> None:
        model.give("set_hparam", name="hparams.l2", value=0.5)
        model.give("set_hparam", name="hparams.opt.name", value="adam")
        model.give("set_hparam", name="temperature", value=3)
        sent.append(model.give("checkpoint"))

    model.plan[0] = send
    model.plan[1] = lambda: shown.update(document(model, "model/tunable-hparams.json")["hparams"])
    shown: dict[str, Any] = {}
    fit(model, tmp_path, 2)
    saved = torch.load(done(model.live, sent[0])["artifact"]["path"], weights_only=True)
    assert saved["hyper_parameters"]["l2"] == 0.5
    assert saved["hyper_parameters"]["opt"] == {"name": "adam"}
    assert saved["state_dict"]["temperature"] == 3
    assert shown["hparams.l2"] == {"value": 0.5, "type": "float", "min": 0.0, "max": 1.0, "label": "L2"}
    assert shown["hparams.opt.name"]["value"] == "adam"
    assert model.hparams_initial["l2"] == 0.0


@pytest.mark.parametrize(
    ("name", "value"),
    [("hparams.untold", 2.0), ("hparams.new", 2.0), ("net", 2.0), ("hparams.l2", 1.5), ("hparams.l2", "0.5"), ("", 1)],
)
def test_what_can_t_be_set_is_refused_when_it_comes(name: str, value: Any, tmp_path: Path) -> None:
    model = Tuned()
    told: list[Invalid] = []

    def send() -> None:
        written = json.dumps({"name": name, "value": value}).encode()
        with pytest.raises(Invalid) as refused:
            settled(model.live.tree.write("control/set_hparam", written))
        told.append(refused.value)
        assert model.live.control_errors.newest()[0]["path"] == "control/set_hparam"

    model.plan[0] = send
    fit(model, tmp_path, 1)
    assert told[0].errors
    assert "new" not in model.hparams
    assert (model.hparams["l2"], model.hparams["untold"]) == (0.0, 1.0)


def test_a_value_that_is_no_longer_allowed_when_it_is_due_makes_the_command_fail(
    tmp_path: Path, warned: list[str]
) -> None:
    model = Tuned()
    sent: list[Any] = []

    def send() -> None:
        sent.append(model.give("set_hparam", {"global_step": 2}, name="scale", value=2.0))
        model.scale = "twice"  # type: ignore[assignment]  # what the test is about

    class Model(Tuned):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            return self.loss(batch)

    model = Model()
    model.plan[0] = send
    fitting = fit(model, tmp_path, 3)
    kind, text = failed(model.live, sent[0])
    assert kind == "Invalid"
    assert "'scale' is of type str" in text
    assert fitting.global_step == 3
    assert not warned


def test_a_value_set_while_held_is_used_by_the_next_batch(tmp_path: Path) -> None:
    model = Tuned()
    model.plan[1] = lambda: model.give("pause")

    def act() -> None:
        active = held(model)
        done(model.live, give(model.live, "set_hparam", name="scale", value=2))
        give(model.live, "release", id=active.command.id)

    with aside(model, act):
        fit(model, tmp_path, 3)
    assert [scale for _, scale, _ in model.used] == [1.0, 1.0, 2.0]


def test_a_buffer_set_between_a_forward_and_a_backward_pass_does_not_end_the_run(tmp_path: Path) -> None:
    class Model(Tuned):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.rival = nn.Linear(3, 1)

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(net.parameters(), lr=0.1) for net in (self.net, self.rival)]

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            both: Any = self.optimizers()
            losses = [(net(batch[0]) * self.temperature).square().mean() for net in (self.net, self.rival)]
            for optimizer, loss in zip(both, losses, strict=True):
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()

    model = Model()
    sent: list[Any] = []
    model.plan[0] = lambda: sent.append(model.give("set_hparam", name="temperature", value=2))
    fitting = fit(model, tmp_path, 2)
    assert where(model.live, sent[0])[0] == "before_optimizer_step"
    assert outcome(model.live, sent[0])["status"] == "succeeded"
    assert fitting.global_step == 4
