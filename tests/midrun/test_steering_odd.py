"""Steering where it is hard: races, a queue that is full, tuners, Trainers within Trainers."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import LearningRateFinder

import midrun.queue
from midrun.command import Command
from midrun.commands import KINDS
from midrun.commands.kind import When
from midrun.fs.faults import Conflict, Unavailable
from midrun.fs.later import Later
from midrun.run import Run
from tests.midrun.models import Watched, batches, run_of, settled, trainer

LATER = When(global_step=10**9)


def sent(run: Run, kind: str, when: When | None = None, **args: Any) -> Later:
    """Send a command."""
    return run.queue.submit(Command(KINDS[kind], KINDS[kind].Arguments(**args), when))


def record(later: Later) -> dict[str, Any]:
    """Return the record of a command that was sent."""
    found: dict[str, Any] = settled(later)
    return found


class Acting(Watched):
    """Does something in its own training thread, at a batch, and goes on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(rest_enabled=False, fuse_enabled=False, **options)
        self.acts: dict[int, Any] = {}
        self.steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        act = self.acts.pop(self.steps, None)
        self.steps += 1
        if act is not None:
            act(run_of(self))
        return super().training_step(batch, batch_idx)


def test_whatever_was_acknowledged_before_the_end_of_a_session_comes_to_an_end(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    runs: list[Run] = []

    def hammer(run: Run) -> None:
        while True:
            later = sent(run, "checkpoint", LATER)
            try:
                acknowledged.append(record(later)["id"])
            except Conflict:
                return

    class Hammered(Acting):
        def begin(self, run: Run) -> None:
            runs.append(run)
            self.hammers = [threading.Thread(target=hammer, args=(run,), daemon=True) for _ in range(3)]
            for thread in self.hammers:
                thread.start()

    for _ in range(5):
        model = Hammered()
        model.acts[0] = model.begin
        trainer(tmp_path).fit(model, batches(5))
        for thread in model.hammers:
            thread.join(20)
            assert not thread.is_alive()
    statuses = {id_: run.queue.table.record(id_) for run in runs for id_ in acknowledged if id_ in run.queue.table}
    assert len(statuses) == len(acknowledged) > 0
    assert {found["status"] for found in statuses.values() if found is not None} == {"expired"}
    assert not list(tmp_path.rglob("spool/queued/*"))


def test_a_full_queue_keeps_out_neither_a_stop_nor_what_lets_a_run_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(midrun.queue, "LONGEST", 5)

    def fill(run: Run) -> None:
        for _ in range(5):
            record(sent(run, "checkpoint", LATER))
        with pytest.raises(Unavailable, match="5 commands wait already"):
            record(sent(run, "checkpoint"))
        new = run.directory / "spool/new"
        (new / "wait.json").write_text('{"kind": "snapshot"}')
        (new / "go.json").write_text('{"kind": "continue"}')
        (new / "end.json").write_text('{"kind": "stop"}')
        deadline = time.monotonic() + 20
        while not (run.directory / "spool/done/go.json").exists() or run.queue.table.record("end") is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (new / "wait.json").exists(), "it waits for a place"

    model = Acting()
    model.acts[1] = fill
    fitting = trainer(tmp_path)
    fitting.fit(model, batches(50))
    assert fitting.global_step < 10


def test_a_pause_that_has_just_begun_is_let_go_by_a_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, Any]] = []
    run_one = midrun.safepoint.SafePoints._run_one

    def slow(self: Any, command: Command, point: str) -> bool:
        if command.kind.name == "pause" and not answers:
            # As if the thread were stopped for a moment, right after it has claimed the command.
            claim = command.claim

            def claimed() -> bool:
                is_ours = claim()
                if threading.current_thread() is threading.main_thread():
                    answers.append(record(sent(self._run, "continue")))
                return is_ours

            command.claim = claimed  # type: ignore[method-assign]  # this one's
        return run_one(self, command, point)

    monkeypatch.setattr(midrun.safepoint.SafePoints, "_run_one", slow)
    model = Acting()
    model.acts[1] = lambda run: record(sent(run, "pause"))
    trainer(tmp_path).fit(model, batches(4))  # It comes to its end.
    assert answers[0]["released"] is not None


def test_no_hold_begins_after_a_stop_however_it_came(tmp_path: Path) -> None:
    ids: list[str] = []

    def both(run: Run) -> None:
        ids.extend(record(sent(run, kind, When(safe_point="fit_end")))["id"] for kind in ("stop", "hold"))

    model = Acting()
    model.acts[1] = both
    fitting = trainer(tmp_path)
    runs: list[Run] = []
    model.acts[0] = runs.append
    fitting.fit(model, batches(3))
    held = runs[0].queue.table.record(ids[1])
    assert held is not None
    assert held["status"] in {"cancelled", "failed"}


