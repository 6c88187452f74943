"""The run directory: one for each run, where the logger of the run or the Trainer says."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from midrun.directory import new_run_id, sanitized
from midrun.fs.verbs import Tree
from midrun.root import Root
from tests.midrun.models import Staged, Watched, batches, document, record, run_of, trainer

RUN_ID = r"run-\d{8}-\d{6}-\d+-[0-9a-f]{6}"


class Foreign(Logger):
    """A logger of another package, with an id for each of its runs."""

    def __init__(self, version: Any = "run7", save_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._version, self._save_dir = version, save_dir

    @property
    def name(self) -> str:
        return "project"

    @property
    def version(self) -> Any:
        return self._version

    @property
    def save_dir(self) -> Any:
        return self._save_dir

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        pass

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


class OwnCSV(CSVLogger):
    pass


class OwnTensorBoard(TensorBoardLogger):
    pass


def directory_of(fitting: L.Trainer, model: Watched | None = None) -> Path:
    """Fit a model, and return the run directory that it had meanwhile."""
    watched = model or Watched()
    seen: list[str | None] = []

    class Seeing(L.Callback):
        def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            seen.append(watched.midrun.run_dir)

    fitting.callbacks.append(Seeing())  # type: ignore[attr-defined]  # it has a setter alone, for Lightning's types
    fitting.fit(watched, batches(1))
    fitting.callbacks.pop()  # type: ignore[attr-defined]  # as above
    assert len(seen) == 1
    assert seen[0] is not None
    directory = Path(seen[0])
    assert record(directory)["run_id"]
    return directory


# ---- a TensorBoardLogger or a CSVLogger first: the Trainer's log directory


@pytest.mark.parametrize("kind", [TensorBoardLogger, CSVLogger, OwnTensorBoard, OwnCSV])
def test_with_tensorboard_or_csv_it_is_the_log_directory_of_the_trainer(kind: Any, tmp_path: Path) -> None:
    fitting = trainer(tmp_path / "root", logger=kind(tmp_path / "logs", name="net"), log_every_n_steps=1)
    directory = directory_of(fitting)
    assert fitting.log_dir is not None
    assert directory == Path(fitting.log_dir) == tmp_path / "logs/net/version_0"
    assert {"run.json", "last-state.json", "midrun.log", "artifacts"} < {path.name for path in directory.iterdir()}


@pytest.mark.parametrize("kind", [TensorBoardLogger, CSVLogger])
def test_a_version_by_name_and_a_folder_below_are_followed(kind: Any, tmp_path: Path) -> None:
    below: dict[str, Any] = {"sub_dir": "deep"} if kind is TensorBoardLogger else {}
    fitting = trainer(tmp_path, logger=kind(tmp_path, name="a/b", version="first try", **below), log_every_n_steps=1)
    directory = directory_of(fitting)
    assert fitting.log_dir is not None
    assert directory == Path(fitting.log_dir) == tmp_path / "a/b/first try" / below.get("sub_dir", "")


def test_the_logger_that_a_trainer_has_by_default(tmp_path: Path) -> None:
    directory = directory_of(trainer(tmp_path, logger=True, log_every_n_steps=1))
    assert directory == tmp_path / "lightning_logs/version_0"


def test_a_relative_directory_is_recorded_as_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = directory_of(trainer(Path(), logger=CSVLogger("logs"), log_every_n_steps=1))
    assert directory == tmp_path / "logs/lightning_logs/version_0"
    assert record(directory)["artifact_dir"] == str(directory / "artifacts")


# ---- any other logger first: <save_dir>/midrun/<version>


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("3f9k2a", "3f9k2a"),
        (12, "12"),
        (0, "0"),
        ("2026-01-02_run.3", "2026-01-02_run.3"),
        ("sweep/lr=1e-3", "sweep_lr_1e-3"),
        ("a b:c*d", "a_b_c_d"),
        ("..", None),
        ("../../etc", "_.._etc"),
        (".hidden", "hidden"),
        ("lauf-ü", "lauf-_"),
        ("運転", "__"),
        ("a\nb", "a_b"),
        ("", None),
        (None, None),
    ],
)
def test_with_another_logger_it_is_named_by_the_version(version: object, name: str | None, tmp_path: Path) -> None:
    fitting = trainer(tmp_path / "root", logger=Foreign(version, tmp_path / "saved"))
    directory = directory_of(fitting)
    if name is None:
        assert directory.parent == tmp_path / "root/midrun"
        assert re.fullmatch(RUN_ID, directory.name)
        assert record(directory)["run_id"] == directory.name
    else:
        assert directory == tmp_path / "saved/midrun" / name


@pytest.mark.parametrize("save_dir", [None, "", "s3://bucket/runs"])
def test_a_logger_that_saves_nowhere_here_uses_the_trainer_s_root(save_dir: str | None, tmp_path: Path) -> None:
    assert directory_of(trainer(tmp_path, logger=Foreign("run7", save_dir))) == tmp_path / "midrun/run7"


def test_a_logger_that_raises_when_it_is_asked_is_as_good_as_none(tmp_path: Path, warned: list[str]) -> None:
    class Raising(Foreign):
        @property
        def version(self) -> Any:
            raise ConnectionError("the server is away")

    directory = directory_of(trainer(tmp_path, logger=Raising(save_dir=tmp_path)))
    assert re.fullmatch(RUN_ID, directory.name)
    assert len(warned) == 1
    assert "ConnectionError: the server is away" in warned[0]


def test_a_logger_s_error_that_has_no_words_is_told_all_the_same(tmp_path: Path, warned: list[str]) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Raising(Foreign):
        @property
        def version(self) -> Any:
            raise MuteError

    directory = directory_of(trainer(tmp_path, logger=Raising(save_dir=tmp_path)))
    assert re.fullmatch(RUN_ID, directory.name)
    assert len(warned) == 1
    assert "MuteError: <exception str() failed>" in warned[0]


def test_a_version_that_comes_with_the_experiment_is_there_in_time(tmp_path: Path) -> None:
    class Late(Foreign):
        @property
        def experiment(self) -> None:
            self._version = "made late"

    assert directory_of(trainer(tmp_path, logger=Late(None))) == tmp_path / "midrun/made_late"


def test_a_class_of_the_same_name_from_elsewhere_is_another_logger(tmp_path: Path) -> None:
    namesake = type("CSVLogger", (Foreign,), {"log_dir": str(tmp_path / "not-here")})
    assert directory_of(trainer(tmp_path, logger=namesake("run7"))) == tmp_path / "midrun/run7"


def test_the_first_of_two_loggers_decides(tmp_path: Path) -> None:
    csv, foreign = CSVLogger(tmp_path / "csv", name=""), Foreign("run7", tmp_path / "foreign")
    options: dict[str, Any] = {"log_every_n_steps": 1}
    assert directory_of(trainer(tmp_path, logger=[foreign, csv], **options)) == tmp_path / "foreign/midrun/run7"
    assert directory_of(trainer(tmp_path, logger=[csv, foreign], **options)) == tmp_path / "csv/version_0"


# ---- no logger: <default_root_dir>/midrun/<run id>


def test_without_a_logger_it_is_named_by_the_run_id(tmp_path: Path) -> None:
    directory = directory_of(trainer(tmp_path))
    assert directory.parent == tmp_path / "midrun"
    assert re.fullmatch(RUN_ID, directory.name)
    assert record(directory)["run_id"] == directory.name


@pytest.mark.filterwarnings("ignore:.*fast_dev_run.*")
def test_fast_dev_run_has_no_logger_to_ask(tmp_path: Path) -> None:
    fitting = trainer(tmp_path, logger=CSVLogger(tmp_path / "logs"), fast_dev_run=1)
    directory = directory_of(fitting)
    assert directory.parent == tmp_path / "midrun"
    assert re.fullmatch(RUN_ID, directory.name)
    assert not (tmp_path / "logs").exists()


def test_a_remote_root_leaves_the_present_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitting = trainer(tmp_path / "not-here", default_root_dir="s3://bucket/runs")
    assert fitting.default_root_dir == "s3://bucket/runs"
    assert directory_of(fitting).parent == tmp_path / "midrun"


def test_run_ids_are_new_each_time() -> None:
    ids = {new_run_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(RUN_ID, one) and f"-{os.getpid()}-" in one for one in ids)
    assert all(sanitized(one) == one for one in ids)


# ---- sequences


def test_sequential_fits_of_a_model_share_it_and_a_new_model_gets_a_new_one(tmp_path: Path) -> None:
    model = Watched()
    first = directory_of(trainer(tmp_path), model)
    started = record(first)["session"]["started"]
    assert directory_of(trainer(tmp_path), model) == first
    assert record(first)["run_id"] == first.name
    assert record(first)["session"]["started"] > started
    other = directory_of(trainer(tmp_path))
    assert other != first
    assert other.parent == first.parent


def test_the_stages_of_a_model_share_it(tmp_path: Path) -> None:
    model, fitting = Staged(), trainer(tmp_path)
    fitting.fit(model, batches(1), batches(1))
    fitting.validate(model, batches(1), verbose=False)
    fitting.test(model, batches(1), verbose=False)
    fitting.predict(model, batches(1))
    assert len(list((tmp_path / "midrun").iterdir())) == 1


def test_the_same_version_of_a_logger_is_the_same_directory(tmp_path: Path) -> None:
    first = directory_of(trainer(tmp_path, logger=Foreign("run7")))
    (first / "kept").write_text("by an earlier session")
    assert directory_of(trainer(tmp_path, logger=Foreign("run7"))) == first
    assert (first / "kept").exists()


def test_a_trainer_keeps_the_version_of_its_logger(tmp_path: Path) -> None:
    model = Watched()
    fitting = trainer(tmp_path, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    first = directory_of(fitting, model)
    fitting.fit_loop.max_epochs = 2
    assert directory_of(fitting, model) == first


# ---- what lies elsewhere


def test_a_mountpoint_and_artifacts_elsewhere_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = Watched(fuse_enabled=True, artifact_dir="big/artifacts", fuse_mountpoint=tmp_path / "view")
    directory = directory_of(trainer(tmp_path), model)
    assert record(directory)["artifact_dir"] == str(tmp_path / "big/artifacts")
    assert record(directory)["fuse_mountpoint"] == str(tmp_path / "view")
    assert not (directory / "procfs").exists()
    assert sorted(path.name for path in (tmp_path / "big/artifacts").iterdir()) == ["checkpoints", "debug", "snapshots"]
    assert not (directory / "artifacts").exists()


def test_without_a_mount_none_is_recorded(tmp_path: Path) -> None:
    assert record(directory_of(trainer(tmp_path)))["fuse_mountpoint"] is None


def test_the_tree_says_where_everything_lies(tmp_path: Path) -> None:
    class Seeing(Watched):
        def on_train_end(self) -> None:
            super().on_train_end()
            tree = Tree(Root(run_of(self)))
            for path, place in (
                ("meta/run-dir", self.midrun.run_dir),
                ("meta/artifacts-path", str(tmp_path / "artifacts")),
            ):
                assert tree.read(path) == f"{place}\n".encode()
            assert tree.describe("artifacts/checkpoints")["target"] == str(tmp_path / "artifacts/checkpoints")

    trainer(tmp_path).fit(Seeing(artifact_dir=tmp_path / "artifacts"), batches(1))


# ---- what can't be written


def unwritable(tmp_path: Path, case: str) -> Any:
    if case == "a file in the way of the directory":
        (tmp_path / "saved/midrun").mkdir(parents=True)
        (tmp_path / "saved/midrun/run7").write_text("a file")
    elif case == "a file in the way of its parent":
        (tmp_path / "saved").mkdir()
        (tmp_path / "saved/midrun").write_text("a file")
    return Foreign("run7", "/proc/nowhere" if case == "a place where nothing can be made" else tmp_path / "saved")


@pytest.mark.parametrize(
    "case",
    [
        "a file in the way of the directory",
        "a file in the way of its parent",
        "a place where nothing can be made",
    ],
)
def test_a_directory_that_can_not_be_written_stops_nothing(case: str, tmp_path: Path, warned: list[str]) -> None:
    services: list[dict[str, Any]] = []

    class Seeing(Watched):
        def on_train_end(self) -> None:
            super().on_train_end()
            services.append(dict(run_of(self).services["records"].record))

    fitting = trainer(tmp_path, logger=unwritable(tmp_path, case))
    fitting.fit(Seeing(), batches(2))
    assert fitting.global_step == 2
    (records,) = services
    assert records["state"] == "failed"
    assert "midrun/run7" in records["reason"]
    assert any("records does not run" in warning and "midrun/run7" in warning for warning in warned), warned
    assert not any("Traceback" in warning for warning in warned), warned
    assert len(warned) <= 6, warned


def test_artifacts_that_can_not_be_made_are_told_and_the_records_are_written(tmp_path: Path, warned: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    states: list[dict[str, Any]] = []

    class Seeing(Watched):
        def on_train_end(self) -> None:
            super().on_train_end()
            run = run_of(self)
            run._write_last_state()
            states.append(dict(run.services["records"].record))

    model = Seeing(artifact_dir=tmp_path / "file/artifacts")
    directory = directory_of(trainer(tmp_path), model)
    assert record(directory)["session"]["outcome"] == "finished"
    (records,) = states
    assert records["state"] == "failed"
    assert "file/artifacts" in records["reason"]
    assert len(warned) == 1, warned


def test_a_directory_that_gets_writable_is_used_from_then_on(tmp_path: Path) -> None:
    (tmp_path / "midrun").write_text("in the way")

    class Clearing(Watched):
        def on_train_start(self) -> None:
            super().on_train_start()
            run, before = run_of(self), document(self, "state/services.json")
            assert before["services"]["records"]["state"] == "failed"
            (tmp_path / "midrun").unlink()
            deadline = time.monotonic() + 10
            while document(self, "state/services.json")["services"]["records"]["state"] != "running":
                assert time.monotonic() < deadline
                run._write_last_state()  # The disk thread may just be failing at another record.

    trainer(tmp_path).fit(Clearing(), batches(1))
    (directory,) = (tmp_path / "midrun").iterdir()
    assert record(directory)["session"]["outcome"] == "finished"
    assert (directory / "artifacts/checkpoints").is_dir()
