"""Rows: numbers on the disk, as many in each row of a file, that neither a crash nor a full disk puts out of step.

A file of rows is nothing but float64, in the machine's byte order: step, seconds since 1970, and a value for each
column. Rows are only ever appended, and what stands behind the last whole row is no row.

Beside it are its buckets, so that a chart of a long run reads little. A bucket says of `FACTOR` rows, for each column,
which value is the lowest, the highest and the first that is no number, where these stand, and what the mean is; and of
these buckets are made those of the next level, of as many each. All of it can be made again from the rows.
"""

from __future__ import annotations

import errno
import math
import os
import random
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

FACTOR = 64
"""Rows in a bucket of the first level, and buckets in one of the next."""
LEVELS = 3
"""A bucket of the last level is of 262,144 rows: of ten million there are forty."""
HEAD = 2
"""Numbers in a row before its values: step and time."""
SIZE = 8
"""Bytes of a number."""
# Not to wait for the other end of a named pipe, should one be there.
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC


class Point(NamedTuple):
    """One value of one column."""

    step: float
    time: float
    value: float


class Bucket(NamedTuple):
    """What is drawn of neighbouring values of one column."""

    step: float
    """Of the first of them."""
    time: float
    numbers: float
    """How many of them are numbers."""
    total: float
    """The sum of those."""
    low: float
    """NaN where none of them is a number."""
    low_step: float
    low_time: float
    high: float
    high_step: float
    high_time: float
    nan_step: float
    """Of the first value that is no number; NaN where each is one."""
    nan_time: float

    @property
    def mean(self) -> float:
        """The mean of those that are numbers; NaN where none is."""
        return self.total / self.numbers if self.numbers else math.nan

    def points(self) -> Iterator[Point]:
        """Iterate over the points that it names."""
        if not math.isnan(self.low):
            yield Point(self.low_step, self.low_time, self.low)
            yield Point(self.high_step, self.high_time, self.high)
        if not math.isnan(self.nan_step):
            yield Point(self.nan_step, self.nan_time, math.nan)


WIDTH = len(Bucket._fields)
"""Numbers of a bucket for each column."""


def bucket_of_rows(steps: array[float], times: array[float], values: array[float]) -> Bucket:
    """Return the bucket of neighbouring rows, of which there is one at least."""
    numbers = _numbers(values)
    low, high = (values.index(of(numbers)) if numbers else 0 for of in (min, max))
    nan = next((at for at, value in enumerate(values) if math.isnan(value)), -1) if len(numbers) < len(values) else -1
    return Bucket(
        *(steps[0], times[0], len(numbers), sum(numbers)),
        *(values[low], steps[low], times[low]),
        *(values[high], steps[high], times[high]),
        *((math.nan, math.nan) if nan < 0 else (steps[nan], times[nan])),
    )


def bucket_of_buckets(members: Sequence[array[float]]) -> Bucket:
    """Return the bucket of neighbouring ones, of which there is one at least: an array for each member of a bucket."""
    steps, times, counts, totals, lows, low_steps, low_times, highs, high_steps, high_times, nans, nan_times = members
    numbers = _numbers(lows), _numbers(highs)
    low, high = (lows.index(min(numbers[0])), highs.index(max(numbers[1]))) if numbers[0] else (0, 0)
    nan = next((at for at, step in enumerate(nans) if not math.isnan(step)), 0)
    return Bucket(
        *(steps[0], times[0], sum(counts), sum(totals)),
        *(lows[low], low_steps[low], low_times[low]),
        *(highs[high], high_steps[high], high_times[high]),
        *(nans[nan], nan_times[nan]),
    )


def _numbers(values: array[float]) -> array[float]:
    """Return the values that are numbers: Python's `min` is blind where it meets NaN."""
    # The sum is NaN as well where there are infinities of both signs.
    return array("d", (value for value in values if not math.isnan(value))) if math.isnan(sum(values)) else values


def level_path(path: Path, level: int) -> Path:
    """Return the file of a level of the rows' buckets: `<name>.1` and on."""
    return path.with_name(f"{path.name}.{level}")


