"""Checkpoints and snapshots: whole or not there, as Lightning's own, and training goes on as if there were none."""

from __future__ import annotations

import errno
import io
import json
import random
import resource
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import midrun.store
from midrun.command import EVALUATION, POINTS
from midrun.commands import KINDS
from tests.midrun.models import batches, document, trainer
from tests.midrun.steering import Steered, aside, done, failed, fit, held, outcome, until, where

BATCH, EPOCH, VALIDATION, STEP, FIT = POINTS


class Random(Steered):
    """Draws random numbers as it trains, has all that a checkpoint can hold, and notes its own checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 8})
        self.deep = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.sent: list[Any] = []

    def loss(self, batch: list[Tensor]) -> Tensor:
        noise = random.random() + float(np.random.rand())  # noqa: NPY002, S311 - what user code draws from
        return nn.functional.mse_loss(self.deep(batch[0]) + noise + self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def ask(self, kind: str, when: dict[str, Any] | None = None, **args: Any) -> None:
        self.sent.append(self.give(kind, when, **args))

    def results(self) -> list[dict[str, Any]]:
        """Return what the commands that were sent wrote."""
        return [done(self.live, command)["artifact"] for command in self.sent]


def loaded(path: Path | str) -> dict[str, Any]:
    """Return a checkpoint, without running any code of its."""
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def same(one: Any, other: Any) -> bool:
    """Whether two checkpoints hold the same, to the last bit and type."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def files(model: Steered, kind: str) -> list[str]:
    """Return the names of all files of a kind of artifact, those that nobody should see included."""
    directory = model.live.artifact_dir / kind
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


# ---- what is in it


