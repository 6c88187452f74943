"""The pipeline's timing: its shares and its verdict, against stopwatches in the loader, the model and the callbacks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.profilers import PassThroughProfiler, SimpleProfiler
from torch import Tensor
from torch.utils.data import IterableDataset

from midrun.pipeline import PHASES, phase_of
from midrun.run import Run
from tests.midrun.models import Watched, batches, document, run_of, trainer
from tests.midrun.steering import Steered, fit, let_go

SLOW = 0.08
"""Seconds that a slow part sleeps: so long that each batch is timed."""


class Watch:
    """Stopwatches by phase."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.began = self.whole = 0.0
        """Seconds in which batches were trained on."""

    @contextmanager
    def over(self, phase: str, seconds: float) -> Iterator[None]:
        """Run over a block, which takes some seconds longer."""
        began = time.perf_counter()
        time.sleep(seconds)
        yield
        self.spent[phase] += time.perf_counter() - began  # type: ignore[assignment]  # a counter of seconds


class Rows(IterableDataset[Any]):
    """Batches that take a while each."""

    def __init__(self, watch: Watch, seconds: float, count: int) -> None:
        self.watch, self.seconds, self.count = watch, seconds, count

    def __iter__(self) -> Iterator[list[Tensor]]:
        for _ in range(self.count):
            with self.watch.over("waiting for data", self.seconds):
                batch = [torch.ones(4, 3), torch.ones(4, 1)]
            yield batch


class Slow(Watched):
    """A model whose parts take a while each, and which tells the run's timing at its end."""

    def __init__(self, watch: Watch, seconds: dict[str, float], **options: Any) -> None:
        super().__init__(**options)
        self.watch, self.seconds = watch, seconds
        self.told: dict[str, Any] = {}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        with self.watch.over("forward", self.seconds.get("forward", 0)):
            return super().training_step(batch, batch_idx)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        with self.watch.over("backward", self.seconds.get("backward", 0)):
            super().backward(loss, *args, **kwargs)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        with self.watch.over("optimizer", self.seconds.get("optimizer", 0)):
            pass  # Within the step above is all the rest.

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        with self.watch.over("transfer", self.seconds.get("transfer", 0)):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.watch.whole = time.perf_counter() - self.watch.began
        super().on_train_batch_end(outputs, batch, batch_idx)
        if not batch_idx:  # The first batch is not timed: it has what is done once.
            self.watch.began = time.perf_counter()
            self.watch.spent.clear()

    def on_train_end(self) -> None:
        super().on_train_end()
        self.told = document(self, "state/pipeline/summary.json")


class Callback(L.Callback):
    def __init__(self, watch: Watch, seconds: float) -> None:
        self.watch, self.seconds = watch, seconds

    def on_train_batch_start(self, *_: Any) -> None:
        with self.watch.over("callbacks and hooks", self.seconds):
            pass


MIXES = [
    {"waiting for data": SLOW},
    {"forward": SLOW},
    {"callbacks and hooks": SLOW},
    {"backward": SLOW},
    {"optimizer": SLOW},
    {"transfer": SLOW},
    {"waiting for data": 0.03, "forward": 0.02, "callbacks and hooks": 0.015, "backward": 0.015},
]


@pytest.mark.parametrize("seconds", MIXES, ids=", ".join)
def test_shares_agree_with_stopwatches_within_a_twentieth(seconds: dict[str, float], tmp_path: Path) -> None:
    watch = Watch()
    model = Slow(watch, seconds)
    callback = Callback(watch, seconds.get("callbacks and hooks", 0))
    trainer(tmp_path, callbacks=[callback]).fit(
        model, torch.utils.data.DataLoader(Rows(watch, seconds.get("waiting for data", 0), 20), batch_size=None)
    )
    shares = {phase: record["share"] for phase, record in model.told["phases"].items()}
    assert tuple(shares) == PHASES
    assert sum(shares.values()) == pytest.approx(1)
    for phase in seconds:
        assert shares[phase] == pytest.approx(watch.spent[phase] / watch.whole, abs=0.05)
    assert model.told["batches"] >= 15
    slowest = max(seconds, key=lambda phase: seconds[phase])
    named = slowest if slowest not in {"forward", "backward", "optimizer"} else "computing"
    if len(seconds) == 1:
        assert model.told["verdict"].startswith(f"{named} ")
    assert " % of the time" in model.told["verdict"]