class RowFile:
    """A file of rows and its buckets, for the one who writes them.

    Parameters
    ----------
    path
        The file; its directory is there.
    columns
        Values in a row.
    """

    def __init__(self, path: Path, columns: int) -> None:
        self._columns = columns
        self._block = array("d")
        """The rows that are in no bucket yet."""
        self._gathered = [array("d") for _ in range(LEVELS)]
        """Of each level the buckets that are in none of the next yet."""
        self._rows = _Tail(path, (HEAD + columns) * SIZE)
        self._levels = [_Tail(level_path(path, level + 1), columns * WIDTH * SIZE) for level in range(LEVELS)]

    @property
    def waiting(self) -> int:
        """Bytes that are not on the disk yet."""
        return sum(len(tail.waiting) for tail in (self._rows, *self._levels))

    @property
    def rows_waiting(self) -> int:
        """Rows that are not on the disk yet."""
        return len(self._rows.waiting) // ((HEAD + self._columns) * SIZE)

    def append(self, rows: array[float]) -> None:
        """Add rows: of each its step, its time, and a value for each column."""
        self._rows.waiting += rows.tobytes()
        self._block += rows
        width = HEAD + self._columns
        size = FACTOR * width
        whole = len(self._block) // size * size
        for at in range(0, whole, size):
            steps, times, *columns = (self._block[at + place : at + size : width] for place in range(width))
            self._add(0, [bucket_of_rows(steps, times, values) for values in columns])
        del self._block[:whole]

    def _add(self, level: int, buckets: Iterable[Bucket]) -> None:
        """Add a bucket of each column to a level, and where that is due to the next."""
        numbers = array("d", chain.from_iterable(buckets))
        self._levels[level].waiting += numbers.tobytes()
        if level + 1 == LEVELS:
            return
        gathered, width = self._gathered[level], len(numbers)
        gathered += numbers
        if len(gathered) == FACTOR * width:
            self._gathered[level] = array("d")
            members = [gathered[place::width] for place in range(width)]
            self._add(level + 1, (bucket_of_buckets(members[at : at + WIDTH]) for at in range(0, width, WIDTH)))

    def flush(self) -> None:
        """Write what waits. Raises OSError where the disk does not take all of it; the rest still waits then."""
        # The rows first: all else can be made from them.
        for tail in (self._rows, *self._levels):
            if tail.waiting:
                tail.flush()


class _Tail:
    """The end of a file to which only whole records are appended."""

    def __init__(self, path: Path, record: int) -> None:
        self._path, self._record = path, record
        self._end = 0
        self._is_cut = True
        """Whether what a write that failed has left could be cut off."""
        self._inode: int | None = None
        """Which file it is: in the place of one that was removed there may be another's by now."""
        self.waiting = bytearray()
        """What comes next."""

    def flush(self) -> None:
        """Append what waits; where that fails, the file ends with a whole record, and what it lacks still waits."""
        try:
            self._append()
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    def _append(self) -> None:
        fd = os.open(self._path, _APPEND, 0o666)
        try:
            there = os.fstat(fd)
            size = there.st_size
            if self._inode is None and not size:
                self._inode = there.st_ino
            # Inodes are used again: a length that is not this one's is another's too.
            if size < self._end or there.st_ino != self._inode or (size > self._end and self._is_cut):
                raise FileNotFoundError(errno.ENOENT, "it was cut, or removed, or is another's")
            if size > self._end:
                os.ftruncate(fd, self._end)
                self._is_cut = True
            try:
                self._write(fd)
            except OSError:
                self._is_cut = False
                with suppress(OSError):
                    os.ftruncate(fd, self._end)
                    self._is_cut = True
                raise
        finally:
            os.close(fd)

    def _write(self, fd: int) -> None:
        data, written = bytes(self.waiting), 0
        try:
            while written < len(data):
                written += os.write(fd, data[written:])
        finally:
            written -= written % self._record
            del self.waiting[:written]
            self._end += written


