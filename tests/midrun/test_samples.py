"""Samples: where a sample is taken, and that it is of this very batch, whatever the shape of the training step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from tests.midrun.models import Staged, Watched, batches, document, read, run_of, sample_of, trainer
from tests.midrun.noting import END, STEP, Noting, lightnings, same

# ---- shapes of training


def test_automatic_optimization(tmp_path: Path) -> None:
    model = Noting()
    trainer(tmp_path).fit(model, batches(3))
    assert model.checks == [(STEP, 0, 0), (END, 1, 0), (STEP, 1, 1), (END, 2, 1), (STEP, 2, 2), (END, 3, 2)]


def test_several_epochs(tmp_path: Path) -> None:
    model = Noting()
    trainer(tmp_path, max_epochs=3).fit(model, batches(2))
    assert [(point, step, batch) for point, step, batch in model.checks if point == END] == [
        (END, step + 1, step % 2) for step in range(6)
    ]


def test_gradient_accumulation_steps_at_every_second_batch(tmp_path: Path) -> None:
    model = Noting()
    trainer(tmp_path, accumulate_grad_batches=2).fit(model, batches(4))
    assert model.checks == [(END, 0, 0), (STEP, 0, 1), (END, 1, 1), (END, 1, 2), (STEP, 1, 3), (END, 2, 3)]


class Lbfgs(Noting):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


def test_lbfgs_evaluates_several_times_a_step(tmp_path: Path) -> None:
    model = Lbfgs()
    trainer(tmp_path).fit(model, batches(2))
    assert [check for check in model.checks if check[0] == END] == [(END, 1, 0), (END, 2, 1)]
    assert model.checks.count((STEP, 0, 0)) > 1


class Manual(Noting):
    """Two optimizers by hand: the first steps in each batch, the second in every other."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.second = nn.Linear(3, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.under_way = batch_idx
        both: Any = self.optimizers()
        first, second = both
        loss = self.loss(batch)
        self.note("first/loss", loss)
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        other = (self.second(batch[0]) - batch[1]).abs().mean()
        self.note("second/loss", other)
        second.zero_grad()
        self.manual_backward(other)
        if batch_idx % 2:
            second.step()

    def configure_optimizers(self) -> Any:
        groups: list[dict[str, Any]] = [{"params": [self.second.weight], "lr": 0.5}, {"params": [self.second.bias]}]
        return [
            torch.optim.SGD(self.net.parameters(), lr=0.125),
            torch.optim.Adam(groups, lr=0.25),
        ]


def test_manual_optimization_with_several_optimizers(tmp_path: Path) -> None:
    model = Manual()
    trainer(tmp_path).fit(model, batches(2))
    assert model.checks == [(STEP, 0, 0), (END, 1, 0), (STEP, 1, 1), (STEP, 2, 1), (END, 3, 1)]


def test_a_manual_step_is_shown_as_it_was_until_the_next_safe_point(tmp_path: Path) -> None:
    seen: list[tuple[int, float | None]] = []

    class Model(Manual):
        def note(self, name: str, value: Any, **options: Any) -> None:
            super().note(name, value, **options)
            if name == "second/loss":  # It is logged after the first step.
                sample = sample_of(self)
                seen.append((sample.global_step, sample.values().metrics.get(name)))
                logged.append(self.noted[name])

    logged: list[float] = []
    trainer(tmp_path).fit(Model(), batches(2))
    assert seen == [(0, None), (1, logged[0])]


def test_a_step_under_way_is_shown_with_what_its_batch_has_logged(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None, float]] = []

    class Model(Watched):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            self.log("index", float(batch_idx))
            return self.loss(batch)

        def configure_optimizers(self) -> Any:
            model = self

            class Looked(torch.optim.SGD):
                def step(self, closure: Any = None) -> Any:
                    loss = closure()
                    looking = threading.Thread(target=model.look)
                    looking.start()
                    looking.join()
                    super().step()
                    return loss

            return Looked(self.parameters(), lr=0.1)

        def look(self) -> None:
            sample = sample_of(self)
            seen.append((sample.global_step, sample.batch, sample.values().metrics["index"]))

    trainer(tmp_path).fit(Model(), batches(3))
    assert seen == [(0, 0, 0.0), (1, 1, 1.0), (2, 2, 2.0)]


