"""Disk: how a file is written so that no reader, and no crash, ever meets half of it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

_numbers = itertools.count()
_ASIDE = re.compile(r"\..+\.\d+")


def write_whole(path: Path, data: bytes, *, sync_name: bool = False) -> None:
    """Write a file so that `path` holds all of it or what it held before, a crash of the host included.

    Parameters
    ----------
    sync_name
        Return only when the file's name is on the disk too, so that the file is there after a crash. Without it the
        file may be the one before.
    """
    written = aside(path)
    if written.exists():
        # Another thread, or what a signal's handler has interrupted in this one, is about to write the same file.
        written = aside(path.with_name(f"{path.name}.{next(_numbers)}"))
    try:
        with written.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    except BaseException:
        with suppress(OSError):
            written.unlink()
        raise
    if sync_name:
        sync_directory(path.parent)


def aside(path: Path) -> Path:
    """Return where a file is written before it has its name: hidden, and this process's own."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def sweep(directory: Path, older: float = 0.0, *, folders: bool = False) -> None:
    """Remove what a process that was killed has left aside. Raises OSError where the directory can't be listed.

    Parameters
    ----------
    older
        Seconds for which it has not changed.
    folders
        Whether folders are written aside there as well.
    """
    for path in directory.iterdir():
        with suppress(OSError):
            is_ours = _ASIDE.fullmatch(path.name) and (folders or not path.is_dir())
            if is_ours and time.time() - path.lstat().st_mtime >= older:
                remove(path)


def remove(path: Path) -> None:
    """Remove a file, or a directory with all that is in it, as far as that can be done."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def append_whole(path: Path, data: bytes, end: int | None = None) -> int:
    """Append to a file; return where it ends then, when that is on the disk.

    Where it fails, with OSError, the file ends as it did before, if the disk lets it be cut.

    Parameters
    ----------
    end
        Where the file ended when that was last known. What stands there, and is the beginning of `data`, is left of
        one that failed and could not be cut off.
    """
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        start = os.fstat(fd).st_size
        if end is not None and end < start <= end + len(data) and data.startswith(os.pread(fd, start - end, end)):
            os.ftruncate(fd, end)
            start = end
        written = start + len(data)
        try:
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
            if start == 0:
                sync_directory(path.parent)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, start)
            raise
        return written
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
