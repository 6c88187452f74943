from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from midrun.loop import Limits
from midrun.pace import LONG, RECENT, Pace
from midrun.sample import NOTHING, Sample
from tests.midrun.models import Watched, batches, run_of, trainer

OPEN = Limits(None, None, None)


@dataclass
class Training:
    """Training that is noted four times a second, in a time that passes as it is told to."""

    limits: Limits = OPEN
    now: float = 1000.0
    step: int = 0
    batches: int = 0
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace(lambda: self.limits, lambda: self.now)

    def sample(self) -> Sample:
        epoch, batch = divmod(self.batches - 1, self.limits.batches or 10**9)
        return NOTHING._replace(global_step=self.step, epoch=epoch, batch=batch if self.batches else None)

    def train(self, seconds: float, rate: float, *, batches_a_step: int = 1) -> None:
        """Train for so long, with so many steps in a second."""
        for _ in self._looks(seconds):
            self.batches += round(rate / 4 * batches_a_step)
            self.step += round(rate / 4)
            self.pace.note(self.sample(), held=False)

    def validate(self, seconds: float) -> None:
        for _ in self._looks(seconds):
            self.pace.note(None, held=False)

    def hold(self, seconds: float) -> None:
        for _ in self._looks(seconds):
            self.pace.note(self.sample(), held=True)

    def _looks(self, seconds: float) -> Iterator[None]:
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            yield


def test_nothing_is_said_before_training_has_lasted_a_moment() -> None:
    training = Training(Limits(2, None, 100))
    assert (training.pace.steps_per_second, training.pace.seconds_left) == (None, None)
    training.validate(10)
    assert (training.pace.steps_per_second, training.pace.seconds_left) == (None, None)
    training.train(1.5, 8)
    assert (training.pace.steps_per_second, training.pace.seconds_left) == (None, None)
    training.train(5, 8)
    assert training.pace.steps_per_second == pytest.approx(8)


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    training = Training()
    training.train(300, 40)
    assert training.pace.steps_per_second == pytest.approx(40, rel=0.05)
    training.train(RECENT + 5, 4)
    assert training.pace.steps_per_second == pytest.approx(4, rel=0.05)


def test_a_hold_does_not_slow_the_pace_down() -> None:
    training = Training(Limits(None, 10_000, None))
    training.train(60, 8)
    before = training.pace.steps_per_second, training.pace.seconds_left
    training.hold(3600)
    assert None not in before
    assert (training.pace.steps_per_second, training.pace.seconds_left) == before
    training.train(5, 8)
    assert training.pace.steps_per_second == pytest.approx(8, rel=0.1)


def test_a_step_may_take_longer_than_the_time_that_is_looked_at() -> None:
    training = Training()
    for _ in range(3):
        training.validate(2 * RECENT)
        training.train(0.25, 4)
    assert training.pace.steps_per_second == pytest.approx(1 / (2 * RECENT), rel=0.05)


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        (Limits(None, None, None), None),
        (Limits(None, None, 100), None),
        (Limits(None, 2_000, None), (2_000 - 480) / 8),
        (Limits(10, None, 100), (1_000 - 480) / 8),
        (Limits(10, 600, 100), (600 - 480) / 8),
        (Limits(10, 2_000, 100), (1_000 - 480) / 8),
        (Limits(None, 480, None), 0),
        (Limits(4, None, 100), 0),
    ],
)
def test_the_time_left_is_until_the_end_that_comes_first_where_one_is_known(limits: Limits, left: float | None) -> None:
    training = Training(limits)
    training.train(60, 8)
    assert training.pace.seconds_left == (None if left is None else pytest.approx(left, rel=0.05, abs=1))


def test_accumulated_batches_count_for_epochs_and_steps_for_steps() -> None:
    training = Training(Limits(10, None, 1000))
    training.train(60, 8, batches_a_step=4)
    assert training.pace.steps_per_second == pytest.approx(8, rel=0.05)
    assert training.pace.seconds_left == pytest.approx((10_000 - 60 * 32) / 32, rel=0.05)


def test_validation_counts_for_the_time_left_as_it_comes_again() -> None:
    training = Training(Limits(10, None, 80))
    for _ in range(5):
        training.train(10, 8)
        training.validate(10)
    assert training.pace.seconds_left == pytest.approx(100, rel=0.15)


def test_the_last_batch_of_an_epoch_is_not_counted_for_the_next() -> None:
    training = Training(Limits(10, None, 80))
    training.train(10, 8)
    left = training.pace.seconds_left
    between = training.sample()._replace(epoch=1)
    for _ in range(8):
        training.now += 0.25
        training.pace.note(between, held=False)
    assert left is not None
    assert training.pace.seconds_left == left


def test_what_is_kept_is_bounded() -> None:
    training = Training()
    training.train(3 * LONG, 4)
    assert len(training.pace._marks) <= LONG + 1


def test_a_run_tells_its_pace_and_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midrun.pace._APART", 0.01)
    monkeypatch.setattr("midrun.pace._LEAST", 0.05)
    monkeypatch.setattr("midrun.history.INTERVAL", 0.01)
    shown: list[dict[str, Any]] = []

    class Paced(Watched):
        def on_train_batch_end(self, *args: Any) -> None:
            super().on_train_batch_end(*args)
            time.sleep(0.02)
            shown.append(dict(run_of(self).root.state.index))

    trainer(tmp_path, max_epochs=4).fit(Paced(), batches(20))
    paced = [state for state in shown if state["steps_per_second"] is not None]
    assert len(paced) > 40
    assert all(1 < state["steps_per_second"] < 50 for state in paced)
    assert paced[-1]["seconds_left"] < paced[0]["seconds_left"]
    assert paced[-1]["seconds_left"] < 1
