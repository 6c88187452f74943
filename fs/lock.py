"""The lock of a directory: one process holds it, until that process ends in whatever way.

It is a POSIX lock (fcntl(2)): those work on NFS too, and the kernel says who holds one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

_FLOCK = "hhqqi"
"""`struct flock`, as the kernel has it on 64 bits."""
_locked: dict[tuple[int, int, int], Lock] = {}
"""The locks that a process holds, by its id, and device and inode of the file: the kernel would let it take one twice.
A child that was forked inherits the entries, and none of the locks."""


class Owned(OSError):  # noqa: N818 - it says how the directory is
    """Somebody else holds the lock."""


class Lock:
    """The file `lock` of a directory.

    Parameters
    ----------
    directory
        The directory, which must be there.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._fd: int | None = None
        self._key = (0, 0, 0)

    @property
    def is_held(self) -> bool:
        """Whether it is held by this object."""
        return self._fd is not None

    @property
    def is_there(self) -> bool:
        """Whether it is still where others look for it: whoever deletes the directory lets them in."""
        try:
            there = self._path.stat()
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        return self._key[1:] == (there.st_dev, there.st_ino)

    def take(self) -> None:
        """Take it. Raises `Owned` when somebody else holds it, and OSError when the disk does not let it be taken."""
        if self.is_held:
            return
        # Made without being opened: a process that closes any descriptor of the file gives up its lock.
        with suppress(FileExistsError):
            os.mknod(self._path, 0o666 | stat.S_IFREG)
        status = self._path.stat()
        key = (os.getpid(), status.st_dev, status.st_ino)
        if _locked.setdefault(key, self) is not self:
            raise Owned(errno.EAGAIN, "another run of this process has it")
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException as error:
                who = _holder(fd)
                os.close(fd)
                if isinstance(error, OSError) and error.errno in {errno.EAGAIN, errno.EACCES}:
                    raise Owned(error.errno, f"{f'process {who}' if who else 'another process'} has it") from None
                raise
        except BaseException:
            del _locked[key]
            raise
        self._fd, self._key = fd, key

    def release(self) -> None:
        """Let others take it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            _locked.pop(self._key, None)


def is_held(directory: Path) -> bool:
    """Whether some process holds the lock of a directory. It takes none to ask."""
    with suppress(OSError):
        fd = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return _holder(fd) is not None
        finally:
            os.close(fd)
    return False


def _holder(fd: int) -> int | None:
    """Return the process that holds the lock of an open file: 0 for one of another container or host, None for none."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    except (OSError, struct.error):
        return None
    return None if kind == fcntl.F_UNLCK else max(0, pid)
