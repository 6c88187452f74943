"""The history on the disk has every value of every step, and costs no run anything."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any, cast
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor

from midrun import history, logged
from midrun.fs.curves import curve_of, names_in
from midrun.fs.segments import Segment
from midrun.history import History
from midrun.logged import Logged, Noted
from midrun.sample import Sample
from tests.midrun.models import Staged, Watched, batches, document, run_of, trainer
from tests.midrun.test_history import Arrived, Told, sample, until


def curves(parent: Path, name: str, **question: Any) -> list[dict[int, float]]:
    """Return the points of each attempt, by steps."""
    found = curve_of(parent, name, **question)
    assert found is not None, name
    return [dict(zip(attempt["steps"], attempt["values"], strict=True)) for attempt in found["attempts"]]


def noting(parent: Path) -> History:
    return History(Noted(), parent, lambda: "fit", Told())


def written(parent: Path, *samples: Sample, at_once: bool = True) -> Path:
    """Have samples noted, all at once or one by one, and written."""
    noted = noting(parent)
    for group in [samples] if at_once else [[one] for one in samples]:
        noted.note(group)
    noted._flush()
    return parent


# ---- what is new


@pytest.mark.parametrize("at_once", [True, False])
def test_every_value_of_every_sample_is_there_however_many_are_taken_at_once(tmp_path: Path, at_once: bool) -> None:
    still = torch.tensor(7.0)
    samples = []
    for step in range(1, 40):
        every = {"loss": torch.tensor(step / 8), "acc": torch.tensor(0.5), "still": still}
        samples.append(sample(step, [[0.1]], **every, **({"ten": float(step)} if step % 10 == 0 else {})))
    written(tmp_path, *samples, at_once=at_once)
    assert curves(tmp_path, "loss") == [{step: step / 8 for step in range(1, 40)}]
    assert curves(tmp_path, "acc") == [dict.fromkeys(range(1, 40), 0.5)], "logged anew, though it is what it was"
    assert curves(tmp_path, "still") == [{1: 7.0}]
    assert curves(tmp_path, "ten") == [{10: 10.0, 20: 20.0, 30: 30.0}]
    assert curves(tmp_path, "optimizers/0/groups/0/lr")[0][1] == 0.1


@pytest.mark.parametrize(
    "scalars",
    [
        [torch.tensor(1.5, dtype=torch.float64), torch.tensor(2.5, dtype=torch.float16), torch.tensor(3.5)],
        [torch.tensor(2**53 - 1), torch.tensor(2**40 + 1), torch.tensor(True)],
        [torch.tensor([1.5]), torch.tensor([[2.5]]), torch.tensor(3.5)],
        [1, 2.5, True],
        [math.inf, torch.tensor(-math.inf), torch.tensor(5e-324, dtype=torch.float64)],
    ],
)
def test_a_number_of_any_kind_is_what_it_was(tmp_path: Path, scalars: list[Any]) -> None:
    written(tmp_path, *(sample(step, x=scalar) for step, scalar in enumerate(scalars)))
    expected = {step: float(scalar) for step, scalar in enumerate(scalars)}
    before = None
    for step, value in list(expected.items()):
        if value == before and not isinstance(scalars[step], Tensor):
            del expected[step]
        before = value
    assert curves(tmp_path, "x") == [expected]


def test_nan_is_there_each_time_that_it_is_logged(tmp_path: Path) -> None:
    written(tmp_path, *(sample(step, loss=torch.tensor(math.nan if step > 1 else 1.0)) for step in range(5)))
    [found] = curves(tmp_path, "loss")
    assert [math.isnan(value) for value in found.values()] == [False, False, True, True, True]


def test_what_is_no_number_keeps_none_of_the_others_away(tmp_path: Path) -> None:
    odd = [torch.zeros(2), torch.tensor(1j), "text", None, torch.zeros(1, 0), 10**400]
    count = len(odd)
    written(tmp_path, *(sample(step, odd=odd[step], loss=torch.tensor(1.0 * step)) for step in range(count)))
    assert list(names_in(tmp_path)) == ["loss"]
    assert curves(tmp_path, "loss") == [{step: 1.0 * step for step in range(count)}]


def test_a_metric_that_comes_and_goes_keeps_its_identity(tmp_path: Path) -> None:
    kept = torch.tensor(3.0)
    seen: list[dict[str, Any]] = [{"val": kept, "a": torch.tensor(1.0)}, {"a": torch.tensor(2.0)}, {"val": kept}]
    written(tmp_path, *(sample(step, **metrics) for step, metrics in enumerate(seen)))
    assert curves(tmp_path, "val") == [{0: 3.0}]


def test_of_metrics_that_never_come_again_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "_MOST_ABSENT", 3)
    seen, kept = Logged(), list[ReferenceType[Tensor]]()
    for step in range(20):
        value = torch.tensor(float(step))
        kept.append(ref(value))
        [block] = seen.new_in([sample(step, **{f"loss of {step}": value})])
        assert (block.names, block.rows) == ((f"loss of {step}",), [[float(step)]])
        del value
    assert [step for step, one in enumerate(kept) if one() is not None] == [16, 17, 18, 19]


def test_a_rate_has_a_point_where_it_changes_and_its_old_value_until_then(tmp_path: Path) -> None:
    rates = [0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.0001]
    noted = noting(tmp_path)
    noted.note([sample(step, [[rate, None]]) for step, rate in enumerate(rates)])
    noted._end()
    found = curves(tmp_path, "optimizers/0/groups/0/lr")
    assert found == [{0: 0.1, 2: 0.1, 3: 0.01, 4: 0.01, 5: 0.001, 6: 0.0001}]


def test_a_rate_that_stays_has_a_point_at_the_last_step_of_the_run(tmp_path: Path) -> None:
    noted = Noted()
    kept = History(noted, tmp_path, lambda: "fit", Told())
    kept.note([sample(1, [[0.1]])])
    noted.add(sample(9, [[0.1]]))
    kept.stop()
    assert curves(tmp_path, "optimizers/0/groups/0/lr") == [{1: 0.1, 9: 0.1}]


def test_a_rate_that_stays_has_a_point_now_and_then_for_a_run_may_be_killed(tmp_path: Path) -> None:
    every = int(logged._STEADY_EVERY)
    for step in range(0, 10 * every, 7):
        samples = [sample(at, [[0.5]]) for at in range(0, step + 1, 7)]
        [found] = curves(written(tmp_path / str(step), *samples, at_once=False), "optimizers/0/groups/0/lr")
        assert step - max(found) <= every + 7


def test_a_device_s_values_are_those_of_its_copies(tmp_path: Path) -> None:
    class Copy(Arrived):
        def __init__(self, *values: float) -> None:
            self._values = values

        def values(self) -> list[float]:
            return [*self._values]

    def on_device(step: int) -> Sample:
        there = torch.empty((), device="meta")  # Whoever reads it fails.
        places = [("loss", -1, -1), ("", 0, 0)]
        copy = cast("Any", Copy(step / 2, 0.5**step))
        return sample(step, [[there]], loss=there, here=float(step))._replace(copies=((places, copy),))

    written(tmp_path, *(on_device(step) for step in range(3)))
    assert curves(tmp_path, "loss") == [{0: 0.0, 1: 0.5, 2: 1.0}]
    assert curves(tmp_path, "here") == [{0: 0.0, 1: 1.0, 2: 2.0}]
    assert curves(tmp_path, "optimizers/0/groups/0/lr") == [{0: 1.0, 1: 0.5, 2: 0.25}]


def test_only_what_has_arrived_from_a_device_is_taken_until_the_end() -> None:
    class Late(Arrived):
        arrived = False

    noted = Noted()
    late = sample(2, loss=1.0)._replace(copies=cast("Any", ([[], Late()],)))
    for one in (sample(1, loss=1.0), late, sample(3, loss=1.0)):
        noted.add(one)
    assert [one.global_step for one in noted.take()] == [1]
    assert [one.global_step for one in noted.take()] == []
    assert [one.global_step for one in noted.take(late=True)] == [2, 3]


def test_a_step_that_goes_back_begins_another_segment(tmp_path: Path) -> None:
    steps = [1, 2, 3, 1, 2]
    written(tmp_path, *(sample(step, [[0.1 * at]], loss=torch.tensor(1.0 * at)) for at, step in enumerate(steps)))
    assert curves(tmp_path, "loss") == [{1: 0.0, 2: 1.0, 3: 2.0}, {1: 3.0, 2: 4.0}]
    assert curves(tmp_path, "loss", duplicates="last") == [{1: 3.0, 2: 4.0}]


def test_each_segment_has_the_learning_rates_from_its_first_step_on(tmp_path: Path) -> None:
    steps = [10, 11, 12, 5, 6, 7]
    written(tmp_path, *(sample(step, [[0.1]], loss=torch.tensor(1.0)) for step in steps))
    assert [min(attempt) for attempt in curves(tmp_path, "optimizers/0/groups/0/lr")] == [10, 5]
    assert curves(tmp_path, "loss", duplicates="last") == [dict.fromkeys(steps[3:], 1.0)]


# ---- what goes wrong


def test_samples_beyond_the_room_are_left_out_and_counted() -> None:
    told: list[int] = []
    noted = Noted(lambda: told.append(noted.lost))
    for step in range(4096 + 10):
        noted.add(sample(step, loss=1.0))
    assert told == [1], "once"
    assert noted.lost == 10, "of one metric many have room, also before the first look"
    taken = noted.take()
    assert [one.global_step for one in taken] == list(range(4096))
    assert noted.room == 4096
    noted.add(sample(0, **{str(number): 1.0 for number in range(5000)}))
    noted.take()
    assert noted.room == 39, "of five thousand few"


def test_a_full_disk_is_told_once_and_what_it_did_not_take_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_FLUSH_EVERY", 0.0)
    noted, told = Noted(), Told()
    kept = History(noted, tmp_path, lambda: "fit", told)
    changes: list[str] = []
    monkeypatch.setattr(told, "_changed", lambda: changes.append(told.state))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        for step in range(10):
            noted.add(sample(step, loss=1.0 * step))
            kept._take()
            monkeypatch.setattr(history, "_FLUSH_EVERY", 1e9 if step % 3 else 0.0)
    assert (told.state, changes) == ("failed", ["failed"]), "it does not change its mind in between"
    assert "No space left" in str(told.reason)
    monkeypatch.setattr(history, "_FLUSH_EVERY", 0.0)
    kept._take()
    assert told.state == "running"
    assert curves(tmp_path, "loss") == [{step: 1.0 * step for step in range(10)}]
    assert kept.index["lost"] == 0


def test_of_a_disk_with_several_troubles_the_last_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_FLUSH_EVERY", 0.0)
    noted, told = Noted(), Told()
    kept = History(noted, tmp_path, lambda: "fit", told)
    for number in (errno.ENOSPC, errno.EIO):

        def fails(*_: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as disk:
            disk.setattr(os, "write", fails)
            noted.add(sample(1, loss=1.0))
            kept._take()
        assert os.strerror(number) in str(told.reason)


def test_where_somebody_has_tidied_up_what_comes_goes_to_another_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_FLUSH_EVERY", 0.0)
    noted = Noted()
    kept = History(noted, tmp_path / "history", lambda: "fit", Told())
    for step in range(6):
        noted.add(sample(step, loss=1.0 * step))
        kept._take()
        if step == 2:
            (tmp_path / "history").rename(tmp_path / "aside")
    assert curves(tmp_path / "aside", "loss") == [{0: 0.0, 1: 1.0, 2: 2.0}]
    assert curves(tmp_path / "history", "loss") == [{4: 4.0, 5: 5.0}]
    assert kept.index["lost"] == 1


# ---- real runs


class Logs(Staged):
    """Keeps what it has logged."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.losses: dict[int, float] = {}
        self.rates: dict[int, float] = {}
        self.directory = Path()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.losses[self.trainer.global_step + 1] = float(loss.detach())
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.rates[self.trainer.global_step] = self.trainer.optimizers[0].param_groups[0]["lr"]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def teardown(self, stage: str) -> None:
        self.directory = run_of(self).directory
        super().teardown(stage)


