"""Learning rates: a sample has those of its safe point, and keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from midrun.sample import Sample, Values
from tests.midrun.models import Watched, batches, document, sample_of, trainer
from tests.midrun.noting import Noting


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
