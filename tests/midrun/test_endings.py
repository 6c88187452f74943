"""How a run ends when training does not end well, and what training sees of a midrun that is broken: nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader, Dataset

from midrun.loop import LightningLoop
from midrun.root import Root
from midrun.run import Run
from midrun.state import State
from tests.midrun.models import (
    QUIET,
    Staged,
    Watched,
    batches,
    document,
    left_as_it_was,
    only_directory,
    record,
    run_of,
    runs,
    sample_of,
    threads,
    trainer,
)


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Give back the handler that Lightning replaces when it is interrupted."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


class Mine(Exception):  # noqa: N818 - the name shall be told from Python's own
    """An exception that nobody knows."""


class Ending(Staged):
    """Raises where it is told to."""

    def __init__(self) -> None:
        super().__init__()
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


PLACES = {
    # place: global step, batch that was under way
    "setup": (0, None),
    "configure_optimizers": (0, None),
    "on_fit_start": (0, None),
    "callback": (0, None),
    "dataloader": (2, 1),
    "on_train_batch_start": (1, 1),
    "training_step": (1, 1),
    "backward": (0, 0),
    "on_before_optimizer_step": (0, 0),
    "callback at the end of a batch": (1, 1),
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
    assert state["exception"]["type"] == "builtins.KeyboardInterrupt"
    assert record(only_directory(tmp_path))["session"]["outcome"] == "interrupted"


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


# ---- inspection_strict


@pytest.fixture
def taken() -> Iterator[int]:
    """Give a port that is taken."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_service_that_does_not_start_is_told_and_training_goes_on(
    taken: int, tmp_path: Path, warned: list[str]
) -> None:
    class Model(Watched):
        def on_train_start(self) -> None:
            super().on_train_start()
            rest = document(self, "state/services.json")["services"]["rest"]
            assert rest["state"] == "failed"
            assert str(taken) in rest["reason"]
            assert "rest_port_search" in rest["reason"]
            assert self.midrun.url is None

    fitting = trainer(tmp_path)
    fitting.fit(Model(rest_enabled=True, rest_port=taken, rest_port_search=1), batches(2))
    assert fitting.global_step == 2
    assert len(warned) == 1
    assert str(taken) in warned[0]


def test_strict_inspection_raises_with_every_reason_and_leaves_nothing(taken: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    model = Watched(
        inspection_strict=True,
        rest_enabled=True,
        rest_port=taken,
        rest_port_search=1,
        artifact_dir=tmp_path / "file/artifacts",
    )
    with left_as_it_was():
        with pytest.raises(RuntimeError, match=rf"inspection_strict=True.*rest:.*{taken}.*records:.*file/artifacts"):
            trainer(tmp_path).fit(model, batches(2))
        assert_nothing_is_left(model)
    session = record(only_directory(tmp_path))["session"]
    assert session["outcome"] == "failed"
    assert session["ended"] is not None
    assert record(only_directory(tmp_path), "last-state.json")["exception"]["type"] == "builtins.RuntimeError"


def test_strict_inspection_has_nothing_against_services_that_are_off(tmp_path: Path) -> None:
    fitting = trainer(tmp_path)
    fitting.fit(Watched(inspection_strict=True), batches(2))
    assert fitting.global_step == 2


def test_an_option_that_no_system_call_takes_is_told_and_training_goes_on(tmp_path: Path, warned: list[str]) -> None:
    model, fitting = Watched(artifact_dir="a\0b"), trainer(tmp_path)
    with left_as_it_was():
        fitting.fit(model, batches(2))
    assert fitting.global_step == 2
    assert len(warned) == 1, warned
    assert "null byte" in warned[0]


# ---- a midrun that is broken


def broken(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("a mistake of midrun's")


@pytest.mark.parametrize(
    "part",
    [
        (LightningLoop, "__init__"),
        (LightningLoop, "sample"),
        (LightningLoop, "_metrics"),
        (LightningLoop, "stage"),
        (LightningLoop, "limits"),
        (Run, "__init__"),
        (Run, "start"),
        (Run, "safe_point"),
        (Run, "turn"),
        (Root, "__init__"),
        (Root, "last_state"),
        (State, "__init__"),
    ],
    ids=lambda part: f"{part[0].__name__}.{part[1]}",
)
@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_mistake_of_midrun_s_never_reaches_training(
    part: tuple[type, str], ends: str, tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (kind, name), before = part, threads()
    monkeypatch.setattr(kind, name, property(broken) if name in {"stage", "limits"} else broken)
    model = Ending()
    if ends == "badly":
        model.place = "on_train_end"
        with pytest.raises(Mine, match="here"):
            fit(model, tmp_path)
    else:
        fit(model, tmp_path)
        fit(model, tmp_path)
    assert model.trainer.global_step == 4
    assert any("a mistake of midrun's" in warning for warning in warned)
    assert all(count <= 2 for count in Counter(warned).values()), "each run says the same once"
    assert threads() == before
    assert not runs(model)
    assert not {"on_exception", "teardown"} & vars(model.trainer.strategy).keys()


def test_a_stop_that_fails_leaves_training_as_it_ended(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, unstopped = Run.stop, list[Run]()

    def failing(self: Run) -> None:
        unstopped.append(self)
        broken()

    monkeypatch.setattr(Run, "stop", failing)
    model = Ending()
    fit(model, tmp_path)
    assert not runs(model)
    assert "midrun did not stop cleanly" in warned[0]
    assert "a mistake of midrun's" in warned[0]
    (run,) = unstopped
    stop(run)


def test_a_mistake_in_telling_the_exception_leaves_the_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "raised", broken)
    model = Ending()
    model.place = "training_step"
    with pytest.raises(Mine, match="here"):
        fit(model, tmp_path)
    assert_nothing_is_left(model)


def test_what_lightning_no_longer_has_costs_the_sample_alone(tmp_path: Path, warned: list[str]) -> None:
    class Model(Watched):
        def on_train_start(self) -> None:
            super().on_train_start()
            loop: Any = run_of(self).loop
            del loop._connector

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            assert sample_of(self).batch is None, "the last that could be taken"

    fitting = trainer(tmp_path)
    fitting.fit(Model(), batches(8))
    assert fitting.global_step == 8
    (warning,) = warned
    assert "the state of the loop could not be read" in warning
    assert "_connector" in warning


def test_a_node_that_breaks_is_its_own_fault_alone(tmp_path: Path) -> None:
    class Model(Watched):
        midrun_tunable_hparams = {"hparams.l2": None}  # type: ignore[dict-item]  # a mistake of the model's

        def on_train_end(self) -> None:
            super().on_train_end()
            assert json.loads(run_of(self)._answers._tree.read("state/index.json"))  # type: ignore[arg-type]  # bytes

    trainer(tmp_path).fit(Model(**QUIET), batches(1))
    assert record(only_directory(tmp_path))["session"]["outcome"] == "finished"
