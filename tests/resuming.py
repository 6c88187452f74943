"""Fits that are gone on with from a checkpoint, one for each way in which models, data and Trainers differ.

Each notes all that could differ, so that a fit that was interrupted can be held against one that was not.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, StochasticWeightAveraging
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, WeightedRandomSampler, random_split
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]  # it has no types

from midrun import MidrunMixin

Spot = tuple[str, int, int]
"""The hook, the optimizer steps done, and the batches begun in the epoch."""
Row = tuple[Any, ...]
EXACT = ("bos", "tbe", "vee", "ve", "tee")
"""The hooks that a checkpoint may be written in: before an optimizer step, and the ends of a batch, of a validation's
epoch, of the validation, and of the epoch."""


def digest(*values: object) -> str:
    """Return what tells values apart to the last bit."""
    found = hashlib.sha256()

    def add(value: object) -> None:
        match value:
            case Tensor():
                found.update(str(value.dtype).encode() + value.detach().cpu().contiguous().numpy().tobytes())
            case np.ndarray():
                found.update(value.tobytes())
            case dict():
                for name, part in value.items():
                    add(str(name))
                    add(part)
            case list() | tuple():
                for part in value:
                    add(part)
            case _:
                found.update(repr(value).encode())

    add(values)
    return found.hexdigest()[:12]


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Made-up numbers; noisy ones are others each time that they are looked at."""

    def __init__(self, count: int = 64, *, noisy: bool = False) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(count, 8, generator=generator)
        self.targets = torch.randn(count, 1, generator=generator)
        self.noisy = noisy

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[index]
        if self.noisy:
            drawn = random.random() + float(np.random.rand())  # noqa: S311, NPY002 - what user code draws from
            inputs = inputs + torch.randn(8) * 0.01 + drawn * 0.01
        return inputs, self.targets[index]