class Twice(Random):
    """Saves a checkpoint of Lightning's own right after midrun's part of each safe point."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def save(self, point: str) -> None:
        if not self.trainer.sanity_checking:
            self.trainer.save_checkpoint(self.root / f"{point}.ckpt")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        super().on_before_optimizer_step(optimizer)
        if self.begun == 2:
            self.save(STEP)

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        if self.begun == 2:
            self.save(BATCH)

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.save(VALIDATION)

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.save(EPOCH)

    def on_fit_end(self) -> None:
        super().on_fit_end()
        self.save(FIT)


@pytest.mark.parametrize("point", POINTS)
def test_a_checkpoint_is_the_same_as_lightning_s_own_at_each_safe_point(point: str, tmp_path: Path) -> None:
    model = Twice(tmp_path)
    model.plan[1] = partial(model.ask, "checkpoint", {"safe_point": point})
    fit(model, tmp_path, 3, 1)
    (result,) = model.results()
    assert where(model.live, model.sent[0])[0] == point
    ours, theirs = loaded(result["path"]), loaded(tmp_path / f"{point}.ckpt")
    own = ours.pop("midrun")
    assert own["format"] == "midrun.checkpoint/1"
    del theirs["midrun"]
    assert same(ours, theirs)
    assert {"state_dict", "optimizer_states", "lr_schedulers", "loops", "hyper_parameters"} <= ours.keys()


def test_without_when_it_is_written_at_the_end_of_the_batch(tmp_path: Path) -> None:
    model = Random()
    model.plan[1] = partial(model.ask, "checkpoint")
    fit(model, tmp_path, 3)
    assert where(model.live, model.sent[0]) == (BATCH, 2, 0, 1)


def test_another_stage_is_saved_too(tmp_path: Path) -> None:
    model = Random()

    class Asking(L.Callback):
        def on_test_batch_start(self, *args: Any) -> None:
            model.ask("checkpoint")

    trainer(tmp_path, callbacks=[Asking()]).test(model, batches(1), verbose=False)
    assert where(model.live, model.sent[0])[0] == EVALUATION
    assert same(dict(loaded(model.results()[0]["path"])["state_dict"]), dict(model.state_dict()))


# Lightning says of any checkpoint in mid-epoch that these data do not go on where they were.
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended:UserWarning")
@pytest.mark.parametrize("point", [BATCH, EPOCH, FIT])
def test_a_fit_goes_on_from_it(point: str, tmp_path: Path) -> None:
    model = Random()
    model.plan[1] = partial(model.ask, "checkpoint", {"safe_point": point})
    fit(model, tmp_path, 3)
    resumed = Random()
    fitting = trainer(tmp_path / "resumed", max_epochs=2, limit_val_batches=0)
    fitting.fit(resumed, batches(3), batches(1), ckpt_path=model.results()[0]["path"], weights_only=True)
    assert (fitting.global_step, fitting.current_epoch) == (6, 2)


def test_a_model_is_loaded_from_it(tmp_path: Path) -> None:
    model = Steered()
    sent: list[Any] = []
    model.plan[0] = lambda: sent.append(model.give("checkpoint", {"safe_point": FIT}))
    fit(model, tmp_path, 2)
    path = done(model.live, sent[0])["artifact"]["path"]
    again = Steered.load_from_checkpoint(path, weights_only=True)
    assert same(dict(again.state_dict()), dict(model.state_dict()))


def test_one_that_is_written_while_held_is_of_that_very_point(tmp_path: Path) -> None:
    model = Random()
    model.plan[1] = partial(model.give, "pause")

    def act() -> None:
        held(model)
        model.ask("checkpoint")
        assert loaded(model.results()[0]["path"])["global_step"] == 1
        model.give("continue")

    with aside(model, act):
        fit(model, tmp_path, 3)
    assert where(model.live, model.sent[0]) == (STEP, 1, 0, 1)


# ---- its name, and the list


def test_the_result_and_the_index_say_what_was_written(tmp_path: Path) -> None:
    model = Random()
    indices: list[Any] = []
    model.plan[1] = partial(model.ask, "checkpoint", label="first one")
    model.plan[2] = partial(model.ask, "checkpoint")
    model.plan[3] = lambda: indices.append(document(model, "artifacts/checkpoints.json"))
    fit(model, tmp_path, 4)
    first, second = model.results()
    assert indices == [{"artifacts": [second, first]}]
    assert json.loads((model.live.artifact_dir / "checkpoints" / "index.json").read_bytes()) == indices[0]
    assert (first["id"], second["id"]) == ("epoch=0-step=2-first_one.ckpt", "epoch=0-step=3.ckpt")
    assert (first["label"], second["label"]) == ("first one", None)
    assert (first["global_step"], first["epoch"], first["command"]) == (2, 0, model.sent[0].id)
    assert (first["control_revision"], second["control_revision"]) == (0, 1)
    for result in (first, second):
        path = Path(result["path"])
        assert path.parent == model.live.artifact_dir / "checkpoints"
        assert (path.name, path.stat().st_size) == (result["id"], result["size"])
    assert files(model, "checkpoints") == sorted([first["id"], second["id"], "index.json"])


@pytest.mark.parametrize(
    ("label", "tail"),
    [
        ("before-lr-change", "-before-lr-change"),
        ("a b\tc\nd", "-a_b_c_d"),
        ("a/b", "-a_b"),
        ("../../etc/passwd", "-etc_passwd"),
        ("..", ""),
        (".", ""),
        (".hidden", "-hidden"),
        ("///", ""),
        ("nul\0", "-nul"),
        ("größe 重み", "-größe_重み"),
        ("🔥", ""),
        ("-rf", "--rf"),
        ("s3://bucket::x", "-s3___bucket__x"),
        ("index.json", "-index.json"),
        ("x" * 100, "-" + "x" * 100),
        ("重" * 100, "-" + "重" * 40),
        ("𓀀" * 100, "-" + "𓀀" * 30),
    ],
)
def test_a_label_is_a_part_of_the_name_as_far_as_a_name_can_be_made_of_it(
    label: str, tail: str, tmp_path: Path
) -> None:
    model = Random()
    model.plan[0] = partial(model.ask, "checkpoint", label=label)
    fit(model, tmp_path, 1)
    (result,) = model.results()
    assert result["id"] == f"epoch=0-step=1{tail}.ckpt"
    assert result["label"] == label
    assert files(model, "checkpoints") == sorted([result["id"], "index.json"])
    assert loaded(result["path"])["global_step"] == 1


@pytest.mark.parametrize("label", ["", "x" * 101, 5, True, ["x"], "\ud800"])
def test_what_is_no_label_is_invalid(label: Any) -> None:
    for kind in ("checkpoint", "snapshot"):
        with pytest.raises(ValidationError):
            KINDS[kind].Arguments.model_validate({"label": label})


def test_two_of_the_same_step_have_names_of_their_own(tmp_path: Path) -> None:
    model = Random()

    def ask() -> None:
        for kind in ("checkpoint", "snapshot") * 3:
            model.ask(kind, {"safe_point": BATCH})

    model.plan[0] = ask
    fit(model, tmp_path, 1)
    assert [result["id"] for result in model.results()] == [
        "epoch=0-step=1.ckpt",
        "epoch=0-step=1",
        "epoch=0-step=1-2.ckpt",
        "epoch=0-step=1-2",
        "epoch=0-step=1-3.ckpt",
        "epoch=0-step=1-3",
    ]


def test_an_index_that_somebody_has_spoilt_is_written_anew(tmp_path: Path) -> None:
    model = Random()
    index = Path("artifacts") / "checkpoints" / "index.json"

    def spoil() -> None:
        (model.live.directory / index).write_text('{"artifacts": [')
        model.ask("checkpoint")

    model.plan[0] = partial(model.ask, "checkpoint")
    model.plan[1] = spoil
    fit(model, tmp_path, 2)
    assert json.loads((model.live.directory / index).read_bytes()) == {"artifacts": model.results()[::-1]}


def test_it_goes_where_the_option_says(tmp_path: Path) -> None:
    class Model(Steered):
        def __init__(self) -> None:
            super().__init__(artifact_dir=str(tmp_path / "elsewhere"))

    model = Model()
    sent: list[Any] = []
    model.plan[0] = lambda: sent.append(model.give("checkpoint"))
    fit(model, tmp_path, 1)
    assert done(model.live, sent[0])["artifact"]["path"] == str(
        tmp_path / "elsewhere" / "checkpoints" / "epoch=0-step=1.ckpt"
    )


# ---- whole, or not there


def test_a_reader_never_sees_half_of_one(tmp_path: Path) -> None:
    model = Random()
    over, looks, seen = threading.Event(), [0], set()

    class Halves(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            whole = io.BytesIO()
            torch.save(checkpoint, whole)
            data = whole.getvalue()
            Path(path).write_bytes(data[: len(data) // 2])
            enough = looks[0] + 2
            until(lambda: looks[0] >= enough or over.is_set())
            Path(path).write_bytes(data)

    def watch() -> None:
        until(lambda: hasattr(model, "live"))
        try:
            look()
        finally:
            over.set()

    def look() -> None:
        while not over.is_set():
            for name in files(model, "checkpoints"):
                if not name.startswith(".") and name != "index.json":
                    assert loaded(model.live.artifact_dir / "checkpoints" / name)["state_dict"]
                    seen.add(name)
            for listed in model.live.store.index("checkpoints")["artifacts"]:
                assert Path(listed["path"]).stat().st_size == listed["size"]
            looks[0] += 1

    for number in range(4):
        model.plan[number] = partial(model.ask, "checkpoint")
    with aside(model, watch):
        try:
            fit(model, tmp_path, 4, plugins=[Halves()])
        finally:
            over.set()
    assert len(model.results()) == 4
    assert len(seen) >= 3


def broken(model: Steered, root: Path, kind: str = "checkpoint", **options: Any) -> tuple[str, str]:
    """Train with a command that must fail, and nothing else: nothing is left of it. Return why it failed."""
    sent: list[Any] = []
    model.plan[1] = lambda: sent.append(model.give(kind))
    fitting = fit(model, root, 3, **options)
    assert fitting.global_step == 3
    assert outcome(model.live, sent[0])["result"] is None
    assert files(model, "checkpoints") == files(model, "snapshots") == []
    return failed(model.live, sent[0])


def full(path: Path | str, *_: object) -> None:
    """Write a part, as onto a disk that is full then."""
    Path(path).write_bytes(b"a part")
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


class Full(TorchCheckpointIO):
    """Writes onto a disk that is full then."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        full(path)


