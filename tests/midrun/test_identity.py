"""Training with midrun is, bit for bit, training without it."""

from __future__ import annotations

import hashlib
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from midrun import MidrunMixin
from tests.midrun.models import QUIET, run_of, trainer


class Noisy(Dataset[Any]):
    """Items that random numbers of three kinds go into, drawn where they are loaded."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=generator)
        noise = random.random() + float(np.random.rand())  # noqa: NPY002, S311 - the global state is what is tested
        return x + 0.1 * torch.randn(6), x.sum().reshape(1) + 0.01 * noise


class Learner(L.LightningModule):
    """Has what depends on order and chance: dropout, batch norm, Adam, a schedule, values per step and per epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
        self.seen: list[Tensor] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.seen.append(batch[0].clone())
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.log("val/loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]


class WatchedLearner(MidrunMixin, Learner):
    """The same with midrun."""


class Kept(Logger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[int | None, dict[str, float]]] = []

    name = version = None

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.kept.append((step, metrics))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def digest(value: Any) -> str:
    """Return a hash of tensors in lists and dictionaries, by their very bytes."""

    def parts(value: Any) -> Iterator[bytes]:
        match value:
            case Tensor():
                yield value.detach().contiguous().numpy().tobytes()
            case dict():
                for key, item in value.items():
                    yield str(key).encode()
                    yield from parts(item)
            case list() | tuple():
                for item in value:
                    yield from parts(item)
            case _:
                yield repr(value).encode()

    return hashlib.sha256(b"|".join(parts(value))).hexdigest()


def trained(model: Learner, root: Path, workers: int) -> dict[str, str]:
    """Train from one seed, and return hashes of all that came out."""
    L.seed_everything(5, workers=True, verbose=False)
    # The weights are drawn from the seed, whatever was done to make the model.
    for layer in model.net:
        if isinstance(layer, nn.Linear | nn.BatchNorm1d):
            layer.reset_parameters()
    logger = Kept()
    fitting = trainer(
        root, max_epochs=3, logger=logger, log_every_n_steps=1, accumulate_grad_batches=2, gradient_clip_val=1.0
    )
    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=workers)
    fitting.fit(model, loader, DataLoader(Noisy(), batch_size=16))
    return {
        "weights": digest(model.state_dict()),
        "optimizer": digest(fitting.optimizers[0].state_dict()),
        "scheduler": digest(fitting.lr_scheduler_configs[0].scheduler.state_dict()),
        "batches": digest(model.seen),
        "logged": digest(logger.kept),
        "callback metrics": digest({**fitting.callback_metrics}),
        "torch": digest(torch.get_rng_state()),
        "numpy": digest(repr(np.random.get_state())),  # noqa: NPY002 - as above
        "python": digest(random.getstate()),
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_with_midrun_is_bit_identical_to_one_without(workers: int, tmp_path: Path) -> None:
    plain = trained(Learner(), tmp_path, workers)
    assert trained(WatchedLearner(midrun_enabled=False), tmp_path, workers) == plain
    assert trained(WatchedLearner(**QUIET), tmp_path, workers) == plain


@contextmanager
def read_all_the_time(model: Learner) -> Iterator[Callable[[], int]]:
    """Read a live run by REST and as files, as fast as it goes; give a function that says how often it was read."""
    over, count = threading.Event(), [0, 0]

    def fetch(path: str) -> None:
        url = run_of(model).rest_url
        assert url is not None
        with urllib.request.urlopen(f"{url}/files/{path}", timeout=5) as answer:  # noqa: S310 - our own address
            answer.read()

    def look(number: int, work: Callable[[str], object]) -> None:
        paths = ["state/index.json", "state/metrics/index.json", "state/optimizers.json", "model/summary.txt"]
        while not over.is_set():
            for path in paths:
                try:
                    work(path)
                    count[number] += 1
                except (OSError, AssertionError):
                    time.sleep(0.01)  # Not there yet.

    readers = [
        threading.Thread(target=look, args=(0, fetch)),
        threading.Thread(target=look, args=(1, lambda path: (run_of(model).mountpoint / path).read_bytes())),
    ]
    for reader in readers:
        reader.start()
    try:
        yield lambda: min(count)
    finally:
        over.set()
        for reader in readers:
            reader.join()


class Waiting(L.Callback):
    """Keeps training until it has been read often enough."""

    def __init__(self, reads: Callable[[], int]) -> None:
        self.reads = reads

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        deadline, wanted = time.monotonic() + 20, self.reads() + 2
        while self.reads() < wanted:
            assert time.monotonic() < deadline, "nobody could read the run"
            time.sleep(0.001)


@pytest.mark.mount
def test_a_run_that_is_read_all_the_time_is_bit_identical_too(tmp_path: Path) -> None:
    plain = trained(Learner(), tmp_path, 0)
    model = WatchedLearner(rest_port=0)
    with read_all_the_time(model) as reads:
        model.configure_callbacks = lambda: Waiting(reads)  # type: ignore[method-assign]  # for this model
        assert trained(model, tmp_path, 0) == plain
        assert reads() > 30
