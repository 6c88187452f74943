"""A model that raises where it is told to, and what must be left of midrun then: nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch.utils.data import DataLoader, Dataset

from tests.midrun.models import (
    Staged,
    batches,
    runs,
    trainer,
)


class Mine(Exception):  # noqa: N818 - the name shall be told from Python's own
    """An exception that nobody knows."""


class Ending(Staged):
    """Raises where it is told to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"break_on_backward_exception": False, **options})
        self.place = ""
        self.exception: BaseException = Mine("here")

    def raises(self, place: str) -> None:
        if place == self.place:
            raise self.exception

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.raises("setup")

    def configure_optimizers(self) -> Any:
        self.raises("configure_optimizers")
        return super().configure_optimizers()

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.raises("on_fit_start")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        if batch_idx == 1:
            self.raises("on_train_batch_start")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 1:
            self.raises("training_step")
        return super().training_step(batch, batch_idx)

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        self.raises("backward")
        super().backward(loss, *args, **kwargs)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        super().on_before_optimizer_step(optimizer)
        self.raises("on_before_optimizer_step")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        if batch_idx == 1:
            self.raises("on_train_batch_end")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        if not self.trainer.sanity_checking:
            self.raises("validation_step")
        return super().validation_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.raises("on_train_epoch_end")

    def on_train_end(self) -> None:
        super().on_train_end()
        self.raises("on_train_end")

    def on_fit_end(self) -> None:
        super().on_fit_end()
        self.raises("on_fit_end")

    def teardown(self, stage: str) -> None:
        self.raises("teardown")
        super().teardown(stage)


class EndingCallback(L.Callback):
    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        pl_module.raises("callback")

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            pl_module.raises("callback at the end of a batch")


class EndingData(Dataset[Any]):
    """Raises when the third item is asked for."""

    def __init__(self, model: Ending) -> None:
        self.model = model

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            self.model.raises("dataloader")
        return [torch.zeros(3), torch.zeros(1)]


def fit(model: Ending, root: Path, **options: Any) -> L.Trainer:
    fitting = trainer(root, num_sanity_val_steps=1, callbacks=[EndingCallback()], **options)
    fitting.fit(model, DataLoader(EndingData(model)), batches(1))
    return fitting


def assert_nothing_is_left(model: L.LightningModule) -> None:
    assert not runs(model)
    assert not {"on_exception", "teardown"} & vars(model._trainer.strategy).keys()  # type: ignore[union-attr]
