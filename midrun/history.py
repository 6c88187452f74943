"""History: the metrics and learning rates since the session started, for charts.

A thread of its own looks at the run's newest sample a few times a second and keeps what is new in it. The training
thread does nothing for that, and pays nothing: what it logs between two looks is not kept. `History` is the store and
`HistoryFiles` the directory that shows it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypedDict

from torch import Tensor

from midrun.fs.names import escape
from midrun.fs.schema import schema_of
from midrun.fs.tracebacks import last_line
from midrun.fs.tree import Dir, Leaf, file
from midrun.sample import NOTHING, Sample, Scalar
from midrun.series import Series, is_equal
from midrun.services import Service
from midrun.targets import path_of
from midrun.worker import Worker

if TYPE_CHECKING:
    from midrun.run import Run

INTERVAL = 0.25
"""Seconds between two looks, at least."""
MOST_POINTS = 1024
"""Points of one series that are kept in full, and points of all before them; a power of two."""
FEWEST_POINTS = 32
MOST_NUMBERS = 2_000_000
"""Numbers in all series together: where there are many, each keeps fewer points."""
MOST_SERIES = 5_000
_SHARE = 0.01
"""Of a processor: with hundreds of metrics looks become rarer, since Python runs in one thread at a time."""
_STOP_PATIENCE = 0.5
"""Seconds for the last look, and for the thread to end."""
_SUFFIX = ".csv"


class Index(TypedDict):
    """What there is a history of."""

    interval: float
    """Seconds between two looks, at least: of what was logged in between, the last is kept."""
    left_out: int
    """How many names more than there is room for there were at most."""
    series: dict[str, str]
    """The file of each, beside this one, by its unescaped name."""


class History:
    """The points of one session: each fit, also of the same model in the same directory, starts anew.

    A metric gets a point when it was logged anew: its value differs from that of the last point, or its tensor is
    another one. Lightning makes a new tensor for each value and shows it until the next: a point at each look would
    make a plateau of an epoch's metric that nobody has logged. A plain float, which is there only where somebody writes
    to `callback_metrics`, has no such identity: it gets a point when its value changes. A learning rate is always
    there, so one that stays has two points: where it began and where it was seen last.

    The step of a point is how many optimizer steps were done at the safe point where it was first seen: on a device,
    with manual optimization and in a hold, that may be the one before the step that followed from it.

    Parameters
    ----------
    look
        Return the newest sample that is worth noting, or None.
    service
        Where it is told whether looking works.
    """

    def __init__(self, look: Callable[[], Sample | None], service: Service) -> None:
        self._look = look
        self._service = service
        self._faults: dict[str, str] = {}
        # What is no Exception, as a panic of Rust code, comes to the worker.
        self._worker = Worker("midrun-history", lambda text, _: service.fail(text), self._tick, INTERVAL)
        self._seen = NOTHING
        self._rests_until = 0.0
        self._last: dict[str, tuple[Tensor | None, float]] = {}
        """What each metric's last point came from. Its memory is held, so that no other tensor can have it."""
        self._lock = threading.Lock()
        """Held while points are added and while they are shown. The training thread never wants it."""
        self._series: dict[str, Series] = {}
        self._limit = MOST_POINTS
        self._left_out = 0

    # ---- the run's life

    def start(self) -> None:
        """Begin to look."""
        self._service.run()
        self._worker.start()

    def stop(self) -> None:
        """Look once more, and end."""
        self._worker.put(self._take)
        self._worker.stop(_STOP_PATIENCE)

    # ---- its own thread

    def _tick(self) -> None:
        if time.monotonic() >= self._rests_until:
            self._take()

    def _take(self) -> None:
        """Look, and note what is new."""
        began = time.thread_time()
        try:
            sample = self._look()
            if sample is None or sample is self._seen:
                return
            self._seen = sample
            self.note(sample)
        except Exception as error:  # noqa: BLE001 - whatever became of the device, the next sample may be better
            # One kind is told once, also where its message has an address in it that changes.
            self._service.fail(self._faults.setdefault(type(error).__name__, last_line(error)))
        else:
            self._service.run()
        self._rests_until = time.monotonic() + (time.thread_time() - began) / _SHARE

    def note(self, sample: Sample) -> None:
        """Add what is new in a sample; waits for a device that still computes one of its values."""
        values = sample.values()
        rates = {
            path_of(number, group, "lr"): rate
            for number, groups in enumerate(values.rates)
            for group, rate in enumerate(groups)
            if sample.rates[number][group] is not None
        }
        logged = {
            name: value
            for name, value in values.metrics.items()
            if name not in rates and self._is_new(name, sample.metrics[name], value)
        }
        step, moment = sample.global_step, sample.time
        with self._lock:
            self._make_room([*rates, *logged])
            for name, rate in rates.items():
                if name in self._series:
                    self._series[name].prolong(step, moment, rate)
            for name, value in logged.items():
                if name in self._series:
                    self._series[name].append(step, moment, value)
                    scalar = sample.metrics[name]
                    # Its memory alone: a metric that was logged with its graph would hold that too.
                    self._last[name] = (scalar.detach() if isinstance(scalar, Tensor) else None, value)

    def _is_new(self, name: str, scalar: Scalar, value: float) -> bool:
        if name not in self._last:
            return True
        tensor, before = self._last[name]
        if not is_equal(value, before):
            return True
        # Lightning hands out one value as several tensors, which share its memory.
        return isinstance(scalar, Tensor) and (tensor is None or scalar.data_ptr() != tensor.data_ptr())

    def _make_room(self, names: Iterable[str]) -> None:
        """Make a series for each name that has none, and all of them shorter where they become too many."""
        new = [name for name in names if name not in self._series]
        room = MOST_SERIES - len(self._series)
        self._left_out = max(self._left_out, len(new) - room)
        share = MOST_NUMBERS // (2 * 3 * max(1, len(self._series) + len(new[:room])))
        # By halves, so that it seldom happens.
        limit = max(FEWEST_POINTS, min(MOST_POINTS, 1 << max(0, share.bit_length() - 1)))
        if limit < self._limit:
            self._limit = limit
            for series in self._series.values():
                series.shorten(limit)
        self._series.update({name: Series(self._limit) for name in new[:room]})

    # ---- any thread

    @property
    def names(self) -> list[str]:
        """The names that there is a series of."""
        return list(self._series)

    def __contains__(self, name: object) -> bool:
        return name in self._series

    def csv(self, name: str) -> str:
        """Return the points of a series that there is."""
        with self._lock:
            return self._series[name].csv()

    @property
    def index(self) -> Index:
        """What there is a history of."""
        series = {name: escape(_file_of(name)) for name in self.names}
        return Index(interval=INTERVAL, left_out=self._left_out, series=series)


class HistoryFiles(Dir):
    """The metrics and learning rates since this session of the run started, for charts: a CSV file for each.

    A look is taken up to four times a second, and a series keeps its newest 1024 points and, before them, as many at
    most, evenly spread over the session; with more than 325 series, fewer. The names are those of `state/metrics/` and,
    for learning rates, those of the control log: `optimizers/0/groups/0/lr`.
    """

    placeholder = f"<name>{_SUFFIX}"

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("index.json")
    def index(self) -> Index:
        """Each series by its unescaped name, with its file."""
        return self._run.history.index

    def members(self) -> Iterable[str]:
        """Return the names of the files."""
        return [_file_of(name) for name in self._run.history.names]

    def member(self, name: str) -> Leaf | None:
        """Return the file of one series."""
        history, plain = self._run.history, name.removesuffix(_SUFFIX)
        if plain == name or plain not in history:
            return None
        return Leaf(
            lambda: history.csv(plain),
            doc="One series as CSV, the oldest point first: optimizer steps, seconds since 1970, value.",
            schema=lambda: schema_of(str),
        )


def _file_of(name: str) -> str:
    """Return the unescaped name of a series' file."""
    return f"{name}{_SUFFIX}"