def test_a_manual_step_that_steps_nothing(tmp_path: Path) -> None:
    class Still(Noting):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return None

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            self.under_way = batch_idx
            self.note("loss", self.loss(batch).detach())

    model = Still()
    with pytest.warns(UserWarning, match="configure_optimizers"):
        trainer(tmp_path).fit(model, batches(2))
    assert model.checks == [(END, 0, 0), (END, 0, 1)]


@pytest.mark.filterwarnings("ignore:.*returned `None`:UserWarning")  # Lightning warns once in a process.
def test_a_batch_that_is_skipped(tmp_path: Path) -> None:
    class Skipping(Noting):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else loss

    model = Skipping()
    trainer(tmp_path).fit(model, batches(3))
    assert [check for check in model.checks if check[0] == END] == [(END, 1, 0), (END, 2, 1), (END, 3, 2)]


def test_gradient_clipping_and_16_bit(tmp_path: Path) -> None:
    model = Noting()
    trainer(tmp_path, gradient_clip_val=0.5, precision="bf16-mixed").fit(model, batches(2))
    assert len(model.checks) == 4


def test_validation_within_an_epoch_leaves_the_training_s_values(tmp_path: Path) -> None:
    class Evaluated(Noting):
        def validation_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            self.log("val/loss", self.loss(batch))

        def on_validation_end(self) -> None:
            super().on_validation_end()
            if not self.trainer.sanity_checking:
                self.noted["val/loss"] = sample_of(self).values().metrics["val/loss"]
                assert sample_of(self).batch == self.under_way

    model = Evaluated()
    trainer(tmp_path, val_check_interval=1, num_sanity_val_steps=1).fit(model, batches(3), batches(2))
    assert len(model.checks) == 6


def test_a_fit_that_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    first = trainer(tmp_path, max_epochs=2)
    first.fit(Noting(), batches(3))
    first.save_checkpoint(tmp_path / "after.ckpt")
    model = Noting()
    trainer(tmp_path, max_epochs=3).fit(model, batches(3), ckpt_path=tmp_path / "after.ckpt", weights_only=True)
    assert [check for check in model.checks if check[0] == END] == [(END, 7, 0), (END, 8, 1), (END, 9, 2)]


def test_data_without_an_end(tmp_path: Path) -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield [torch.zeros(3), torch.zeros(1)]

    class Model(Noting):
        def check(self, safe_point: str) -> None:
            super().check(safe_point)
            index = document(self, "state/index.json")
            assert (index["batches"], index["max_steps"], index["max_epochs"]) == (None, 3, None)

    model = Model()
    trainer(tmp_path, max_epochs=-1, max_steps=3).fit(model, DataLoader(Endless(), batch_size=2))
    assert [check for check in model.checks if check[0] == END] == [(END, 1, 0), (END, 2, 1), (END, 3, 2)]


