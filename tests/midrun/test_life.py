"""The life of a run: it starts in `setup`, ends in `teardown`, says where it is, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.tuner.tuning import Tuner

import midrun
from midrun.fs.disk import write_whole
from tests.midrun.models import (
    Bare,
    Staged,
    Watched,
    batches,
    children,
    descriptors,
    document,
    left_as_it_was,
    only_directory,
    read,
    record,
    run_of,
    runs,
    threads,
    trainer,
)

# ---- where the run is


class Telling(Staged):
    """Notes what the tree says at each hook."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.told: list[tuple[str, str, str]] = []

    def tell(self, hook: str) -> None:
        told = (hook, read(self, "state/status"), read(self, "state/stage"))
        index = document(self, "state/index.json")
        assert (index["status"], index["stage"] or "") == told[1:]
        if told not in self.told:
            self.told.append(told)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.tell(f"setup {TrainerFn(stage).value}")

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.tell("on_fit_start")

    def on_validation_start(self) -> None:
        super().on_validation_start()
        self.tell("on_validation_start")

    def on_validation_end(self) -> None:
        super().on_validation_end()
        self.tell("on_validation_end")

    def on_train_start(self) -> None:
        super().on_train_start()
        self.tell("on_train_start")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.tell("on_train_batch_end")

    def on_test_start(self) -> None:
        super().on_test_start()
        self.tell("on_test_start")

    def on_predict_start(self) -> None:
        super().on_predict_start()
        self.tell("on_predict_start")

    def on_fit_end(self) -> None:
        super().on_fit_end()
        self.tell("on_fit_end")

    def teardown(self, stage: str) -> None:
        self.tell(f"teardown {TrainerFn(stage).value}")
        super().teardown(stage)


def test_status_and_stage_in_each_phase(tmp_path: Path) -> None:
    model, fitting = Telling(), trainer(tmp_path, num_sanity_val_steps=1)
    fitting.fit(model, batches(2), batches(1))
    assert model.told == [
        ("setup fit", "running", "train"),
        ("on_fit_start", "running", "train"),
        ("on_validation_start", "running", "sanity_check"),
        ("on_validation_end", "running", "sanity_check"),
        ("on_train_start", "running", "train"),
        ("on_train_batch_end", "running", "train"),
        ("on_validation_start", "running", "validate"),
        ("on_validation_end", "running", "validate"),
        ("on_fit_end", "running", "train"),
        ("teardown fit", "running", "train"),
    ]
    model.told.clear()
    fitting.validate(model, batches(1), verbose=False)
    fitting.test(model, batches(1), verbose=False)
    fitting.predict(model, batches(1))
    assert model.told == [
        ("setup validate", "running", "validate"),
        ("on_validation_start", "running", "validate"),
        ("on_validation_end", "running", "validate"),
        ("teardown validate", "running", "validate"),
        ("setup test", "running", "test"),
        ("on_test_start", "running", "test"),
        ("teardown test", "running", "test"),
        ("setup predict", "running", "predict"),
        ("on_predict_start", "running", "predict"),
        ("teardown predict", "running", "predict"),
    ]


def test_the_index_says_where_the_loop_ends(tmp_path: Path) -> None:
    class Model(Watched):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            index = document(self, "state/index.json")
            assert (index["max_epochs"], index["max_steps"], index["batches"]) == (2, None, 3)
            assert (index["epoch"], index["batch"]) == (self.current_epoch, batch_idx)
            assert index["global_step"] == self.global_step
            assert index["started"] <= index["sampled"] <= time.time()
            assert index["exception"] is None

    trainer(tmp_path, max_epochs=2).fit(Model(), batches(3))


def test_the_tree_says_who_runs(tmp_path: Path) -> None:
    class Model(Watched):
        def on_train_start(self) -> None:
            super().on_train_start()
            assert read(self, "meta/run-id") == run_of(self).run_id == only_directory(tmp_path).name
            assert read(self, "meta/pid") == str(os.getpid())
            assert read(self, "meta/host") == os.uname().nodename
            assert read(self, "meta/rest/url") == read(self, "meta/rest/port") == ""
            versions = document(self, "meta/versions.json")
            assert versions["midrun"] == midrun.__version__
            assert versions["torch"] == torch.__version__
            assert versions["lightning"] == version("lightning")
            (rank,) = [document(self, f"meta/ranks/{name}") for name in ("0.json",)]
            assert (rank["rank"], rank["world_size"], rank["pid"], rank["device"]) == (0, 1, os.getpid(), "cpu")
            assert read(self, "debug/pytorch/status").startswith("off")
            assert read(self, "state/exception.json") == "{}"

    trainer(tmp_path).fit(Model(), batches(1))


