"""The spool: commands on disk, where a command is a JSON file and its directory is its status.

    new/        who sends a command puts it here: written elsewhere on the same file system, or as `.name`, then renamed
    queued/     taken in, and waiting
    executing/  being done
    done/       over; the last 1000 are kept
    rejected/   what was no command, or none that could be taken in, beside `<stem>.error.json` with the reason
    holds/      what stands still, a file each

Files are written whole and reach the disk before anybody is told of them. One process owns a spool, by a lock that ends
with the process. After a crash its next owner finds in `executing/` what may have been done, and in `queued/` what was
not. New files are found by looking: notifications miss what another host puts on a shared disk.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midrun.fs.control import LONGEST_WRITE
from midrun.fs.disk import sync_directory, write_whole
from midrun.fs.render import render

STATES = ("queued", "executing", "done")
"""The directories that a command's record goes through, in this order."""
KEPT = 1000
"""Records in `done/`, and files in `rejected/`, that are kept: the newest."""
LEGAL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""An id, which is the name of a file."""

_DIRECTORIES = ("new", *STATES, "rejected", "holds")
_JSON = ".json"
_SETTLED = 2.0
"""Seconds without a change after which a file that is no command is taken to be all that it will be."""
_LONGEST_STEM = 200
"""Bytes of a rejected file's name that its reason's name repeats."""
_IDS = "ids"
"""The file of ids that are used, and whose records are no longer kept: one in a line."""
_locked: set[str] = set()
"""The spools that this process owns: its own locks would not keep it from owning one twice."""

Record = Mapping[str, Any]


class Taken(OSError):  # noqa: N818 - it says how the spool is
    """Another process owns the spool."""


@dataclass(frozen=True)
class Drop:
    """A file that somebody put into `new/`."""

    name: str
    data: bytes
    problem: str | None
    """Why it can't be read."""
    settled: bool
    """It has not changed for a while, so nobody is still writing it."""

    @property
    def id(self) -> str:
        """The id that its name gives the command."""
        return self.name.removesuffix(_JSON)