def test_a_trainer_without_anything(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []

    class Model(Watched):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            seen.append((sample_of(self).global_step, sample_of(self).batch))

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            return self.loss(batch)  # Nothing can be logged.

    L.Trainer(default_root_dir=tmp_path, accelerator="cpu", barebones=True, max_epochs=1).fit(Model(), batches(2))
    assert seen == [(1, 0), (2, 1)]


# ---- epochs


def test_what_is_logged_per_epoch_is_there_after_the_epoch(tmp_path: Path) -> None:
    class Model(Watched):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("both", loss, on_step=True, on_epoch=True)
            self.log("index", float(batch_idx), on_step=False, on_epoch=True)
            return loss

        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            self.log("at end", 7.0)

        def on_train_epoch_start(self) -> None:
            super().on_train_epoch_start()
            if self.current_epoch:
                self.see()
                assert sample_of(self).batch is None, "the new epoch has seen none"

        def on_train_end(self) -> None:
            super().on_train_end()
            self.see()

        def see(self) -> None:
            metrics = sample_of(self).values().metrics
            assert metrics["index"] == 1.5
            assert metrics["at end"] == 7.0
            assert {"both", "both_step", "both_epoch"} < metrics.keys()
            assert same(metrics, lightnings(self.trainer))

    trainer(tmp_path, max_epochs=2).fit(Model(), batches(4))


def test_an_epoch_is_counted_as_the_trainer_does(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    class Model(Watched):
        def see(self, name: str) -> None:
            seen.append((name, sample_of(self).epoch, self.trainer.current_epoch))

        def on_train_epoch_start(self) -> None:
            super().on_train_epoch_start()
            self.see("start")

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            self.see("batch")

        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            self.see("end")

    trainer(tmp_path, max_epochs=2).fit(Model(), batches(1))
    assert [(name, epoch) for name, epoch, _ in seen] == [
        (name, epoch) for epoch in (0, 1) for name in ("start", "batch", "end")
    ]
    assert all(epoch == trainers for _, epoch, trainers in seen)


# ---- the other stages


def test_validate_test_and_predict_show_their_batches_and_then_their_values(tmp_path: Path) -> None:
    seen: list[tuple[str | None, int | None]] = []
    after: dict[str, dict[str, float]] = {}

    class Model(Staged):
        def see(self) -> None:
            run = run_of(self)
            seen.append((run.loop.stage, run.sample.batch))

        def on_validation_batch_end(self, *args: Any) -> None:
            super().on_validation_batch_end(*args)
            self.see()

        def on_test_batch_end(self, *args: Any) -> None:
            super().on_test_batch_end(*args)
            self.see()

        def on_predict_batch_end(self, *args: Any) -> None:
            super().on_predict_batch_end(*args)
            self.see()

        def on_validation_end(self) -> None:
            super().on_validation_end()
            after["validate"] = sample_of(self).values().metrics

        def on_test_end(self) -> None:
            super().on_test_end()
            after["test"] = sample_of(self).values().metrics

    model, fitting = Model(), trainer(tmp_path)
    (validated,) = fitting.validate(model, batches(2), verbose=False)
    (tested,) = fitting.test(model, batches(2), verbose=False)
    fitting.predict(model, batches(2))
    assert seen == [(stage, batch) for stage in ("validate", "test", "predict") for batch in (0, 1)]
    assert after == {"validate": validated, "test": tested}


def test_several_evaluation_loaders_have_names_of_their_own(tmp_path: Path) -> None:
    class Model(Staged):
        def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> Any:
            self.log("val/loss", self.loss(batch))

        def on_validation_end(self) -> None:
            super().on_validation_end()
            names = set(sample_of(self).values().metrics)
            assert names == {"val/loss/dataloader_idx_0", "val/loss/dataloader_idx_1"}
            assert read(self, "state/metrics/val%2Floss%2Fdataloader_idx_1")

    trainer(tmp_path).validate(Model(), [batches(1), batches(2)], verbose=False)


def test_a_validation_after_a_fit_shows_none_of_the_fit_s_values(tmp_path: Path) -> None:
    seen: list[set[str]] = []

    class Model(Staged):
        def on_validation_end(self) -> None:
            super().on_validation_end()
            seen.append(set(sample_of(self).values().metrics))

    model, fitting = Model(), trainer(tmp_path, limit_val_batches=1, num_sanity_val_steps=0)
    fitting.fit(model, batches(2), batches(1))
    fitting.validate(model, batches(1), verbose=False)
    assert seen == [{"loss", "val/loss"}, {"val/loss"}]


def test_a_second_fit_starts_without_the_first_one_s_values(tmp_path: Path) -> None:
    class Model(Watched):
        def on_train_start(self) -> None:
            super().on_train_start()
            assert sample_of(self).values().metrics == {}

    model = Model()
    fitting = trainer(tmp_path)
    fitting.fit(model, batches(2))
    fitting.fit_loop.max_epochs = 2
    fitting.fit(model, batches(2))
    assert fitting.global_step == 4