def test_a_batch_in_which_the_run_was_held_is_left_out(tmp_path: Path) -> None:
    model = Steered()

    def pause() -> None:
        model.give("hold")
        model.plan[model.begun] = lambda: time.sleep(0)

    model.plan[3] = pause
    with let_go(model):
        fit(model, tmp_path, 20)
    longest = max(sum(batch.values()) for batch in model.live.pipeline._timed)
    [held] = model.live.queue.table.newest
    assert held["result"] is not None
    assert longest < 0.5 * held["result"]["held_s"] + 0.1


def test_timing_that_is_off_listens_to_nothing_and_says_so(tmp_path: Path) -> None:
    model = Steered(pipeline_pressure_enabled=False)
    fit(model, tmp_path, 5)
    record = model.live.pipeline.record
    assert record["batches"] == 0
    assert record["verdict"] == "timing is off: pipeline_pressure_enabled=False"


def test_the_window_is_as_long_as_the_option_says(tmp_path: Path) -> None:
    model = Slow(Watch(), {"forward": SLOW}, pipeline_pressure_window=7)
    trainer(tmp_path).fit(model, batches(15))
    assert (model.told["window"], model.told["batches"]) == (7, 7)


@pytest.mark.parametrize("kind", [PassThroughProfiler, SimpleProfiler])
def test_a_profiler_of_the_users_own_is_as_it_was(kind: Any, tmp_path: Path) -> None:
    profiler = kind()
    model = Steered()
    fit(model, tmp_path, 20, profiler=profiler)
    assert not {"start", "stop"} & vars(profiler).keys()
    assert model.live.pipeline.record["batches"] > 0
    if kind is SimpleProfiler:
        assert len(profiler.recorded_durations["run_training_batch"]) == 20


def test_a_batch_that_raises_leaves_the_profiler_as_it_was(tmp_path: Path) -> None:
    model = Steered()

    def fail() -> None:
        raise ArithmeticError("on purpose")

    model.plan[4] = fail
    profiler = PassThroughProfiler()
    with pytest.raises(ArithmeticError):
        fit(model, tmp_path, 8, profiler=profiler)
    assert not {"start", "stop"} & vars(profiler).keys()


def test_of_fast_batches_only_some_are_timed(tmp_path: Path) -> None:
    model = Steered()
    fit(model, tmp_path, 200)
    record = model.live.pipeline.record
    assert record["one_in"] > 2
    assert 0 < record["batches"] < 150


@pytest.mark.parametrize(
    ("action", "phase"),
    [
        ("[_TrainingEpochLoop].train_dataloader_next", "waiting for data"),
        ("[Strategy]DDPStrategy.batch_to_device", "transfer"),
        ("[Strategy]SingleDeviceStrategy.training_step", "forward"),
        ("[Strategy]SingleDeviceStrategy.backward", "backward"),
        ("[LightningModule]Model.optimizer_step", "optimizer"),
        ("[Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end", "callbacks and hooks"),
        ("[LightningModule]Model.on_train_batch_start", "callbacks and hooks"),
        ("run_training_batch", "everything else"),
        ("[LightningModule]Model.configure_callbacks", None),
    ],
)
def test_an_action_of_lightnings_belongs_to_a_phase(action: str, phase: str | None) -> None:
    assert phase_of(action) == phase


def test_the_run_shows_its_timing(tmp_path: Path) -> None:
    runs: list[Run] = []
    model = Steered()
    model.plan[5] = lambda: runs.append(run_of(model))
    fit(model, tmp_path, 10)
    assert runs[0].root.state.pipeline.summary["batches"] > 0