class Spool:
    """A spool, for its owner. Every method may wait for the disk, and raises OSError when that does not work.

    Parameters
    ----------
    directory
        The spool's directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.used: set[str] = set()
        """Ids that are used up: no command may have one of them again."""
        self._lock: int | None = None
        self._key = ""
        self._seen: dict[str, tuple[tuple[int, ...], float]] = {}
        self._done: dict[str, None] = {}

    # ---- owning it

    def open(self) -> None:
        """Make the directories and become the owner. Raises `Taken` when another process is."""
        for name in _DIRECTORIES:
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._own()
        self._done = dict.fromkeys(path.stem for path in sorted(self._files("done"), key=_changed))
        self.used = {path.stem for state in STATES for path in self._files(state)}
        with suppress(FileNotFoundError):
            self.used.update((self.directory / _IDS).read_text().split())
        for state in ("new", *STATES, "rejected", "holds"):
            self._sweep(state)

    def close(self) -> None:
        """Own it no more."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _locked.discard(self._key)

    def left(self, state: str) -> list[dict[str, Any]]:
        """Return the records in the directory of a state, the oldest first; what can't be read is put aside."""
        found = []
        for path in sorted(self._files(state), key=_changed):
            try:
                record = json.loads(path.read_bytes())
            except ValueError:
                record = None
            if isinstance(record, dict) and record.get("id") == path.name.removesuffix(_JSON):
                found.append(record)
            else:
                self._reject(path, {"detail": f"{state}/{path.name} is no record of a command"})
        return found

    # ---- records

    def put(self, state: str, record: Record) -> None:
        """Write a command's record into the directory of a state, and take it out of those before."""
        name = f"{record['id']}{_JSON}"
        write_whole(self.directory / state / name, render(name, record), sync_name=True)
        self.used.add(str(record["id"]))
        for before in STATES[: STATES.index(state)]:
            (self.directory / before / name).unlink(missing_ok=True)
        if state == "done":
            self._done[str(record["id"])] = None
            self._forget()

    def note(self, directory: str, name: str, record: Record) -> None:
        """Write down what can be found out again, without waiting until it is on the disk for good."""
        write_whole(self.directory / directory / f"{name}{_JSON}", render(f"{name}{_JSON}", record))

    def _forget(self) -> None:
        """Drop the oldest records in `done/`; their ids stay used."""
        surplus = list(self._done)[: max(0, len(self._done) - KEPT)]
        if surplus:
            with (self.directory / _IDS).open("a") as ids:
                ids.write("".join(f"{id_}\n" for id_ in surplus))
        for id_ in surplus:
            del self._done[id_]
            for directory in ("done", "holds"):
                (self.directory / directory / f"{id_}{_JSON}").unlink(missing_ok=True)

    # ---- what is put in

    def drops(self) -> Iterator[Drop]:
        """Iterate over the files in `new/`, the oldest first; those that have not changed since are left out.

        A file comes once when it is new or changed, and once more when it has settled.
        """
        new = self.directory / "new"
        found = []
        with os.scandir(new) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    with suppress(OSError):  # It has just been taken away.
                        found.append((entry.name, entry.stat(follow_symlinks=False)))
        self._seen = {name: self._seen[name] for name, _ in found if name in self._seen}
        for name, status in sorted(found, key=lambda item: (item[1].st_mtime_ns, item[0])):
            now, mark = time.monotonic(), (status.st_ino, status.st_size, status.st_mtime_ns)
            seen = self._seen.get(name)
            if seen is None or seen[0] != mark:
                self._seen[name] = (mark, now)
                yield self._drop(new / name, settled=False)
            elif now - seen[1] >= _SETTLED:
                yield self._drop(new / name, settled=True)

    def take(self, drop: Drop) -> None:
        """Take a file out of `new/`: its record is written."""
        (self.directory / "new" / drop.name).unlink(missing_ok=True)

    def reject(self, drop: Drop, reason: Record) -> None:
        """Put a file into `rejected/`, with the reason beside it."""
        self._reject(self.directory / "new" / drop.name, reason)

    def _drop(self, path: Path, *, settled: bool) -> Drop:
        data, problem = b"", None
        try:
            data = _read(path)
        except OSError as error:
            problem = f"{path.name!a:.200} can't be read: {error.strerror or error}"
        return Drop(path.name, data, problem, settled)

    def _reject(self, path: Path, reason: Record) -> None:
        rejected = self.directory / "rejected"
        # Cut, so that what is added below leaves it a file name.
        stem, number = os.fsdecode(os.fsencode(path.name.removesuffix(_JSON))[:_LONGEST_STEM]), 1
        name, told = path.name, f"{stem}.error.json"
        while os.path.lexists(rejected / name) or (rejected / told).exists():
            number += 1
            name, told = f"{stem}.{number}{_JSON}", f"{stem}.{number}.error.json"
        # The reason first: who waits for the file must find it.
        write_whole(rejected / told, render(told, reason))
        path.rename(rejected / name)
        sync_directory(rejected)
        kept = sorted(self._files("rejected"), key=_changed)
        for old in kept[: max(0, len(kept) - 2 * KEPT)]:
            old.unlink(missing_ok=True)

    # ---- inside

    def _own(self) -> None:
        self._key = os.path.realpath(self.directory)
        if self._key in _locked:
            raise Taken(errno.EAGAIN, "another run of this process has it")
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                raise Taken(error.errno, "another process has it") from None
            raise
        self._lock = lock
        _locked.add(self._key)

    def _files(self, directory: str) -> Iterator[Path]:
        return (path for path in (self.directory / directory).iterdir() if not path.name.startswith("."))

    def _sweep(self, directory: str) -> None:
        """Remove what a writer of records that was killed has left half written: `.<name>.json.<pid>`."""
        if directory == "new":
            return  # Those there are other people's.
        for path in (self.directory / directory).iterdir():
            if re.fullmatch(r"\..*\.json\.\d+", path.name):
                path.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    """Return what a regular file holds, up to more than a command may be. It neither follows a link nor waits."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read(LONGEST_WRITE + 1)


def _changed(path: Path) -> tuple[int, str]:
    try:
        return path.lstat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name
