"""Series: one line of a chart, of a bounded number of points however long the run."""

from __future__ import annotations

from array import array

HEADER = "step,time,value\n"

Columns = tuple["array[float]", "array[float]", "array[float]"]
"""Steps, times and values, the oldest first."""


class _CsvText:
    """The text of a row of points that grows at its end and shrinks at its beginning: each point is put in words once.

    A float takes a microsecond to write, and a chart asks for two thousand of them each second.
    """

    def __init__(self) -> None:
        self._first = self._end = 0
        self._text = ""

    def of(self, first: int, columns: Columns) -> str:
        """Return a line for each point; the number of the first point only ever grows."""
        if first > self._end:
            self._first, self._end, self._text = first, first, ""
        cut = 0
        for _ in range(first - self._first):
            cut = self._text.index("\n", cut) + 1
        new = (column[self._end - first :] for column in columns)
        self._text = self._text[cut:] + "".join([line(*point) for point in zip(*new, strict=True)])
        self._first, self._end = first, first + len(columns[0])
        return self._text


def line(step: float, time: float, value: float) -> str:
    """Return a point as a line of CSV, as `HEADER` says."""
    return f"{step:.0f},{time:.3f},{value!r}\n"


class Series:
    """The points of one name: the newest `limit` in full, and of those before them, as many at most, evenly thinned.

    The first and the last point are always there. One thread at a time may use it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._newest = _columns()
        self._oldest = 0
        """Place of the oldest point in `_newest`, which is a ring once it is full."""
        self._thinned = _columns()
        self._stride = 1
        self._left = 0
        """How many points have left `_newest`: of these, each one whose number the stride divides is in `_thinned`."""
        self._lines, self._thinned_lines = _CsvText(), _CsvText()

    def __len__(self) -> int:
        return len(self._thinned[0]) + len(self._newest[0])

    def append(self, step: int, time: float, value: float) -> None:
        """Add a point."""
        point, place = (step, time, value), self._oldest
        if len(self._newest[0]) < self._limit:
            for column, number in zip(self._newest, point, strict=True):
                column.append(number)
            return
        if self._left % self._stride == 0:
            for thinned, column in zip(self._thinned, self._newest, strict=True):
                thinned.append(column[place])
            self._thin()
        self._left += 1
        for column, number in zip(self._newest, point, strict=True):
            column[place] = number
        self._oldest = (place + 1) % self._limit

    def prolong(self, step: int, time: float, value: float) -> None:
        """Add a point, or, where the last two have its value, move the last one to it.

        A value that stays has its two ends then, the second of which is now.
        """
        steps, times, values = self._newest
        last, before = self._oldest - 1, self._oldest - 2
        if len(values) > 1 and is_equal(values[last], value) and is_equal(values[before], value):
            steps[last], times[last] = step, time
        else:
            self.append(step, time, value)

    def shorten(self, limit: int) -> None:
        """Keep fewer points from now on."""
        columns = self._ordered()
        leaving = max(0, len(columns[0]) - limit)
        for thinned, column in zip(self._thinned, columns, strict=True):
            thinned.extend(column[:leaving][-self._left % self._stride :: self._stride])
        self._limit, self._oldest = limit, 0
        self._newest = _columns(*(column[leaving:] for column in columns))
        self._left += leaving
        self._thin()

    def csv(self) -> str:
        """Return the points as CSV, the oldest first."""
        columns = self._ordered()
        # The last point may move yet.
        settled = self._lines.of(self._left, _columns(*(column[:-1] for column in columns)))
        last = "".join([line(*point) for point in zip(*(column[-1:] for column in columns), strict=True)])
        return f"{HEADER}{self._thinned_lines.of(0, self._thinned)}{settled}{last}"

    def _ordered(self) -> Columns:
        return _columns(*(column[self._oldest :] + column[: self._oldest] for column in self._newest))

    def _thin(self) -> None:
        while len(self._thinned[0]) > self._limit:
            self._thinned = _columns(*(column[::2] for column in self._thinned))
            self._thinned_lines = _CsvText()
            self._stride *= 2


def _columns(*columns: array[float]) -> Columns:
    steps, times, values = columns or (array("d"), array("d"), array("d"))
    return steps, times, values


def is_equal(one: float, other: float) -> bool:
    """Whether two values are the same, as NaN and NaN are."""
    return one == other or (one != one and other != other)  # noqa: PLR0124 - only NaN differs from itself
