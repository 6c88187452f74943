"""Checkpoints of the model's own code, which one training goes on from, and going back while the run is live."""

from __future__ import annotations

import json
import random
import shutil
import signal
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback, ModelCheckpoint
from lightning.pytorch.tuner.tuning import Tuner

import midrun
from midrun import CheckpointError
from midrun.checkpoints.rewinds import Rewind
from midrun.checkpoints.shelf import Shelf
from tests.midrun.models import batches, document, runs, trainer
from tests.midrun.steering import Steered, aside, done, failed, fit, held, records_of, until, where
from tests.resuming import digest

pytestmark = pytest.mark.filterwarnings(
    "ignore:You're resuming from a checkpoint that ended before the epoch ended:UserWarning"
)


class Going(Steered):
    """Does what it is told at the end of a batch, by the number of the optimizer step."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.at: dict[int, Callable[[], object]] = {}
        self.noise = torch.nn.Dropout(0.5)
        self.told: list[Rewind] = []
        self.midrun.on_rewind(self.told.append)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step([self.noise(batch[0]), batch[1]], batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.1)

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        act = self.at.pop(self.global_step, None)
        if act is not None:
            act()


def state(model: Going) -> str:
    """Return what tells a model, its optimizer and its generators apart."""
    optimizer: Any = model.trainer.optimizers[0]
    return digest(model.state_dict(), list(optimizer.state_dict()["state"].values()), torch.get_rng_state())


def saved(tmp_path: Path, steps: int = 4, **options: Any) -> tuple[Going, str]:
    """Train, with a checkpoint after so many steps; return the model and the checkpoint's path."""
    ids: list[Any] = []
    model = Going(**options)
    model.at[steps] = lambda: ids.append(model.midrun.save_checkpoint({"position": steps}, label="here"))
    fit(model, tmp_path, 10)
    (id_,) = ids
    return model, str(model.live.artifact_dir / "checkpoints" / id_)


def go_on(model: Going, root: Path, count: int, path: object, **options: Any) -> None:
    """Go on from a checkpoint, with so many batches an epoch."""
    fitting = trainer(root, **{"limit_val_batches": 0, **options})
    fitting.fit(model, batches(count), batches(1), ckpt_path=path, weights_only=True)  # type: ignore[arg-type]  # any path


# ---- writing


def test_save_checkpoint_returns_the_artifact_s_id_and_keeps_what_is_given_with_it(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    assert Path(path).name == "epoch=0-step=4-here.ckpt"
    bundle = torch.load(path, weights_only=True)["midrun"]
    assert bundle["format"] == "midrun.checkpoint/1"
    assert (bundle["extra"], bundle["label"], bundle["global_step"]) == ({"position": 4}, "here", 4)
    (entry,) = Shelf(model.live.directory).listed()["checkpoints"]
    assert (entry["id"], entry["global_step"], entry["steps_to_redo"]) == (Path(path).name, 4, 6)


def test_what_weights_only_would_refuse_is_a_type_error_that_says_where(tmp_path: Path) -> None:
    model, errors = Going(), []

    def save() -> None:
        with pytest.raises(TypeError) as error:
            model.midrun.save_checkpoint({"paths": [1, Path("x")]})
        errors.append(str(error.value))

    model.at[1] = save
    fit(model, tmp_path, 2)
    (error,) = errors
    assert error == (
        "save_checkpoint: extra['paths'][1] is of type PosixPath, which torch.load(weights_only=True) refuses: "
        "give plain values"
    )


def test_without_a_run_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="save_checkpoint: no run is live"):
        Going().midrun.save_checkpoint()


def test_a_full_disk_leaves_the_checkpoints_that_there_are_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sent = Going(), []
    model.at[1] = model.midrun.save_checkpoint
    usage = shutil.disk_usage(tmp_path)
    model.at[2] = lambda: monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    model.at[3] = lambda: sent.append(model.give("checkpoint"))
    fit(model, tmp_path, 6)
    kind, message = failed(model.live, sent[0])
    assert kind == "OSError"
    assert "no room for a checkpoint: the last one took" in message
    assert [path.suffix for path in (model.live.artifact_dir / "checkpoints").iterdir()].count(".ckpt") == 1


