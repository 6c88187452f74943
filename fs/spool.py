"""The spool: commands on disk, where a command is a JSON file and its directory is its status.

    new/        commands are put here: written elsewhere on the same file system, or as `.name`, then renamed
    queued/     taken in, and waiting
    executing/  being done
    done/       over; the last 1000 are kept
    rejected/   what was no command, or none that could be taken in, beside `<stem>.error.json` with the reason
    <note>/     what else is told of a command, a file each: what `Spool` is given as `notes`

Files are written whole and reach the disk before anybody is told of them. One process owns a spool, by a lock that ends
with the process. After a crash its next owner finds in `executing/` what may have been done, and in `queued/` what was
not. New files are found by looking: notifications miss what another host puts on a shared disk.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midrun.fs.disk import append_whole, sweep, sync_directory, write_whole
from midrun.fs.lock import Lock
from midrun.fs.render import render
from midrun.fs.write import LONGEST_WRITE

STATES = ("queued", "executing", "done")
"""The directories that a command's record goes through, in this order."""
MOST_RECORDS = 1000
"""Records in `done/`, and files in `rejected/`, that are kept: the newest."""

_JSON = ".json"
_SETTLED = 2.0
"""Seconds without a change after which a file that is no command is taken to be all that it will be, and between two
more looks at a file that stays."""
_SLACK = 100
"""Files that `rejected/` may hold too many, so that it need not be counted at each."""
_OWED = 1000
"""Records that could not be written, and are still to be: the newest."""
_LONGEST_STEM = 200
"""Bytes of a rejected file's name that its reason's name repeats."""
_IDS = "ids"
"""The file of ids that are used, and whose records are no longer kept: one in a line."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Drop:
    """A file that somebody put into `new/`."""

    name: str
    data: bytes
    problem: str | None
    """Why it can't be read."""
    came: float
    """When it came there, in seconds of the file system's clock."""
    settled: bool
    """It has not changed for a while, so nobody is still writing it."""

    @property
    def id(self) -> str:
        """The id that its name gives the command."""
        return self.name.removesuffix(_JSON)

    @property
    def is_unfinished(self) -> bool:
        """Whether it has a name of files that are being written."""
        return self.name.endswith((".tmp", ".part", ".swp", "~"))

    @property
    def is_json(self) -> bool:
        """Whether it is a whole document: half of one may be being written."""
        try:
            json.loads(self.data)
        except (ValueError, RecursionError):
            return False
        return True


@dataclass
class _Seen:
    """A file in `new/` that has been looked at."""

    mark: tuple[int, ...]
    since: float
    """When it was seen first, as it is now."""
    told: float
    """When it was handed out last."""
    taken: bool = False
    """Its record is written, and the file could not be removed yet."""


