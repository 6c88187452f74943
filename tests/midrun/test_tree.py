"""The tree of a live run: every file shows what its schema says, whatever the model is made of."""

from __future__ import annotations

import enum
import json
import math
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema_rs
import lightning.pytorch as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from midrun.commands import KINDS
from midrun.fs.faults import NotFound
from midrun.fs.later import Later
from midrun.fs.tree import Dir, Leaf, Link
from midrun.fs.verbs import Tree
from midrun.model import summary
from midrun.root import Root
from tests.midrun.models import Staged, Watched, batches, document, read, run_of, settled, trainer, walk


def fits(path: str, text: bytes, schema: dict[str, Any]) -> None:
    """Check the content of a file against its schema; a plain file's one value is text, or nothing."""
    validator = jsonschema_rs.Draft202012Validator(schema)
    if path.endswith(".json"):
        validator.validate(json.loads(text))
        return
    value = text.decode().removesuffix("\n")
    readings: list[object] = [value, *([None] if value == "" else [])]
    for reading in (int, float):
        with suppress(ValueError, OverflowError):
            # Where a number is asked for, any is as good as one that JSON has no word for.
            readings.append(reading(value) if math.isfinite(float(value)) else 0.5)
    assert any(validator.is_valid(one) for one in readings), (path, value, schema)


def check_every_node(model: L.LightningModule) -> set[str]:
    """Read every file of a live run, hold it against its description, and return the paths."""
    root = Root(run_of(model))
    tree = Tree(root)
    paths = set()
    for path, node in [("", root), *walk(root)]:
        description = tree.describe(path)
        assert description["doc"].strip(), f"{path} says what it is"
        assert description["kind"] == ("dir" if isinstance(node, Dir) else "link" if isinstance(node, Link) else "file")
        assert description["writable"] is (isinstance(node, Leaf) and node.store is not None)
        if isinstance(node, Dir):
            assert [entry["name"] for entry in tree.list(path)] == [name for name, _ in node]
        elif isinstance(node, Link):
            assert Path(node.target()).is_dir(), path
        elif node.live:
            assert description["schema"], f"{path} says what it shows"  # It is made at the next optimizer step.
        else:
            value = tree.read(path)
            if isinstance(value, Later):
                value = settled(value)
            fits(path, value, description["schema"])
            assert description["schema"], f"{path} says what it shows"
        paths.add(path)
    return paths


FIXED = {
    *("state/index.json", "state/status", "state/stage", "state/epoch", "state/global-step", "state/batch"),
    *("state/metrics/index.json", "state/optimizers.json", "state/services.json", "state/exception.json"),
    *(
        "meta/run-id",
        "meta/run-dir",
        "meta/pid",
        "meta/host",
        "meta/started",
        "meta/versions.json",
        "meta/rest/url",
        "meta/ranks/index.json",
        "debug/pytorch/url",
    ),
    *("meta/rest/port", "meta/torch-debug/url", "meta/artifacts-path", "meta/ranks/0.json"),
    *("model/class", "model/hparams.json", "model/tunable-hparams.json", "model/summary.txt"),
    *("debug/pytorch/status", "artifacts/index.json", "artifacts/checkpoints.json", "artifacts/snapshots.json"),
    *("state/hold.json", "state/control-log.json", "commands/index.json", "holds/index.json", "control/errors.json"),
    *(f"control/{name}" for name in ("commands", *KINDS)),
    *("artifacts/checkpoints", "artifacts/snapshots", "artifacts/debug"),
    *("state/progress", "state/steps-per-second", "state/seconds-left", "state/finite-check.json"),
    *("artifacts/debug.json", "history/index.json", "hooks/index.json", "model/inspectors/index.json"),
    *("model/summary-live.txt", "model/graph.dot", "model/lightning-profiler-summary.txt"),
    *("state/pipeline/summary.json", "state/memory.json", "state/cuda/memory.json"),
    *("debug/cuda-memory/snapshot.json", "debug/cuda-memory/history.json"),
    *("state/resume.json", "state/rewinds.json", "artifacts/resumable.json"),
}
"""The files that are declared, and the links: all that is there from the first look to the last."""


