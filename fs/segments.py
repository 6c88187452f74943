"""Segments: numbers that came step by step, on the disk: a directory for each time that somebody began to write them.

A segment has a file of rows for each set of names that came together, so that no row has a gap, and `columns.json`,
which says what is in which. Whoever reads one needs nothing but that:

    files = json.load(open("columns.json"))["files"]
    rows = numpy.fromfile(files[0]["file"]).reshape(-1, len(files[0]["columns"]))
"""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from midrun.fs.disk import write_whole
from midrun.fs.rows import HEAD, READ, SIZE, Bucket, Point, RowFile, RowReader

FORMAT = "midrun.history/1"
INDEX = "columns.json"
MOST_TOGETHER = 16
"""Names in one file: more that come together are in several, so that whoever reads one name reads little else."""
MOST_SETS = 256
"""Sets of names that have files of their own; in what comes in yet another each name is by itself."""
MOST_WAITING = 8 << 20
"""Bytes that wait for a disk that takes nothing; rows beyond that are lost."""

_SAMPLED, _USUAL = 500, (0.02, 0.98)
"""Values from which it is told what is usual, and the part of them that lies below."""

_NONE = (
    *(FileNotFoundError, NotADirectoryError, IsADirectoryError),
    *(ValueError, KeyError, TypeError, OverflowError, RecursionError),
)
"""What is raised where a segment's directory, or its `columns.json`, is none."""

_SEGMENT = re.compile(r"[0-9]{4,}")
_FILE = re.compile(r"[0-9]{4,}\.rows")

Rows = Sequence[Sequence[float]]
Duplicates = Literal["both", "last"]


class FileRecord(TypedDict):
    """A file of rows, as `columns.json` names it."""

    file: str
    columns: list[str]
    """`step`, `time`, and the names."""


class SegmentRecord(TypedDict):
    """What `columns.json` holds."""

    format: str
    function: str
    """What ran: `fit`, `validate`, `test` or `predict`."""
    started: float
    """When it began. Seconds since 1970."""
    first_step: int
    """The first optimizer step that it makes: what an earlier segment has from there on is made again."""
    files: list[FileRecord]


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


class Segment:
    """A segment that is being written, by one thread.

    Parameters
    ----------
    parent
        The directory that it is made in, once there is something to write.
    function
        What runs.
    started
        When that began. Seconds since 1970.
    first_step
        The first optimizer step that it makes.
    """

    def __init__(self, parent: Path, function: str, started: float, first_step: int) -> None:
        self._parent = parent
        self._record = SegmentRecord(format=FORMAT, function=function, started=started, first_step=first_step, files=[])
        self._directory: Path | None = None
        self._known: dict[frozenset[str], list[_Set]] = {}
        """The sets that there are, by the names that came together: more than one where these are many."""
        self._sets: dict[tuple[str, ...], list[_Set]] = {}
        """Those that a row goes to, by its names in their order."""
        self._is_told = True
        """Whether `columns.json` says what there is."""
        self.lost = 0
        """Rows for which there was no room while the disk took nothing."""

    def append(self, names: Sequence[str], steps: Sequence[int], times: Sequence[float], rows: Rows) -> None:
        """Add rows of what came together: of each its step, its time, and a value for each name.

        The steps of one name never descend.
        """
        sets, places_of = self._sets_of(tuple(names)), {name: place for place, name in enumerate(names)}
        for one in sets:
            if one.names == names:
                for step, time, row in zip(steps, times, rows, strict=True):
                    one.numbers += (step, time, *row)
            else:
                places = [places_of[name] for name in one.names]
                for step, time, row in zip(steps, times, rows, strict=True):
                    one.numbers += (step, time, *[row[place] for place in places])

    def flush(self) -> None:
        """Write what has been added.

        Raises OSError where the disk does not take all of it. The rest waits then, as far as there is room for it.
        """
        sets = [one for known in self._known.values() for one in known]
        room = MOST_WAITING - sum(one.size for one in sets)
        for one in sets:
            room -= len(one.numbers) * SIZE
            if room < 0:  # What waits already stays.
                more = len(one.numbers) - one.kept
                self.lost += more // one.width
                del one.numbers[one.kept :]
                room += more * SIZE
            one.kept = len(one.numbers)
        if not sets:
            return
        directory = self._directory or self._made()
        if not self._is_told:
            write_whole(directory / INDEX, json.dumps(self._record, indent=1).encode())
            self._is_told = True
        trouble = None
        for one in sets:
            try:
                one.flush(directory)
            except OSError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble

    @property
    def waiting(self) -> int:
        """Rows that the disk has not taken."""
        return sum(one.rows for known in self._known.values() for one in known)

    def _made(self) -> Path:
        self._parent.mkdir(parents=True, exist_ok=True)
        number = max((int(path.name) for path in _segments(self._parent)), default=0)
        while self._directory is None:
            number += 1
            with suppress(FileExistsError):  # Another run in the same directory was quicker.
                (self._parent / f"{number:04}").mkdir()
                self._directory = self._parent / f"{number:04}"
        return self._directory

    def _sets_of(self, names: tuple[str, ...]) -> list[_Set]:
        """Return the sets that a row of these names goes to."""
        if names not in self._sets:
            together = frozenset(names)
            if together in self._known:
                self._sets[names] = self._known[together]
            elif len(names) > 1 and len(self._known) >= MOST_SETS:
                self._sets[names] = [one for name in names for one in self._sets_of((name,))]
            else:
                self._sets[names] = self._new(together, names)
        return self._sets[names]

    def _new(self, together: frozenset[str], names: tuple[str, ...]) -> list[_Set]:
        parts = [names[at : at + MOST_TOGETHER] for at in range(0, len(names), MOST_TOGETHER)]
        self._known[together] = []
        for part in parts:
            file = f"{len(self._record['files']):04}.rows"
            self._record["files"].append(FileRecord(file=file, columns=["step", "time", *map(str, part)]))
            self._known[together].append(_Set(file, part))
        self._is_told = False
        return self._known[together]


class _Set:
    """Names that come together, and their file."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        self._name, self.names = name, names
        self.width = HEAD + len(names)
        self._file: RowFile | None = None
        self.numbers: list[float] = []
        """The rows that were added, one after the other."""
        self.kept = 0
        """How many of these numbers there was room for when the disk last took nothing."""

    @property
    def size(self) -> int:
        """Bytes that the disk was given and has not taken."""
        return 0 if self._file is None else self._file.waiting

    @property
    def rows(self) -> int:
        """Rows that the disk has not taken."""
        return len(self.numbers) // self.width + (0 if self._file is None else self._file.rows_waiting)

    def flush(self, directory: Path) -> None:
        if self._file is None:
            self._file = RowFile(directory / self._name, len(self.names))
        if self.numbers:
            self._file.append(array("d", self.numbers))
            self.numbers.clear()
            self.kept = 0
        if self._file.waiting:
            self._file.flush()


# ---- reading


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


def _segments(parent: Path) -> list[Path]:
    return sorted((path for path in parent.iterdir() if _SEGMENT.fullmatch(path.name)), key=lambda path: int(path.name))


def _records(parent: Path) -> list[tuple[Path, SegmentRecord]]:
    """Return the segments with what they hold, the oldest first; what is none is passed over."""
    found = []
    with suppress(FileNotFoundError):
        for segment in _segments(parent):
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
