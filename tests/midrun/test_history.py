"""The history: metrics and learning rates since a session started, noted by a thread that training does not know."""

from __future__ import annotations

import csv
import math
import threading
import time
from array import array
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midrun import history
from midrun.fs.names import escape
from midrun.fs.tree import Dir
from midrun.history import History, HistoryFiles
from midrun.logged import Noted
from midrun.run import Run
from midrun.sample import Sample
from midrun.series import HEADER, Series
from midrun.services import Service
from tests.midrun.models import Staged, Watched, batches, document, read, run_of, threads, trainer

Row = tuple[int, float, float]


class Told(Service):
    """A service that writes no log."""

    def __init__(self) -> None:
        self.logged: list[str] = []
        super().__init__("history", cast("Any", self))

    def alert(self, message: str, once: str | None = None) -> None:
        if message not in self.logged:
            self.logged.append(message)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it look all the time, so that a test need not wait long."""
    monkeypatch.setattr(history, "INTERVAL", 0.001)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def rows(text: str) -> list[Row]:
    """Read a series as somebody would who draws it."""
    header, *lines = csv.reader(text.splitlines())
    assert header == ["step", "time", "value"]
    return [(int(step), float(moment), float(value)) for step, moment, value in lines]


def values(text: str) -> list[float]:
    return [value for *_, value in rows(text)]


def plain() -> History:
    """Make a history that is told of samples by the test. It writes nothing: only its thread does."""
    return History(Noted(), Path("/nowhere"), lambda: "fit", Told())


def sample(step: int, rates: Any = (), **metrics: Any) -> Sample:
    return Sample(step, 0, step, 1000.0 + step, metrics, rates)


# ---- one series


class Naive:
    """What a series is meant to show, told from a list of everything that it was given."""

    def __init__(self, limit: int) -> None:
        self.limit, self.points, self.stride, self.left = limit, list[Row](), 1, 0

    def append(self, point: Row) -> None:
        self.points.append(point)
        self.age()

    def prolong(self, point: Row) -> None:
        if len(self.points) - self.left > 1 and self.points[-1][2] == self.points[-2][2] == point[2]:
            self.points[-1] = point
        else:
            self.append(point)

    def age(self) -> None:
        while len(self.points) - self.left > self.limit:
            self.left += 1
            while len(range(0, self.left, self.stride)) > self.limit:
                self.stride *= 2

    def shorten(self, limit: int) -> None:
        self.limit = limit
        self.age()
        while len(range(0, self.left, self.stride)) > limit:
            self.stride *= 2

    def shown(self) -> list[Row]:
        return self.points[: self.left : self.stride] + self.points[self.left :]


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "prolong", "read", "halve"]), st.integers(1, 40), st.integers(0, 1)),
    max_size=40,
)


@given(actions=ACTIONS)
def test_a_series_shows_what_a_list_of_everything_would(actions: list[tuple[str, int, int]]) -> None:
    series, naive, step, limit = Series(16), Naive(16), 0, 16
    for action, count, value in [*actions, ("append", 1, 0), ("read", 1, 0)]:
        match action:
            case "read":
                assert rows(series.csv()) == naive.shown()
            case "halve":
                limit = max(2, limit // 2)
                series.shorten(limit)
                naive.shorten(limit)
            case _:
                for _ in range(count):
                    step += 1
                    getattr(series, action)(step, float(step), float(value))
                    getattr(naive, action)((step, float(step), float(value)))
    assert len(series) == len(naive.shown())


@given(limit=st.sampled_from([2, 4, 32]), count=st.integers(1, 700))
def test_thinning_keeps_both_ends_the_newest_in_full_and_the_bounds(limit: int, count: int) -> None:
    series = Series(limit)
    for step in range(count):
        series.append(step, float(step), step / 8)
    shown = [step for step, *_ in rows(series.csv())]
    assert (shown[0], shown[-1]) == (0, count - 1)
    assert shown[-min(limit, count) :] == list(range(max(0, count - limit), count))
    assert len(shown) <= 2 * limit
    older = shown[: -min(limit, count)]
    assert len({later - earlier for earlier, later in pairwise(older)}) <= 1, "evenly"
    assert len(older) >= min(limit // 2, count - limit)


def test_a_line_is_a_step_a_time_in_milliseconds_and_the_value_as_python_writes_it() -> None:
    series = Series(8)
    for step, value in enumerate([0.1, float(torch.tensor(0.1)), 1e-07, math.nan, math.inf, -math.inf]):
        series.append(step, 1_700_000_000.12345 + step, value)
    assert series.csv() == (
        f"{HEADER}"
        "0,1700000000.123,0.1\n"
        "1,1700000001.123,0.10000000149011612\n"
        "2,1700000002.123,1e-07\n"
        "3,1700000003.123,nan\n"
        "4,1700000004.123,inf\n"
        "5,1700000005.123,-inf\n"
    )


def test_a_value_that_stays_has_two_points_the_second_of_which_moves() -> None:
    series = Series(8)
    for step, value in enumerate([0.5, 0.5, 0.5, 0.25, 0.25, 0.25, math.nan, math.nan, math.nan]):
        series.prolong(step, float(step), value)
        series.csv()
    steps = [step for step, *_ in rows(series.csv())]
    assert steps == [0, 2, 3, 5, 6, 8]


# ---- what counts as new


def test_a_tensor_that_stays_is_one_point_and_another_one_of_its_value_is_another() -> None:
    noted, loss = plain(), torch.tensor(0.5)
    for step, shown in enumerate([loss, loss, loss.detach(), torch.tensor(0.5), torch.tensor(0.5)]):
        noted.note([sample(step, loss=shown)])
    assert [step for step, *_ in rows(noted.csv("loss"))] == [0, 3, 4]


def test_a_tensor_that_was_changed_in_place_is_another_point() -> None:
    noted, total = plain(), torch.tensor(1.0)
    noted.note([sample(0, total=total)])
    total += 1
    noted.note([sample(1, total=total)])
    assert values(noted.csv("total")) == [1.0, 2.0]


def test_a_plain_number_is_a_point_when_it_changes() -> None:
    noted = plain()
    for step, value in enumerate([1, 1.0, math.nan, math.nan, 2.5]):
        noted.note([sample(step, value=value)])
    assert [step for step, *_ in rows(noted.csv("value"))] == [0, 2, 4]


def test_what_is_no_number_has_no_series() -> None:
    noted = plain()
    noted.note([sample(0, [[0.5, None]], odd=torch.zeros(2), text="no", loss=torch.tensor(1.0))])
    assert noted.names == ["optimizers/0/groups/0/lr", "loss"]


def test_a_graph_is_not_kept() -> None:
    noted = plain()
    weight = torch.ones((), requires_grad=True)
    loss = weight * 2
    noted.note([sample(0, loss=loss)])
    [kept] = noted._logged._scalars
    assert isinstance(kept, Tensor)
    assert kept.grad_fn is None


# ---- bounds


def test_with_many_series_each_has_fewer_points_and_the_bound_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_NUMBERS", 6 * 256 * 4)
    noted, step = plain(), 0
    for count in (1, 4, 5, 16):
        for _ in range(1100):
            step += 1
            noted.note([sample(step, **{f"m{number}": float(step) for number in range(count)})])
        points = [len(one) for one in noted._series.values()]
        assert 3 * sum(points) <= 6 * 256 * 4
        first = rows(noted.csv("m0"))
        assert (first[0][0], first[-1][0]) == (1, step)
    for number in range(16, 100):
        noted.note([sample(step, **{f"m{number}": 1.0})])
    assert noted._limit == history.FEWEST_POINTS


def test_series_beyond_the_most_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_SERIES", 3)
    noted = plain()
    for step in range(3):
        noted.note([sample(step, [[0.5]], a=float(step), b=2.0, c=3.0, d=4.0)])
    assert noted.names == ["optimizers/0/groups/0/lr", "a", "b"]
    assert noted.index["left_out"] == 2
    assert len(rows(noted.csv("a"))) == 3


def test_the_defaults_keep_their_bounds_with_as_many_series_as_there_may_be() -> None:
    noted = plain()
    noted.note([sample(0, **{str(number): 0.0 for number in range(history.MOST_SERIES + 1)})])
    assert noted._limit >= history.FEWEST_POINTS
    assert len(noted.names) * noted._limit * 6 <= history.MOST_NUMBERS
    assert noted.index["left_out"] == 1


# ---- the directory

HOSTILE = ["", ".", "..", "index.json", "a/b", "../../etc/passwd", "100%", "größe", "\ud800", "x" * 300, "a.csv", "n\n"]


def test_hostile_names_have_a_file_each() -> None:
    noted = plain()
    noted.note([sample(0, **{name: float(number) for number, name in enumerate(HOSTILE)})])
    files = HistoryFiles(cast("Run", _Standing(noted)))
    assert [name for name, _ in files] == ["index.json", "rows", *(escape(f"{name}.csv") for name in HOSTILE)]
    for number, name in enumerate(HOSTILE):
        leaf = files.entry(escape(f"{name}.csv"))
        assert leaf is not None
        assert not isinstance(leaf, Dir)
        assert values(cast("Any", leaf).show()) == [float(number)]
    assert list(files.index["series"]) == HOSTILE
    assert [files.entry(name) for name in ("a%2Fb", "b.csv", ".csv.csv", "a%2Fb.csv.csv")] == [None] * 4


class _Standing:
    def __init__(self, noted: History) -> None:
        self.history = noted


# ---- its thread


class Arrived:
    """A copy that has come."""

    arrived = True


def test_a_sample_that_cannot_be_read_ends_no_thread_and_is_told_once(quick: None, tmp_path: Path) -> None:
    class Broken(Sample):
        def copied(self) -> Any:
            raise RuntimeError(f"the device at {id(self)} is gone")

    told, shown = Told(), Noted()
    noted = History(shown, tmp_path, lambda: "fit", told)
    noted.start()
    try:
        assert told.state == "running"
        for step in range(3):
            shown.add(Broken(*sample(step, loss=1.0)[:-1], copies=cast("Any", [((), Arrived())])))
            until(lambda: not shown.waiting, "it has looked")
        until(lambda: told.logged, "the service says so")
        assert "RuntimeError: the device at" in told.logged[0]
        shown.add(sample(4, loss=1.0))
        until(lambda: told.state == "running", "the next sample is as good as any")
        shown.add(sample(5, loss=2.0))
    finally:
        noted.stop()
    assert len(told.logged) == 1
    assert values(noted.csv("loss")) == [1.0, 2.0], "stopping takes the last one"
    assert "midrun-history" not in threads()


def test_it_can_be_read_while_it_is_written() -> None:
    noted, over = plain(), threading.Event()

    def write() -> None:
        for step in range(3000):
            noted.note([sample(step, [[0.5]], loss=float(step))])
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        for name in noted.names:
            shown = rows(noted.csv(name))
            assert [step for step, *_ in shown] == sorted({step for step, *_ in shown})
            if name == "loss":
                assert all(step == value for step, _, value in shown)
    writer.join()


# ---- real runs


class Looked(Staged):
    """Has each batch and each validation looked at, and keeps what it logged and, at last, what the files say."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.losses: list[float] = []
        self.validated: list[float] = []
        self.files: dict[str, str] = {}
        self.index: dict[str, Any] = {}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(float(loss.detach()))
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        step = self.trainer.global_step
        until(lambda: self.noted("loss")[-1:] == [step], "the batch is noted")
        before = read(self, "history/index.json"), read(self, "history/loss.csv")
        assert (read(self, "history/index.json"), read(self, "history/loss.csv")) == before

    def on_validation_end(self) -> None:
        super().on_validation_end()
        if not self.trainer.sanity_checking:
            self.validated.append(float(self.trainer.callback_metrics["val/loss"]))
            until(lambda: len(self.noted("val/loss")) == len(self.validated), "it is noted")

    def noted(self, name: str) -> list[int]:
        """Return the steps that a series has."""
        history = run_of(self).history
        return [step for step, *_ in rows(history.csv(name))] if name in history else []

    def teardown(self, stage: str) -> None:
        self.index = document(self, "history/index.json")
        self.files = {name: read(self, f"history/{escape(name)}.csv") for name in self.index["series"]}
        super().teardown(stage)


