"""Segments: numbers that came step by step, on the disk: a directory for each time that somebody began to write them.

A segment has a file of rows for each set of names that came together, so that no row has a gap, and `columns.json`,
which says what is in which. Whoever reads one needs nothing but that:

    files = json.load(open("columns.json"))["files"]
    rows = numpy.fromfile(files[0]["file"]).reshape(-1, len(files[0]["columns"]))
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from midrun.fs.disk import write_whole
from midrun.fs.rows import HEAD, SIZE, RowFile

FORMAT = "midrun.history/1"
INDEX = "columns.json"
MOST_TOGETHER = 16
"""Names in one file: more that come together are in several, so that whoever reads one name reads little else."""
MOST_SETS = 256
"""Sets of names that have files of their own; in what comes in yet another each name is by itself."""
MOST_WAITING = 8 << 20
"""Bytes that wait for a disk that takes nothing; rows beyond that are lost."""

_SEGMENT = re.compile(r"[0-9]{4,}")

Rows = Sequence[Sequence[float]]


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
        number = max((int(path.name) for path in segments_in(self._parent)), default=0)
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


def segments_in(parent: Path) -> list[Path]:
    """Return the segments in a directory, the oldest first."""
    return sorted((path for path in parent.iterdir() if _SEGMENT.fullmatch(path.name)), key=lambda path: int(path.name))