def test_a_run_leaves_every_loss_and_rate_of_every_step(tmp_path: Path) -> None:
    model = Logs()
    trainer(tmp_path, max_epochs=3, num_sanity_val_steps=1).fit(model, batches(100), batches(2))
    parent = model.directory / "history"
    assert curves(parent, "loss") == [model.losses]
    assert len(model.losses) == 300
    assert list(curves(parent, "val/loss")[0]) == [100, 200, 300]
    [rates] = curves(parent, "optimizers/0/groups/0/lr")
    assert rates == {step: model.rates[step] for step in rates}
    assert {1, 300} <= set(rates)
    assert set(rates.values()) == set(model.rates.values())
    assert len(rates) < 20, "those of the steps between are what they were"


def test_a_fit_that_goes_on_makes_the_step_after_its_checkpoint_s_and_those_behind_it_again(tmp_path: Path) -> None:
    """Also where several batches make one step: what was logged at the checkpoint's step stays."""
    model = Logs()
    first = trainer(tmp_path, max_epochs=2, accumulate_grad_batches=2, num_sanity_val_steps=0)
    first.fit(model, batches(8), batches(1))
    first.save_checkpoint(tmp_path / "at8.ckpt")
    parent = model.directory / "history"
    more = trainer(tmp_path, max_epochs=4, accumulate_grad_batches=2, num_sanity_val_steps=0)
    more.fit(model, batches(8), batches(1), ckpt_path=tmp_path / "at8.ckpt")
    again = trainer(tmp_path, max_epochs=3, accumulate_grad_batches=2, num_sanity_val_steps=0)
    again.fit(model, batches(8), batches(1), ckpt_path=tmp_path / "at8.ckpt")
    shown = curve_of(parent, "loss", duplicates="last")
    assert shown is not None
    # With the first batch of a step the step before is shown: 0 to 7, and 8 as the last one's second batch ends.
    steps = [attempt["steps"] for attempt in shown["attempts"]]
    assert steps[0] == [0, *(step for step in range(1, 8) for _ in range(2)), 8]
    assert [attempt[0] for attempt in steps[1:]] == [8, 8]
    assert steps[1] == [8]
    assert steps[2] == [8, *(step for step in range(9, 12) for _ in range(2)), 12]
    assert [list(attempt) for attempt in curves(parent, "val/loss", duplicates="last")] == [[4, 8], [12]]