class Spool:
    """A spool, for its owner. Every method may wait for the disk, and raises OSError when that does not work.

    Parameters
    ----------
    directory
        The spool's directory.
    notes
        More directories in it, for `note`. What is there of a command goes with its record.
    """

    def __init__(self, directory: Path, notes: Sequence[str] = ()) -> None:
        self.directory = directory
        self._notes = notes
        self.used: set[str] = set()
        """Ids that are used up: no command may have one of them again."""
        self._lock = Lock(directory)
        self._seen: dict[str, _Seen] = {}
        self._done: dict[str, None] = {}
        self._rejected = 0
        self._owed: dict[str, Record] = {}
        """Records of commands that are over, which the disk did not take."""

    # ---- owning it

    def open(self) -> None:
        """Make the directories and become the owner. Raises `Owned` when another process is."""
        self._make()
        self._lock.take()
        self._seen = {}
        try:
            self._read_in()
        except BaseException:
            self.close()
            raise

    @property
    def is_ours(self) -> bool:
        """Whether its lock is still where others look for it."""
        return self._lock.is_there

    def close(self) -> None:
        """Give it up."""
        if self._lock.is_held:
            with suppress(OSError):
                self._pay()
            self._lock.release()

    def left(self, state: str) -> list[dict[str, Any]]:
        """Return the records in the directory of a state, the oldest first; what can't be read is put aside."""
        found = []
        for path in sorted(self._files(state), key=_changed):
            record = _record(path)
            if record is not None:
                found.append(record)
            else:
                self._reject(path, {"detail": f"{state}/{path.name} is no record of a command"})
        return found

    # ---- records

    def put(self, state: str, record: Record) -> None:
        """Write a command's record into the directory of a state, and take it out of those before."""
        try:
            self._put(state, record)
        except OSError:
            self._owe(state, record)
            raise
        self._owed.pop(str(record["id"]), None)
        with suppress(OSError):  # What this leaves to do is done with the next record.
            self._pay()
            self._forget()

    def note(self, directory: str, name: str, record: Record) -> None:
        """Write down what can be found out again, without waiting until it is on the disk for good."""
        self._write(directory, f"{name}{_JSON}", record)

    def _put(self, state: str, record: Record) -> None:
        id_, name = str(record["id"]), f"{record['id']}{_JSON}"
        self._write(state, name, record, sync_name=True)
        self.used.add(id_)
        if state == "done":
            self._done[id_] = None
        for before in STATES[: STATES.index(state)]:
            _discard(self.directory / before / name)

    def _owe(self, state: str, record: Record) -> None:
        """Do for a record what can be done for one that can't be written."""
        id_, name = str(record["id"]), f"{record['id']}{_JSON}"
        if state == "done":
            self._owed[id_] = record
            while len(self._owed) > _OWED:
                del self._owed[next(iter(self._owed))]
        elif state == "executing":
            # A disk that is full moves files all the same: nobody may think, after a crash, that it was not begun.
            with suppress(OSError):
                (self.directory / "queued" / name).rename(self.directory / state / name)

    def _pay(self) -> None:
        """Write the records that could not be written."""
        for id_, record in list(self._owed.items()):
            self._put("done", record)
            self._owed.pop(id_, None)

    def _forget(self) -> None:
        """Drop the oldest records in `done/`; their ids stay used."""
        surplus = list(self._done)[: max(0, len(self._done) - MOST_RECORDS)]
        if surplus:
            # Each in a line that it begins itself: the one before may have been cut short.
            append_whole(self.directory / _IDS, "".join(f"\n{id_}" for id_ in surplus).encode())
        for id_ in surplus:
            del self._done[id_]
            for directory in ("done", *self._notes):
                _discard(self.directory / directory / f"{id_}{_JSON}")

    def _write(self, directory: str, name: str, record: Record, *, sync_name: bool = False) -> None:
        data = render(name, record)
        try:
            write_whole(self.directory / directory / name, data, sync_name=sync_name)
        except FileNotFoundError:  # Somebody has tidied up.
            self._make()
            write_whole(self.directory / directory / name, data, sync_name=sync_name)

    # ---- what is put in

    def drops(self) -> Iterator[Drop]:
        """Iterate over the files in `new/`, the first that came first; those that have not changed since are left out.

        A file comes once when it is new or changed, and again, when it has settled, for as long as it stays.
        """
        if self._owed:
            with suppress(OSError):
                self._pay()
        for name, status in self._found():
            now, mark = time.monotonic(), (status.st_ino, status.st_size, status.st_mtime_ns)
            seen = self._seen.get(name)
            if seen is None or seen.mark != mark:
                self._seen[name] = _Seen(mark, since=now, told=now)
                yield self._drop(name, status, settled=False)
            elif seen.taken:
                self._remove(name, seen)
            elif now - max(seen.since, seen.told) >= _SETTLED:
                seen.told = now
                yield self._drop(name, status, settled=True)

    def take(self, drop: Drop) -> None:
        """Take a file out of `new/`: its record is written. One that can't be removed does not come again."""
        path = self.directory / "new" / drop.name
        self._remove(drop.name, self._seen.get(drop.name) or _Seen(_mark(path), 0.0, 0.0))

    def leave(self, drop: Drop) -> None:
        """Leave a file where it is, to come again, before those that came after it."""
        self._seen.pop(drop.name, None)

    def reject(self, drop: Drop, reason: Record) -> None:
        """Put a file into `rejected/`, with the reason beside it."""
        self._reject(self.directory / "new" / drop.name, reason)

    def _found(self) -> list[tuple[str, os.stat_result]]:
        """Return what is in `new/`, in the order in which it came there: a rename changes no other time than ctime."""
        found = self._scan()
        self._seen = {name: self._seen[name] for name in found if name in self._seen}
        if found.keys() - self._seen.keys():
            # A file that comes during a look may be missed by it, and the next one seen. A second look misses nothing
            # that came before what the first has seen; what came later is for another time.
            last = max(status.st_ctime_ns for status in found.values())
            found = {name: status for name, status in self._scan().items() if status.st_ctime_ns <= last}
        return sorted(found.items(), key=_arrival)

    def _scan(self) -> dict[str, os.stat_result]:
        found = {}
        try:
            with os.scandir(self.directory / "new") as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        with suppress(OSError):  # It has just been taken away.
                            found[entry.name] = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # Somebody has tidied up.
            self._make()
        return found

    def _drop(self, name: str, status: os.stat_result, *, settled: bool) -> Drop:
        data, problem = b"", None
        try:
            # Looked at before it is opened: to open a pipe lets go of whoever writes to it.
            _check_regular(status)
            data = _read(self.directory / "new" / name, LONGEST_WRITE + 1)
        except OSError as error:
            problem = f"{name!a:.200} can't be read: {error.strerror or error}"
        return Drop(name, data, problem, status.st_ctime, settled)

    def _remove(self, name: str, seen: _Seen) -> None:
        seen.taken = True
        self._seen[name] = seen
        with suppress(OSError):
            (self.directory / "new" / name).unlink(missing_ok=True)

    def _reject(self, path: Path, reason: Record) -> None:
        rejected = self.directory / "rejected"
        # Cut, so that what is added below leaves it a file name.
        stem, number = os.fsdecode(os.fsencode(path.name.removesuffix(_JSON))[:_LONGEST_STEM]), 1
        name, told = path.name, f"{stem}.error.json"
        while os.path.lexists(rejected / name) or os.path.lexists(rejected / told):
            number += 1
            name, told = f"{stem}.{number}{_JSON}", f"{stem}.{number}.error.json"
        # The reason first: whoever waits for the file must find it.
        self._write("rejected", told, reason)
        try:
            path.rename(rejected / name)
        except OSError as error:
            _discard(rejected / told)
            if isinstance(error, FileNotFoundError):
                return  # Whoever put it in has taken it back.
            raise
        sync_directory(rejected)
        self._rejected += 2
        if self._rejected > 2 * MOST_RECORDS + _SLACK:
            kept = sorted(self._files("rejected"), key=_came)
            for old in kept[: max(0, len(kept) - 2 * MOST_RECORDS)]:
                _discard(old)
            self._rejected = 2 * MOST_RECORDS

    # ---- inside

    def _make(self) -> None:
        for name in ("new", *STATES, "rejected", *self._notes):
            (self.directory / name).mkdir(parents=True, exist_ok=True)

    def _read_in(self) -> None:
        """Find out what earlier owners have left."""
        for state in (*STATES, "rejected", *self._notes):
            sweep(self.directory / state)
        self._settle()
        self._done = dict.fromkeys(path.stem for path in sorted(self._files("done"), key=_changed))
        self._rejected = sum(1 for _ in self._files("rejected"))
        self.used = {path.stem for state in STATES for path in self._files(state)}
        with suppress(FileNotFoundError):
            self.used.update((self.directory / _IDS).read_text(encoding="utf-8", errors="replace").split())

    def _settle(self) -> None:
        """Of a record that a crash has left in two directories, keep the one that came further."""
        for number, state in enumerate(STATES[:-1]):
            for path in self._files(state):
                if any(_record(self.directory / further / path.name) for further in STATES[number + 1 :]):
                    _discard(path)

    def _files(self, directory: str) -> Iterator[Path]:
        return (path for path in (self.directory / directory).iterdir() if not path.name.startswith("."))


