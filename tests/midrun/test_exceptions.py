"""Held exceptions: a `backward()` that raises leaves a run that waits to be inspected, and ends when it is let go."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.tuner.tuning import Tuner
from torch import Tensor

from midrun.commands.artifacts import Snapshot
from midrun.fs.faults import Conflict
from midrun.hold import Caught
from midrun.run import Run
from tests.midrun.models import (
    Staged,
    batches,
    document,
    left_as_it_was,
    only_directory,
    read,
    record,
    runs,
    settled,
    trainer,
)
from tests.midrun.steering import Steered, aside, command, done, failed, fit, give, outcome, until


class Mine(Exception):  # noqa: N818 - the name shall be told from Python's own
    """An exception that nobody knows."""


CUDA = (
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API"
    " call, so the stacktrace below might be incorrect."
)
ERRORS: list[Exception] = [
    Mine("in a user's own function"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError(CUDA),
]


class Raising(torch.autograd.Function):
    """A user's own function, whose backward raises."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, error: Exception | None) -> Tensor:
        ctx.error = error
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.error is not None:
            raise ctx.error
        return gradients[0], None


def raising(value: Tensor, error: Exception | None) -> Tensor:
    """Return the value; if there is an error, its backward raises it."""
    passed: Tensor = Raising.apply(value, error)  # type: ignore[no-untyped-call]  # torch's own
    return passed