class RowReader:
    """A file of rows and its buckets, for whoever draws them; it may grow meanwhile.

    Raises OSError where the file can't be opened. It is closed by `close`, and may be opened again.
    """

    def __init__(self, path: Path, columns: int) -> None:
        self._path = path
        self._widths = [HEAD + columns, *[columns * WIDTH] * LEVELS]
        """Numbers of a row, and of the buckets of each level."""
        self._files: list[int] = []
        self.open()

    def open(self) -> None:
        """Open the files, which are closed."""
        self._files = [os.open(self._path, READ)]
        self.rows = os.fstat(self._files[0]).st_size // (self._widths[0] * SIZE)
        self._counts = [self.rows]
        """How many rows there are, and how many buckets of each level."""
        with suppress(OSError):
            for level in range(1, LEVELS + 1):
                self._files.append(os.open(level_path(self._path, level), READ))
                there = os.fstat(self._files[level]).st_size // (self._widths[level] * SIZE)
                self._counts.append(min(there, self.rows // FACTOR**level))

    def __enter__(self) -> None:
        self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop())

    def find(self, step: float) -> int:
        """Return the place of the first row of this step or a later one; steps never descend."""
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            if self._read(0, middle, middle + 1)[0] < step:
                low = middle + 1
            else:
                high = middle
        return low

    def points(self, column: int, first: int, end: int) -> list[Point]:
        """Return every point of a column from row `first` on, before row `end`."""
        return [*map(Point, *self._columns_of(column, first, end))]

    def sample(self, column: int, first: int, end: int, count: int) -> list[float]:
        """Return values of a column, `count` at most, of rows drawn at random; of the same rows each time."""
        # Not evenly spread: something may happen every so many rows.
        drawn = random.Random(0).sample(range(first, end), min(count, end - first))  # noqa: S311 - no secret
        return [self._read(0, row, row + 1)[HEAD + column] for row in drawn]

    def pieces(self, column: int, first: int, end: int, count: int) -> list[Bucket]:
        """Return the buckets of `count` pieces of the rows, of as many rows each, give or take a bucket.

        Only buckets are read where that is enough.
        """
        level = 0
        while level + 1 < len(self._counts) and (end - first) // FACTOR ** (level + 1) >= count:
            level += 1
        *buckets, starts = self._buckets(column, first, end, level)
        # By rows and not by buckets: those at the ends are of fewer.
        edges = [bisect_left(starts, first + (end - first) * piece // count) for piece in range(count + 1)]
        return [
            bucket_of_buckets([numbers[from_:to] for numbers in buckets]) for from_, to in pairwise(edges) if from_ < to
        ]

    def ends(self, column: int, first: int, end: int) -> list[Point]:
        """Return the first and the last point of a range of rows."""
        return [*self.points(column, first, min(first + 1, end)), *self.points(column, max(first, end - 1), end)]

    def _buckets(self, column: int, first: int, end: int, level: int) -> list[array[float]]:
        """Return buckets of the rows: of a level, and at the ends, where none of it fits, of lower ones.

        There is an array for each member of a bucket, and one of the rows that they begin with: to make objects of
        fifteen thousand would take most of the time.
        """
        if level == 0:
            return _buckets_of_one(*self._columns_of(column, first, end), first)
        size = FACTOR**level
        low, high = -(-first // size), min(end // size, self._counts[level])
        if high <= low:
            return self._buckets(column, first, end, level - 1)
        data = self._read(level, low, high)
        here = [data[column * WIDTH + member :: self._widths[level]] for member in range(WIDTH)]
        here.append(array("d", range(low * size, high * size, size)))
        before = self._buckets(column, first, low * size, level - 1)
        after = self._buckets(column, high * size, end, level - 1)
        return [left + middle + right for left, middle, right in zip(before, here, after, strict=True)]

    def _columns_of(self, column: int, first: int, end: int) -> tuple[array[float], array[float], array[float]]:
        data, width = self._read(0, first, end), self._widths[0]
        return data[0::width], data[1::width], data[HEAD + column :: width]

    def _read(self, level: int, first: int, end: int) -> array[float]:
        """Return the numbers of rows, which are level 0, or of the buckets of a level."""
        size = self._widths[level] * SIZE
        numbers = array("d", bytes((end - first) * size))
        with memoryview(numbers).cast("B") as view:
            done = 0
            while done < len(view):
                read = os.preadv(self._files[level], [view[done:]], first * size + done)
                if not read:
                    raise OSError(f"a file of the history has become shorter while it was read, after {done} bytes")
                done += read
        return numbers


def _buckets_of_one(steps: array[float], times: array[float], values: array[float], first: int) -> list[array[float]]:
    """Return a bucket of each row, as `RowReader._buckets` does."""
    odd = _numbers(values) is not values
    counts = array("d", (not math.isnan(value) for value in values)) if odd else array("d", [1.0]) * len(values)
    totals = array("d", (0.0 if math.isnan(value) else value for value in values)) if odd else values
    nothing = array("d", [math.nan]) * len(values)
    nans = (
        array("d", (s if math.isnan(v) else math.nan for s, v in zip(steps, values, strict=True))) if odd else nothing
    )
    rows = array("d", range(first, first + len(values)))
    return [steps, times, counts, totals, values, steps, times, values, steps, times, nans, times, rows]
