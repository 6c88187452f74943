"""Rows on the disk: no crash and no full disk puts them out of step, and a chart of many reads few."""

from __future__ import annotations

import errno
import math
import os
from array import array
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midrun.fs import rows
from midrun.fs.rows import FACTOR, Point, RowFile, RowReader, level_path

T = TypeVar("T")

NUMBERS = st.one_of(
    st.floats(-1e3, 1e3), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7e308, -1.7e308])
)


def write(path: Path, values: list[list[float]], start: int = 0, file: RowFile | None = None) -> RowFile:
    """Append a row for each list of values; a row's step is its number."""
    file = file or RowFile(path, len(values[0]))
    file.append(array("d", [x for at, row in enumerate(values, start) for x in (at, 1000.0 + at, *row)]))
    file.flush()
    return file


def reading(path: Path, columns: int, question: Callable[[RowReader], T]) -> T:
    with closing(RowReader(path, columns)) as reader:
        return question(reader)


def extremes(path: Path, columns: int, column: int, first: int, end: int, pieces: int) -> list[Point]:
    def named(reader: RowReader) -> list[Point]:
        points = [point for piece in reader.pieces(column, first, end, pieces) for point in piece.points()]
        return sorted({*points, *reader.ends(column, first, end)}, key=lambda point: point[:2])

    return reading(path, columns, named)


def key(point: Point) -> tuple[object, ...]:
    """What two points are compared by: NaN is no number, but it is the same as NaN."""
    return tuple("NaN" if math.isnan(number) else number for number in point)


def test_a_file_of_rows_is_what_numpy_reads_with_one_call(tmp_path: Path) -> None:
    import numpy as np

    write(tmp_path / "a.rows", [[at / 8, math.nan] for at in range(100)])
    found = np.fromfile(tmp_path / "a.rows").reshape(-1, 4)
    assert found.shape == (100, 4)
    assert found[7, :3].tolist() == [7.0, 1007.0, 7 / 8]
    assert np.isnan(found[:, 3]).all()


def test_every_point_of_a_range_is_there_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "a", [[at * 0.1, -at] for at in range(1000)])
    for first, end in ((0, 1000), (3, 4), (5, 5), (990, 1000)):
        points = reading(tmp_path / "a", 2, lambda r, f=first, e=end: r.points(1, f, e))  # type: ignore[misc]
        assert points == [Point(at, 1000.0 + at, -at) for at in range(first, end)]


@given(values=st.lists(NUMBERS, min_size=1, max_size=300), cut=st.tuples(st.integers(0, 300), st.integers(0, 300)))
def test_the_extremes_are_those_of_all_the_rows_whatever_is_in_buckets(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], cut: tuple[int, int]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "FACTOR", 4)  # Three levels of few rows.
        write(path, [[value] for value in values])
        first, end = sorted(min(place, len(values)) for place in cut)
        found = extremes(path, 1, 0, first, end, 1)
    span = [Point(at, 1000.0 + at, values[at]) for at in range(first, end)]
    assert {key(point) for point in found} <= {key(point) for point in span}, "each is one that there is"
    assert [point.step for point in found] == sorted(point.step for point in found)
    numbers = [value for value in values[first:end] if not math.isnan(value)]
    if numbers:
        shown = [point.value for point in found if not math.isnan(point.value)]
        assert (min(shown), max(shown)) == (min(numbers), max(numbers))
    nans = [point for point in span if math.isnan(point.value)]
    if nans:
        assert key(nans[0]) in {key(point) for point in found}, "the first NaN"
    [piece] = reading(path, 1, lambda reader: reader.pieces(0, first, end, 1)) if span else [None]
    if piece is not None:
        assert (piece.step, piece.time) == span[0][:2]
        assert piece.numbers == len(numbers)
        mean = sum(numbers) / len(numbers) if numbers else math.nan
        if all(abs(number) < 1e300 for number in numbers):  # Else a sum may be too large for a float.
            assert piece.mean == pytest.approx(mean, rel=1e-9, abs=1e-9, nan_ok=True)
    if span:
        assert {key(span[0]), key(span[-1])} <= {key(point) for point in found}, "both ends"


