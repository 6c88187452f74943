"""Stopping: training ends cleanly and soon, as at any end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from midrun.command import EVALUATION, POINTS
from tests.midrun.models import batches, only_directory, record, runs, threads, trainer
from tests.midrun.steering import Steered, aside, done, fit, give, held, outcome, until, where

BATCH, EPOCH, VALIDATION, STEP, FIT = POINTS


class Diary(L.Callback):
    """Notes the hooks that tell of an end."""

    def __init__(self) -> None:
        self.hooks: list[str] = []
        self.validated = 0

    def on_validation_batch_end(self, *args: Any) -> None:
        self.validated += 1

    def on_validation_end(self, *args: Any) -> None:
        self.hooks.append("validation_end")

    def on_train_epoch_end(self, *args: Any) -> None:
        self.hooks.append("train_epoch_end")

    def on_train_end(self, *args: Any) -> None:
        self.hooks.append("train_end")

    def on_fit_end(self, *args: Any) -> None:
        self.hooks.append("fit_end")

    def on_exception(self, *args: Any) -> None:
        self.hooks.append("exception")

    def on_test_end(self, *args: Any) -> None:
        self.hooks.append("test_end")

    def on_predict_end(self, *args: Any) -> None:
        self.hooks.append("predict_end")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.hooks.append("teardown")


def ended(root: Path, model: L.LightningModule, fitting: L.Trainer) -> None:
    """Check that a run is over as it should be."""
    assert record(only_directory(root))["session"]["outcome"] == "finished"
    assert record(only_directory(root), "last-state.json")["status"] == "finished"
    assert fitting.state.status == "finished"
    assert (threads(), runs(model)) == ([], False)


def test_a_stop_finishes_the_batch_validates_in_full_and_tears_down(tmp_path: Path) -> None:
    model, diary = Steered(), Diary()
    sent: list[Any] = []
    model.plan[1] = lambda: sent.append(model.give("stop"))
    fitting = fit(model, tmp_path, 5, 3, max_epochs=4, callbacks=[diary])
    assert (fitting.global_step, model.begun) == (2, 2)
    assert diary.hooks == ["validation_end", "train_epoch_end", "train_end", "fit_end", "teardown"]
    assert diary.validated == 3
    assert where(model.live, sent[0]) == (STEP, 1, 0, 1)
    assert done(model.live, sent[0]) == {"cancelled_holds": [], "released": None}
    ended(tmp_path, model, fitting)


@pytest.mark.parametrize("options", [{"min_epochs": 3}, {"min_steps": 9}, {"min_epochs": 3, "min_steps": 9}])
def test_a_stop_does_not_wait_for_a_least_number_of_epochs_or_steps(options: dict[str, Any], tmp_path: Path) -> None:
    model = Steered()
    model.plan[1] = lambda: model.give("stop")
    fitting = fit(model, tmp_path, 4, max_epochs=5, **options)
    assert fitting.global_step == 2
    ended(tmp_path, model, fitting)


def test_the_next_fit_of_a_stopped_trainer_has_its_least_numbers_again(tmp_path: Path) -> None:
    model = Steered()
    model.plan[1] = lambda: model.give("stop")
    fitting = fit(model, tmp_path, 4, max_epochs=5, min_epochs=3, min_steps=9)
    assert (fitting.min_epochs, fitting.min_steps) == (3, 9)


def test_a_trainer_that_was_stopped_fits_again(tmp_path: Path) -> None:
    model = Steered()
    model.plan[1] = lambda: model.give("stop")
    fitting = fit(model, tmp_path, 3)
    fitting.fit_loop.max_epochs = 2
    fitting.fit(model, batches(3), batches(1))
    assert fitting.current_epoch == 2
    ended(tmp_path, model, fitting)


def test_a_stop_while_gradients_accumulate_ends_the_batch(tmp_path: Path) -> None:
    model = Steered()
    sent: list[Any] = []
    model.plan[4] = lambda: sent.append(model.give("stop"))
    fitting = fit(model, tmp_path, 9, accumulate_grad_batches=4)
    assert where(model.live, sent[0]) == (BATCH, 1, 0, 4)
    assert (fitting.global_step, model.begun) == (1, 5)
    ended(tmp_path, model, fitting)


def test_a_stop_in_a_validation_lets_it_finish(tmp_path: Path) -> None:
    model, diary = Steered(), Diary()
    sent: list[Any] = []

    class Stopping(L.Callback):
        def on_validation_batch_start(self, *args: Any) -> None:
            if not sent:
                sent.append(model.give("stop"))

    fitting = fit(model, tmp_path, 4, 3, val_check_interval=2, max_epochs=3, callbacks=[diary, Stopping()])
    assert where(model.live, sent[0])[:3] == (VALIDATION, 2, 0)
    assert fitting.global_step == 2
    assert diary.validated % 3 == 0
    ended(tmp_path, model, fitting)


@pytest.mark.parametrize("point", POINTS)
def test_a_stop_can_be_scheduled_at_each_safe_point(point: str, tmp_path: Path) -> None:
    model = Steered()
    model.plan[0] = lambda: model.give("stop", {"safe_point": point})
    fitting = fit(model, tmp_path, 2, 1, max_epochs=3)
    assert fitting.global_step == {STEP: 1, BATCH: 1, VALIDATION: 2, EPOCH: 2, FIT: 6}[point]
    ended(tmp_path, model, fitting)


def test_a_stop_from_a_step_on_stops_at_that_step(tmp_path: Path) -> None:
    model = Steered()
    model.plan[0] = lambda: model.give("stop", {"global_step": 3})
    assert fit(model, tmp_path, 8).global_step == 3


def test_two_stops_are_no_more_than_one(tmp_path: Path) -> None:
    model = Steered()
    sent: list[Any] = []
    model.plan[1] = lambda: sent.extend([model.give("stop"), model.give("stop")])
    fitting = fit(model, tmp_path, 5)
    assert [outcome(model.live, stop)["status"] for stop in sent] == ["succeeded", "succeeded"]
    assert fitting.global_step == 2
    ended(tmp_path, model, fitting)


def test_a_stop_ends_a_held_run_after_its_step(tmp_path: Path) -> None:
    model, diary = Steered(), Diary()
    model.plan[1] = lambda: model.give("pause")

    def act() -> None:
        held(model)
        model.give("stop")

    with aside(model, act):
        fitting = fit(model, tmp_path, 5, 2, callbacks=[diary])
    assert fitting.global_step == 2
    assert diary.hooks == ["validation_end", "train_epoch_end", "train_end", "fit_end", "teardown"]
    ended(tmp_path, model, fitting)


def test_a_stop_of_a_run_held_at_the_end_of_a_batch_makes_no_further_step(tmp_path: Path) -> None:
    model = Steered()
    model.plan[1] = lambda: model.give("hold", {"safe_point": BATCH})

    def act() -> None:
        held(model)
        model.give("stop")

    with aside(model, act):
        assert fit(model, tmp_path, 5).global_step == 2
    assert model.begun == 2


def test_manual_optimization_is_stopped_after_its_batch(tmp_path: Path) -> None:
    class Model(Steered):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            optimizer: Any = self.optimizers()
            for _ in range(2):
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch))
                optimizer.step()

    model = Model()
    model.plan[1] = lambda: model.give("stop")
    fitting = fit(model, tmp_path, 5)
    assert (fitting.global_step, model.begun) == (4, 2)
    ended(tmp_path, model, fitting)


def test_checkpoints_of_lightnings_own_are_written_at_a_stop_as_at_any_end(tmp_path: Path) -> None:
    model = Steered()
    model.plan[1] = lambda: model.give("stop")
    keeping = ModelCheckpoint(tmp_path / "kept", save_last=True)
    fit(model, tmp_path, 5, max_epochs=2, callbacks=[keeping], enable_checkpointing=True)
    saved = torch.load(tmp_path / "kept" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 2


def test_a_run_that_resumes_after_a_stop_goes_on_from_there(tmp_path: Path) -> None:
    model = Steered()
    sent: list[Any] = []

    def stop() -> None:
        model.give("stop")
        sent.append(model.give("checkpoint", {"safe_point": FIT}))

    model.plan[1] = stop
    fit(model, tmp_path, 3, max_epochs=2)
    path = done(model.live, sent[0])["artifact"]["path"]
    resumed = Steered()
    fitting = trainer(tmp_path / "resumed", max_epochs=2, limit_val_batches=0)
    fitting.fit(resumed, batches(3), batches(1), ckpt_path=path, weights_only=True)
    assert fitting.current_epoch == 2


# ---- validate, test and predict

STAGES = ("validate", "test", "predict")


class Slow(Steered):
    """Counts the batches of the other stages, and does something at the start of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluated: list[int] = []
        self.second: Any = int

    def begin(self, batch_idx: int) -> None:
        self.evaluated.append(batch_idx)
        if len(self.evaluated) == 2:
            self.second()

    def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.begin(batch_idx)
        return super().validation_step(batch, batch_idx)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.begin(batch_idx)
        return super().test_step(batch, batch_idx)

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.begin(batch_idx)
        return super().predict_step(batch, batch_idx)