def test_a_callback_that_fails_at_it_makes_the_command_fail_and_training_goes_on(
    tmp_path: Path, warned: list[str]
) -> None:
    class Failing(L.Callback):
        def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: Any) -> None:
            raise RuntimeError("no thanks")

    assert broken(Random(), tmp_path, callbacks=[Failing()]) == ("RuntimeError", "no thanks")
    (warning,) = warned
    assert "no thanks" in warning
    assert "on_save_checkpoint" in warning


def test_what_the_disk_says_is_told_where_torch_says_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enforced(*_: object) -> None:
        try:
            Path("/dev/full").write_bytes(b"all that torch writes")
        finally:
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1216 vs 1110")

    monkeypatch.setattr("midrun.capture.torch.save", enforced)
    model = Steered()
    sent: list[Any] = []
    model.plan[0] = lambda: sent.append(model.give("save_current_batch"))
    model.plan[1] = monkeypatch.undo
    model.plan[2] = lambda: sent.append(model.give("save_current_batch"))
    fit(model, tmp_path)
    done(model.live, sent[1])
    assert torch.load(next((model.live.artifact_dir / "debug").glob("*.pt")), weights_only=True)["left_out"] == {}
    kind, message = failed(model.live, sent[0])
    assert kind == "OSError"
    assert message == "[Errno 28] No space left on device"


