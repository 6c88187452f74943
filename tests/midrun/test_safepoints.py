"""Safe points: where in training a command is done, once each, and which of them `when` means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from torch import Tensor, nn

from midrun.command import EVALUATION, POINTS, Command
from midrun.commands import ANY, command_of
from midrun.fs.faults import Invalid
from tests.midrun.models import batches, trainer
from tests.midrun.steering import Place, Steered, fit, let_go, outcome, records_of, until, where

BATCH, EPOCH, VALIDATION, STEP, FIT = POINTS


class Probed(Steered):
    """Has a probe at each safe point: a command that sends the next one when it is done."""

    midrun_tunable_hparams = ["probe"]

    def __init__(self, *points: str, **options: Any) -> None:
        super().__init__(**options)
        self.points = points or POINTS

    @property
    def probe(self) -> int:
        return -1

    @probe.setter
    def probe(self, number: int) -> None:
        self.send_probe(number)

    def send_probe(self, number: int) -> None:
        point = self.points[number]
        self.give("set_hparam", None if point == EVALUATION else {"safe_point": point}, name="probe", value=number)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        for number in range(len(self.points)):
            self.send_probe(number)

    def places(self) -> list[Place]:
        """Return where the probes were done, in that order."""
        done = [record for record in records_of(self.live) if record["status"] == "succeeded"]
        places = [record["place"] for record in sorted(done, key=lambda record: record["started"] or 0.0)]
        return [(p["safe_point"], p["global_step"], p["epoch"], p["batch"]) for p in places if p is not None]


# ---- where they are


def test_the_safe_points_of_a_fit_are_its_steps_batches_validations_epochs_and_its_end(tmp_path: Path) -> None:
    model = Probed()
    fit(model, tmp_path, 2, 2, max_epochs=2)
    assert model.places() == [
        (STEP, 0, 0, 0),
        (BATCH, 1, 0, 0),
        (STEP, 1, 0, 1),
        (BATCH, 2, 0, 1),
        (VALIDATION, 2, 0, None),
        (EPOCH, 2, 0, 1),
        (STEP, 2, 1, 0),
        (BATCH, 3, 1, 0),
        (STEP, 3, 1, 1),
        (BATCH, 4, 1, 1),
        (VALIDATION, 4, 1, None),
        (EPOCH, 4, 1, 1),
        (FIT, 4, 2, 1),
    ]


def test_with_gradient_accumulation_only_batches_that_step_are_before_a_step(tmp_path: Path) -> None:
    model = Probed(STEP, BATCH)
    fit(model, tmp_path, 5, accumulate_grad_batches=2)
    assert model.places() == [
        (BATCH, 0, 0, 0),
        (STEP, 0, 0, 1),
        (BATCH, 1, 0, 1),
        (BATCH, 1, 0, 2),
        (STEP, 1, 0, 3),
        (BATCH, 2, 0, 3),
        (STEP, 2, 0, 4),
        (BATCH, 3, 0, 4),
    ]


class Manual(Probed):
    """Steps by hand; with `rivals`, a second optimizer steps in every batch as well."""

    def __init__(self, *points: str, rivals: bool = False) -> None:
        super().__init__(*points)
        self.automatic_optimization = False
        self.rival = nn.Linear(3, 1) if rivals else None

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        optimizers: Any = self.optimizers()
        for optimizer, net in zip(
            optimizers if self.rival is not None else [optimizers], [self.net, self.rival], strict=False
        ):
            assert net is not None
            optimizer.zero_grad()
            self.manual_backward(nn.functional.mse_loss(net(batch[0]), batch[1]))
            self.step(optimizer)

    def step(self, optimizer: Any) -> None:
        optimizer.step()

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.net.parameters(), lr=0.125)
        return first if self.rival is None else [first, torch.optim.Adam(self.rival.parameters(), lr=0.25)]


def test_a_manual_step_is_a_safe_point(tmp_path: Path) -> None:
    model = Manual(STEP, BATCH)
    fit(model, tmp_path, 2)
    assert model.places() == [(STEP, 0, 0, 0), (BATCH, 1, 0, 0), (STEP, 1, 0, 1), (BATCH, 2, 0, 1)]


def test_each_of_two_optimizers_has_its_steps(tmp_path: Path) -> None:
    model = Manual(STEP, BATCH, rivals=True)
    fit(model, tmp_path, 2)
    assert model.places() == [
        (STEP, 0, 0, 0),
        (STEP, 1, 0, 0),
        (BATCH, 2, 0, 0),
        (STEP, 2, 0, 1),
        (STEP, 3, 0, 1),
        (BATCH, 4, 0, 1),
    ]


class Raw(Manual):
    """Steps the optimizer itself, past Lightning, which hears nothing of it."""

    def step(self, optimizer: Any) -> None:
        optimizer.optimizer.step()


def test_a_step_past_lightning_is_none(tmp_path: Path) -> None:
    model = Raw()
    fit(model, tmp_path, 2)
    assert model.places() == [(BATCH, 0, 0, 0), (BATCH, 0, 0, 1), (EPOCH, 0, 0, 1), (FIT, 0, 1, 1)]


def test_a_hold_of_a_model_that_steps_past_lightning_is_at_the_end_of_a_batch(tmp_path: Path) -> None:
    model = Raw(BATCH)
    model.plan[0] = lambda: model.give("hold")
    model.plan[1] = lambda: model.give("set_learning_rate", value=0.5)
    with let_go(model) as held_at:
        fit(model, tmp_path, 3)
    assert held_at == [(BATCH, 0, 0, 0)]
    (change,) = [record for record in records_of(model.live) if record["kind"] == "set_learning_rate"]
    assert change["place"] == {"safe_point": BATCH, "global_step": 0, "epoch": 0, "batch": 1}


def test_so_it_is_where_the_override_of_optimizer_step_does_that(tmp_path: Path) -> None:
    class Model(Probed):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            optimizer_closure()
            optimizer.optimizer.step()

    model = Model(BATCH)
    model.plan[0] = lambda: model.give("hold")
    with let_go(model) as held_at:
        fit(model, tmp_path, 3)
    assert [place[0] for place in held_at] == [BATCH]


def test_a_hold_waits_for_32_batches_for_a_model_that_has_begun_to_step_past_lightning(
    tmp_path: Path,
) -> None:
    class Model(Manual):
        def step(self, optimizer: Any) -> None:
            (optimizer if self.begun == 1 else optimizer.optimizer).step()

    model = Model(BATCH)
    model.plan[1] = lambda: model.give("hold")
    with let_go(model) as held_at:
        fit(model, tmp_path, 40)
    assert held_at == [(BATCH, 1, 0, 32)]


class Lbfgs(Probed):
    """Evaluates its closure several times a step."""

    def __init__(self, *points: str, line_search: str | None = None) -> None:
        super().__init__(*points)
        self.line_search = line_search
        self.evaluations = 0

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.evaluations += 1
        self.each_evaluation()
        return self.loss(batch)

    def each_evaluation(self) -> None:
        """Do something before each evaluation."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3, line_search_fn=self.line_search)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_a_step_that_evaluates_several_times_is_one(line_search: str | None, tmp_path: Path) -> None:
    model = Lbfgs(STEP, BATCH, line_search=line_search)
    fit(model, tmp_path, 2)
    assert model.places() == [(STEP, 0, 0, 0), (BATCH, 1, 0, 0), (STEP, 1, 0, 1), (BATCH, 2, 0, 1)]
    assert model.evaluations > 4


