"""History: the metrics and learning rates of every step, on the disk, and of this session in memory, for charts.

Training leaves its samples in a row and pays for nothing else. A thread of its own takes them a few times a second,
writes what is new in them, and keeps the newest of it in memory. `History` is the store and `HistoryFiles` the
directory that shows it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from midrun.fs.names import escape
from midrun.fs.schema import schema_of
from midrun.fs.segments import Segment
from midrun.fs.tracebacks import last_line
from midrun.fs.tree import Dir, Leaf, Link, file
from midrun.logged import Block, Logged, Noted
from midrun.records import HISTORY
from midrun.sample import Sample
from midrun.series import Series
from midrun.services import Service
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
_FLUSH_EVERY = 1.0
"""Seconds between two writings to the disk, which is what a killed process may lose."""
_STOP_PATIENCE = 0.5
"""Seconds for the last look, and for the thread to end."""
_SUFFIX = ".csv"


class Index(TypedDict):
    """What there is a history of in this session."""

    interval: float
    """Seconds between two looks, at least: of what was logged in between, a series has the last, the disk all."""
    left_out: int
    """How many names more than there is room for there were at most."""
    lost: int
    """How many samples or rows are not on the disk, because it took nothing, or not fast enough."""
    series: dict[str, str]
    """The file of each, beside this one, by its unescaped name."""


class History:
    """The points of one session: each fit, also of the same model in the same directory, starts anew.

    What counts as a point is said in `logged`. A learning rate is always there, so one that stays has two points in its
    series: where it began and where it was seen last.

    The step of a point is how many optimizer steps were done at the end of its batch.

    Parameters
    ----------
    noted
        The samples of which it is told.
    parent
        Where its files go.
    function
        What runs: `fit`, `validate`, `test` or `predict`.
    service
        Where it is told whether this works.
    look
        Called a few times a second; tells whether samples may be read now.
    """

    def __init__(
        self,
        noted: Noted,
        parent: Path,
        function: Callable[[], str],
        service: Service,
        look: Callable[[], bool] = lambda: True,
    ) -> None:
        self._noted, self._parent, self._function = noted, parent, function
        self._look = look
        self._service = service
        self._faults: dict[tuple[str, int | None], str] = {}
        """What was first told of each kind of error, by its class and errno."""
        # What is no Exception, as a panic of Rust code, comes to the worker.
        self._worker = Worker("midrun-history", lambda text, _: service.fail(text), self._take, INTERVAL)
        self._logged = Logged()
        self._segment: Segment | None = None
        self._step = 0
        """The last sample's."""
        self._flushed = -math.inf
        """When the disk was last given something, by the monotonic clock."""
        self._is_stuck = False
        """Whether the disk has not taken what it was last given."""
        self._lost = 0
        """Rows that earlier segments have lost."""
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
        self._worker.put(self._end)
        self._worker.stop(_STOP_PATIENCE)

    def settle(self) -> None:
        """Have the disk take what was logged so far; return when it has, or when that takes too long."""
        done = threading.Event()

        def settle() -> None:
            self._flushed = -math.inf
            self._take()
            done.set()

        self._worker.put(settle)
        done.wait(_STOP_PATIENCE)

    # ---- its own thread

    def _end(self) -> None:
        self._flushed = -math.inf
        self._take(is_last=True)

    def _take(self, *, is_last: bool = False) -> None:
        """Take the samples that have come, and note what is new in them."""
        samples: list[Sample] = []
        try:
            if self._look():
                samples = self._noted.take(late=is_last)
                self.note(samples)
                samples = []
                if is_last:
                    self._write(self._logged.steady())
                self._flush()
        except Exception as error:  # noqa: BLE001 - whatever became of the device or the disk, the next may be better
            # One kind is told once, also where its message has an address in it that changes.
            self._lost += len(samples)
            kind = type(error).__name__, error.errno if isinstance(error, OSError) else None
            self._service.fail(self._faults.setdefault(kind, last_line(error)))
        else:
            if not self._is_stuck:
                self._service.run()

    def note(self, samples: Sequence[Sample]) -> None:
        """Add what is new in samples; waits for a device that still computes one of their values.

        A step that goes back, as after a tuner's trial, begins another segment.
        """
        start = 0
        for place, sample in enumerate(samples):
            if sample.global_step < self._step:
                self._add(samples[start:place])
                self._end_segment()
                start = place
            self._step = sample.global_step
        self._add(samples[start:])

    def _add(self, samples: Sequence[Sample]) -> None:
        if not samples:
            return
        blocks = self._logged.new_in(samples)
        newest: dict[str, tuple[int, float, float]] = {}
        for block in blocks:
            at = (block.steps[-1], block.times[-1])
            newest.update((name, (*at, value)) for name, value in zip(block.names, block.rows[-1], strict=True))
        with self._lock:
            self._make_room(newest)
            for name, point in newest.items():
                if name in self._series and name not in self._logged.rates:
                    self._series[name].append(*point)
            for name, rate in self._logged.rates.items():
                if name in self._series:
                    self._series[name].prolong(samples[-1].global_step, samples[-1].time, rate)
        if self._segment is None and blocks:
            first = samples[0]
            # A batch that makes no step shows the last one's number: that step is not made again.
            began = self._noted.began
            first_step = began + 1 if began <= first.global_step else first.global_step
            self._segment = Segment(self._parent, self._function(), first.time, first_step)
        self._write(blocks)

    def _write(self, blocks: Iterable[Block]) -> None:
        if self._segment is not None:
            for block in blocks:
                self._segment.append(*(self._admitted(block) if self._left_out else block))

    def _flush(self) -> None:
        """Have the disk take what was added, as far as it does, unless that was tried a moment ago."""
        now = time.monotonic()
        if self._segment is None or now - self._flushed < _FLUSH_EVERY:
            return
        self._flushed, self._is_stuck = now, True
        try:
            self._segment.flush()
        except FileNotFoundError:
            # Somebody has tidied up.
            self._service.warn("files of it were removed: what is logged from now on goes into a new directory")
            self._end_segment()
        self._is_stuck = False

    def _admitted(self, block: Block) -> Block:
        """Return a block without the names for which there is no room."""
        admitted = [name in self._series for name in block.names]
        names = tuple(compress(block.names, admitted))
        return block._replace(names=names, rows=[[*compress(row, admitted)] for row in block.rows])

    def _end_segment(self) -> None:
        """End the segment; what the disk does not take by now is lost."""
        if self._segment is not None:
            with suppress(OSError):
                self._segment.flush()
            self._lost += self._segment.lost + self._segment.waiting
        self._segment = None
        self._logged.forget_rates()  # The next segment has its own.

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
        segment = self._segment
        return Index(
            interval=INTERVAL,
            left_out=self._left_out,
            lost=self._noted.lost + self._lost + (0 if segment is None else segment.lost),
            series={name: escape(_file_of(name)) for name in self.names},
        )


class HistoryFiles(Dir):
    """The metrics and learning rates since this session of the run started: a CSV file for each, and the disk's files.

    Of each look, up to four a second, a series has the last value; it keeps its newest 1024 points and, before them, as
    many at most, evenly spread over the session; with more than 325 series, fewer. Every value of every step is on the
    disk, see `rows`. The names are those of `state/metrics/` and, for learning rates, those of the control log:
    `optimizers/0/groups/0/lr`.
    """

    placeholder = f"<name>{_SUFFIX}"

    def __init__(self, run: Run) -> None:
        self._run = run
        self.rows = Link(
            lambda: str(run.directory / HISTORY),
            "Every value of every step, of all sessions: a directory for each, with float64 rows and `columns.json`.",
        )

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