def test_a_full_disk_makes_the_command_fail_and_training_goes_on(tmp_path: Path, warned: list[str]) -> None:
    kind, text = broken(Random(), tmp_path, plugins=[Full()])
    assert kind == "OSError"
    assert "No space left" in text
    assert len(warned) == 1


def test_a_directory_that_is_half_written_is_taken_away(tmp_path: Path, warned: list[str]) -> None:
    class Sharding(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            Path(path).mkdir()
            full(Path(path) / "shard")

    assert broken(Random(), tmp_path, plugins=[Sharding()])[0] == "OSError"
    assert warned


def test_a_file_that_the_kernel_does_not_let_grow_leaves_nothing(tmp_path: Path, warned: list[str]) -> None:
    # The limit is real, and midrun's own small files stay below it.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Model(Random):
        def on_train_batch_end(self, *args: Any) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, before[1]))
            try:
                super().on_train_batch_end(*args)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

    model = Model()
    model.register_buffer("ballast", torch.rand(1 << 18))
    kind, text = broken(model, tmp_path)
    assert kind == "OSError"
    assert "File too large" in text
    assert warned


def test_an_index_that_can_t_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    def write_whole(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(midrun.store, "write_whole", write_whole)
    assert broken(Random(), tmp_path)[0] == "OSError"
    assert warned


def test_a_ctrl_c_in_the_middle_of_it_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            Path(path).write_bytes(b"a part")
            raise KeyboardInterrupt

    model = Random()
    model.plan[1] = partial(model.ask, "checkpoint")
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            fit(model, tmp_path, 3, plugins=[Interrupted()])
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning replaces it.
    assert files(model, "checkpoints") == []
    assert failed(model.live, model.sent[0])[0] == "KeyboardInterrupt"


def test_a_plugin_that_writes_in_the_background_has_written_it_when_the_command_is_done(
    tmp_path: Path, warned: list[str]
) -> None:
    class Slow(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            assert not threading.Event().wait(0.2)  # Slower than whoever does not wait for it.
            super().save_checkpoint(checkpoint, path, storage_options)

    model = Random()
    model.plan[0] = partial(model.ask, "checkpoint")
    fit(model, tmp_path, 1, plugins=[AsyncCheckpointIO(Slow())])
    assert loaded(model.results()[0]["path"])["global_step"] == 1


# ---- snapshots


def test_a_snapshot_shows_the_moment_in_json_and_tensors(tmp_path: Path) -> None:
    states: list[tuple[Any, ...]] = []

    class Model(Random):
        def on_train_batch_end(self, *args: Any) -> None:
            torch_state, python, numpy = (torch.get_rng_state(), random.getstate(), np.random.get_state())  # noqa: NPY002
            super().on_train_batch_end(*args)
            states.append((torch_state, python, numpy))
            assert torch.equal(torch.get_rng_state(), torch_state)
            assert random.getstate() == python
            assert same(list(np.random.get_state()[1]), list(numpy[1]))  # type: ignore[index]  # noqa: NPY002

    model = Model()
    model.plan[1] = partial(model.ask, "snapshot", {"safe_point": BATCH}, label="here")
    fit(model, tmp_path, 2)
    (result,) = model.results()
    folder = Path(result["path"])
    assert folder == model.live.artifact_dir / "snapshots" / "epoch=0-step=2-here"
    assert sorted(path.name for path in folder.iterdir()) == ["rng.pt", "state.json"]
    assert result["size"] == sum(path.stat().st_size for path in folder.iterdir())
    state = json.loads((folder / "state.json").read_bytes())
    assert state["format"] == "midrun.snapshot/1"
    assert (state["global_step"], state["epoch"], state["batch"], state["stage"]) == (2, 0, 1, "train")
    assert state["run_id"] == model.live.run_id
    assert state["metrics"]["loss"] > 0
    assert len(state["learning_rates"]) == 1
    assert state["memory"]["resident"] > 1 << 20
    assert state["versions"]["torch"] == torch.__version__
    kept = loaded(folder / "rng.pt")
    torch_state, python, numpy = states[1]
    assert torch.equal(kept["torch"], torch_state)
    assert tuple(kept["python"]["internal"].tolist()) == python[1]
    assert kept["numpy"]["state"]["key"]["values"] == numpy[1].tolist()
    assert kept["numpy"]["state"]["pos"] == numpy[2]


def test_the_random_states_of_a_snapshot_can_be_set_again(tmp_path: Path) -> None:
    drawn: list[tuple[float, float, float]] = []

    def draw() -> tuple[float, float, float]:
        return torch.rand(()).item(), random.random(), float(np.random.rand())  # noqa: NPY002, S311 - as above

    class Model(Random):
        def on_train_batch_end(self, *args: Any) -> None:
            super().on_train_batch_end(*args)
            drawn.append(draw())

    model = Model()
    model.plan[0] = partial(model.ask, "snapshot", {"safe_point": BATCH})
    fit(model, tmp_path, 1)
    kept = loaded(Path(model.results()[0]["path"]) / "rng.pt")
    torch.set_rng_state(kept["torch"])
    python, numpy = kept["python"], kept["numpy"]
    random.setstate((python["version"], tuple(python["internal"].tolist()), python["gauss_next"]))
    key = np.array(numpy["state"]["key"]["values"], dtype=numpy["state"]["key"]["dtype"])
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})  # noqa: NPY002 - as above
    assert draw() == drawn[0]