def test_what_comes_in_the_middle_of_a_line_search_waits_for_its_end(tmp_path: Path) -> None:
    class Model(Lbfgs):
        def each_evaluation(self) -> None:
            if self.evaluations == 2:
                self.late = self.give("set_learning_rate", value=0.5)

    model = Model(BATCH, line_search="strong_wolfe")
    fit(model, tmp_path, 3)
    assert where(model.live, model.late) in {(BATCH, 1, 0, 0), (STEP, 1, 0, 1)}
    assert model.trainer.optimizers[0].param_groups[0]["lr"] == 0.5


def test_the_sanity_check_has_no_safe_point(tmp_path: Path) -> None:
    model = Probed()
    fit(model, tmp_path, 2, 2, num_sanity_val_steps=2, limit_train_batches=1)
    assert model.places() == [
        (STEP, 0, 0, 0),
        (BATCH, 1, 0, 0),
        (VALIDATION, 1, 0, None),
        (EPOCH, 1, 0, 0),
        (FIT, 1, 1, 0),
    ]


def test_a_validation_in_mid_epoch_has_its_end(tmp_path: Path) -> None:
    model = Probed(VALIDATION, BATCH, EPOCH)
    fit(model, tmp_path, 5, 3, val_check_interval=2)
    assert model.places() == [
        (BATCH, 1, 0, 0),
        (BATCH, 2, 0, 1),
        (VALIDATION, 2, 0, None),
        (BATCH, 3, 0, 2),
        (BATCH, 4, 0, 3),
        (VALIDATION, 4, 0, None),
        (BATCH, 5, 0, 4),
        (EPOCH, 5, 0, 4),
    ]


