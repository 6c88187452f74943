"""Values of a device: copied without a wait, and waited for by who reads them alone.

There is no such device here. An event that these tests set by hand stands in for the device's.
"""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from midrun.device import HostCopy
from midrun.fs.faults import Fault
from midrun.fs.later import Later
from midrun.root import Root
from midrun.run import Run
from midrun.sample import NOTHING, Sample, copies_of
from tests.midrun.models import Watched, batches, record, run_of, settled, trainer


class StandIn:
    """An event that comes when it is told to."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.waits = 0
        self.broken: Exception | None = None

    def query(self) -> bool:
        return self.come.is_set()

    def synchronize(self) -> None:
        self.waits += 1
        assert self.come.wait(10)
        if self.broken is not None:
            raise self.broken


def copied(scalars: list[Tensor], event: StandIn) -> HostCopy:
    return HostCopy(scalars, lambda _: event, pin=False)


def pending(event: StandIn, **metrics: float) -> Sample:
    """Return a sample with values on their way, and one learning rate on its way too."""
    scalars = {name: torch.tensor(value) for name, value in metrics.items()}
    rate = torch.tensor(0.25)
    places = [*((name, -1, -1) for name in scalars), ("", 0, 0)]
    copy = copied([*scalars.values(), rate], event)
    return NOTHING._replace(metrics={**scalars, "here": 3.0}, rates=[[rate, 0.5]], copies=((places, copy),))


# ---- the copy


def test_a_copy_is_queued_before_its_event_and_read_after_it() -> None:
    event = StandIn()
    made: list[torch.device] = []

    def recorded(device: torch.device) -> StandIn:
        made.append(device)
        return event

    copy = HostCopy([torch.tensor(2.0)], recorded, pin=False)
    assert made == [torch.device("cpu")]
    assert not copy.arrived
    assert event.waits == 0
    threading.Timer(0.05, event.come.set).start()
    assert copy.values() == [2.0]
    assert event.waits == 1
    assert copy.arrived


def test_a_copy_holds_what_the_scalars_were() -> None:
    event, scalar = StandIn(), torch.tensor(2.0)
    copy = copied([scalar], event)
    scalar.fill_(3.0)
    event.come.set()
    assert copy.values() == [2.0]


def test_values_come_in_their_order_and_keep_their_precision() -> None:
    event = StandIn()
    event.come.set()
    third = 1 / 3
    scalars = [
        torch.tensor(third, dtype=torch.float64),
        torch.tensor(third),
        torch.tensor([[0.5]]),
        torch.tensor(0.5, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.tensor(True),
        torch.tensor(math.nan),
        torch.tensor(-math.inf),
    ]
    values = copied(scalars, event).values()
    assert values[:6] == [third, torch.tensor(third).item(), 0.5, 0.5, 7.0, 1.0]
    assert math.isnan(values[6])
    assert values[7] == -math.inf
    assert all(type(value) is float for value in values)


def test_one_copy_takes_all_scalars_whatever_their_number() -> None:
    event = StandIn()
    event.come.set()
    assert copied([torch.tensor(float(i)) for i in range(500)], event).values() == [float(i) for i in range(500)]


def test_a_copy_keeps_no_graph() -> None:
    weight, data = torch.ones(1000, requires_grad=True), torch.randn(1000)
    loss = (weight * data).sum()
    kept, event = weakref.ref(data), StandIn()
    copy = copied([loss], event)
    expected = loss.item()
    del data, loss
    gc.collect()
    assert kept() is None, "the graph that held the data is gone"
    event.come.set()
    assert copy.values() == [expected]


def test_a_copy_that_fails_raises_for_its_reader() -> None:
    event = StandIn()
    event.broken = RuntimeError("device-side assert triggered")
    event.come.set()
    with pytest.raises(RuntimeError, match="device-side assert"):
        copied([torch.tensor(1.0)], event).values()


def put_up(run: Run, sample: Sample) -> None:
    """Have a run show a sample, as if its loop had given it."""
    loop: Any = run.loop
    loop.sample = lambda _: sample
    run.turns.publish(None)
    del loop.sample


# ---- the sample


def test_a_sample_of_the_host_s_values_never_waits() -> None:
    metrics: dict[str, Tensor | float] = {"loss": torch.tensor(0.5), "plain": 2.0}
    rates = [[0.1]]
    sample = Sample(1, 0, 0, 0.0, metrics, rates, copies_of(metrics, rates))
    assert sample.copies == ()
    assert sample.arrived
    assert sample.values().metrics == {"loss": 0.5, "plain": 2.0}


def test_a_sample_waits_for_its_copy_and_only_when_it_is_read() -> None:
    event = StandIn()
    sample = pending(event, loss=0.5, accuracy=0.75)
    assert not sample.arrived
    assert sample.shows("loss")
    assert event.waits == 0
    event.come.set()
    assert sample.arrived
    assert sample.values().metrics == {"loss": 0.5, "accuracy": 0.75, "here": 3.0}
    assert sample.values().rates == [[0.25, 0.5]]


# ---- the run


def during_a_fit(root: Path, work: Callable[[Watched], None]) -> Watched:
    """Do something in the training thread of a live run."""

    class Doing(Watched):
        def on_train_end(self) -> None:
            super().on_train_end()
            work(self)

    model = Doing()
    trainer(root).fit(model, batches(1))
    return model


def test_a_reader_gets_values_that_are_there_at_once(tmp_path: Path) -> None:
    def work(model: Watched) -> None:
        event = StandIn()
        event.come.set()
        put_up(run_of(model), pending(event, loss=0.5))
        assert run_of(model).values.shown(lambda _, values: values.metrics["loss"]) == 0.5

    during_a_fit(tmp_path, work)


def test_a_reader_of_values_on_their_way_waits_for_the_disk_thread_alone(tmp_path: Path) -> None:
    def work(model: Watched) -> None:
        run, event = run_of(model), StandIn()
        put_up(run, pending(event, loss=0.5))
        threads: list[str] = []

        def show(sample: Sample, values: Any) -> Any:
            threads.append(threading.current_thread().name)
            return values.metrics["loss"]

        start = time.perf_counter()
        later = run.values.shown(show)
        files = [run._answers._tree.read(f"state/{name}") for name in ("metrics/index.json", "optimizers.json")]
        assert run._answers._tree.list("state/metrics"), "a list needs no values"
        assert run._answers._tree.read("state/global-step") == b"0\n"
        assert time.perf_counter() - start < 1
        assert isinstance(later, Later)
        with pytest.raises(RuntimeError, match="not there yet"):
            later.result()
        event.come.set()
        assert settled(later) == 0.5
        assert threads == ["midrun-disk"]
        for file in files:
            assert isinstance(file, Later)
            settled(file)

    during_a_fit(tmp_path, work)


def test_a_reader_is_told_when_the_device_fails(tmp_path: Path) -> None:
    def work(model: Watched) -> None:
        run, event = run_of(model), StandIn()
        event.broken = RuntimeError("device-side assert triggered")
        put_up(run, pending(event, loss=0.5))
        later = run.values.shown(lambda _, values: values.metrics["loss"])
        assert isinstance(later, Later)
        event.come.set()
        with pytest.raises(Fault, match="RuntimeError: device-side assert triggered"):
            settled(later)

    during_a_fit(tmp_path, work)


def test_the_last_state_is_written_though_the_device_fails(tmp_path: Path) -> None:
    def work(model: Watched) -> None:
        run, event = run_of(model), StandIn()
        event.broken = RuntimeError("device-side assert triggered")
        event.come.set()
        broken = pending(event, loss=0.5)._replace(global_step=41)
        put_up(run, broken)
        loop: Any = run.loop
        loop.sample = lambda _: broken  # From here on nothing else comes.
        assert Root(run).last_state()["metrics"] == {}

    during_a_fit(tmp_path, work)
    (directory,) = (tmp_path / "midrun").iterdir()
    state = record(directory, "last-state.json")
    assert state["status"] == "finished"
    assert state["global_step"] == 41
    assert state["metrics"] == {}


def test_training_goes_on_while_a_device_is_slow(tmp_path: Path) -> None:
    event = StandIn()

    class Slow(Watched):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_start(batch, batch_idx)
            run = run_of(self)
            put_up(run, pending(event, loss=0.5))
            assert isinstance(run.values.shown(lambda _, values: values), Later)

        def on_train_end(self) -> None:
            super().on_train_end()
            assert self.trainer.global_step == 8
            event.come.set()

    trainer(tmp_path).fit(Slow(), batches(8))