class Failing(Steered):
    """Its third backward pass raises, after it has come to the gradients of the last layer."""

    fails_at = 2

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.error: Exception = Mine("here")
        self.first = torch.nn.Linear(3, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        hidden = raising(self.first(batch[0]), self.error if self.begun - 1 == self.fails_at else None)
        loss = torch.nn.functional.mse_loss(self.net(hidden), batch[1])
        self.log("loss", loss)
        return loss


pytestmark = pytest.mark.usefixtures("signals")


def caught(model: Any) -> Caught:
    """Return what holds the model's run, once an exception does."""

    def look() -> Caught | None:
        run: Run | None = model.midrun.run
        return None if run is None else run.holds.exception

    return until(look)


def steered(model: Failing, root: Path, act: Callable[[], object], **options: Any) -> Exception:
    """Train with another thread that `act`s once the run is held, and return what training raised."""

    def held() -> None:
        caught(model)
        try:
            act()
        except BaseException:
            model.live.holds.release_exception("a test that broke")
            raise

    with aside(model, held), pytest.raises(type(model.error)) as raised:
        fit(model, root, 5, **options)
    assert isinstance(raised.value, Exception)
    return raised.value


def release(model: Failing) -> None:
    give(model.live, "release_exception")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_of_backward_holds_the_run_is_inspected_and_is_raised_again(
    tmp_path: Path, error: Exception
) -> None:
    model = Failing()
    model.error = error

    def act() -> None:
        run = model.live
        assert read(model, "state/status") == "held"
        shown = document(model, "holds/index.json")
        assert shown["active"] is None
        assert shown["exception"] == document(model, "state/index.json")["exception"]
        assert shown["exception"] == document(model, "state/exception.json")
        kind = type(error)
        module = "" if kind is RuntimeError else f"{kind.__module__}."
        expected = {"type": f"{module}{kind.__qualname__}", "message": str(error)}
        place = {"global_step": 2, "epoch": 0, "batch": 2}
        assert shown["exception"].items() >= {**expected, **place}.items()
        assert "in backward\n    raise ctx.error" in shown["exception"]["traceback"]
        batch, loss = give(run, "save_current_batch"), give(run, "save_current_loss")
        for sent in (batch, loss):
            done(run, sent)
        release(model)

    before = error.__traceback__
    assert before is None
    assert steered(model, tmp_path, act) is error
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[-1] == "backward"
    assert "training_step" not in frames  # It is the backward pass's own.
    error.__traceback__ = None
    saved = torch.load(next(only_directory(tmp_path).glob("artifacts/debug/batch-*.pt")), weights_only=True)
    expected = list(batches(5))[2]
    assert all(torch.equal(kept, given) for kept, given in zip(saved["batch"], expected, strict=True))
    assert record(only_directory(tmp_path))["session"]["outcome"] == "failed"
    assert record(only_directory(tmp_path), "last-state.json")["exception"]["message"] == str(error)


def test_the_loss_and_the_gradients_that_a_failed_backward_came_to_can_be_saved(tmp_path: Path) -> None:
    model = Failing()

    def act() -> None:
        for kind in ("save_current_loss", "save_partial_gradients", "save_optimizer_summary", "checkpoint", "snapshot"):
            done(model.live, give(model.live, kind))
        release(model)

    steered(model, tmp_path, act)
    debug = only_directory(tmp_path) / "artifacts/debug"
    gradients = torch.load(next(debug.glob("gradients-*.pt")), weights_only=True)
    assert set(gradients["gradients"]) == {"net.weight", "net.bias"}
    assert set(gradients["without"]) == {"first.weight", "first.bias"}
    assert gradients["loss_scale"] == {}
    loss = torch.load(next(debug.glob("loss-*.pt")), weights_only=True)
    assert loss["loss"].shape == ()
    assert loss["grad_fn"] == "DivBackward0"  # by accumulate_grad_batches


def test_without_the_option_the_exception_is_raised_at_once(tmp_path: Path) -> None:
    model = Failing(break_on_backward_exception=False)
    with pytest.raises(Mine):
        fit(model, tmp_path, 5)
    assert "held" not in (only_directory(tmp_path) / "midrun.log").read_text()


def test_who_is_told_of_exceptions_is_told_before_the_run_is_held(tmp_path: Path) -> None:
    told = []

    class Messenger(L.Callback):
        def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
            told.append((str(exception), pl_module.live.status))

    model = Failing()

    def act() -> None:
        assert told == [("here", "interrupted")]
        release(model)

    steered(model, tmp_path, act, callbacks=[Messenger()])
    assert len(told) == 1


def test_nothing_is_left_on_the_trainer_and_nothing_lives_longer(tmp_path: Path) -> None:
    model = Failing()
    with left_as_it_was():
        kept = steered(model, tmp_path, lambda: release(model))
        del vars(model)["live"]
    assert kept.__traceback__ is not None  # Whoever keeps the exception keeps nothing of the run by it.
    strategy = model.trainer.strategy
    assert not {"on_exception", "teardown"} & vars(strategy).keys()
    assert not runs(model)


def test_release_exception_is_a_conflict_when_no_exception_holds_the_run(tmp_path: Path) -> None:
    model = Steered()
    refused = []

    def ask() -> None:
        with pytest.raises(Conflict) as fault:
            model.give("release_exception")
        refused.append(fault.value.message)

    model.plan[0] = ask
    fit(model, tmp_path)
    assert refused == ["no exception holds the run"]


def test_a_second_release_is_a_conflict(tmp_path: Path) -> None:
    model = Failing()
    refused = []

    def act() -> None:
        both = [model.live.queue.submit(command("release_exception")) for _ in range(2)]
        assert settled(both[0])["exception"] == f"{__name__}.Mine"
        with pytest.raises(Conflict) as fault:
            settled(both[1])
        refused.append(fault.value.message)

    steered(model, tmp_path, act)
    assert len(refused) == 1


def test_gradients_of_a_failed_backward_are_labelled_with_the_scale_that_they_have(tmp_path: Path) -> None:
    model = Failing()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    def act() -> None:
        for kind in ("save_partial_gradients", "save_current_loss"):
            done(model.live, give(model.live, kind))
        release(model)

    steered(model, tmp_path, act, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    debug = only_directory(tmp_path) / "artifacts/debug"
    gradients = torch.load(next(debug.glob("gradients-*.pt")), weights_only=True)
    assert gradients["loss_scale"] == {"net.weight": 64.0, "net.bias": 64.0}
    loss = torch.load(next(debug.glob("loss-*.pt")), weights_only=True)
    assert loss["loss"] < 64  # It is the loss itself.


def test_commands_that_do_not_run_meanwhile_are_waiting_and_then_never_run(tmp_path: Path) -> None:
    model = Failing()
    sent: dict[str, Any] = {}
    model.plan[2] = lambda: sent.update(pause=model.give("pause"))

    def act() -> None:
        run = model.live
        with pytest.raises(Conflict, match="there is nothing to hold"):
            give(run, "pause")
        sent["later"] = give(run, "checkpoint", {"global_step": 100})
        sent["elsewhere"] = give(run, "set_learning_rate", {"safe_point": "train_epoch_end"}, value=0.5)
        done(run, give(run, "snapshot"))
        shown = document(model, "holds/index.json")
        assert [one["id"] for one in shown["waiting"]] == [sent["later"].id, sent["elsewhere"].id]
        assert [one["id"] for one in shown["pending"]] == [sent["pause"].id]
        assert all(given.status == "queued" for given in sent.values())
        release(model)

    steered(model, tmp_path, act)
    ends = {name: outcome(model.live, given) for name, given in sent.items()}
    assert {end["status"] for end in ends.values()} == {"expired"}
    assert all(end["error"] is not None for end in ends.values())


def test_continue_releases_no_exception_and_cancels_a_pause(tmp_path: Path) -> None:
    model = Failing()

    paused = []
    model.plan[2] = lambda: paused.append(model.give("pause"))

    def act() -> None:
        result = done(model.live, give(model.live, "continue"))
        notes = ["an exception holds the run: release_exception, or stop, lets it end"]
        assert result == {"cancelled_holds": [paused[0].id], "released": None, "notes": notes}
        assert model.live.holds.exception is not None
        release(model)

    steered(model, tmp_path, act)


def test_a_stop_ends_the_run_with_the_exception(tmp_path: Path) -> None:
    model = Failing()
    sent = []

    def act() -> None:
        sent.append(give(model.live, "stop"))

    steered(model, tmp_path, act)
    assert outcome(model.live, sent[0])["status"] == "succeeded"
    assert record(only_directory(tmp_path))["session"]["outcome"] == "failed"


def test_a_run_that_was_stopped_is_not_held(tmp_path: Path) -> None:
    model = Failing()
    model.plan[2] = lambda: vars(model.live.holds).update(stopped=True)
    with pytest.raises(Mine):
        fit(model, tmp_path, 5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_run_with_the_exception_that_is_held(tmp_path: Path, number: signal.Signals) -> None:
    model = Failing()
    steered(model, tmp_path, lambda: os.kill(os.getpid(), number))
    log = (only_directory(tmp_path) / "midrun.log").read_text()
    assert f"released by {'KeyboardInterrupt' if number == signal.SIGINT else 'SIGTERM'}" in log


def test_the_log_says_what_was_raised_and_what_to_do(tmp_path: Path) -> None:
    model = Failing()
    steered(model, tmp_path, lambda: release(model))
    directory = only_directory(tmp_path)
    log = (directory / "midrun.log").read_text()
    assert f"backward() raised {__name__}.Mine: here\n" in log
    assert f"midrun send {directory} release_exception" in log
    [line] = [json.loads(line) for line in (directory / "control-log.jsonl").read_text().splitlines()]
    assert (line["kind"], line["event"], line["result"]) == (
        "release_exception",
        "done",
        {"exception": f"{__name__}.Mine"},
    )


class Manual(Failing):
    """Optimizes by itself, and goes on after an exception of its backward pass."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        with contextlib.suppress(Mine):
            self.manual_backward(loss)
        optimizer.step()


def test_a_model_that_takes_the_exception_goes_on_and_is_not_held(tmp_path: Path) -> None:
    model = Manual()
    fit(model, tmp_path, 5)
    assert model.begun == 5
    assert record(only_directory(tmp_path))["session"]["outcome"] == "finished"
    assert "held" not in (only_directory(tmp_path) / "midrun.log").read_text()


def test_with_manual_optimization_the_loss_is_there_while_its_exception_is_held(tmp_path: Path) -> None:
    class Letting(Manual):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(Failing.training_step(self, batch, batch_idx))
            optimizer.step()

    model = Letting()

    def act() -> None:
        done(model.live, give(model.live, "save_current_loss"))
        release(model)

    steered(model, tmp_path, act)
    assert list((only_directory(tmp_path) / "artifacts/debug").glob("loss-*.pt"))


class TooLarge(Staged):
    """Runs out of memory with more than eight rows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.batch_size = 2

    def val_dataloader(self) -> Any:
        return batches(1)

    def train_dataloader(self) -> Any:
        return batches(32 // self.batch_size, self.batch_size)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        error = RuntimeError("CUDA out of memory.") if len(batch[0]) > 8 else None
        return super().training_step([raising(batch[0].requires_grad_(), error), batch[1]], batch_idx)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_search_for_the_largest_batch_is_not_held(tmp_path: Path) -> None:
    model = TooLarge()
    fitting = trainer(tmp_path)
    found = Tuner(fitting).scale_batch_size(model, mode="power", steps_per_trial=1, init_val=2)
    assert found == 8


def test_what_keeps_a_hold_from_standing_lets_the_exception_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Failing()

    def broken(*_: Any) -> None:
        raise RuntimeError("midrun's own mistake")

    monkeypatch.setattr("midrun.safepoint.Caught", broken)
    with pytest.raises(Mine):
        fit(model, tmp_path, 5)
    assert "midrun's own mistake" in (only_directory(tmp_path) / "midrun.log").read_text()


class Hostile(Exception):  # noqa: N818 - as the others here
    """Its traceback can't be formatted."""

    @property
    def __notes__(self) -> Any:  # type: ignore[override]  # that is what is hostile about it
        raise ZeroDivisionError("no notes")


class Text(str):
    """A text that is code."""

    __slots__ = ()

    def __format__(self, _: str) -> str:
        raise ZeroDivisionError("no format")


class Speaking(Exception):  # noqa: N818 - as the others here
    """Its message is code."""

    def __str__(self) -> str:
        return Text("speaking")


@pytest.mark.parametrize("error", [Hostile("bad"), Speaking()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("holds", [True, False])
def test_an_exception_that_can_not_be_told_is_raised_all_the_same(
    tmp_path: Path, error: Exception, holds: bool
) -> None:
    model = Failing(break_on_backward_exception=holds)
    model.error = error
    if holds:
        assert steered(model, tmp_path, lambda: release(model)) is error
    else:
        with pytest.raises(type(error)) as raised:
            fit(model, tmp_path, 5)
        assert raised.value is error
    told = record(only_directory(tmp_path), "last-state.json")["exception"]
    assert told["type"] == f"{__name__}.{type(error).__name__}"
    assert "raise ctx.error" in told["traceback"]


def test_what_a_command_raises_meanwhile_does_not_come_from_the_exception(tmp_path: Path) -> None:
    model = Failing()

    def act() -> None:
        (model.live.artifact_dir / "debug").rmdir()
        (model.live.artifact_dir / "debug").write_text("no directory")
        failed(model.live, give(model.live, "save_current_batch"))
        release(model)

    steered(model, tmp_path, act)
    log = (only_directory(tmp_path) / "midrun.log").read_text()
    assert "During handling of the above exception" not in log
    assert "in backward\n    raise ctx.error" in log  # The traceback of the exception itself.


def test_an_exception_of_training_step_is_not_held(tmp_path: Path) -> None:
    class Bad(Staged):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise Mine("before backward")

    with pytest.raises(Mine):
        fit(Bad(), tmp_path)


def test_an_exception_of_a_command_that_runs_backward_is_the_commands(tmp_path: Path) -> None:
    """A command may run a backward pass of its own, in the training thread."""
    model = Failing()
    model.fails_at = -1
    loss = torch.zeros((), requires_grad=True)

    def act() -> None:
        def do(self: Any, run: Run, args: Any, _: Any) -> Any:
            model.trainer.strategy.backward(raising(loss, Mine("the command's")), None)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Snapshot, "do", do)
            sent = model.give("snapshot")
            until(lambda: not model.live.queue.inbox.empty())
            model.live.points.reach("train_batch_end")
            assert failed(model.live, sent) == ("Mine", "the command's")

    model.plan[1] = act
    fit(model, tmp_path, 3)
