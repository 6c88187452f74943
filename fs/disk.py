"""Disk: how a file is written so that no reader, and no crash, ever meets half of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes, *, sync_name: bool = False) -> None:
    """Write a file so that `path` holds all of it or what it held before, a crash of the host included.

    Parameters
    ----------
    sync_name
        Return only when the file's name is on the disk too, so that the file is there after a crash. Without it the
        file may be the one before.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    if sync_name:
        sync_directory(path.parent)


def append_whole(path: Path, data: bytes) -> None:
    """Append to a file, and return when that is on the disk. Where it fails the file ends as it did before."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        start = os.fstat(fd).st_size
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
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