def test_the_steps_ascend_and_the_values_are_those_logged_at_them(quick: None, tmp_path: Path) -> None:
    model = Looked()
    trainer(tmp_path, max_epochs=3, num_sanity_val_steps=1).fit(model, batches(4), batches(2))
    assert [step for step, *_ in rows(model.files["loss"])] == list(range(1, 13))
    assert values(model.files["loss"]) == model.losses
    moments = [moment for _, moment, _ in rows(model.files["loss"])]
    assert moments == sorted(moments)
    assert time.time() - 100 < moments[0] <= moments[-1] <= time.time()
    assert model.index["series"]["val/loss"] == "val%2Floss.csv"
    assert (model.index["left_out"], model.index["interval"]) == (0, 0.001)


def test_a_metric_of_an_epoch_has_one_point_for_each(quick: None, tmp_path: Path) -> None:
    model = Looked()
    trainer(tmp_path, max_epochs=3, num_sanity_val_steps=1).fit(model, batches(4), batches(2))
    assert values(model.files["val/loss"]) == model.validated
    assert [step for step, *_ in rows(model.files["val/loss"])] == [4, 8, 12]


def test_what_the_sanity_check_logs_is_no_point(quick: None, tmp_path: Path) -> None:
    looked: list[bool] = []

    class Slow(Staged):
        def on_sanity_check_end(self) -> None:
            self.look()

        def train_dataloader(self) -> Any:
            self.look()  # Lightning has reset what the sanity check logged, and its stage is train again.
            return batches(2)

        def look(self) -> None:
            run, done = run_of(self), threading.Event()
            run.history._worker.put(run.history._take)
            run.history._worker.put(done.set)
            assert done.wait(20)
            looked.append("val/loss" in run.sample.metrics)
            assert run.history.names == []

    trainer(tmp_path, num_sanity_val_steps=1).fit(Slow(), val_dataloaders=batches(1))
    assert looked[-1:] == [True]