@pytest.mark.parametrize("validation", [0, 2])
def test_a_metric_of_an_epoch_has_the_step_at_which_that_ended(tmp_path: Path, validation: int) -> None:
    class Epochs(Logs):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("same", 1.0, on_step=False, on_epoch=True)
            self.log("mean", float(batch_idx), on_step=False, on_epoch=True)
            return loss

        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            self.log("number", float(self.current_epoch))

    model = Epochs()
    trainer(tmp_path, max_epochs=3, limit_val_batches=validation).fit(model, batches(5), batches(2))
    parent = model.directory / "history"
    assert curves(parent, "same") == [{5: 1.0, 10: 1.0, 15: 1.0}]
    assert curves(parent, "mean") == [{5: 2.0, 10: 2.0, 15: 2.0}]
    assert curves(parent, "number") == [{5: 0.0, 10: 1.0, 15: 2.0}]
    assert curves(parent, "loss") == [model.losses]


def test_a_rate_that_stays_reaches_to_the_end_of_a_run_however_short(tmp_path: Path) -> None:
    noted = Noted()
    kept = History(noted, tmp_path, lambda: "fit", Told())
    for step in range(1, 6):
        noted.add(sample(step, [[0.5]], loss=1.0 * step))
    kept._end()
    assert curves(tmp_path, "optimizers/0/groups/0/lr") == [{1: 0.5, 5: 0.5}]