def test_an_epoch_without_a_validation_has_an_end_all_the_same(tmp_path: Path) -> None:
    model = Probed(VALIDATION, EPOCH)
    fit(model, tmp_path, 1, 1, max_epochs=4, check_val_every_n_epoch=2)
    assert model.places() == [
        (EPOCH, 1, 0, 0),
        (VALIDATION, 2, 1, None),
        (EPOCH, 2, 1, 0),
        (EPOCH, 3, 2, 0),
        (VALIDATION, 4, 3, None),
        (EPOCH, 4, 3, 0),
    ]


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"max_steps": 3, "max_epochs": -1}, (FIT, 3, 2, 0)),
        ({"limit_train_batches": 1, "max_epochs": 2}, (FIT, 2, 2, 0)),
        ({"fast_dev_run": True}, (FIT, 1, 1, 0)),
    ],
)
def test_however_a_fit_is_limited_it_has_one_end(options: dict[str, Any], end: Place, tmp_path: Path) -> None:
    model = Probed(FIT)
    fit(model, tmp_path, 2, **options)
    assert model.places() == [end]


def test_each_fit_of_a_model_has_its_own(tmp_path: Path) -> None:
    model = Probed(STEP, FIT)
    fitting = fit(model, tmp_path, 2)
    first = [(STEP, 0, 0, 0), (STEP, 1, 0, 1), (FIT, 2, 1, 1)]
    assert model.places() == first
    fitting.fit_loop.max_epochs = 2
    fitting.fit(model, batches(2), batches(1))
    assert model.places() == [*first, (STEP, 2, 1, 0), (STEP, 3, 1, 1), (FIT, 4, 2, 1)]


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_stage_of_its_own_has_the_ends_of_its_batches(stage: str, tmp_path: Path) -> None:
    model = Probed(EVALUATION)
    getattr(trainer(tmp_path), stage)(model, batches(3))
    places = [place for place in model.places() if place[0] == EVALUATION]
    # The end of a validation is a safe point, and the probe may be done at any.
    assert places[:2] == [(EVALUATION, 0, 0, 0), (EVALUATION, 0, 0, 1)]
    assert [place for place in model.places() if place[0] not in {EVALUATION, VALIDATION}] == []


@pytest.mark.filterwarnings("ignore:.*returned `None`:UserWarning")  # Lightning warns once in a process.
def test_a_batch_without_a_loss_has_its_end(tmp_path: Path) -> None:
    class Model(Probed):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            return None if batch_idx == 0 else super().training_step(batch, batch_idx)

    model = Model(BATCH)
    fit(model, tmp_path, 2)
    assert [(point, batch) for point, _, _, batch in model.places()] == [(BATCH, 0), (BATCH, 1)]


# ---- when

Found = dict[str, Place]


