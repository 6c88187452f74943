"""Curves: the points of a name, of all segments of a run, read from the disk; of many points those that show most."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from midrun.fs.rows import HEAD, READ, SIZE, Bucket, Point, RowReader
from midrun.fs.segments import FORMAT, INDEX, FileRecord, SegmentRecord, segments_in

_SAMPLED, _USUAL = 500, (0.02, 0.98)
"""Values from which it is told what is usual, and the part of them that lies below."""

_NONE = (
    *(FileNotFoundError, NotADirectoryError, IsADirectoryError),
    *(ValueError, KeyError, TypeError, OverflowError, RecursionError),
)
"""What is raised where a segment's directory, or its `columns.json`, is none."""

_FILE = re.compile(r"[0-9]{4,}\.rows")

Duplicates = Literal["both", "last"]


class Piece(TypedDict):
    """Neighbouring points of which only some are shown."""

    step: int
    """Of the first of them."""
    time: float
    count: int
    """How many of them are numbers."""
    mean: float
    """Of those; NaN where none is."""
    low: float
    high: float


class Attempt(TypedDict):
    """The points of one segment, in the order of their steps."""

    segment: str
    function: str
    started: float
    steps: list[int]
    times: list[float]
    values: list[float]
    pieces: list[Piece]
    """What the points are of, where not all are here."""


class Curve(TypedDict):
    """The points of one name."""

    name: str
    rows: int
    """How many points there are in what was asked for."""
    exact: bool
    """Whether all of them are here; else of each piece the lowest, the highest and the first NaN."""
    usual: list[float]
    """Between which two values nearly all of those are that were sampled; empty where all points are here."""
    attempts: list[Attempt]
    """The oldest first; a step that was made again is in more than one."""


class Name(TypedDict):
    """One name that there are points of."""

    rows: int
    """Points, of all segments."""
    segments: list[str]


def names_in(parent: Path) -> dict[str, Name]:
    """Return what there are points of, in the order in which it came. Raises OSError where that can't be read."""
    found: dict[str, Name] = {}
    for segment, record in _records(parent):
        for file in record["files"]:
            rows = _size(segment / file["file"]) // (len(file["columns"]) * SIZE)
            for name in file["columns"][HEAD:]:
                entry = found.setdefault(name, Name(rows=0, segments=[]))
                entry["rows"] += rows
                if segment.name not in entry["segments"]:
                    entry["segments"].append(segment.name)
    return found


def last_step(parent: Path) -> int:
    """Return the last optimizer step of the newest fit that there is a point of; 0 where there is none."""
    for segment, record in reversed(_records(parent)):
        steps = []
        for file in record["files"] if record["function"] == "fit" else []:
            with suppress(OSError), closing(RowReader(segment / file["file"], len(file["columns"]) - HEAD)) as reader:
                if reader.rows:
                    steps.append(int(reader.points(0, reader.rows - 1, reader.rows)[0].step))
        if steps:
            return max(steps)
    return 0


def curve_of(
    parent: Path,
    name: str,
    *,
    first: float = 0,
    last: float = math.inf,
    points: float = math.inf,
    duplicates: Duplicates = "both",
) -> Curve | None:
    """Return the points of a name, or None where there is no such name.

    Parameters
    ----------
    parent
        The directory with the segments.
    first, last
        The steps of the first and the last point, at most.
    points
        About how many points are wanted: where there are more, those are left out that lie between others.
    duplicates
        `last` leaves out what an earlier segment has from the step on from which a later one has made it again.

    Raises OSError where it can't be read.
    """
    parts = [*_parts(parent, name, first, last, duplicates)]
    rows = sum(len(part.rows) for part in parts)
    if not parts and name not in names_in(parent):
        return None
    exact = rows <= points
    # Of each piece two points are shown, as a rule.
    share = None if exact else points / (2 * rows)
    by_segment = groupby((part for part in parts if part.rows), attrgetter("segment"))
    attempts = [_attempt([*group], share) for _, group in by_segment]
    return Curve(name=name, rows=rows, exact=exact, usual=[] if exact else _usual(parts, rows), attempts=attempts)


