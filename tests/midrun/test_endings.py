"""How a run ends when training does not end well."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.midrun.ending import Ending, Mine, assert_nothing_is_left, fit
from tests.midrun.models import (
    Staged,
    Watched,
    batches,
    document,
    left_as_it_was,
    only_directory,
    record,
    runs,
    trainer,
)


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Give back the handler that Lightning replaces when it is interrupted."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


PLACES = {
    # place: global step, batch that was under way
    "setup": (0, None),
    "configure_optimizers": (0, None),
    "on_fit_start": (0, None),
    "callback": (0, 0),
    "dataloader": (2, 1),
    "on_train_batch_start": (1, 1),
    "training_step": (1, 1),
    "backward": (0, 0),
    "on_before_optimizer_step": (0, 0),
    "callback at the end of a batch": (2, 1),
    "on_train_batch_end": (2, 1),
    "validation_step": (4, None),
    "on_train_epoch_end": (4, 3),
    "on_train_end": (4, 3),
    "on_fit_end": (4, 3),
    "teardown": (4, 3),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_is_recorded_and_ends_the_run(place: str, tmp_path: Path) -> None:
    model = Ending()
    model.place = place
    with left_as_it_was():
        with pytest.raises(Mine) as raised:
            fit(model, tmp_path)
        assert raised.value is model.exception
        assert_nothing_is_left(model)
    directory = only_directory(tmp_path)
    session = record(directory)["session"]
    assert session["outcome"] == "failed"
    assert session["ended"] >= session["started"]
    state = record(directory, "last-state.json")
    assert state["status"] == "failed"
    exception = state["exception"]
    assert exception["type"] == f"{Mine.__module__}.Mine"
    assert exception["message"] == "here"
    assert "raise self.exception" in exception["traceback"]
    assert (exception["global_step"], exception["batch"]) == PLACES[place]
    assert session["started"] <= exception["time"] <= session["ended"]


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_exception_in_an_evaluation_ends_the_run(stage: str, tmp_path: Path) -> None:
    class Model(Staged):
        def loss(self, batch: Any) -> Any:
            raise Mine(stage)

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            raise Mine(stage)

    model = Model()
    with left_as_it_was():
        with pytest.raises(Mine, match=stage):
            getattr(trainer(tmp_path), stage)(model, batches(1))
        assert_nothing_is_left(model)
    assert record(only_directory(tmp_path))["session"]["outcome"] == "failed"


@pytest.mark.parametrize("place", ["training_step", "validation_step", "on_fit_end", "dataloader"])
def test_ctrl_c_interrupts(place: str, tmp_path: Path) -> None:
    model = Ending()
    model.place, model.exception = place, KeyboardInterrupt()
    with left_as_it_was():
        with pytest.raises(SystemExit):
            fit(model, tmp_path)
        assert_nothing_is_left(model)
    state = record(only_directory(tmp_path), "last-state.json")
    assert state["status"] == "interrupted"
    assert state["exception"]["type"] == "KeyboardInterrupt"
    assert record(only_directory(tmp_path))["session"]["outcome"] == "interrupted"


class Raising(L.Callback):
    """A callback that fails when it is told of an exception, as one does that saves a checkpoint on a full disk."""

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class RaisingData(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        return batches()

    def on_exception(self, exception: BaseException) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class RaisingLogger(CSVLogger):
    def finalize(self, status: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("who", ["callback", "data", "logger"])
def test_an_exception_ends_the_run_also_where_who_is_told_of_it_fails(who: str, tmp_path: Path) -> None:
    class Model(Watched):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise Mine("here")

    model, callback, data = Model(), Raising(), RaisingData()
    fitting = trainer(
        tmp_path,
        callbacks=[callback] if who == "callback" else [],
        logger=RaisingLogger(tmp_path) if who == "logger" else False,
    )
    with left_as_it_was():
        with pytest.raises(OSError, match="No space left"):
            fitting.fit(model, None if who == "data" else batches(), datamodule=data if who == "data" else None)
        assert_nothing_is_left(model)
    assert "on_exception" not in {*vars(callback), *vars(data)}
    (path,) = tmp_path.rglob("run.json")
    assert record(path.parent)["session"]["outcome"] == "failed"
    assert record(path.parent, "last-state.json")["exception"]["message"] == "here"


def test_sys_exit_interrupts(tmp_path: Path) -> None:
    model = Ending()
    model.place, model.exception = "training_step", SystemExit(3)
    with pytest.raises(SystemExit) as raised:
        fit(model, tmp_path)
    assert raised.value.code == 3
    assert_nothing_is_left(model)
    assert record(only_directory(tmp_path))["session"]["outcome"] == "interrupted"


def test_sigterm_interrupts(tmp_path: Path) -> None:
    class Model(Watched):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_start(batch, batch_idx)
            if batch_idx == 1:
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "Lightning listens"
                os.kill(os.getpid(), signal.SIGTERM)

    model, before = Model(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SIGTERMException):
        trainer(tmp_path).fit(model, batches(4))
    assert signal.getsignal(signal.SIGTERM) == before
    assert_nothing_is_left(model)
    assert record(only_directory(tmp_path))["session"]["outcome"] == "interrupted"
    assert record(only_directory(tmp_path), "last-state.json")["global_step"] == 2


def test_a_stop_by_the_trainer_itself_is_a_good_end(tmp_path: Path) -> None:
    class Model(Watched):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            self.trainer.should_stop = True

    trainer(tmp_path, max_epochs=5).fit(Model(), batches(4))
    assert record(only_directory(tmp_path))["session"]["outcome"] == "finished"


def test_the_exception_is_in_the_tree_until_the_run_is_gone(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Model(Watched):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise Mine("in the tree")

    class Looking(L.Callback):
        def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
            inner = trainer.strategy.teardown

            def teardown() -> None:
                seen.append(document(pl_module, "state/exception.json"))
                seen.append(document(pl_module, "state/index.json"))
                inner()

            trainer.strategy.teardown = teardown  # type: ignore[method-assign]  # as others may do

    model = Model()
    with pytest.raises(Mine):
        trainer(tmp_path, callbacks=[Looking()]).fit(model, batches(1))
    assert seen[0]["message"] == "in the tree"
    assert seen[1]["status"] == "failed"
    assert seen[1]["exception"] == seen[0]
    assert not runs(model)


def test_the_next_fit_after_an_exception_is_a_run_as_any(tmp_path: Path) -> None:
    model = Ending()
    model.place = "training_step"
    with pytest.raises(Mine):
        fit(model, tmp_path)
    model.place = ""
    fit(model, tmp_path)
    state = record(only_directory(tmp_path), "last-state.json")
    assert (state["status"], state["exception"]) == ("finished", None)
    assert record(only_directory(tmp_path))["session"]["outcome"] == "finished"


class Unprintable(Exception):  # noqa: N818 - as above
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Huge(Exception):  # noqa: N818 - as above
    def __str__(self) -> str:
        return "x" * 1_000_000


@pytest.mark.parametrize(
    "exception", [Unprintable(), Huge(), Mine("\ud800 half a pair"), ExceptionGroup("g", [Mine()])]
)
def test_strange_exceptions_stay_what_they_are(exception: Exception, tmp_path: Path) -> None:
    model = Ending()
    model.place, model.exception = "training_step", exception
    with pytest.raises(type(exception)) as raised:
        fit(model, tmp_path)
    assert raised.value is exception
    assert_nothing_is_left(model)
    state = record(only_directory(tmp_path), "last-state.json")
    assert state["exception"]["type"].endswith(type(exception).__name__)