def placed(tmp_path: Path, model: Steered, at: int, **whens: dict[str, Any] | None) -> dict[str, Place | str]:
    """Train two epochs of three batches, and return where commands were done that were sent in batch `at`."""
    sent = {}

    def send() -> None:
        for name, when in whens.items():
            sent[name] = model.give("set_hparam", when, name="probe", value=0)

    model.plan[at] = send
    fit(model, tmp_path, 3, 1, max_epochs=2)
    found: dict[str, Place | str] = {}
    for name, command in sent.items():
        record = outcome(model.live, command)
        found[name] = where(model.live, command) if record["place"] else record["status"]
    return found


class Timed(Steered):
    midrun_tunable_hparams = ["probe"]
    probe = 0


def test_a_safe_point_alone_means_its_next_occurrence(tmp_path: Path) -> None:
    assert placed(tmp_path, Timed(), 1, **{point: {"safe_point": point} for point in POINTS}) == {
        BATCH: (BATCH, 2, 0, 1),
        EPOCH: (EPOCH, 3, 0, 2),
        VALIDATION: (VALIDATION, 3, 0, None),
        STEP: (STEP, 1, 0, 1),
        FIT: (FIT, 6, 2, 2),
    }


def test_an_epoch_or_step_alone_means_any_safe_point_from_there_on(tmp_path: Path) -> None:
    assert placed(
        tmp_path,
        Timed(),
        1,
        nothing=None,
        this_step={"global_step": 1},
        step={"global_step": 3},
        past_step={"global_step": 0},
        this_epoch={"epoch": 0},
        epoch={"epoch": 1},
        never_step={"global_step": 7},
        never_epoch={"epoch": 3},
    ) == {
        "nothing": (STEP, 1, 0, 1),
        "this_step": (STEP, 1, 0, 1),
        "step": (BATCH, 3, 0, 2),
        "past_step": (STEP, 1, 0, 1),
        "this_epoch": (STEP, 1, 0, 1),
        "epoch": (STEP, 3, 1, 0),
        "never_step": "expired",
        "never_epoch": "expired",
    }


def test_a_safe_point_and_an_epoch_or_step_mean_the_first_such_from_there_on(tmp_path: Path) -> None:
    assert placed(
        tmp_path,
        Timed(),
        1,
        epoch={"safe_point": EPOCH, "epoch": 1},
        past_epoch={"safe_point": EPOCH, "epoch": 0},
        step={"safe_point": STEP, "global_step": 4},
        batch={"safe_point": BATCH, "global_step": 3},
        validation={"safe_point": VALIDATION, "global_step": 4},
        past={"safe_point": VALIDATION, "global_step": 0},
        end={"safe_point": FIT, "global_step": 6},
        never={"safe_point": EPOCH, "epoch": 2},
    ) == {
        "epoch": (EPOCH, 6, 1, 2),
        "past_epoch": (EPOCH, 3, 0, 2),
        "step": (STEP, 4, 1, 1),
        "batch": (BATCH, 3, 0, 2),
        "validation": (VALIDATION, 6, 1, None),
        "past": (VALIDATION, 3, 0, None),
        "end": (FIT, 6, 2, 2),
        "never": "expired",
    }


def test_a_step_that_is_jumped_over_is_passed(tmp_path: Path) -> None:
    class Model(Manual):
        probe = 0

        def setup(self, stage: str) -> None:
            Steered.setup(self, stage)

    # Two steps a batch: at the ends of batches the step is always even.
    assert placed(tmp_path, Model(rivals=True), 0, odd={"safe_point": BATCH, "global_step": 3}) == {
        "odd": (BATCH, 4, 0, 1)
    }


def test_a_condition_holds_in_a_stage_of_its_own_as_well(tmp_path: Path) -> None:
    model = Timed()
    sent: list[Command] = []

    class Sending(L.Callback):
        def on_test_batch_start(self, *args: Any) -> None:
            if not sent:
                sent.append(model.give("set_hparam", {"global_step": 2}, name="probe", value=0))
                sent.append(model.give("set_hparam", {"safe_point": BATCH}, name="probe", value=0))

    fitting = fit(model, tmp_path, 2, callbacks=[Sending()])
    fitting.test(model, batches(2), verbose=False)
    assert where(model.live, sent[0]) == (EVALUATION, 2, 1, 0)
    assert outcome(model.live, sent[1])["status"] == "expired"


