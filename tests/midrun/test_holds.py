"""Holds: training stands still until it is let go, can be looked at and changed meanwhile, and then goes on as ever."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, Timer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from midrun.command import EVALUATION, POINTS, Command
from midrun.fs.faults import Conflict, NotFound
from midrun.fs.write import Writer
from tests.midrun.models import (
    batches,
    document,
    only_directory,
    read,
    record,
    run_of,
    runs,
    settled,
    threads,
    trainer,
)
from tests.midrun.steering import Steered, aside, done, failed, fit, give, held, outcome, until, where

BATCH, EPOCH, VALIDATION, STEP, FIT = POINTS

pytestmark = pytest.mark.usefixtures("signals")


class Tunable(Steered):
    """Has a value that can be set, and notes what it was in each batch."""

    midrun_tunable_hparams = ["scale"]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scale = 1.0
        self.scales: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.scales.append(self.scale)
        return super().training_step(batch, batch_idx) * self.scale


def steer(model: Steered, root: Path, act: Callable[[], object], **options: Any) -> L.Trainer:
    """Pause at the second of four batches, and `act` in another thread."""
    model.plan[1] = lambda: model.give("pause")
    with aside(model, act):
        return fit(model, root, 4, **options)


def release(model: Steered) -> None:
    """Let the active hold go."""
    active = held(model)
    give(model.live, "release", id=active.command.id)


def holds(model: Steered) -> dict[str, Any]:
    """Return what `holds/index.json` shows."""
    return document(model, "holds/index.json")


# ---- what it shows


def test_a_pause_holds_before_the_next_step_and_shows_where(tmp_path: Path) -> None:
    model = Steered()
    place = {"safe_point": STEP, "global_step": 1, "epoch": 0, "batch": 1}

    def act() -> None:
        active = held(model)
        shown = holds(model)
        assert shown["active"]["id"] == active.command.id
        assert shown["active"]["status"] == "active"
        assert shown["active"]["place"] == place
        assert shown["active"]["is_pause"] is True
        assert shown["active"]["ended"] is shown["active"]["released_by"] is None
        assert abs(time.time() - shown["active"]["since"]) < 5
        assert (shown["exception"], shown["pending"], shown["waiting"], shown["stopped"]) == (None, [], [], False)
        assert document(model, f"holds/{active.command.id}/hold.json") == shown["active"]
        assert read(model, f"commands/{active.command.id}/status") == "executing"
        release(model)

    steer(model, tmp_path, act)


def test_a_hold_that_is_over_says_who_let_it_go_and_how_long_it_lasted(tmp_path: Path) -> None:
    model = Steered()
    paused = []

    def act() -> None:
        paused.append(held(model).command)
        settled(model.live.tree.write("control/continue", b"", writer=Writer(via="rest")))

    steer(model, tmp_path, act)
    result = done(model.live, paused[0])
    assert result["released_by"] == "rest"
    assert result["joined_ids"] == []
    assert 0 < result["held_s"] < 20
    assert where(model.live, paused[0]) == (STEP, 1, 0, 1)
    entries = [json.loads(line) for line in (model.live.directory / "control-log.jsonl").read_text().splitlines()]
    assert [(entry["event"], entry["kind"]) for entry in entries] == [
        ("held", "pause"),
        ("done", "continue"),
        ("released", "pause"),
    ]


def test_a_held_run_says_so_and_shows_where_it_stands(tmp_path: Path) -> None:
    losses: list[float] = []

    class Model(Steered):
        def loss(self, batch: list[Tensor]) -> Tensor:
            loss = super().loss(batch)
            losses.append(loss.item())
            return loss

    model = Model()

    def act() -> None:
        held(model)
        assert read(model, "state/status") == "held"
        assert read(model, "state/stage") == "train"
        index = document(model, "state/index.json")
        assert (index["status"], index["global_step"], index["epoch"], index["batch"]) == ("held", 1, 0, 1)
        assert float(read(model, "state/metrics/loss")) == losses[-1]
        assert len(losses) == 2
        done(model.live, model.give("set_learning_rate", value=0.5))
        assert document(model, "state/optimizers.json")["optimizers"][0]["groups"][0]["lr"] == 0.5
        release(model)

    steer(model, tmp_path, act)
    assert model.live.status == "finished"
    assert len(losses) == 4


@pytest.mark.parametrize("point", POINTS)
def test_a_hold_can_be_scheduled_at_each_safe_point(point: str, tmp_path: Path) -> None:
    model = Steered()
    model.plan[0] = lambda: model.give("hold", {"safe_point": point}, reason="to look")

    def act() -> None:
        held(model)
        shown = holds(model)["active"]
        assert (shown["place"]["safe_point"], shown["reason"], shown["is_pause"]) == (point, "to look", False)
        assert read(model, "state/status") == "held"
        release(model)

    with aside(model, act):
        fit(model, tmp_path, 2, 1)
    assert document_of_end(tmp_path)["outcome"] == "finished"


def document_of_end(root: Path) -> dict[str, Any]:
    """Return how the session ended, from `run.json`."""
    session: dict[str, Any] = record(only_directory(root))["session"]
    return session


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_stage_of_its_own_is_held_at_the_end_of_a_batch(stage: str, tmp_path: Path) -> None:

    def act() -> None:
        until(lambda: model.midrun.run)
        give(run_of(model), "pause")
        active = held(model)
        assert active.place["safe_point"] == EVALUATION
        assert read(model, "state/status") == "held"
        assert read(model, "state/stage") == stage
        release(model)

    class Model(Steered):
        def setup(self, stage: str) -> None:
            super().setup(stage)
            until(lambda: self.live.queue.table.queued)

    model = Model()
    with aside(model, act):
        getattr(trainer(tmp_path), stage)(model, batches(2))


# ---- letting go, joining, cancelling


def test_continue_lets_the_active_hold_go(tmp_path: Path) -> None:
    model = Steered()

    def act() -> None:
        active = held(model)
        sent = model.give("continue")
        assert done(model.live, sent) == {"cancelled_holds": [], "released": active.command.id}

    steer(model, tmp_path, act)


def test_continue_cancels_a_pause_that_is_not_active_yet_and_no_other_hold(tmp_path: Path) -> None:
    model = Steered()
    sent: dict[str, Any] = {}

    def send() -> None:
        sent["pause"] = model.give("pause")
        sent["hold"] = model.give("hold")
        sent["scheduled"] = model.give("hold", {"safe_point": EPOCH})
        sent["continue"] = model.give("continue")

    def act() -> None:
        assert held(model).command is sent["hold"]
        release(model)
        until(lambda: model.live.holds.active and model.live.holds.active.command is sent["scheduled"])
        release(model)

    model.plan[1] = send
    with aside(model, act):
        fit(model, tmp_path)
    assert done(model.live, sent["continue"]) == {"cancelled_holds": [sent["pause"].id], "released": None}
    cancelled = outcome(model.live, sent["pause"])
    assert (cancelled["status"], cancelled["started"]) == ("cancelled", None)
    assert where(model.live, sent["hold"])[0] == STEP
    assert where(model.live, sent["scheduled"])[0] == EPOCH


def test_continue_with_nothing_to_let_go_does_nothing_and_says_so(tmp_path: Path) -> None:
    model = Steered()
    sent = []
    model.plan[1] = lambda: sent.append(model.give("continue"))
    fit(model, tmp_path)
    assert done(model.live, sent[0]) == {
        "cancelled_holds": [],
        "released": None,
        "notes": ["nothing was held"],
    }


@pytest.mark.parametrize("by", ["first", "second"])
def test_a_hold_that_becomes_due_joins_the_active_one_and_either_id_lets_go(by: str, tmp_path: Path) -> None:
    model = Steered()
    sent: dict[str, Any] = {}

    def act() -> None:
        sent["first"] = held(model).command
        sent["second"] = model.give("hold", reason="me too")
        result = done(model.live, sent["second"])
        assert result == {"active_hold_id": sent["first"].id}
        shown = holds(model)
        assert shown["active"]["joined_ids"] == [sent["second"].id]
        assert shown["pending"] == []
        assert document(model, f"holds/{sent['second'].id}/hold.json")["status"] == "joined"
        model.give("release", id=sent[by].id)

    steer(model, tmp_path, act)
    assert done(model.live, sent["first"])["joined_ids"] == [sent["second"].id]


def test_holds_that_are_due_together_join_as_well(tmp_path: Path) -> None:
    model = Steered()
    sent: list[Any] = []

    def act() -> None:
        active = held(model)
        until(lambda: len(active.joined_ids) == 2)
        release(model)

    model.plan[1] = lambda: sent.extend(model.give(kind) for kind in ("hold", "pause", "hold"))
    with aside(model, act):
        fit(model, tmp_path)
    assert [done(model.live, joined) for joined in sent[1:]] == [{"active_hold_id": sent[0].id}] * 2


def test_a_hold_that_is_not_due_yet_does_not_join(tmp_path: Path) -> None:
    model = Steered()
    sent: dict[str, Any] = {}

    def is_active(command: Command) -> bool:
        active = model.live.holds.active
        return active is not None and active.command is command

    def act() -> None:
        active = held(model)
        sent["later"] = model.give("hold", {"safe_point": STEP, "global_step": 3})
        sent["other"] = model.give("hold", {"safe_point": BATCH})
        sent["now"] = model.give("hold", {"safe_point": STEP, "global_step": 1})
        done(model.live, sent["now"])
        assert active.joined_ids == [sent["now"].id]
        assert [hold["id"] for hold in holds(model)["pending"]] == [sent["later"].id, sent["other"].id]
        release(model)
        for name in ("other", "later"):
            until(partial(is_active, sent[name]))
            release(model)

    steer(model, tmp_path, act)
    assert where(model.live, sent["other"]) == (BATCH, 2, 0, 1)
    assert where(model.live, sent["later"]) == (STEP, 3, 0, 3)


def test_only_a_hold_that_is_not_active_yet_can_be_cancelled(tmp_path: Path) -> None:
    model = Steered()
    sent: dict[str, Any] = {}

    def act() -> None:
        active = held(model).command
        sent["scheduled"] = model.give("hold", {"safe_point": EPOCH})
        sent["joined"] = model.give("hold")
        done(model.live, sent["joined"])
        with pytest.raises(Conflict, match="it is an active hold; release it instead"):
            model.give("cancel", id=active.id)
        for id_ in (active.id, sent["joined"].id):
            with pytest.raises(Conflict, match="only what waits"):
                model.give("cancel", id=id_)
            with pytest.raises(Conflict, match="only what waits"):
                settled(model.live.tree.write(f"holds/{id_}/cancel", b""))
        with pytest.raises(NotFound, match="nobody"):
            model.give("cancel", id="nobody")
        settled(model.live.tree.write(f"holds/{sent['scheduled'].id}/cancel", b""))
        assert outcome(model.live, sent["scheduled"])["status"] == "cancelled"
        with pytest.raises(Conflict, match="cancelled"):
            model.give("cancel", id=sent["scheduled"].id)
        assert model.live.holds.active is not None
        release(model)

    steer(model, tmp_path, act)


def test_only_an_active_hold_can_be_released(tmp_path: Path) -> None:

    def act() -> None:
        active = held(model)
        scheduled = model.give("hold", {"safe_point": EPOCH})
        with pytest.raises(Conflict, match="not active"):
            model.give("release", id=scheduled.id)
        with pytest.raises(NotFound):
            model.give("release", id="nobody")
        model.give("cancel", id=scheduled.id)
        release(model)
        with pytest.raises(Conflict, match="not active"):
            model.give("release", id=active.command.id)

    class Model(Steered):
        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            assert over.wait(20)

    over = threading.Event()
    model = Model()

    def act_and_say() -> None:
        try:
            act()
        finally:
            over.set()

    steer(model, tmp_path, act_and_say)


def test_what_is_queued_when_the_session_ends_expires(tmp_path: Path) -> None:
    sent: list[Any] = []

    def send() -> None:
        sent.append(model.give("hold", {"safe_point": STEP, "global_step": 100}))
        sent.append(model.give("snapshot", {"epoch": 100}))
        sent.append(model.give("pause"))

    class Model(Steered):
        def on_train_epoch_end(self) -> None:
            send()  # After the last step.
            super().on_train_epoch_end()

    model = Model()
    fit(model, tmp_path)
    for expired in sent:
        ended = outcome(model.live, expired)
        assert (ended["status"], ended["started"], ended["place"]) == ("expired", None, None)
        assert ended["error"] is not None
        assert ended["error"]["type"] == "expired"


# ---- what runs while it is held


def test_while_held_what_changes_the_run_is_done_and_the_rest_waits(tmp_path: Path) -> None:
    model = Tunable()
    sent: dict[str, Any] = {}

    def act() -> None:
        held(model)
        sent["checkpoint"] = model.give("checkpoint", label="before")
        sent["snapshot"] = model.give("snapshot")
        sent["set_learning_rate"] = model.give("set_learning_rate", value=0.5)
        sent["set_optimizer_option"] = model.give("set_optimizer_option", option="weight_decay", value=0.25)
        sent["set_gradient_clip"] = model.give("set_gradient_clip", value=1.0)
        sent["set_hparam"] = model.give("set_hparam", name="scale", value=2)
        for due in sent.values():
            assert done(model.live, due)
            assert where(model.live, due) == (STEP, 1, 0, 1)
        sent["later"] = model.give("snapshot", {"safe_point": EPOCH})
        sent["this step"] = model.give("snapshot", {"global_step": 1})
        sent["this point"] = model.give("snapshot", {"safe_point": STEP})
        assert [done(model.live, sent[name]) is not None for name in ("this step", "this point")] == [True, True]
        assert [waiting["id"] for waiting in holds(model)["waiting"]] == [sent["later"].id]
        release(model)

    steer(model, tmp_path, act)
    assert where(model.live, sent["later"]) == (EPOCH, 4, 0, 3)
    assert model.scales == [1, 1, 2, 2]


def test_a_command_given_while_held_changes_the_very_next_step(tmp_path: Path) -> None:
    weights: list[Tensor] = []
    gradients: list[Tensor] = []

    class Model(Steered):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            assert self.net.weight.grad is not None
            weights.append(self.net.weight.detach().clone())
            gradients.append(self.net.weight.grad.clone())

    model = Model()
    weights.append(model.net.weight.detach().clone())

    def act() -> None:
        held(model)
        done(model.live, model.give("set_learning_rate", value=0.5))
        release(model)

    steer(model, tmp_path, act)
    rates = [0.125, 0.5, 0.5, 0.5]
    for number, rate in enumerate(rates):
        assert torch.allclose(weights[number] - weights[number + 1], rate * gradients[number], atol=1e-6)


def test_what_came_before_a_release_is_done_before_it(tmp_path: Path) -> None:
    sent: dict[str, Any] = {}
    busy, go_on = threading.Event(), threading.Event()

    class Model(Steered):
        def on_save_checkpoint(self, checkpoint: Any) -> None:
            busy.set()
            assert go_on.wait(20)

    def act() -> None:
        held(model)
        # As a script sends them, one right after the other, while the first one takes its time.
        sent["checkpoint"] = model.give("checkpoint")
        assert busy.wait(20)
        sent["rate"] = model.give("set_learning_rate", value=0.5)
        model.give("continue")
        go_on.set()

    model = Model()
    steer(model, tmp_path, act)
    assert where(model.live, sent["checkpoint"]) == (STEP, 1, 0, 1)
    assert where(model.live, sent["rate"]) == (STEP, 1, 0, 1)


# ---- after a stop


def test_after_a_stop_nothing_is_held_until_the_next_session_begins(tmp_path: Path) -> None:
    refused = []

    class Model(Steered):
        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            if self.trainer.should_stop:
                assert document(self, "holds/index.json")["stopped"] is True
                for kind in ("hold", "pause"):
                    with pytest.raises(Conflict, match="stop"):
                        self.give(kind)
                with pytest.raises(Conflict, match="stop"):
                    settled(self.live.tree.write("control/pause", b""))
                refused.append(True)

    model = Model()
    model.plan[1] = lambda: model.give("stop")
    fitting = fit(model, tmp_path)
    assert refused == [True]
    model.plan = {2: lambda: model.give("pause")}

    def act() -> None:
        held(model)
        release(model)

    fitting.fit_loop.max_epochs = 2
    with aside(model, act):
        fitting.fit(model, batches(3), batches(1))
    assert model.live.holds.stopped is False


def test_a_stop_cancels_pending_holds_and_lets_the_active_one_go(tmp_path: Path) -> None:
    model = Steered()
    sent: dict[str, Any] = {}

    def act() -> None:
        sent["active"] = held(model).command
        sent["pending"] = model.give("hold", {"safe_point": EPOCH})
        sent["stop"] = model.give("stop")
        assert done(model.live, sent["stop"]) == {
            "cancelled_holds": [sent["pending"].id],
            "released": sent["active"].id,
        }

    fitting = steer(model, tmp_path, act)
    assert done(model.live, sent["active"])["released_by"] == "stop"
    assert outcome(model.live, sent["pending"])["status"] == "cancelled"
    assert fitting.global_step == 2


# ---- the end of the process


def test_ctrl_c_ends_a_held_run(tmp_path: Path) -> None:
    model = Steered()
    paused = []

    def act() -> None:
        paused.append(held(model).command)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with pytest.raises((SystemExit, KeyboardInterrupt)):
        steer(model, tmp_path, act)
    assert (threads(), runs(model)) == ([], False)
    assert failed(model.live, paused[0])[0] == "KeyboardInterrupt"
    assert document_of_end(tmp_path)["outcome"] == "interrupted"
    assert record(model.live.directory / "spool" / "holds", f"{paused[0].id}.json")["status"] == "failed"


def test_sigterm_ends_a_held_run(tmp_path: Path) -> None:
    model = Steered()
    paused = []

    def act() -> None:
        paused.append(held(model).command)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SIGTERMException):
        steer(model, tmp_path, act)
    assert (threads(), runs(model)) == ([], False)
    assert done(model.live, paused[0])["released_by"] == "SIGTERM"
    assert document_of_end(tmp_path)["outcome"] == "interrupted"


def test_sigterm_ends_a_held_run_however_long_its_handler_takes(tmp_path: Path) -> None:
    class Slow(Steered):
        def on_train_start(self) -> None:
            super().on_train_start()
            lightnings: Any = signal.getsignal(signal.SIGTERM)

            def handle(number: int, frame: Any) -> None:
                lightnings(number, frame)
                threading.Event().wait(0.3)  # Beyond the end of a look, as on a busy machine.

            signal.signal(signal.SIGTERM, handle)

    model = Slow()
    paused = []

    def act() -> None:
        paused.append(held(model).command)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: paused[0].released_by)  # Nothing is sent meanwhile, which would end the wait.

    with pytest.raises(SIGTERMException):
        steer(model, tmp_path, act)
    assert done(model.live, paused[0])["released_by"] == "SIGTERM"


# ---- that it leaves no trace


class Random(Steered):
    """Draws random numbers as it trains, and logs, with a scheduler."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))  # type: ignore[assignment]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def shuffled(workers: int = 0) -> DataLoader[Any]:
    """Return a loader of four batches in an order that is drawn."""
    data = TensorDataset(torch.arange(48.0).view(16, 3) / 48, torch.ones(16, 1))
    more: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "timeout": 5} if workers else {}
    return DataLoader(data, batch_size=4, shuffle=True, **more)