def test_each_piece_keeps_its_spike(tmp_path: Path) -> None:
    spikes = {1234: 9.0, 17_000: -9.0, 17_001: math.nan, 49_999: 8.0}
    write(tmp_path / "a", [[0.5, spikes.get(at, at % 2)] for at in range(50_000)])
    found = extremes(tmp_path / "a", 2, 1, 0, 50_000, 100)
    assert {key(Point(at, 1000.0 + at, value)) for at, value in spikes.items()} <= {key(point) for point in found}
    assert 200 <= len(found) <= 210


@pytest.mark.parametrize("rest", [0, 848, FACTOR**2 - 1])
def test_the_pieces_are_of_as_many_rows_each_whatever_the_buckets_at_the_ends(tmp_path: Path, rest: int) -> None:
    first, size = 100, FACTOR**2
    end = 12 * size + rest
    write(tmp_path / "a", [[at % 7] for at in range(end)])
    steps = [point.step for point in extremes(tmp_path / "a", 1, 0, first, end, 10)]
    assert len(steps) <= 22
    assert max(later - earlier for earlier, later in pairwise(steps)) <= (end - first) / 10 + size


def test_a_range_of_a_long_file_reads_buckets_and_not_its_rows(tmp_path: Path, bytes_read: list[int]) -> None:
    count = FACTOR**2 * 3
    write(tmp_path / "a", [[at] for at in range(count)])
    assert len(extremes(tmp_path / "a", 1, 0, 0, count, 3)) <= 8
    assert sum(bytes_read) < 1000


def test_the_first_row_of_a_step_is_found(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "a", 1)
    steps = [0, 0, 3, 3, 3, 8]
    file.append(array("d", [x for step in steps for x in (step, 0.0, 1.0)]))
    file.flush()
    found = [reading(tmp_path / "a", 1, lambda r, s=step: r.find(s)) for step in (-1, 0, 1, 3, 4, 8, 9, math.inf)]  # type: ignore[misc]
    assert found == [0, 0, 2, 2, 5, 5, 6, 6]


def test_what_a_killed_writer_has_left_behind_the_last_row_is_no_row(tmp_path: Path) -> None:
    write(tmp_path / "a", [[at] for at in range(FACTOR + 3)])
    with (tmp_path / "a").open("ab") as file:
        file.write(b"\x00" * 17)
    for level in (1, 2):
        with level_path(tmp_path / "a", level).open("ab") as file:
            file.write(b"\x00" * 100)  # Buckets of rows that are not there.
    assert reading(tmp_path / "a", 1, lambda reader: reader.rows) == FACTOR + 3
    assert extremes(tmp_path / "a", 1, 0, 0, FACTOR + 3, 1)[-1].value == FACTOR + 2


def test_without_its_buckets_a_file_is_read_all_the_same(tmp_path: Path) -> None:
    write(tmp_path / "a", [[at] for at in range(FACTOR * 3)])
    level_path(tmp_path / "a", 1).unlink()
    assert {point.value for point in extremes(tmp_path / "a", 1, 0, 0, FACTOR * 3, 1)} == {0.0, FACTOR * 3 - 1.0}


@pytest.mark.parametrize("taken", [0, 1, 23, 24, 25, 100])
@pytest.mark.parametrize("cuttable", [True, False])
def test_a_disk_that_takes_a_part_leaves_whole_rows_and_the_rest_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, cuttable: bool
) -> None:
    path, whole = tmp_path / "a", [[float(at)] for at in range(FACTOR * 2)]
    file = RowFile(path, 1)
    write(path, whole[:5], file=file)
    room, write_ = [taken], os.write

    def full(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write_(fd, data[: room[0]])
        room[0] -= done
        return done

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        if not cuttable:
            disk.setattr(os, "ftruncate", fails)
        for _ in range(2):
            with pytest.raises(OSError, match=r"No space|Input/output"):
                write(path, [], file=file) if file.waiting else write(path, whole[5:], 5, file)
    if cuttable:
        assert path.stat().st_size % 24 == 0
    assert file.rows_waiting == len(whole) - 5 - taken // 24
    write(path, [], file=file)
    assert reading(path, 1, lambda r: r.points(0, 0, r.rows)) == [
        Point(at, 1000.0 + at, at) for at in range(len(whole))
    ]
    assert {point.value for point in extremes(path, 1, 0, 0, len(whole), 1)} == {0.0, len(whole) - 1.0}


def test_a_file_that_somebody_has_cut_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "a", [[1.0]])
    os.truncate(tmp_path / "a", 3)
    with pytest.raises(FileNotFoundError, match="was cut, or removed"):
        write(tmp_path / "a", [[2.0]], 1, file)