@pytest.mark.parametrize(
    "when",
    [
        {},
        None,
        [],
        "next",
        5,
        {"epoch": 1, "global_step": 1},
        {"safe_point": STEP, "epoch": 1, "global_step": 1},
        {"epoch": -1},
        {"global_step": -1},
        {"global_step": 7.0},
        {"global_step": 7.9},
        {"epoch": True},
        {"epoch": "5"},
        {"epoch": None},
        {"global_step": None},
        {"safe_point": None},
        {"safe_point": "on_train_batch_end"},
        {"safe_point": EVALUATION},
        {"safe_point": STEP.upper()},
        {"safe_point": [STEP]},
        {"step": 5},
        {"safe_point": STEP, "batch": 1},
    ],
)
def test_any_other_when_is_invalid(when: Any) -> None:
    asked = {"kind": "snapshot", "execution": {"when": when}}
    with pytest.raises(Invalid) as refused:
        ANY.parse(json.dumps(asked).encode())
    assert refused.value.errors
    assert all({"loc", "msg", "type"} == error.keys() and error["msg"] for error in refused.value.errors)
    assert any("when" in error["loc"] for error in refused.value.errors)


def test_no_when_is_the_next_safe_point() -> None:
    for asked in ({"kind": "snapshot"}, {"kind": "snapshot", "execution": {}}):
        request: Any = ANY.parse(json.dumps(asked).encode())
        assert not command_of(request).is_scheduled


# ---- order


class Recording(Timed):
    """Has a value that can be set, and keeps all that it was set to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    @property
    def probe(self) -> int:
        return -1

    @probe.setter
    def probe(self, value: int) -> None:
        self.seen.append(value)


def test_what_is_due_at_one_safe_point_is_done_in_the_order_in_which_it_came(tmp_path: Path) -> None:
    model = Recording()

    def send() -> None:
        whens: list[dict[str, Any] | None] = [
            {"safe_point": BATCH, "global_step": 1},
            {"safe_point": BATCH},
            {"safe_point": BATCH, "epoch": 0},
        ]
        for number in range(9):
            model.give("set_hparam", whens[number % 3], name="probe", value=number)

    model.plan[0] = send
    fit(model, tmp_path, 2)
    assert model.seen == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_what_a_command_sends_is_not_done_at_the_same_safe_point(tmp_path: Path) -> None:
    model = Probed(BATCH)  # Each probe sends the next one for the same point.
    fit(model, tmp_path, 3)
    assert [batch for *_, batch in model.places()] == [0, 1, 2]


def test_files_of_the_spool_are_done_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    model = Recording()

    def drop() -> None:
        new = model.live.directory / "spool" / "new"
        assert model.live.queue.begun.wait(20), "files that are put in from now on are this session's"
        for number, name in enumerate(["z", "a", "m"]):
            asked = {"kind": "set_hparam", "args": {"name": "probe", "value": number}}
            (new / f".{name}").write_text(json.dumps(asked))
            (new / f".{name}").rename(new / f"{name}.json")
        until(lambda: "m" in model.live.queue.table)

    model.plan[0] = drop
    fit(model, tmp_path, 2)
    assert model.seen == [0, 1, 2]


def test_a_command_that_fails_keeps_neither_training_nor_the_next_one(tmp_path: Path, warned: list[str]) -> None:
    class Model(Timed):
        midrun_tunable_hparams = ["probe", "broken"]

        @property
        def broken(self) -> int:
            return 1

        @broken.setter
        def broken(self, value: int) -> None:
            raise RuntimeError("no such value")

    model = Model()
    sent: list[Any] = []

    def send() -> None:
        sent.extend(model.give("set_hparam", name=name, value=5) for name in ("broken", "probe"))

    model.plan[0] = send
    fitting = fit(model, tmp_path, 2)
    assert [outcome(model.live, command)["status"] for command in sent] == ["failed", "succeeded"]
    assert (model.probe, fitting.global_step) == (5, 2)