def test_a_stop_during_a_search_for_the_learning_rate_stops_the_training_too(tmp_path: Path) -> None:
    class Searched(Acting):
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.01

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    model = Searched()
    model.acts[3] = lambda run: record(sent(run, "stop"))
    fitting = trainer(tmp_path, max_epochs=5, callbacks=[LearningRateFinder(num_training_steps=20)])
    fitting.fit(model, batches(8))
    assert fitting.global_step <= 8
    assert fitting.current_epoch <= 1


def test_commands_that_are_cancelled_are_forgotten(tmp_path: Path) -> None:
    def cycle(run: Run) -> None:
        for _ in range(50):
            record(sent(run, "cancel", id=record(sent(run, "checkpoint", LATER))["id"]))

    waiting: list[int] = []
    model = Acting()
    model.acts[1] = cycle
    model.acts[3] = lambda run: waiting.append(len(run.points._waiting))
    trainer(tmp_path).fit(model, batches(5))
    assert waiting == [0]


def test_another_trainer_that_validates_the_model_in_a_hook_leaves_the_run_alone(
    tmp_path: Path, warned: list[str]
) -> None:
    class Nested(Acting):
        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            mine = self._trainer
            trainer(tmp_path / "other").validate(self, batches(2), verbose=False)
            self.trainer = mine  # Lightning leaves that to whoever does this.

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.loss(batch)

    model = Nested()
    model.acts[2 + 3] = lambda run: record(sent(run, "stop", When(safe_point="train_epoch_end")))
    fitting = trainer(tmp_path, max_epochs=9)
    fitting.fit(model, batches(4), batches(1))
    assert fitting.current_epoch == 2, "it can be stopped after the validation"
    assert any("another Trainer uses the model" in warning for warning in warned)
    (path,) = (tmp_path / "midrun").glob("*/run.json")
    assert json.loads(path.read_text())["session"]["outcome"] == "finished"
    assert model.midrun.run is None


def test_a_long_value_that_changes_at_its_end_is_a_change(tmp_path: Path) -> None:
    class Wordy(Acting):
        midrun_tunable_hparams = ("words",)
        words = "a" * 20_000

    results: list[dict[str, Any]] = []
    model = Wordy()
    ids: list[str] = []
    model.acts[1] = lambda run: ids.append(
        record(sent(run, "set_hparam", name="words", value="a" * 19_999 + "b"))["id"]
    )
    model.acts[3] = lambda run: results.append(run.queue.table.record(ids[0]))
    trainer(tmp_path).fit(model, batches(5))
    assert [change["what"] for change in results[0]["result"]["changes"]] == ["words"]
    assert model.words.endswith("ab")


def test_a_lock_that_is_deleted_costs_a_live_run_none_of_its_commands(tmp_path: Path) -> None:
    def lose(run: Run) -> None:
        spool = run.directory / "spool"
        kept = record(sent(run, "set_learning_rate", When(safe_point="fit_end"), value=0.5))["id"]
        (spool / "lock").unlink()
        deadline = time.monotonic() + 20
        while not (spool / "lock").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        record(sent(run, "snapshot", LATER))  # By then it is owned anew.
        assert (spool / "queued" / f"{kept}.json").exists()
        ids.append(kept)

    ids: list[str] = []
    runs: list[Run] = []
    model = Acting()
    model.acts[0] = runs.append
    model.acts[1] = lose
    trainer(tmp_path).fit(model, batches(4))
    found = runs[0].queue.table.record(ids[0])
    assert found is not None
    assert found["status"] == "succeeded"


@pytest.mark.parametrize("kind", ["set_learning_rate", "reset_momentum", "set_optimizer_option"])
@pytest.mark.filterwarnings("ignore:.*will run with no optimizer:UserWarning")
def test_of_a_model_without_optimizers_none_is_set_or_shown(kind: str, tmp_path: Path) -> None:
    class Alone(Acting):
        def configure_optimizers(self) -> Any:
            return None

    args: dict[str, dict[str, Any]] = {
        "set_learning_rate": {"value": 0.1},
        "set_optimizer_option": {"option": "weight_decay", "value": 0.1},
        "reset_momentum": {},
    }

    def act(run: Run) -> None:
        assert run.loop.optimizers == []
        record(sent(run, kind, **args[kind]))

    model = Alone()
    model.acts[0] = act
    trainer(tmp_path).fit(model, batches())
    [path] = tmp_path.rglob("spool/done/*.json")
    error = json.loads(path.read_bytes())["error"]
    assert error["type"] == "Conflict"
    assert error["message"].startswith("the run has no optimizer: ")