def test_services_that_are_off_say_who_turned_them_off(tmp_path: Path) -> None:
    class Model(Watched):
        def on_train_start(self) -> None:
            super().on_train_start()
            services = document(self, "state/services.json")["services"]
            assert services["rest"]["state"] == services["fuse"]["state"] == services["watcher"]["state"] == "off"
            assert services["rest"]["reason"] == "rest_enabled=False"
            assert services["fuse"]["reason"] == "fuse_enabled=False"
            assert services["records"]["state"] == "running"

    trainer(tmp_path).fit(Model(), batches(1))


# ---- start and stop


@pytest.mark.parametrize("stages", [["fit"], ["validate"], ["test"], ["predict"], ["fit", "test", "fit", "predict"]])
def test_a_stage_starts_and_stops_a_run(stages: list[str], tmp_path: Path) -> None:
    alive: list[list[str]] = []

    class Model(Staged):
        def setup(self, stage: str) -> None:
            super().setup(stage)
            alive.append(threads())

    model, fitting = Model(), trainer(tmp_path, limit_val_batches=1)
    for stage in stages:
        with left_as_it_was():
            fitting.fit_loop.max_epochs = (fitting.fit_loop.max_epochs or 0) + 1
            if stage == "fit":
                fitting.fit(model, batches(1), batches(1))
            elif stage == "predict":
                fitting.predict(model, batches(1))
            else:
                getattr(fitting, stage)(model, batches(1), verbose=False)
            assert not runs(model)
            assert not {"on_exception", "teardown"} & vars(fitting.strategy).keys()
        session = record(only_directory(tmp_path))["session"]
        assert session["outcome"] == "finished"
        assert session["ended"] >= session["started"]
    assert alive == [
        ["midrun-disk", "midrun-history", "midrun-hooks", "midrun-slow", "midrun-spool", "midrun-tree"]
    ] * len(stages)


def test_two_models_run_at_once_in_one_process(tmp_path: Path) -> None:
    inner_ids: list[str] = []

    class Outer(Watched):
        def on_train_start(self) -> None:
            super().on_train_start()
            inner = Watched()

            class Seeing(L.Callback):
                def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
                    inner_ids.append(read(inner, "meta/run-id"))

            trainer(tmp_path / "inner", callbacks=[Seeing()]).fit(inner, batches(1))
            assert not runs(inner)
            assert inner_ids != [read(self, "meta/run-id")]
            assert run_of(self)._answers._thread.is_alive()

    with left_as_it_was():
        trainer(tmp_path / "outer").fit(Outer(), batches(1))
    assert inner_ids == [only_directory(tmp_path / "inner").name]


def test_switched_off_it_starts_nothing_and_writes_nothing(tmp_path: Path) -> None:
    before = threading.active_count(), children(), descriptors()
    seen: list[tuple[int, int, int]] = []

    class Model(Watched):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            seen.append((threading.active_count(), children(), descriptors()))

    model = Model(midrun_enabled=False, rest_enabled=True, fuse_enabled=True)
    trainer(tmp_path).fit(model, batches(2))
    assert seen == [before, before]
    assert list(tmp_path.iterdir()) == []
    assert model.midrun.run_dir is None
    assert model.midrun.url is None


def test_the_tuner_s_trial_runs_end_cleanly(tmp_path: Path) -> None:
    class Model(Watched):
        lr = 0.1

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    model, fitting = Model(), trainer(tmp_path)
    with left_as_it_was():
        Tuner(fitting).lr_find(model, batches(8), num_training=4, update_attr=False)
        assert not runs(model)
        fitting.fit(model, batches(2))
    assert record(only_directory(tmp_path))["session"]["outcome"] == "finished"


def test_many_starts_and_stops_leave_nothing(tmp_path: Path, times: Callable[[int], int]) -> None:
    model, fitting = Watched(), trainer(tmp_path)
    data = batches(1)
    fitting.fit(model, data)
    with left_as_it_was():
        most = 0
        for cycle in range(times(300)):
            fitting.fit_loop.max_epochs = cycle + 2
            fitting.fit(model, data)
            most = max(most, descriptors())
    assert most - descriptors() < 200, "what a run had open is closed soon, not just when all is over"


def test_starting_and_stopping_is_quick(tmp_path: Path) -> None:
    took: list[float] = []

    class Model(Watched):
        def setup(self, stage: str) -> None:
            start = time.perf_counter()
            super().setup(stage)
            took.append(time.perf_counter() - start)

        def teardown(self, stage: str) -> None:
            start = time.perf_counter()
            super().teardown(stage)
            took.append(time.perf_counter() - start)

    for _ in range(5):
        trainer(tmp_path).fit(Model(), batches(1))
    assert min(took[::2]) < 0.3, took
    assert min(took[1::2]) < 0.3, took