@pytest.mark.parametrize("stage", STAGES)
def test_another_stage_ends_at_the_end_of_the_batch(stage: str, tmp_path: Path) -> None:
    model, diary = Slow(), Diary()
    sent: list[Any] = []
    model.second = lambda: sent.append(model.give("stop"))
    running = trainer(tmp_path, callbacks=[diary])
    results = getattr(running, stage)(model, batches(5))
    assert model.evaluated == [0, 1]
    assert where(model.live, sent[0]) == (EVALUATION, 0, 0, 1)
    assert diary.hooks == [{"validate": "validation_end"}.get(stage, f"{stage}_end"), "teardown"]
    assert results
    ended(tmp_path, model, running)


@pytest.mark.parametrize("stage", STAGES)
def test_another_stage_that_is_held_can_be_stopped(stage: str, tmp_path: Path) -> None:
    model = Slow()
    model.second = lambda: model.give("hold")

    def act() -> None:
        held(model)
        model.give("stop")

    running = trainer(tmp_path)
    with aside(model, act):
        getattr(running, stage)(model, batches(5))
    assert model.evaluated == [0, 1]
    ended(tmp_path, model, running)


def test_a_stop_ends_all_loaders_of_a_stage(tmp_path: Path) -> None:
    model = Slow()
    model.second = lambda: model.give("stop")
    running = trainer(tmp_path)
    running.validate(model, [batches(3), batches(3)], verbose=False)
    assert model.evaluated == [0, 1]
    ended(tmp_path, model, running)


@pytest.mark.parametrize("stage", STAGES)
def test_the_stage_after_a_stopped_one_runs_in_full(stage: str, tmp_path: Path) -> None:
    model = Slow()
    model.second = lambda: model.give("stop")
    running = trainer(tmp_path)
    getattr(running, stage)(model, batches(3))
    getattr(running, stage)(model, batches(3))
    assert model.evaluated == [0, 1, 0, 1, 2]
    ended(tmp_path, model, running)


def test_a_stop_from_another_thread_ends_a_long_fit(tmp_path: Path) -> None:
    model = Steered()

    def act() -> None:
        run = until(lambda: model.midrun.run)
        until(lambda: model.begun > 3)
        give(run, "stop")

    with aside(model, act):
        fitting = fit(model, tmp_path, 4, max_epochs=-1, max_steps=10**9)
    ended(tmp_path, model, fitting)
