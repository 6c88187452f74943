"""Samples: at each safe point a sample holds what this very batch logged, whatever the shape of the training step.

The models here log through `note`, which keeps its own account of what each name should show by now. Right after each
safe point, in the training thread, the model holds the sample against that account and against what Lightning itself
gives for `trainer.callback_metrics`.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
import torchmetrics
from torch import Tensor, nn

from midrun.fs.tree import Leaf
from midrun.sample import Sample, Values
from tests.midrun.models import Bare, Staged, Watched, batches, document, read, run_of, sample_of, trainer, walk


def lightnings(fitting: L.Trainer) -> dict[str, float]:
    """Return what Lightning gives, and leave Lightning as it was: to ask refreshes what it keeps."""
    connector = fitting._logger_connector
    kept = {**connector._callback_metrics}
    metrics = {name: float(value) for name, value in fitting.callback_metrics.items()}
    connector._callback_metrics.clear()
    connector._callback_metrics.update(kept)
    return metrics


def same(one: dict[str, float], other: dict[str, float]) -> bool:
    """Say whether the values are the same, NaN included."""
    return one.keys() == other.keys() and all(
        value == other[name] or (math.isnan(value) and math.isnan(other[name])) for name, value in one.items()
    )


class Noting(Watched):
    """Logs by `note`, and checks the sample after each safe point."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.noted: dict[str, float] = {}
        self.checks: list[tuple[str, int, int | None]] = []
        self.shown: set[str] = set()
        self.under_way = -1

    def note(self, name: str, value: Any, **options: Any) -> None:
        self.log(name, value, **options)
        number = float(value.detach() if isinstance(value, Tensor) else value)
        if options.get("on_step", True):
            self.noted[name] = number
            if options.get("on_epoch", False):
                self.noted[f"{name}_step"] = number

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.under_way = batch_idx
        loss = self.loss(batch)
        self.note("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        super().on_before_optimizer_step(optimizer)
        self.check("before_optimizer_step")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.check("train_batch_end")

    def check(self, safe_point: str) -> None:
        sample = sample_of(self)
        values = sample.values()
        assert same(values.metrics, self.noted), safe_point
        assert same(values.metrics, lightnings(self.trainer)), safe_point
        assert sample.global_step == self.trainer.global_step, safe_point
        assert sample.epoch == self.trainer.current_epoch, safe_point
        assert sample.batch == self.under_way, safe_point
        assert abs(time.time() - sample.time) < 5
        assert values.rates == [
            [float(group["lr"]) for group in optimizer.param_groups] for optimizer in self.trainer.optimizers
        ], safe_point
        self.checks.append((safe_point, sample.global_step, sample.batch))
        self.shown |= values.metrics.keys()

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        # What is logged per epoch is there from now on, and stays.
        self.noted = {}
        self.check = self.check_after_an_epoch  # type: ignore[method-assign]  # for this model

    def check_after_an_epoch(self, safe_point: str) -> None:
        self.noted = {**lightnings(self.trainer), **self.noted}
        Noting.check(self, safe_point)


STEP, END = "before_optimizer_step", "train_batch_end"


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


def test_a_batch_that_is_skipped(tmp_path: Path) -> None:
    class Skipping(Noting):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else loss

    model = Skipping()
    with pytest.warns(UserWarning, match="returned `None`"):
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


# ---- ways of logging


class Ways(Noting):
    """Logs in every way that Lightning has."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.MeanSquaredError()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.note("both", loss * 2, on_step=True, on_epoch=True)
        self.note("epoch", loss * 3, on_step=False, on_epoch=True)
        self.note("plain", 0.5 + batch_idx)
        self.note("train/with/slashes", loss * 4)
        self.note("double", loss.double() * 5)
        self.note("half", (loss * 6).half(), prog_bar=True)
        self.note("not a number", torch.tensor(math.nan))
        self.note("infinite", torch.tensor(-math.inf if batch_idx % 2 else math.inf))
        self.note("row", loss.reshape(1) * 7)
        self.note("together", loss * 8, sync_dist=True, on_step=True, on_epoch=True)
        self.note("highest", loss * 9, reduce_fx="max", on_step=True, on_epoch=True)
        if batch_idx % 2:
            self.note("now and then", loss * 10)
        self.log_dict({"dict/a": loss * 11, "dict/b": loss * 12})
        self.noted.update({"dict/a": float(loss.detach() * 11), "dict/b": float(loss.detach() * 12)})
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("mse", self.accuracy)
        self.noted["mse"] = float(nn.functional.mse_loss(self.net(batch[0]), batch[1]).detach())
        return loss

    def on_after_backward(self) -> None:
        super().on_after_backward()
        self.note("in a hook", self.net.weight.grad.norm())  # type: ignore[union-attr]  # it has one here


class Logging(L.Callback):
    """Logs as a callback."""

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.note("callback", batch_idx + 0.25)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        pl_module.note("callback/early", batch_idx + 0.75)


def test_every_way_of_logging(tmp_path: Path) -> None:
    model = Ways()
    trainer(tmp_path, max_epochs=2, callbacks=[Logging()]).fit(model, batches(3))
    assert len(model.checks) == 12
    assert {"both", "both_step", "now and then", "mse", "callback", "in a hook"} < model.shown


def test_metrics_that_are_no_real_scalars_are_not_shown(tmp_path: Path) -> None:
    class Wrapper(Tensor):
        pass

    class Model(Watched):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("wrapped", loss.detach().as_subclass(Wrapper))
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            # Lightning lets none of these through today, but that is its affair.
            kept = self.trainer._logger_connector._callback_metrics
            kept["vector"] = torch.zeros(3)
            kept["empty"] = torch.zeros(0)
            kept["complex"] = torch.zeros((), dtype=torch.complex64)
            super().on_train_batch_end(outputs, batch, batch_idx)
            assert set(document(self, "state/metrics/index.json")["metrics"]) == {"loss"}
            names = [name for name, _ in run_of(self)._answers._tree.walk("state/metrics")[0]]  # type: ignore[union-attr]  # a directory
            assert names == ["index.json", "loss"]

    trainer(tmp_path).fit(Model(), batches(2))


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


# ---- learning rates


class Scheduled(Noting):
    """Checks the learning rates after each safe point, as `Noting` does, under one kind of scheduler."""

    kind: Any = None
    interval = "step"
    tensor = False

    def configure_optimizers(self) -> Any:
        rate: Any = torch.tensor(0.5) if self.tensor else 0.5
        optimizer = torch.optim.Adam(self.parameters(), lr=rate)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.kind(optimizer), "interval": self.interval, "monitor": "loss"},
        }


@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize(
    "kind",
    [
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    ],
    ids=["exponential", "lambda", "plateau"],
)
def test_learning_rates_under_schedulers(kind: Any, interval: str, tensor: bool, tmp_path: Path) -> None:
    rates: list[float] = []

    class Model(Scheduled):
        def check(self, safe_point: str) -> None:
            super().check(safe_point)
            rates.append(sample_of(self).values().rates[0][0])

    model = Model()
    model.kind, model.interval, model.tensor = kind, interval, tensor
    trainer(tmp_path, max_epochs=2).fit(model, batches(3))
    assert rates[0] == 0.5
    assert rates[-1] < 0.5 or isinstance(model.lr_schedulers(), torch.optim.lr_scheduler.ReduceLROnPlateau)


def test_a_sample_s_learning_rates_never_change_again(tmp_path: Path) -> None:
    kept: list[tuple[Sample, Values]] = []

    class Model(Scheduled):
        kind = staticmethod(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
        tensor = True

        def check(self, safe_point: str) -> None:
            super().check(safe_point)
            kept.append((sample_of(self), sample_of(self).values()))

    trainer(tmp_path).fit(Model(), batches(4))
    assert len({values.rates[0][0] for _, values in kept}) == 5
    assert all(sample.values() == values for sample, values in kept)


def test_a_sample_s_metrics_never_change_again(tmp_path: Path) -> None:
    kept: list[tuple[Sample, Values]] = []

    class Model(Ways):
        def check(self, safe_point: str) -> None:
            super().check(safe_point)
            kept.append((sample_of(self), sample_of(self).values()))

    trainer(tmp_path, max_epochs=2, callbacks=[Logging()]).fit(Model(), batches(3))
    assert all(same(sample.values().metrics, values.metrics) for sample, values in kept)


def test_groups_without_a_learning_rate_and_optimizers_without_groups_show_what_they_have(tmp_path: Path) -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> Any:
            return closure()

    class Model(Watched):
        def configure_optimizers(self) -> Any:
            return Own(self.parameters())

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            (optimizer,) = document(self, "state/optimizers.json")["optimizers"]
            assert optimizer == {"name": "Own", "groups": [{"lr": None, "parameters": 2, "options": {}}]}

    trainer(tmp_path).fit(Model(), batches(2))


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


# ---- names and numbers


def test_names_become_single_files(tmp_path: Path) -> None:
    names = ["train/loss", "../../etc/passwd", "a b", "%2F", "index.json", ".", "..", "ü/ö", "x" * 300, "line\nbreak"]

    class Model(Watched):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            for number, name in enumerate(names):
                self.log(name, float(number))
            return self.loss(batch)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            metrics = document(self, "state/metrics/index.json")["metrics"]
            assert metrics == {name: float(number) for number, name in enumerate(names)}
            directory, _ = run_of(self)._answers._tree.walk("state/metrics")
            files = {path: node for path, node in walk(directory) if isinstance(node, Leaf)}  # type: ignore[arg-type]
            assert len(files) == len(names) + 1
            assert not any("/" in path or len(path.encode()) > 255 for path in files)
            shown = {read(self, f"state/metrics/{path}") for path in files if path != "index.json"}
            assert shown == {str(float(number)) for number in range(len(names))}

    trainer(tmp_path).fit(Model(), batches(1))


def test_five_hundred_metrics_are_listed_quickly(tmp_path: Path) -> None:
    took: dict[str, float] = {}

    class Model(Watched):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            self.log_dict({f"layer{number}/norm": float(number) for number in range(500)})
            return self.loss(batch)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            tree = run_of(self)._answers._tree
            for verb, work in (
                ("list", lambda: tree.list("state/metrics")),
                ("index", lambda: tree.read("state/metrics/index.json")),
                ("one", lambda: tree.read("state/metrics/layer499%2Fnorm")),
                ("sample", lambda: run_of(self).safe_point()),
            ):
                start = time.perf_counter()
                work()
                took[verb] = min(took.get(verb, 1.0), time.perf_counter() - start)
            assert len(tree.list("state/metrics")) == 501

    trainer(tmp_path).fit(Model(), batches(4))
    assert took["list"] < 0.05, took
    assert took["index"] < 0.05, took
    assert took["one"] < 0.005, took
    assert took["sample"] < 0.005, took


def test_no_graph_is_kept_by_a_sample(tmp_path: Path) -> None:
    class Model(Watched):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("loss", loss, on_step=True, on_epoch=True)
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            metrics = sample_of(self).metrics
            assert metrics
            assert all(value.grad_fn is None for value in metrics.values() if isinstance(value, Tensor))

    trainer(tmp_path).fit(Model(), batches(2))


def test_a_model_that_logs_nothing_has_a_sample_all_the_same(tmp_path: Path) -> None:
    class Silent(Watched):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            return Bare.loss(self, batch)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            sample = sample_of(self)
            assert (sample.global_step, sample.batch) == (batch_idx + 1, batch_idx)
            assert document(self, "state/metrics/index.json")["metrics"] == {}

    trainer(tmp_path).fit(Silent(), batches(2))
