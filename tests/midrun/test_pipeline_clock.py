"""The pipeline's times by the device's own clock, which nothing waits for.

There is no such device here: moments that tests let come stand in for those of CUDA.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from midrun import pipeline
from midrun.device import DeviceClock
from midrun.pipeline import PHASES
from tests.midrun.steering import Steered, done, failed, fit

DEVICE = torch.device("cuda")


class Stream:
    """A device that works off what it is given in its own time, each piece in a thousandth of a second."""

    def __init__(self) -> None:
        self.given = self.done = 0
        self.is_stuck = False
        self.waits = 0

    def moment(self, _: torch.device) -> Moment:
        self.given += 1
        return Moment(self, self.given)


class Moment:
    def __init__(self, stream: Stream, place: int) -> None:
        self._stream, self.place = stream, place

    def query(self) -> bool:
        return not self._stream.is_stuck

    def synchronize(self) -> None:
        self._stream.waits += 1

    def elapsed_time(self, later: Moment) -> float:
        assert not self._stream.is_stuck, "it would be waited for"
        return float(later.place - self.place)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    """Have the CPU taken for a device that has a clock."""
    stream = Stream()
    monkeypatch.setattr(pipeline, "_has_clock", lambda _: True)
    monkeypatch.setattr(pipeline, "DeviceClock", lambda device: DeviceClock(device, stream.moment))
    yield stream
    assert stream.waits == 0, "nothing waits for a device"


def test_what_is_given_between_two_marks_is_the_phase_s_of_the_later() -> None:
    stream = Stream()
    clock = DeviceClock(DEVICE, stream.moment)
    for phase in ("forward", "backward", "forward"):
        clock.mark(phase)
    stream.moment(DEVICE)
    clock.mark("optimizer")
    assert clock.has_come
    assert clock.spent() == pytest.approx({"forward": 0.002, "backward": 0.001, "optimizer": 0.002})
    stream.is_stuck = True
    assert not clock.has_come


def test_the_device_s_times_take_the_place_of_the_host_s_when_they_are_asked_for(
    stream: Stream, tmp_path: Path
) -> None:
    model, sent = Steered(), []
    model.plan[10] = lambda: sent.append(model.give("set_pipeline_clock", clock="device"))
    model.plan[11] = lambda: time.sleep(0.05)
    fit(model, tmp_path, 40)
    [command] = sent
    assert done(model.live, command)["changes"] == [{"what": "pipeline_clock", "old": "host", "new": "device"}]
    record = model.live.pipeline.record
    assert record["clock"] == "device"
    assert record["batches"] > 0
    assert tuple(record["phases"]) == PHASES
    assert sum(phase["share"] for phase in record["phases"].values()) == pytest.approx(1)
    # The host slept in one of those batches, and each piece of the device's work takes a millisecond.
    assert record["phases"]["forward"]["median_s"] * 1000 == pytest.approx(
        round(record["phases"]["forward"]["median_s"] * 1000)
    )


def test_a_device_that_is_behind_is_not_waited_for_and_its_times_come_later(stream: Stream, tmp_path: Path) -> None:
    stream.is_stuck = True
    counts: list[int] = []
    model = Steered()
    model.plan[1] = lambda: model.give("set_pipeline_clock", clock="device")

    def look() -> None:
        counts.append(model.live.pipeline.record["batches"])
        stream.is_stuck = False
        # Of batches this fast one in hundreds is timed.
        model.live.turns.time_next_batch()

    model.plan[60] = look
    fit(model, tmp_path, 200)
    assert counts == [0]
    assert model.live.pipeline.record["batches"] > 0


def test_the_host_s_times_can_be_had_again_and_are_not_mixed_with_the_others(stream: Stream, tmp_path: Path) -> None:
    model = Steered()
    model.plan[5] = lambda: model.give("set_pipeline_clock", clock="device")
    model.plan[50] = lambda: model.give("set_pipeline_clock", clock="host")
    fit(model, tmp_path, 100)
    record = model.live.pipeline.record
    assert record["clock"] == "host"
    assert 0 < record["batches"] < 90


def test_a_run_on_the_cpu_has_no_other_clock_and_says_so(tmp_path: Path) -> None:
    model, sent = Steered(), []
    model.plan[3] = lambda: sent.append(model.give("set_pipeline_clock", clock="device"))
    fit(model, tmp_path, 6)
    assert failed(model.live, sent[0]) == ("Refused", "the model trains on 'cpu', which has no times but the host's")
    assert model.live.pipeline.record["clock"] == "host"


def test_where_timing_is_off_there_is_no_clock_to_set(tmp_path: Path) -> None:
    model, sent = Steered(pipeline_pressure_enabled=False), []
    model.plan[3] = lambda: sent.append(model.give("set_pipeline_clock", clock="host"))
    fit(model, tmp_path, 6)
    assert failed(model.live, sent[0]) == ("Refused", "timing is off: pipeline_pressure_enabled=False")