def test_lightning_s_own_checkpoints_are_on_the_shelf_as_long_as_they_are_there(tmp_path: Path) -> None:
    model = Going()
    keeping = ModelCheckpoint(tmp_path / "own", every_n_train_steps=2, save_top_k=1, monitor="loss", mode="max")
    model.at[3] = lambda: model.give("checkpoint", label="ours")
    fit(model, tmp_path, 10, callbacks=[keeping], enable_checkpointing=True)
    there = {str(path) for path in (tmp_path / "own").iterdir()}
    listed = Shelf(model.live.directory).entries()
    assert {entry["path"] for entry in listed} == there | {
        str(model.live.artifact_dir / "checkpoints" / "epoch=0-step=4-ours.ckpt")
    }
    index = json.loads((model.live.artifact_dir / "checkpoints" / "index.json").read_bytes())["artifacts"]
    assert {entry["path"] for entry in index} == {entry["path"] for entry in listed}


def test_the_tuner_leaves_no_trace(tmp_path: Path) -> None:
    model = Going()
    fitting = trainer(tmp_path, max_epochs=1, limit_val_batches=0)
    model.save_hyperparameters({"lr": 0.1})
    Tuner(fitting).lr_find(model, batches(8), batches(1), num_training=5, update_attr=False)
    fitting.fit(model, batches(4), batches(1))
    assert Shelf(model.live.directory).entries() == []
    assert model.live.rewinds.record["rewinds"] == []
    assert model.live.resume.record is None
    assert model.told == []


def test_a_save_from_a_signal_s_handler_while_held_is_on_the_shelf(tmp_path: Path, signals: None) -> None:
    model = Going()

    def save(*_: object) -> None:
        model.trainer.save_checkpoint(tmp_path / "hpc_ckpt_1.ckpt")

    signal.signal(signal.SIGUSR1, save)
    model.at[2] = lambda: model.give("hold")

    def act() -> None:
        held(model)
        signal.raise_signal(signal.SIGUSR1)
        until((tmp_path / "hpc_ckpt_1.ckpt").exists)
        until(lambda: Shelf(model.live.directory).entries())
        model.live.holds.release("test")

    with aside(model, act):
        fit(model, tmp_path, 6)
    assert midrun.checkpoint(model.live.directory, "latest") == str(tmp_path / "hpc_ckpt_1.ckpt")
    resumed = Going()
    go_on(resumed, tmp_path, 6, tmp_path / "hpc_ckpt_1.ckpt")
    assert resumed.midrun.resume.record is not None
    assert resumed.midrun.resume.record["exact"]
    assert resumed.midrun.resume.record["where"] == "on_before_optimizer_step"


def test_only_so_many_of_its_own_are_kept_and_never_the_chosen_one(tmp_path: Path) -> None:
    model = Going(checkpoint_keep_last=2, checkpoint_keep_every=4)
    for step in range(1, 10):
        model.at[step] = partial(model.midrun.save_checkpoint, label=f"at-{step}")

    def choose() -> None:
        model.midrun.save_checkpoint(label="at-2")
        Shelf(model.live.directory).choose("at-2", "a test")

    model.at[2] = choose
    other = ModelCheckpoint(tmp_path / "own", every_n_train_steps=3, save_top_k=-1)
    fit(model, tmp_path, 10, callbacks=[other], enable_checkpointing=True)
    entries = Shelf(model.live.directory).entries()
    assert [entry["label"] for entry in entries if entry["label"]] == ["at-9", "at-8", "at-4", "at-2"]
    assert len(list((tmp_path / "own").iterdir())) == 3
    folder = model.live.artifact_dir / "checkpoints"
    assert len(list(folder.glob("*.ckpt"))) == 4