class Drawing(Rows):
    """Rows with noise from generators of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.numpy = np.random.default_rng(3)
        self.legacy = np.random.RandomState(5)
        self.python = random.Random(1)  # noqa: S311 - no secret
        self.torch = torch.Generator().manual_seed(2)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = super().__getitem__(index)
        drawn = float(self.numpy.normal()) + self.python.random() + float(self.legacy.rand())
        return inputs + torch.randn(8, generator=self.torch) * 0.1 + drawn * 0.1, target


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Rows in an order that is drawn; nobody knows how many there are."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rows, worker = Rows(40, noisy=True), torch.utils.data.get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        order = torch.randperm(len(rows)).tolist()
        return (rows[order[number]] for number in range(first, len(rows), every))


class Batches(Sampler[list[int]]):
    """Draws each batch when it is wanted."""

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[list[int]]:
        return ([random.randrange(64) for _ in range(8)] for _ in range(8))  # noqa: S311 - what user code draws from


class Model(MidrunMixin, L.LightningModule):
    """Dropout, batch norm, and metrics of each kind. It notes all that happens, and saves where it is told to."""

    def __init__(self, case: Case, save: Callable[[Spot], Path | None], saved: Callable[[], object]) -> None:
        super().__init__(rest_enabled=False, fuse_enabled=False, hooks_enabled=False, torch_debug_enabled=False)
        self.case, self.save, self.saved = case, save, saved
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
        self.mae = torchmetrics.MeanAbsoluteError()
        self.automatic_optimization = not case.steps
        self.seen: list[Row] = []
        self.spots: dict[Spot, tuple[int, int]] = {}
        """Where a checkpoint could be written, and how many rows were seen and logged by then."""

    def loss(self, batch: Any) -> Tensor:
        parts = [part for part in batch.values() if part] if isinstance(batch, dict) else [batch]
        inputs, targets = (torch.cat([part[number] for part in parts]) for number in (0, 1))
        self.targets = targets
        found = self.net(inputs)
        self.mae(found, targets)
        return nn.functional.mse_loss(found, targets)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self._logged(batch)
        if not self.case.steps:
            return loss
        optimizers: Any = self.optimizers()
        for number, optimizer in enumerate(optimizers if isinstance(optimizers, list) else [optimizers]):
            self.manual_backward(loss if not number else self._logged(batch))
            if (batch_idx + 1) % self.case.steps == 0:
                optimizer.step()
                optimizer.zero_grad()
        return None

    def _logged(self, batch: Any) -> Tensor:
        loss = self.loss(batch)
        self.log("mae", self.mae, on_step=False, on_epoch=True, batch_size=1)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(self.targets))
        self.log("worst", loss, on_step=False, on_epoch=True, reduce_fx="max", batch_size=1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val", nn.functional.mse_loss(self.net(inputs), targets) + torch.rand(()) * 0.01)

    def configure_optimizers(self) -> Any:
        return self.case.optimizers(self)

    def train_dataloader(self) -> Any:
        return self.case.loader()

    def val_dataloader(self) -> Any:
        return self.case.validation()

    # ---- what is noted

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        super().on_before_optimizer_step(optimizer)
        self._reach("bos")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        rates = [group["lr"] for optimizer in self.trainer.optimizers for group in optimizer.param_groups]
        logged = float(self.trainer.callback_metrics["loss_step"])
        self.seen.append(
            ("batch", self.current_epoch, batch_idx, self.global_step, digest(self.state_dict()), logged, *rates)
        )
        self._reach("tbe")

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.seen.append(("epoch", self.current_epoch))

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self._reach("vee")

    def on_validation_end(self) -> None:
        super().on_validation_end()
        if not self.trainer.sanity_checking:
            self.seen.append(("validated", self.global_step, float(self.trainer.callback_metrics["val"])))
        self._reach("ve")

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        self.seen.append(("epoch's end", self.current_epoch, sorted(metrics.items())))
        self._reach("tee")

    def on_fit_end(self) -> None:
        super().on_fit_end()
        states = [list(optimizer.state.values()) for optimizer in self.trainer.optimizers]
        drawn = (torch.get_rng_state(), random.getstate(), np.random.get_state())  # noqa: NPY002 - as above
        self.seen.append(("end", digest(self.state_dict()), digest(states), digest(drawn)))

    def _reach(self, hook: str) -> None:
        if self.trainer.sanity_checking:
            return
        spot = (hook, self.global_step, self.trainer.fit_loop.epoch_loop.batch_progress.current.ready)
        self.spots[spot] = (len(self.seen), len(self.logger.rows))  # type: ignore[union-attr]  # it is Noting
        path = self.save(spot)
        if path is not None:
            self.trainer.save_checkpoint(path)
            self.saved()


class Noting(Logger):
    """A logger that keeps what it is given."""

    name, version = "noting", "0"

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, sorted(metrics.items())))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def _adam(model: Model) -> Any:
    return torch.optim.Adam(model.parameters(), 1e-2)


def _two(model: Model) -> Any:
    return [
        torch.optim.Adam(model.net[0].parameters(), 1e-2),
        torch.optim.SGD(model.net[4].parameters(), 1e-2, momentum=0.9),
    ]


def _scheduled(make: Callable[[Any], Any], **how: Any) -> Callable[[Model], Any]:
    def optimizers(model: Model) -> Any:
        optimizer = _adam(model)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **how}}

    return optimizers


def _shuffled(count: int = 64, *, noisy: bool = False, **how: Any) -> Callable[[], Any]:
    return lambda: DataLoader(Rows(count, noisy=noisy), 8, shuffle=True, **how)


def _with_generator() -> Any:
    return DataLoader(Rows(), 8, shuffle=True, generator=torch.Generator().manual_seed(5))


def _several(mode: Any, short: int) -> Callable[[], Any]:
    return lambda: CombinedLoader({"long": _shuffled()(), "short": _shuffled(short)()}, mode)


def _split(number: int) -> Callable[[], Any]:
    return lambda: DataLoader(random_split(Rows(noisy=True), [48, 16])[number], 8, shuffle=not number)


@dataclass
class Case:
    """One way to train."""

    loader: Callable[[], Any] = field(default_factory=_shuffled)
    trainer: dict[str, Any] = field(default_factory=dict)
    optimizers: Callable[[Model], Any] = _adam
    callbacks: Callable[[], list[Any]] = list
    validation: Callable[[], Any] = lambda: DataLoader(Rows(16), 8)
    steps: int = 0
    """Batches to a step of a model that optimizes manually; 0 for one that does not."""
    inexact: tuple[str, ...] = ()
    """Hooks from which training is not said to go on exactly."""


def _weighted() -> Any:
    return DataLoader(Rows(), 8, sampler=WeightedRandomSampler(range(1, 65), 60), drop_last=True)


def _plateau(**how: Any) -> Callable[[Model], Any]:
    return _scheduled(lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=0), **how)


def _stateful(**how: Any) -> Callable[[], Any]:
    return lambda: StatefulDataLoader(Rows(), 8, shuffle=True, **how)


CASES: dict[str, Case] = {
    "shuffled": Case(),
    "in order": Case(lambda: DataLoader(Rows(), 8)),
    "without validation": Case(trainer={"limit_val_batches": 0}),
    "noisy data": Case(_shuffled(noisy=True)),
    "data with generators": Case(lambda: DataLoader(Drawing(), 8, shuffle=True)),
    "a loader's generator": Case(_with_generator),
    "weighted sampler, drop_last": Case(_weighted),
    "a sampler that draws each batch": Case(lambda: DataLoader(Rows(), batch_sampler=Batches())),
    "workers": Case(_shuffled(noisy=True, num_workers=2)),
    "workers with generators": Case(lambda: DataLoader(Drawing(), 8, shuffle=True, num_workers=2)),
    "persistent workers": Case(_shuffled(num_workers=2, persistent_workers=True)),
    "a stream": Case(lambda: DataLoader(Stream(), 8)),
    "a stream from workers": Case(lambda: DataLoader(Stream(), 8, num_workers=2)),
    "stateful loader": Case(_stateful()),
    "stateful loader with workers": Case(_stateful(num_workers=2)),
    "several loaders, the longest": Case(_several("max_size_cycle", 24)),
    "several loaders, the shortest": Case(_several("min_size", 40)),
    "several loaders, all": Case(_several("max_size", 24)),
    "loaders made anew": Case(trainer={"reload_dataloaders_every_n_epochs": 1}),
    "data that is split at random": Case(_split(0), validation=_split(1)),
    "accumulation": Case(trainer={"accumulate_grad_batches": 3}),
    "accumulation and validation": Case(trainer={"accumulate_grad_batches": 3, "val_check_interval": 4}),
    "validation in mid-epoch": Case(trainer={"val_check_interval": 3}),
    "validation by batches": Case(trainer={"val_check_interval": 5, "check_val_every_n_epoch": None}),
    "max_steps": Case(trainer={"max_steps": 19, "max_epochs": -1}),
    "max_steps at an epoch's end": Case(trainer={"max_steps": 16, "max_epochs": -1}),
    "few batches": Case(trainer={"limit_train_batches": 5}),
    "overfitting": Case(lambda: DataLoader(Rows(), 8), trainer={"overfit_batches": 3}),
    "clipping": Case(trainer={"gradient_clip_val": 0.1}),
    "bfloat16": Case(trainer={"precision": "bf16-mixed"}),
    "double": Case(trainer={"precision": "64-true"}),
    "a scheduler by step": Case(
        optimizers=_scheduled(lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 50), interval="step")
    ),
    "a scheduler by epoch": Case(optimizers=_scheduled(lambda optimizer: schedulers.StepLR(optimizer, 1, 0.5))),
    "plateau of a validation": Case(optimizers=_plateau(monitor="val")),
    "plateau by step": Case(trainer={"val_check_interval": 3}, optimizers=_plateau(monitor="loss", interval="step")),
    "weight averaging": Case(callbacks=lambda: [StochasticWeightAveraging(1e-2, swa_epoch_start=1)]),
    "moving average": Case(callbacks=lambda: [EMAWeightAveraging(decay=0.9)]),
    "early stopping": Case(trainer={"max_epochs": 6}, callbacks=lambda: [EarlyStopping("val", patience=1)]),
    "manual": Case(steps=1),
    "manual with accumulation": Case(steps=2),
    "manual with two optimizers": Case(optimizers=_two, steps=1, inexact=("bos",)),
}


@dataclass
class Fit:
    """A fit that is over."""

    model: Model
    rows: list[Row]


def train(
    case: Case,
    folder: Path,
    save: Callable[[Spot], Path | None] = lambda _: None,
    *,
    checkpoint: Path | None = None,
    seed: int = 0,
    saved: Callable[[], object] = lambda: None,
    **how: Any,
) -> Fit:
    """Train as a case has it, from a checkpoint if there is one, in which case the seed is not to matter.

    `saved` is called when a checkpoint was written, and `how` has more options of the Trainer.
    """
    L.seed_everything(seed, verbose=False)
    model, logger = Model(case, save, saved), Noting()
    trainer = L.Trainer(
        accelerator="cpu",
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=case.callbacks(),
        log_every_n_steps=1,
        default_root_dir=folder,
        **{"max_epochs": 3, **case.trainer, **how},
    )
    trainer.fit(model, ckpt_path=checkpoint, weights_only=True if checkpoint is not None else None)
    return Fit(model, logger.rows)


def rest(whole: Fit, spot: Spot) -> tuple[list[Row], list[Row]]:
    """Return what is seen and logged from a spot on in a fit that is not interrupted."""
    seen, logged = whole.model.spots[spot]
    return whole.model.seen[seen:], whole.rows[logged:]
