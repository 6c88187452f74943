"""A model that knows what its samples should show.

It logs through `note`, which keeps an account of what each name should show by now. Right after each safe point, in the
training thread, it holds the sample against that account and against what Lightning itself gives for
`trainer.callback_metrics`.
"""

from __future__ import annotations

import math
import time
from typing import Any

import lightning.pytorch as L
from torch import Tensor

from tests.midrun.models import Watched, sample_of

STEP, END = "before_optimizer_step", "train_batch_end"


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