class Everywhere(Staged):
    """Checks the whole tree at each turn of the loop."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.checked = 0

    def check(self) -> None:
        paths = check_every_node(self)
        assert paths >= FIXED
        tree = Tree(Root(run_of(self)))
        told = [tree.describe(path) for path in paths]
        declared = {each["path"] for each in told if each["fixed"] and each["kind"] == "file"}
        assert declared <= FIXED, "each file that is declared is in the list"
        self.checked += 1

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.check()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.check()

    def on_validation_end(self) -> None:
        super().on_validation_end()
        self.check()

    def on_test_end(self) -> None:
        super().on_test_end()
        self.check()

    def on_predict_end(self) -> None:
        super().on_predict_end()
        self.check()

    def teardown(self, stage: str) -> None:
        self.check()
        super().teardown(stage)


def test_every_file_fits_its_schema_in_every_stage(tmp_path: Path) -> None:
    model, fitting = Everywhere(), trainer(tmp_path, num_sanity_val_steps=1)
    fitting.fit(model, batches(2), batches(1))
    fitting.validate(model, batches(1), verbose=False)
    fitting.test(model, batches(1), verbose=False)
    fitting.predict(model, batches(1))
    assert model.checked == 15


class Color(enum.Enum):
    RED = 1


class Odd(Watched):
    """A model of everything that does not fit in a file."""

    midrun_tunable_hparams = {
        "hparams.l2": {"min": 0.0, "max": 1.0, "label": "L2"},
        "hparams.nested.deep": {},
        "hparams.missing": {"min": 0},
        "threshold": {},
        "net.in_features": {},
        "weighted": {},
        "scale": {},
        "moody": {},
        "nothing.at.all": {},
    }

    def __init__(self) -> None:
        super().__init__()
        self.threshold = math.nan
        self.weighted = torch.ones(2)
        self.scale = torch.tensor(0.5, requires_grad=True)
        self.save_hyperparameters(
            {
                "l2": 0.5,
                "nested": {"deep": [1, {"deeper": (2, 3)}]},
                "path": Path("/data"),
                "array": np.arange(3),
                "scalar": np.float32(0.5),
                "count": np.int64(7),
                "tensor": torch.zeros(2),
                "color": Color.RED,
                "infinite": math.inf,
                "none": None,
                "bytes": b"\xff",
                "loss": nn.functional.mse_loss,
                "class": Color,
                "set": {"b", "a"},
                3: "a key that is no text",
                "ü": "a letter",
            }
        )

    @property
    def moody(self) -> float:
        raise ValueError("not today")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.log("nan", math.nan)
        self.log("inf", -math.inf)
        self.log("a/b", 1.0)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        groups: list[dict[str, Any]] = [
            {"params": [self.net.weight], "lr": math.nan, "name": "weights", "hook": print, "extra": torch.zeros(1)},
            {"params": [self.net.bias], "lr": torch.tensor(0.5), "betas": (0.5, 0.75)},
        ]
        return torch.optim.Adam(groups, lr=0.1)


def at_batch_end(model: type[Watched], work: Callable[[Any], object], root: Path) -> None:
    """Train a model and do something at the end of its first batch."""

    class Doing(model):  # type: ignore[misc,valid-type]  # made for this
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            work(self)

    trainer(root).fit(Doing(), batches(1))


def test_every_file_fits_its_schema_whatever_the_model_is_made_of(tmp_path: Path) -> None:
    at_batch_end(Odd, check_every_node, tmp_path)


def test_hyperparameters_are_shown_as_they_are_now(tmp_path: Path) -> None:
    def work(model: Any) -> None:
        model.hparams.l2 = 0.75
        hparams = document(model, "model/hparams.json")
        assert hparams["l2"] == 0.75
        assert hparams["nested"] == {"deep": [1, {"deeper": [2, 3]}]}
        assert hparams["path"] == "/data"
        assert (hparams["scalar"], hparams["count"]) == (0.5, 7)
        assert hparams["infinite"] is None
        assert hparams["_nonfinite"] == {"/infinite": "Infinity"}
        assert hparams["color"] == "Color.RED"
        assert hparams["set"] == ["a", "b"]
        assert hparams["3"] == "a key that is no text"

    at_batch_end(Odd, work, tmp_path)


def test_tunables_are_shown_with_their_values_and_limits(tmp_path: Path) -> None:
    def work(model: Any) -> None:
        model.hparams.l2 = 0.25
        tunables = document(model, "model/tunable-hparams.json")["hparams"]
        assert tunables.keys() == Odd.midrun_tunable_hparams.keys()
        assert tunables["hparams.l2"] == {"min": 0.0, "max": 1.0, "label": "L2", "value": 0.25, "type": "float"}
        assert tunables["net.in_features"] == {"value": 3, "type": "int"}
        assert "hparams.missing" in tunables["hparams.missing"]["error"]
        assert "nothing" in tunables["nothing.at.all"]["error"]
        assert "not today" in tunables["moody"]["error"]
        assert tunables["threshold"]["value"] is None
        assert tunables["scale"] == {"value": 0.5, "type": "Tensor"}
        assert tunables["weighted"]["value"] == "Tensor(shape=(2,), dtype=torch.float32, device=cpu)"

    at_batch_end(Odd, work, tmp_path)


def test_tunables_may_be_a_list_of_paths_or_none(tmp_path: Path) -> None:
    class Listed(Watched):
        midrun_tunable_hparams = ["net.in_features"]

    def listed(model: Any) -> None:
        assert document(model, "model/tunable-hparams.json")["hparams"] == {
            "net.in_features": {"value": 3, "type": "int"}
        }

    def none(model: Any) -> None:
        assert document(model, "model/tunable-hparams.json") == {"hparams": {}}

    at_batch_end(Listed, listed, tmp_path)
    at_batch_end(Watched, none, tmp_path)


def test_metrics_that_json_has_no_word_for(tmp_path: Path) -> None:
    def work(model: Any) -> None:
        index = document(model, "state/metrics/index.json")
        assert (index["metrics"]["nan"], index["metrics"]["inf"]) == (None, None)
        assert index["_nonfinite"] == {"/metrics/nan": "NaN", "/metrics/inf": "-Infinity"}
        assert (index["global_step"], index["epoch"], index["batch"]) == (1, 0, 0)
        assert read(model, "state/metrics/nan") == "nan"
        assert read(model, "state/metrics/inf") == "-inf"
        assert read(model, "state/metrics/a%2Fb") == "1.0"

    at_batch_end(Odd, work, tmp_path)


def test_optimizers_with_their_groups(tmp_path: Path) -> None:
    def work(model: Any) -> None:
        shown = document(model, "state/optimizers.json")
        (adam,) = shown["optimizers"]
        first, second = adam["groups"]
        assert shown["global_step"] == 1
        assert adam["name"] == "Adam"
        assert first["lr"] is None
        assert shown["_nonfinite"] == {"/optimizers/0/groups/0/lr": "NaN"}
        assert second["lr"] == 0.5
        assert (first["parameters"], second["parameters"]) == (1, 1)
        assert first["options"]["name"] == "weights"
        assert second["options"]["betas"] == [0.5, 0.75]
        assert not {"params", "lr", "hook", "extra"} & first["options"].keys()

    at_batch_end(Odd, work, tmp_path)


def test_a_wrapper_as_a_learning_rate_is_not_read(tmp_path: Path) -> None:
    class Wrapper(Tensor):
        pass

    class Model(Watched):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            optimizer.param_groups[0]["lr"] = torch.tensor(0.5).as_subclass(Wrapper)
            return optimizer

    def work(model: Any) -> None:
        (sgd,) = document(model, "state/optimizers.json")["optimizers"]
        assert sgd["groups"][0]["lr"] is None

    at_batch_end(Model, work, tmp_path)


def test_the_artifacts_are_links_and_a_list(tmp_path: Path) -> None:
    def work(model: Any) -> None:
        run = run_of(model)
        (run.artifact_dir / "checkpoints/one.ckpt").write_bytes(b"12345")
        (run.artifact_dir / "checkpoints/.aside").write_bytes(b"half")
        index = document(model, "artifacts/index.json")
        assert index["artifact_dir"] == str(run.artifact_dir)
        (one,) = index["artifacts"]
        assert (one["path"], one["size"]) == ("checkpoints/one.ckpt", 5)

    at_batch_end(Watched, work, tmp_path)


def test_the_class_is_named_with_its_module(tmp_path: Path) -> None:
    class Seeing(Odd):
        def on_train_end(self) -> None:
            super().on_train_end()
            assert read(self, "model/class") == f"{type(self).__module__}.{type(self).__qualname__}"

    trainer(tmp_path).fit(Seeing(), batches(1))


# ---- the summary


def rows(module: nn.Module) -> dict[str, list[str]]:
    """Return the rows of a summary: class, parameters and trainable ones by the name of the module."""
    table, _, _ = summary(module).partition("\n\n")
    lines = [line.split() for line in table.replace(" + lazy", "+lazy").splitlines()]
    assert lines[0] == ["module", "class", "parameters", "trainable"]
    return {line[0]: line[1:] for line in lines[1:]}


def test_a_summary_counts_parameters_three_levels_deep() -> None:
    deep = nn.Sequential(nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(2, 3)))), nn.Linear(3, 1))
    deep[1].requires_grad_(False)
    assert rows(deep) == {
        "0": ["Sequential", "9", "9"],
        "0.0": ["Sequential", "9", "9"],
        "0.0.0": ["Sequential", "9", "9"],
        "1": ["Linear", "4", "0"],
        "total": ["Sequential", "13", "9"],
    }


def test_a_summary_counts_a_shared_parameter_once_in_the_total() -> None:
    shared = nn.Linear(4, 4)
    table = rows(nn.ModuleDict({"a": shared, "b": shared}))
    assert (table["a"][1], table["b"][1], table["total"][1]) == ("20", "20", "20")


def test_a_summary_of_what_is_not_made_yet_says_so() -> None:
    table = rows(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1)))
    assert table["0"][:2] == ["LazyLinear", "0+lazy"]
    assert table["total"][1] == "4+lazy"


def test_a_summary_of_a_model_without_parameters() -> None:
    assert rows(nn.Sequential(nn.ReLU())) == {"0": ["ReLU", "0", "0"], "total": ["Sequential", "0", "0"]}
    assert rows(nn.Identity()) == {"total": ["Identity", "0", "0"]}


# ---- while training goes on


class Changing(Staged):
    """Changes with each step what others read: its hyperparameters, its metrics, its optimizer."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.hparams[f"h{self.global_step}"] = self.global_step
        self.log(f"m{self.global_step % 50}", 1.0)
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        optimizer: Any = self.optimizers()
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.5})