def state(model: L.LightningModule, fitting: L.Trainer) -> dict[str, Tensor]:
    """Return all that a run ends with: weights, buffers, the optimizer's state, and where randomness stands."""
    kept = {**model.state_dict(), "rng": torch.get_rng_state()}
    for number, moments in fitting.optimizers[0].state_dict()["state"].items():
        kept |= {f"{number}/{name}": value for name, value in moments.items()}
    return kept


def trained(root: Path, plan: dict[int, Any], act: Callable[[Steered], object] | None = None) -> dict[str, Tensor]:
    """Train two epochs, and return what that ends with."""
    model = Random()
    model.plan = {number: partial(call, model) for number, call in plan.items()}
    fitting = trainer(root, max_epochs=2, num_sanity_val_steps=0)
    torch.manual_seed(4)
    if act is None:
        fitting.fit(model, shuffled(), batches(1))
    else:
        with aside(model, lambda: act(model)):
            fitting.fit(model, shuffled(), batches(1))
    return state(model, fitting)


def assert_identical(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_a_run_that_was_held_ends_bit_for_bit_as_one_that_was_not(tmp_path: Path) -> None:
    points = [{"safe_point": point} for point in (STEP, BATCH, EPOCH, VALIDATION, FIT)]

    def act(model: Steered) -> None:
        for _ in points:
            release(model)

    plan = {2: lambda model: [model.give("hold", when) for when in points]}
    assert_identical(trained(tmp_path / "held", plan, act), trained(tmp_path / "not", {}))


def test_workers_loggers_bars_and_monitors_outlast_a_hold(tmp_path: Path) -> None:
    model = Random()

    def act() -> None:
        began = held(model).since
        until(lambda: time.time() > began + 1)
        release(model)

    fitting = trainer(
        tmp_path,
        max_epochs=2,
        num_sanity_val_steps=0,
        enable_progress_bar=True,
        logger=CSVLogger(tmp_path, "logs"),
        log_every_n_steps=1,
        callbacks=[LearningRateMonitor("step"), Timer()],
        limit_val_batches=0,
    )
    model.plan[1] = lambda: model.give("pause")
    with aside(model, act):
        fitting.fit(model, shuffled(workers=2), batches(1))
    assert fitting.global_step == 8
    logged = (tmp_path / "logs" / "version_0" / "metrics.csv").read_text().splitlines()
    steps = {line.split(",")[logged[0].split(",").index("step")] for line in logged[1:]}
    assert steps >= {str(step) for step in range(8)}


def test_a_held_run_takes_next_to_no_time_of_a_core(tmp_path: Path) -> None:
    model = Steered()
    shares = []

    def act() -> None:
        held(model)
        process, own = time.process_time(), time.thread_time()
        began = time.monotonic()
        # This is what is measured, and not a wait for something.
        assert not threading.Event().wait(2.5)
        spent = time.process_time() - process - (time.thread_time() - own)
        shares.append(spent / (time.monotonic() - began))
        release(model)

    steer(model, tmp_path, act)
    assert shares[0] < 0.01
