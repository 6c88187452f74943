"""Disk: a regular file below a directory, opened so that no name leads out of it, and a part of it as it is sent.

A path is opened one name at a time, each below the descriptor of the last, and a symbolic link is never followed. So
what is checked is what is opened, whoever renames what in the meantime.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

_CHUNK = 256 << 10
"""Bytes read at once. What the socket then does not take is read again."""
_ABSENT = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.ENXIO,  # a socket
    errno.ENODEV,
    errno.EAGAIN,
}
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# Not to wait for whoever writes into a named pipe, should one take the file's place just now.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Part:
    """A part of an open file, as a file to be read, with a length that stays. It owns the descriptor.

    What is written behind its end meanwhile is not its. A file that has become shorter is an error, never an end: a
    server that reads nothing would wait for more, or send less than it said.
    """

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor = descriptor
        self._start, self._length = start, length
        self._at = 0

    def __len__(self) -> int:
        return self._length

    def __del__(self) -> None:
        # Servers close what they are given; this is for an answer that never reaches one.
        self.close()

    def narrow(self, start: int, end: int) -> None:
        """Make of this part what lies between two places in it."""
        self._start, self._length, self._at = self._start + start, end - start, 0

    def read(self, size: int | None = None, /) -> bytes:
        """Return the next bytes, `size` of them or fewer, and b"" at the end of the part.

        Raises OSError where the file ends before the part does.
        """
        wanted = max(0, min(_CHUNK if size is None else size, self._length - self._at, _CHUNK))
        data = os.pread(self._descriptor, wanted, self._start + self._at) if wanted else b""
        if wanted and not data:
            raise OSError(errno.EIO, "the file has become shorter while it was sent")
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the part, as in a file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        return self._at

    def tell(self) -> int:
        """Return the place in the part."""
        return self._at

    def seekable(self) -> bool:
        """Return whether `seek` works."""
        return True

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def open_beneath(directory: str, names: Sequence[str]) -> tuple[Part, os.stat_result]:
    """Open the regular file that `names` lead to below `directory`; return all of it, and what it was then.

    Raises FileNotFoundError where no file of these names is to be had, and OSError for what else goes wrong. Names that
    begin with a dot count as none: they leave the directory, or are of files that are still being written.
    """
    if not names or any(not name or name.startswith(".") or "/" in name or "\0" in name for name in names):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        return _opened(directory, names)
    except OSError as error:
        if error.errno in _ABSENT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
        raise


def _opened(directory: str, names: Sequence[str]) -> tuple[Part, os.stat_result]:
    # The directory itself is the run's own word; it may well be a link to a larger disk.
    below = os.open(directory, _DIRECTORY)
    try:
        for name in names[:-1]:
            above, below = below, os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=below)
            os.close(above)
        # Looked at first, for to open a device or a pipe does something to it; and again, for it may be another now.
        _check(os.stat(names[-1], dir_fd=below, follow_symlinks=False))
        descriptor = os.open(names[-1], _FILE, dir_fd=below)
    finally:
        os.close(below)
    whole = Part(descriptor, 0, 0)
    try:
        status = os.fstat(descriptor)
        _check(status)
    except BaseException:
        whole.close()
        raise
    whole.narrow(0, status.st_size)
    return whole, status


def _check(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