def test_a_run_with_rest_leaves_nothing_and_the_next_fit_has_the_same_port(tmp_path: Path) -> None:
    seen: list[tuple[str | None, list[str]]] = []

    class Model(Watched):
        def setup(self, stage: str) -> None:
            super().setup(stage)
            seen.append((self.midrun.url, [read(self, "meta/rest/url"), read(self, "meta/rest/port")]))
            deadline = time.monotonic() + 40
            while document(self, "state/services.json")["services"]["rest"]["state"] != "running":
                assert time.monotonic() < deadline
                time.sleep(0.01)

    model = Model(rest_enabled=True, rest_port=0)
    for _ in range(2):
        with left_as_it_was():
            trainer(tmp_path).fit(model, batches(1))
        assert model.midrun.url is None
        assert record(only_directory(tmp_path))["rest_url"] is None, "it is not there any more"
    url, shown = seen[0]
    assert url is not None
    assert url.startswith("http://127.0.0.1:")
    assert shown == [url, url.rpartition(":")[2]]
    assert seen[1] == seen[0]


# ---- the records


def test_the_records_of_a_run_that_finished(tmp_path: Path) -> None:
    started = time.time()
    model = Watched()
    trainer(tmp_path).fit(model, batches(3))
    directory = only_directory(tmp_path)
    run = record(directory)
    session = run.pop("session")
    assert run == {
        "format": "midrun.run/1",
        "run_id": directory.name,
        "midrun": midrun.__version__,
        "state": "open",
        "artifact_dir": str(directory / "artifacts"),
        "fuse_mountpoint": None,
        "resumed_from": None,
        "rest_url": None,
    }
    assert session["host"] == os.uname().nodename
    assert session["pid"] == os.getpid()
    assert session["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert started <= session["started"] <= session["ended"] <= time.time()
    assert session["outcome"] == "finished"
    state = record(directory, "last-state.json")
    assert (state["status"], state["global_step"], state["epoch"]) == ("finished", 3, 1)
    assert state["metrics"].keys() == {"loss"}
    assert state["learning_rates"] == [[0.125]]
    assert state["exception"] is None
    assert state["model"].endswith("Watched")


def test_a_live_run_says_so_in_its_record(tmp_path: Path) -> None:
    class Model(Watched):
        def on_train_end(self) -> None:
            super().on_train_end()
            run = run_of(self)
            deadline = time.monotonic() + 10
            while not (run.directory / "run.json").exists():
                assert time.monotonic() < deadline
                time.sleep(0.001)
            session = record(run.directory)["session"]
            assert (session["ended"], session["outcome"], session["pid"]) == (None, None, os.getpid())

    trainer(tmp_path).fit(Model(), batches(1))


def test_the_log_says_where_the_run_is(tmp_path: Path) -> None:
    trainer(tmp_path).fit(Watched(), batches(1))
    directory = only_directory(tmp_path)
    assert str(directory) in (directory / "midrun.log").read_text()


def test_a_reader_never_sees_half_a_record(tmp_path: Path) -> None:
    seen, torn, over = {"run.json": 0, "last-state.json": 0, "midrun-hooks-state.json": 0}, [], threading.Event()

    def look() -> None:
        while not over.is_set():
            for path in tmp_path.glob("midrun/*/*.json"):
                text = path.read_text()
                try:
                    json.loads(text)
                except ValueError:
                    torn.append(text)
                seen[path.name] += 1

    class Writing(Watched):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            run = run_of(self)
            for _ in range(2):
                run.disk.put(run._write_last_state)
                run.disk.put(run._write_run_record)

        def on_train_end(self) -> None:
            super().on_train_end()
            deadline = time.monotonic() + 10
            while min(seen.values()) < 20:
                assert time.monotonic() < deadline, seen
                time.sleep(0.001)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        trainer(tmp_path).fit(Writing(), batches(10))
    finally:
        over.set()
        reader.join()
    assert torn == []


def test_a_record_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_whole(path, b'{"a": 1}')
    with pytest.raises(TypeError):
        write_whole(path, "no bytes")  # type: ignore[arg-type]  # what is tested
    assert json.loads(path.read_text()) == {"a": 1}
    (tmp_path / "dir.json").mkdir()
    (tmp_path / "dir.json/file").touch()
    with pytest.raises(OSError, match=r"dir\.json"):
        write_whole(tmp_path / "dir.json", b"{}")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["dir.json", "run.json"], "nothing is left beside them"


def test_a_model_without_midrun_is_what_the_tests_compare_with(tmp_path: Path) -> None:
    with left_as_it_was():
        trainer(tmp_path).fit(Bare(), batches(1))
    assert list(tmp_path.iterdir()) == []