def test_learning_rates_have_the_names_that_the_control_log_uses(quick: None, tmp_path: Path) -> None:
    class Scheduled(Looked):
        def configure_optimizers(self) -> Any:
            groups: list[dict[str, Any]] = [{"params": [self.net.weight]}, {"params": [self.net.bias], "lr": 0.5}]
            optimizer = torch.optim.SGD(groups, lr=0.25)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda epoch: 2.0**-epoch, lambda _: 1])]

    model = Scheduled()
    trainer(tmp_path, max_epochs=3, num_sanity_val_steps=0).fit(model, batches(4), batches(1))
    falling, constant = (rows(model.files[f"optimizers/0/groups/{group}/lr"]) for group in (0, 1))
    assert {value for *_, value in falling} == {0.25, 0.125, 0.0625, 0.03125}
    assert [(step, value) for step, _, value in constant] == [(1, 0.5), (12, 0.5)]


def test_each_fit_has_a_history_of_its_own(quick: None, tmp_path: Path) -> None:
    model = Looked()
    for _ in range(2):
        model.validated.clear()
        trainer(tmp_path, num_sanity_val_steps=0).fit(model, batches(2), batches(1))
        assert [step for step, *_ in rows(model.files["loss"])] == [1, 2]


def test_a_fault_shows_in_the_services_and_training_goes_on(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    states: list[dict[str, Any]] = []

    class Told(Watched):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            service = run_of(self).services["history"]
            if batch_idx == 0:
                until(lambda: service.state == "failed", "it is shown")
                states.append(document(self, "state/services.json")["services"]["history"])
                monkeypatch.undo()
            else:
                until(lambda: service.state == "running", "the next sample can be read")

    def broken(self: History, sample: Sample) -> None:
        raise OSError("no device")

    monkeypatch.setattr(History, "note", broken)
    trainer(tmp_path).fit(Told(), batches(2))
    assert [(state["state"], state["reason"]) for state in states] == [("failed", "OSError: no device")]
    assert [message for message in warned if "history" in message] == ["history does not run: OSError: no device"]


def test_arrays_of_a_full_series_are_small() -> None:
    series = Series(history.MOST_POINTS)
    for step in range(5000):
        series.append(step, 0.0, 0.0)
    held = [column for columns in (series._newest, series._thinned) for column in columns]
    assert [type(column) for column in held] == [array] * 6
    assert max(len(column) for column in held) == history.MOST_POINTS
