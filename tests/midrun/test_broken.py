"""A midrun that does not start or is broken: training sees nothing of it, unless it wants to."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midrun.loop import Loop
from midrun.root import Root
from midrun.run import Run
from midrun.state import State
from midrun.turns import Turns
from tests.midrun.ending import Ending, Mine, assert_nothing_is_left, fit
from tests.midrun.models import (
    QUIET,
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
    assert record(only_directory(tmp_path), "last-state.json")["exception"]["type"] == "RuntimeError"


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
    assert "null" in warned[0]


# ---- a midrun that is broken


def broken(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("a mistake of midrun's")


@pytest.mark.parametrize(
    "part",
    [
        (Loop, "__init__"),
        (Loop, "sample"),
        (Loop, "stage"),
        (Loop, "limits"),
        (Run, "__init__"),
        (Run, "start"),
        (Turns, "end_batch"),
        (Turns, "turn"),
        (Turns, "__init__"),
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
    assert "midrun's part of teardown failed" in warned[0]
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