def test_each_fit_of_a_run_has_a_segment_and_a_test_has_one_too(tmp_path: Path) -> None:
    model = Logs()
    for _ in range(2):
        trainer(tmp_path).fit(model, batches(3), batches(1))
    trainer(tmp_path).test(model, batches(2))
    parent = model.directory / "history"
    assert [list(attempt) for attempt in curves(parent, "loss")] == [[1, 2, 3], [1, 2, 3]]
    found = names_in(parent)
    assert {name: entry["segments"] for name, entry in found.items() if name.startswith("test")} == {
        name: ["0003"] for name in found if name.startswith("test")
    }
    assert any(name.startswith("test") for name in found)


def test_a_run_that_can_not_write_its_history_trains_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    states: list[dict[str, Any]] = []

    class Looks(Watched):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            if batch_idx == 1:
                until(lambda: run_of(self).services["history"].state == "failed", "it is told")
                states.append(document(self, "state/services.json")["services"]["history"])

    def full(self: Segment) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Segment, "flush", full)
    trainer(tmp_path).fit(Looks(), batches(3))
    assert [state["state"] for state in states] == ["failed"]
    assert [message for message in warned if "history" in message] == [
        "history does not run: OSError: [Errno 28] No space left on device"
    ]


def test_nothing_is_read_while_an_inspector_watches_all_that_torch_does(tmp_path: Path) -> None:
    noted, told, waits = Noted(), Told(), [False]
    kept = History(noted, tmp_path, lambda: "fit", told, lambda: waits[0])
    noted.add(sample(1, loss=1.0))
    kept._take()
    assert noted.waiting
    waits[0] = True
    kept._take()
    assert not noted.waiting


def test_a_graph_that_is_logged_is_let_go_with_its_sample(tmp_path: Path) -> None:
    class Graphs(Watched):
        graphs: list[bool] = []

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            loss = self.net(batch[0]).square().mean()
            self.log("graph", loss, enable_graph=True)
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            shown = run_of(self).sample.metrics["graph"]
            assert isinstance(shown, Tensor)
            self.graphs.append(shown.requires_grad)

    model = Graphs()
    trainer(tmp_path).fit(model, batches(3))
    assert model.graphs == [False] * 3