class _Part(NamedTuple):
    """The rows of one file that are asked for."""

    segment: str
    record: SegmentRecord
    reader: RowReader
    """It is closed between two uses: there may be more files than a process may have open."""
    column: int
    rows: range

    def pieces(self, share: float | None) -> list[Bucket]:
        """Return the buckets of pieces: as many as this share of the rows, one at least."""
        if share is None:
            return []
        return self.reader.pieces(self.column, *self._span, max(1, round(share * len(self.rows))))

    def points(self, pieces: Sequence[Bucket]) -> list[Point]:
        """Return the points, or those that pieces name, with both ends."""
        if not pieces:
            return self.reader.points(self.column, *self._span)
        named = {point for piece in pieces for point in piece.points()}
        return [*named.union(self.reader.ends(self.column, *self._span))]

    @property
    def _span(self) -> tuple[int, int]:
        return self.rows.start, self.rows.stop


def _parts(parent: Path, name: str, first: float, last: float, duplicates: Duplicates) -> Iterator[_Part]:
    """Iterate over the files that have the name, the oldest first; each is closed: there may be thousands."""
    records = _records(parent)
    for place, (segment, record) in enumerate(records):
        made_again = [later["first_step"] for _, later in records[place + 1 :] if later["function"] == "fit"]
        end = min([last + 1, *made_again] if duplicates == "last" else [last + 1])
        for file in record["files"]:
            if name not in file["columns"][HEAD:]:
                continue
            try:
                reader = RowReader(segment / file["file"], len(file["columns"]) - HEAD)
            except FileNotFoundError:
                continue  # There is no row yet.
            with closing(reader):
                rows = range(start := reader.find(first), max(start, reader.find(end)))
            yield _Part(segment.name, record, reader, file["columns"].index(name, HEAD) - HEAD, rows)


def _usual(parts: Sequence[_Part], rows: int) -> list[float]:
    """Return between which values nearly all are: most points of a curve that is thinned are extremes."""
    values: list[float] = []
    for part in parts:
        share = -(-_SAMPLED * len(part.rows) // rows)
        with part.reader:
            values += part.reader.sample(part.column, part.rows.start, part.rows.stop, share)
    finite = sorted(value for value in values if math.isfinite(value))
    return [finite[round(share * (len(finite) - 1))] for share in _USUAL] if finite else []


def _attempt(parts: Sequence[_Part], share: float | None) -> Attempt:
    """Return the points of one segment's files in one order."""
    points: list[Point] = []
    pieces: list[Bucket] = []
    for part in parts:
        with part.reader:
            own = part.pieces(share)
            pieces += own
            points += part.points(own)
    points.sort(key=lambda point: point[:2])
    pieces.sort(key=lambda piece: piece[:2])
    return Attempt(
        segment=parts[0].segment,
        function=parts[0].record["function"],
        started=parts[0].record["started"],
        steps=[int(point.step) for point in points],
        times=[point.time for point in points],
        values=[point.value for point in points],
        pieces=[_piece(piece) for piece in pieces],
    )


def _piece(bucket: Bucket) -> Piece:
    return Piece(
        step=int(bucket.step),
        time=bucket.time,
        count=int(bucket.numbers),
        mean=bucket.mean,
        low=bucket.low,
        high=bucket.high,
    )


def _records(parent: Path) -> list[tuple[Path, SegmentRecord]]:
    """Return the segments with what they hold, the oldest first; what is none is passed over."""
    found = []
    with suppress(FileNotFoundError):
        for segment in segments_in(parent):
            with suppress(*_NONE):
                found.append((segment, _record(json.loads(_bytes_of(segment / INDEX)))))
    return found


def _record(document: dict[str, Any]) -> SegmentRecord:
    """Return a document as what it should be. Raises ValueError, KeyError or TypeError where it is not."""
    if document["format"] != FORMAT:
        raise ValueError(f"it is of the format {document['format']!r}, expected {FORMAT!r}")
    files = [FileRecord(file=str(file["file"]), columns=[*map(str, file["columns"])]) for file in document["files"]]
    return SegmentRecord(
        format=FORMAT,
        function=str(document["function"]),
        started=float(document["started"]),
        first_step=int(document["first_step"]),
        files=[file for file in files if _FILE.fullmatch(file["file"]) and len(file["columns"]) > HEAD],
    )


def _bytes_of(path: Path) -> bytes:
    with os.fdopen(os.open(path, READ), "rb") as file:
        return file.read()


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