@pytest.mark.parametrize("point", POINTS)
def test_a_snapshot_can_be_taken_at_each_safe_point(point: str, tmp_path: Path) -> None:
    model = Random()
    model.plan[0] = partial(model.ask, "snapshot", {"safe_point": point})
    fit(model, tmp_path, 1, 1)
    state = json.loads((Path(model.results()[0]["path"]) / "state.json").read_bytes())
    place = outcome(model.live, model.sent[0])["place"]
    assert place is not None
    assert (state["global_step"], state["epoch"]) == (place["global_step"], place["epoch"])


def test_a_metric_that_json_has_no_word_for_is_in_a_snapshot_too(tmp_path: Path) -> None:
    class Model(Random):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            self.log_dict({"nan": float("nan"), "inf": float("inf")})
            return super().training_step(batch, batch_idx)

    model = Model()
    model.plan[0] = partial(model.ask, "snapshot")
    fit(model, tmp_path, 1)
    text = (Path(model.results()[0]["path"]) / "state.json").read_text()
    state = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert {"nan", "inf", "loss"} <= state["metrics"].keys()


def test_a_snapshot_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    monkeypatch.setattr("midrun.snapshot.torch.save", lambda _, file: full(file.name))
    assert broken(Random(), tmp_path, "snapshot")[0] == "OSError"
    assert len(warned) == 1


# ---- that training does not notice


def shuffled() -> DataLoader[Any]:
    data = TensorDataset(torch.arange(48.0).view(16, 3) / 48, torch.ones(16, 1))
    return DataLoader(data, batch_size=4, shuffle=True)


def ends(root: Path, each: Callable[[Random], object] | None = None) -> list[Any]:
    """Train two epochs, and return all that this ends with."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - as above
    model = Random()
    if each is not None:
        model.plan = {number: partial(each, model) for number in range(8)}
    fitting = trainer(root, max_epochs=2, num_sanity_val_steps=0)
    fitting.fit(model, shuffled(), batches(1))
    moments = fitting.optimizers[0].state_dict()
    if model.sent:
        assert {record["path"] for record in model.results()} == set(map(str, written(model)))
    drawn = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
    return [dict(model.state_dict()), moments, drawn]


def written(model: Random) -> list[Path]:
    """Return all checkpoints and snapshots."""
    folders = [model.live.artifact_dir / kind for kind in ("checkpoints", "snapshots")]
    return [path for folder in folders for path in folder.iterdir() if path.name != "index.json"]


def test_a_run_with_checkpoints_and_snapshots_at_every_step_ends_bit_for_bit_as_one_without(tmp_path: Path) -> None:
    def save(model: Random) -> None:
        for point in (STEP, BATCH, EPOCH, VALIDATION, FIT) if model.begun == 2 else (STEP, BATCH):
            model.ask("checkpoint", {"safe_point": point})
            model.ask("snapshot", {"safe_point": point})

    assert same(ends(tmp_path / "with", save), ends(tmp_path / "without"))