def test_another_thread_reads_the_whole_tree_while_training_changes_it(tmp_path: Path) -> None:
    model, over, errors, count = Changing(), threading.Event(), list[str](), Counter[str]()

    def look(path: str) -> None:
        run = model.midrun.run
        if run is not None:
            tree = run._answers._tree
            node, _ = tree.walk(path)
            if isinstance(node, Leaf):
                tree.read(path)
            elif isinstance(node, Dir):
                tree.list(path)
            count[path] += 1

    def look_on() -> None:
        while not over.is_set():
            for path in [*FIXED, "", "state", "meta", "model", "state/metrics"]:
                try:
                    look(path)
                except Exception as error:  # noqa: BLE001 - any is a failure
                    errors.append(f"{path}: {error}")

    reader = threading.Thread(target=look_on)
    reader.start()
    try:
        trainer(tmp_path, val_check_interval=10).fit(model, batches(100), batches(1))
    finally:
        over.set()
        reader.join()
    assert errors == []
    assert min(count.values()) > 2


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("commands/nope/command.json", "no command has the id 'nope'; the last 1000 are kept"),
        ("holds/nope/hold.json", "no hold has the id 'nope'; the last 1000 commands are kept"),
        ("control/checkpont", "there is no command 'checkpont': did you mean 'checkpoint'?"),
        ("control/xyz", "there is no command 'xyz': it is one of pause, hold, "),
    ],
)
def test_what_is_asked_for_by_a_name_that_there_is_not_is_told_in_its_own_words(
    path: str, told: str, tmp_path: Path
) -> None:
    def work(model: Any) -> None:
        with pytest.raises(NotFound) as caught:
            read(model, path)
        assert caught.value.message.startswith(told)

    at_batch_end(Watched, work, tmp_path)


@pytest.mark.parametrize("path", ["state/nothing", "state/metrics/nothing", "meta/ranks/1.json", "state/../meta"])
def test_what_is_not_there_is_not_found(path: str, tmp_path: Path) -> None:
    def work(model: Any) -> None:
        with pytest.raises(NotFound):
            read(model, path)

    at_batch_end(Watched, work, tmp_path)
