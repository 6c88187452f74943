"""Metrics: in whatever way a value is logged, the sample shows what this very batch logged."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
import torchmetrics
from torch import Tensor, nn

from midrun.fs.tree import Leaf
from midrun.sample import Sample, Values
from tests.midrun.models import Bare, Watched, batches, document, read, run_of, sample_of, trainer, walk
from tests.midrun.noting import Noting, same

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


def test_a_sample_s_metrics_never_change_again(tmp_path: Path) -> None:
    kept: list[tuple[Sample, Values]] = []

    class Model(Ways):
        def check(self, safe_point: str) -> None:
            super().check(safe_point)
            kept.append((sample_of(self), sample_of(self).values()))

    trainer(tmp_path, max_epochs=2, callbacks=[Logging()]).fit(Model(), batches(3))
    assert all(same(sample.values().metrics, values.metrics) for sample, values in kept)


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
                ("sample", lambda: run_of(self).turns.publish(None)),
            ):
                start = time.thread_time()
                work()
                took[verb] = min(took.get(verb, 1.0), time.thread_time() - start)
            assert len(tree.list("state/metrics")) == 501

    trainer(tmp_path).fit(Model(), batches(4))
    assert took["list"] < 0.05, took
    assert took["index"] < 0.05, took
    assert took["one"] < 0.005, took
    assert took["sample"] < 0.005, took


def test_what_an_override_logs_after_super_is_this_batch_s_too(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    class Model(Watched):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            super().on_before_optimizer_step(optimizer)
            self.log("before", self.trainer.global_step + 0.25)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            self.log("end", batch_idx + 0.5)

        def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
            seen.append(sample_of(self).values().metrics)  # Right after the one hook,

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_start(batch, batch_idx)
            seen.append(sample_of(self).values().metrics)  # and right after the other.

    trainer(tmp_path).fit(Model(), batches(3))
    assert [metrics.get("before") for metrics in seen[1::2]] == [0.25, 1.25, 2.25]
    assert [metrics.get("end") for metrics in seen[::2]] == [None, 0.5, 1.5]


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