# ---- choosing


def test_the_newest_is_meant_unless_one_is_chosen_once(tmp_path: Path) -> None:
    model = Going()
    for step in (2, 4, 6):
        model.at[step] = partial(model.midrun.save_checkpoint, label=f"at-{step}")
    fit(model, tmp_path, 8)
    run = model.live.directory
    assert "at-6" in str(midrun.checkpoint(run, "latest"))
    assert "at-6" in str(midrun.checkpoint(run))
    Shelf(run).choose("at-2", "a test")
    assert "at-2" in str(midrun.checkpoint(run, "resume"))
    assert "at-6" in str(midrun.checkpoint(run, "latest"))
    assert [kept["is_chosen"] for kept in Shelf(run).listed()["checkpoints"]] == [False, False, True]
    resumed = Going()
    go_on(resumed, tmp_path, 8, midrun.checkpoint(run, "resume"))
    assert "at-6" in str(midrun.checkpoint(run, "resume"))
    assert resumed.told == [Rewind(to_step=2, reached=8, cause="resume")]


def test_one_that_was_chosen_can_be_taken_back(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    shelf = Shelf(model.live.directory)
    shelf.choose("here", "a test")
    assert shelf.chosen == path
    shelf.choose("latest", "a test")
    assert shelf.chosen is None


def test_a_live_run_is_told_by_a_command_what_the_next_process_goes_on_from(tmp_path: Path) -> None:
    model, sent, shown = Going(), [], []
    model.at[2] = lambda: model.midrun.save_checkpoint(label="two")
    model.at[3] = lambda: sent.append(model.give("choose_checkpoint", checkpoint="two"))
    model.at[5] = lambda: shown.append(document(model, "artifacts/resumable.json"))
    fit(model, tmp_path, 6)
    assert done(model.live, sent[0])["chosen"].endswith("two.ckpt")
    assert [(kept["label"], kept["is_chosen"], kept["steps_to_redo"]) for kept in shown[0]["checkpoints"]] == [
        ("two", True, 3)
    ]


def test_it_is_told_which_were_saved_before_the_last_change_by_a_command(tmp_path: Path) -> None:
    model = Going()
    model.at[2] = lambda: model.midrun.save_checkpoint(label="before")
    model.at[3] = lambda: model.give("set_learning_rate", value=0.5)
    model.at[6] = lambda: model.midrun.save_checkpoint(label="after")
    fit(model, tmp_path, 8)
    found = {
        kept["label"]: kept["is_older_than_control"] for kept in Shelf(model.live.directory).listed()["checkpoints"]
    }
    assert found == {"before": True, "after": False}


def test_a_torn_checkpoint_is_passed_over_and_named_it_is_an_error(tmp_path: Path) -> None:
    model = Going()
    model.at[2] = lambda: model.midrun.save_checkpoint(label="whole")
    model.at[4] = lambda: model.midrun.save_checkpoint(label="torn")
    fit(model, tmp_path, 6)
    torn = Path(Shelf(model.live.directory).find("torn")["path"])
    torn.write_bytes(torn.read_bytes()[:-200])
    assert "whole" in str(midrun.checkpoint(model.live.directory, "latest"))
    with pytest.raises(CheckpointError, match="is torn, or no checkpoint"):
        midrun.checkpoint(model.live.directory, "torn")
    torn.write_bytes(b"")
    with pytest.raises(CheckpointError, match="is torn, or no checkpoint"):
        midrun.checkpoint(model.live.directory, str(torn))


def test_what_is_no_run_and_what_has_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no run directory"):
        midrun.checkpoint(tmp_path, "latest")
    model = Going()
    fit(model, tmp_path, 1)
    assert midrun.checkpoint(model.live.directory, "latest") is None
    with pytest.raises(CheckpointError, match="there is no checkpoint 'nine'; the newest are none"):
        midrun.checkpoint(model.live.directory, "nine")


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    _, path = saved(tmp_path)

    class Wider(Going):
        def __init__(self) -> None:
            super().__init__()
            self.more = torch.nn.Linear(2, 2)

    other = Wider()
    before = digest(other.state_dict())
    with pytest.raises(CheckpointError, match=r"of another model: it lacks more.weight, more.bias. Nothing was loaded"):
        go_on(other, tmp_path, 2, path)
    assert digest(other.state_dict()) == before
    assert not runs(other)


def test_one_without_anything_of_midrun_s_is_gone_on_from_with_a_note(tmp_path: Path, warned: list[str]) -> None:
    _, path = saved(tmp_path)
    content = torch.load(path, weights_only=True)
    del content["midrun"]
    torch.save(content, tmp_path / "plain.ckpt")
    resumed = Going()
    go_on(resumed, tmp_path, 10, tmp_path / "plain.ckpt")
    record = resumed.midrun.resume.record
    assert record is not None
    assert record["exact"] is False
    assert record["reasons"][0].startswith("midrun did not see it written")
    assert resumed.midrun.extra is None


def test_a_planted_pickle_is_refused(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    content = torch.load(path, weights_only=True)
    content["midrun"]["extra"] = random.Random(1)  # noqa: S311 - a thing that has code to run
    torch.save(content, path)
    model, errors = Going(), []

    def load() -> None:
        with pytest.raises(CheckpointError, match="can't be read") as error:
            model.midrun.load_checkpoint(path)
        errors.append(error)

    model.at[2] = load
    fit(model, tmp_path, 3)
    assert errors


def test_after_a_fit_from_it_what_was_given_with_it_is_there(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    resumed = Going()
    go_on(resumed, tmp_path, 10, path)
    assert resumed.midrun.extra == {"position": 4}


def test_what_commands_had_set_is_set_again(tmp_path: Path) -> None:
    class Model(Going):
        midrun_tunable_hparams = ("noise.p",)

    model = Model()
    model.at[1] = lambda: model.give("set_gradient_clip", value=0.25, algorithm="value")
    model.at[2] = lambda: model.give("set_dataloader_finite_check", enabled=True)
    model.at[3] = lambda: model.give("set_hparam", name="noise.p", value=0.125)
    model.at[4] = lambda: model.give("set_learning_rate", value=0.03125)
    model.at[6] = lambda: model.midrun.save_checkpoint(label="here")
    fit(model, tmp_path, 8)
    resumed, seen = Model(), []
    resumed.at[7] = lambda: seen.append((resumed.trainer.gradient_clip_val, resumed.noise.p))
    resumed.at[8] = lambda: until(lambda: [r for r in records_of(resumed.live) if "finite" in r["kind"]])
    resumed.at[12] = lambda: seen.append(document(resumed, "state/finite-check.json")["enabled"])
    go_on(resumed, tmp_path, 8, midrun.checkpoint(model.live.directory, "here"), max_epochs=2)
    assert seen == [(0.25, 0.125), True]
    assert resumed.trainer.optimizers[0].param_groups[0]["lr"] == 0.03125


# ---- going back live


def test_a_run_goes_back_and_trains_on_as_a_new_process_would_that_is_fed_the_same_batches(tmp_path: Path) -> None:
    model, seen = Going(), []
    model.at[3] = lambda: model.midrun.save_checkpoint({"position": 3}, label="three")

    def back() -> None:
        assert model.midrun.load_checkpoint("three") == {"position": 3}
        assert model.global_step == 3
        seen.append(state(model))

    model.at[7] = back
    fit(model, tmp_path, 12)
    seen.append(state(model))
    assert model.global_step == 8
    assert model.told == [Rewind(to_step=3, reached=7, cause="load_checkpoint")]

    class Fed(Going):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_start(batch, batch_idx)
            # What the other trained on after it had gone back.
            batch[:] = rest[batch_idx - 3]

    rest = [[part.clone() for part in batch] for batch in batches(12)][7:]
    other = Fed()
    path = str(midrun.checkpoint(model.live.directory, "three"))
    go_on(other, tmp_path, 8, path)
    assert state(other) == seen[-1]


def test_by_a_command_it_goes_back_at_the_end_of_a_batch_and_the_charts_can_tell(tmp_path: Path) -> None:
    model, sent = Going(), []
    model.at[2] = lambda: model.midrun.save_checkpoint(label="two")
    model.at[6] = lambda: sent.append(model.give("load_checkpoint", checkpoint="two"))
    model.at[5] = lambda: None
    fit(model, tmp_path, 12)
    result = done(model.live, sent[0])
    assert where(model.live, sent[0])[0] == "train_batch_end"
    (change,) = result["changes"]
    assert (change["what"], change["new"]) == ("global_step", 2)
    (rewind,) = document_of_rewinds(model)
    assert (rewind["to_step"], rewind["reached"], rewind["cause"]) == (2, change["old"], "load_checkpoint")
    assert [line["kind"] for line in model.live.queue.control_log.log["entries"]] == ["load_checkpoint"]
    assert (model.live.directory / "history" / "0002").is_dir(), "what is made again is a segment of its own"


def document_of_rewinds(model: Going) -> list[dict[str, Any]]:
    """Return what the run directory says of where the run has gone back."""
    return [json.loads(line) for line in (model.live.directory / "rewinds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["nine", "torn"])
def test_a_mistyped_or_torn_checkpoint_changes_nothing(name: str, tmp_path: Path) -> None:
    model, errors = Going(), []
    model.at[2] = lambda: model.midrun.save_checkpoint(label="torn")

    def back() -> None:
        path = Path(Shelf(model.live.directory).find("torn")["path"])
        path.write_bytes(path.read_bytes()[:-100])
        before = state(model)
        with pytest.raises(CheckpointError, match="Nothing was changed") as error:
            model.midrun.load_checkpoint(name)
        errors.append(error)
        assert state(model) == before

    model.at[4] = back
    fit(model, tmp_path, 6)
    assert errors
    assert model.global_step == 6


def test_one_that_fails_halfway_is_raised_and_again_at_the_next_step(tmp_path: Path) -> None:
    class Model(Going):
        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            super().on_load_checkpoint(checkpoint)
            checkpoint["optimizer_states"] = None

    model, errors = Model(), []
    model.at[2] = lambda: model.midrun.save_checkpoint(label="two")

    def back() -> None:
        with pytest.raises(CheckpointError, match="partly what it was") as error:
            model.midrun.load_checkpoint("two")
        errors.append(error)

    model.at[4] = back
    with pytest.raises(CheckpointError, match="can't be trained on"):
        fit(model, tmp_path, 8)
    assert errors
    assert model.global_step < 6


def test_elsewhere_than_at_the_end_of_a_batch_it_says_where_it_can_be_done(tmp_path: Path) -> None:
    errors = []

    class Wrong(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                with pytest.raises(CheckpointError, match="in on_train_batch_end") as error:
                    module.midrun.load_checkpoint("two")
                errors.append(error)

    model = Going()
    model.at[2] = lambda: model.midrun.save_checkpoint(label="two")
    fit(model, tmp_path, 5, callbacks=[Wrong()])
    assert errors


# ---- open and closed


def test_a_run_stays_open_until_it_is_closed_and_then_nobody_goes_on_with_it(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    record = model.live.directory / "run.json"
    assert json.loads(record.read_bytes())["state"] == "open"
    model.midrun.finish(close_run=False)
    assert json.loads(record.read_bytes())["state"] == "open"
    model.midrun.finish()
    assert json.loads(record.read_bytes())["state"] == "closed"
    with pytest.raises(CheckpointError, match=r"is closed: nobody goes on with it. To train on from its weights"):
        midrun.checkpoint(model.live.directory)
    with pytest.raises(CheckpointError, match="is closed, and nobody goes on with it"):
        fit(Going(resume=model.live.directory), tmp_path, 2)
    trainer(tmp_path).validate(model, batches(1), verbose=False)
    assert json.loads(record.read_bytes())["state"] == "closed", "what comes after opens nothing"
    assert Path(path).exists()


def test_a_run_that_is_resumed_goes_on_in_its_directory_with_its_id(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    resumed = Going(resume=model.live.directory)
    go_on(resumed, tmp_path, 10, path)
    assert resumed.live.directory == model.live.directory
    assert resumed.live.run_id == model.live.run_id
    record = json.loads((model.live.directory / "run.json").read_bytes())
    assert record["resumed_from"]["checkpoint"] == path
    assert [line["to_step"] for line in document_of_rewinds(resumed)] == [4]


def test_a_live_run_can_be_finished_and_training_goes_on_without_it(tmp_path: Path) -> None:
    model = Going()
    model.at[2] = model.midrun.finish
    fit(model, tmp_path, 5)
    assert model.global_step == 5
    assert not runs(model)
    assert json.loads((model.live.directory / "run.json").read_bytes())["state"] == "closed"


def test_a_checkpoint_that_is_in_no_index_is_found_when_the_run_begins_again(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    index = model.live.artifact_dir / "checkpoints" / "index.json"
    wanted = json.loads(index.read_bytes())["artifacts"][0]
    index.unlink()
    (model.live.artifact_dir / "checkpoints" / "other.ckpt").write_bytes(b"nothing")
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
    again = Going(resume=model.live.directory)
    again.at[1] = lambda: until(index.exists)
    fit(again, tmp_path, 2)
    (entry,) = json.loads(index.read_bytes())["artifacts"]
    assert {key: entry[key] for key in ("id", "path", "label", "global_step", "epoch")} == {
        key: wanted[key] for key in ("id", "path", "label", "global_step", "epoch")
    }


# ---- what other ways of saving and loading do


def test_a_checkpoint_of_weights_alone_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    model = Going()
    weights = ModelCheckpoint(tmp_path / "own", every_n_train_steps=2, save_weights_only=True)
    fit(model, tmp_path, 5, callbacks=[weights], enable_checkpointing=True)
    assert midrun.checkpoint(model.live.directory) is None


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
def test_hooks_that_are_set_on_a_callback_are_there_after_a_resume(tmp_path: Path) -> None:
    ends: list[int] = []

    def counting() -> LambdaCallback:
        return LambdaCallback(on_train_epoch_end=lambda trainer, _: ends.append(trainer.current_epoch))

    model = Going()
    saving = ModelCheckpoint(tmp_path / "own", save_on_train_epoch_end=True, save_top_k=-1)
    fit(model, tmp_path, 3, callbacks=[counting(), saving], enable_checkpointing=True, max_epochs=3)
    first = next(path for path in (tmp_path / "own").iterdir() if "epoch=0" in path.name)
    ends.clear()
    go_on(Going(), tmp_path, 3, first, callbacks=[counting()], max_epochs=3)
    assert ends == [1, 2]


def test_where_there_are_fewer_batches_than_before_training_goes_on_and_says_so(tmp_path: Path) -> None:
    _, path = saved(tmp_path, steps=8)
    resumed = Going()
    go_on(resumed, tmp_path, 4, path, max_epochs=3)
    record = resumed.midrun.resume.record
    assert record is not None
    assert record["exact"] is False
    assert "the loader ends before the 8 batches that were behind it" in record["reasons"]
    assert resumed.trainer.current_epoch == 3


@pytest.mark.filterwarnings("ignore:Found keys that are in the model state dict:UserWarning")
def test_weights_may_be_loaded_into_another_model_where_that_is_wanted(tmp_path: Path) -> None:
    _, path = saved(tmp_path)

    class Wider(Going):
        def __init__(self) -> None:
            super().__init__()
            self.more = torch.nn.Linear(2, 2)

    loaded = Wider.load_from_checkpoint(path, strict=False, weights_only=True)
    assert torch.equal(loaded.net.weight, torch.load(path, weights_only=True)["state_dict"]["net.weight"])


def test_a_live_run_is_nobody_s_to_go_on_with(tmp_path: Path) -> None:
    model, errors = Going(), []

    def begin() -> None:
        with pytest.raises(CheckpointError, match="is live: wait until it has ended") as error:
            fit(Going(resume=model.live.directory), tmp_path, 1)
        errors.append(error)

    model.at[1] = begin
    fit(model, tmp_path, 2)
    assert errors


def test_what_user_code_writes_through_lightning_is_no_error_of_midrun_s(tmp_path: Path) -> None:
    model = Going()
    model.at[1] = lambda: model.trainer.strategy.checkpoint_io.save_checkpoint({"mine": 1}, tmp_path / "mine.ckpt")
    fit(model, tmp_path, 2)
    assert Shelf(model.live.directory).entries() == []


class Logging(Going):
    """Logs as it is told."""

    how: dict[str, Any] = {}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("more", loss, **self.how)
        return loss


@pytest.mark.parametrize("how", [{"prog_bar": True}, {"reduce_fx": "max"}, {"on_step": True, "on_epoch": True}])
def test_what_is_logged_in_another_way_than_before_counts(how: dict[str, Any], tmp_path: Path) -> None:
    model = Logging()
    model.how = {"on_epoch": True, "on_step": False}
    model.at[2] = lambda: model.midrun.save_checkpoint(label="here")
    fit(model, tmp_path, 4)
    resumed = Logging()
    resumed.how = {**model.how, **how}
    go_on(resumed, tmp_path, 4, midrun.checkpoint(model.live.directory, "here"), max_epochs=2)
    assert resumed.global_step == 8


def test_who_makes_a_loader_sees_the_trainer_s_own_limits(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    seen = []

    class Looking(Going):
        def train_dataloader(self) -> Any:
            seen.append((self.trainer.max_epochs, self.trainer.max_steps))
            return batches(10)

    resumed = Looking()
    fitting = trainer(tmp_path, limit_val_batches=0, max_epochs=2)
    fitting.fit(resumed, val_dataloaders=batches(1), ckpt_path=path, weights_only=True)
    assert seen == [(2, -1)]
    assert resumed.global_step == 20


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_what_the_model_does_at_a_batch_s_end_after_a_callback_has_saved_is_said_to_be_lost(tmp_path: Path) -> None:
    class Model(Going):
        pass

    saving = ModelCheckpoint(tmp_path / "own", every_n_train_steps=3, save_top_k=-1)
    fit(Model(), tmp_path, 5, callbacks=[saving], enable_checkpointing=True)
    (path,) = (tmp_path / "own").iterdir()
    resumed = Model()
    again = ModelCheckpoint(tmp_path / "own", every_n_train_steps=3, save_top_k=-1)
    go_on(resumed, tmp_path, 5, path, callbacks=[again], enable_checkpointing=True)
    record = resumed.midrun.resume.record
    assert record is not None
    assert record["reasons"] == ["what Model does at the end of that batch is lost"]


def test_a_live_run_does_not_go_back_to_another_kind_of_optimizer(tmp_path: Path) -> None:
    class Plain(Going):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    other = Plain()
    other.at[2] = lambda: other.midrun.save_checkpoint(label="here")
    fit(other, tmp_path, 3)
    path = str(midrun.checkpoint(other.live.directory, "here"))
    model, errors = Going(), []

    def back() -> None:
        with pytest.raises(CheckpointError, match=r"has no 'betas': it is of another kind than Adam.*Nothing"):
            model.midrun.load_checkpoint(path)
        errors.append(path)

    model.at[2] = back
    fit(model, tmp_path, 4)
    assert errors