def _read(path: Path, most: int = -1) -> bytes:
    """Return what a regular file holds, up to `most` bytes. It neither follows a link nor waits."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        _check_regular(os.fstat(fd))
        return file.read(most)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")


def _record(path: Path) -> dict[str, Any] | None:
    """Return the record in a file, or None where the file is no record."""
    if not path.name.endswith(_JSON):
        return None
    try:
        _check_regular(path.lstat())
        record = json.loads(_read(path))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and record.get("id") == path.name.removesuffix(_JSON) else None


def _discard(path: Path) -> None:
    """Remove a file. A directory that somebody has put there stays."""
    with suppress(IsADirectoryError):
        path.unlink(missing_ok=True)


def _mark(path: Path) -> tuple[int, ...]:
    """Return what tells a file from another, or from what it was before it was changed."""
    with suppress(OSError):
        status = path.lstat()
        return (status.st_ino, status.st_size, status.st_mtime_ns)
    return ()


def _changed(path: Path) -> tuple[int, str]:
    try:
        return path.lstat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name


def _arrival(item: tuple[str, os.stat_result]) -> tuple[int, int, int, str]:
    """Return what sorts files by when they came.

    A file system's clock has ticks of some milliseconds: of those of one tick, the one written first has most likely
    come first, and has most likely the lower inode.
    """
    name, status = item
    return status.st_ctime_ns, status.st_mtime_ns, status.st_ino, name


def _came(path: Path) -> tuple[int, str]:
    try:
        return path.lstat().st_ctime_ns, path.name
    except OSError:
        return 0, path.name
