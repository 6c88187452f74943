"""The watch: notices within a moment that a script was made executable, or is no more.

The kernel tells of a change of modes (inotify's IN_ATTRIB; a directory's own time does not change by it). It knows
nothing of what another machine does to a shared directory, so the scripts are looked at every now and then as well, and
often where the directory lies on such a file system.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from midrun.fs import mounts

_CHANGES = 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""IN_ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF: inotify(7)."""
_CLOEXEC, _NONBLOCK = 0o2000000, 0o4000
_OFTEN, _SELDOM = 0.1, 2.0
"""Seconds between two looks, where the kernel does not tell and where it does."""
_CHUNK = 1 << 14
_SPARE = 32
"""Descriptors that are left to others at least."""


class Watch:
    """A thread that looks at once when something changes in directories, and every now and then.

    Parameters
    ----------
    directories
        What is watched.
    look
        Called from the thread.

    Raises OSError where the process has hardly a descriptor left: training needs those.
    """

    def __init__(self, directories: Iterable[Path], look: Callable[[], object]) -> None:
        self._directories = list(directories)
        self._look = look
        _insist_on_spare()
        self._changes, self._interval = self._open()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_over = self._is_closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="midrun-hooks", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look now, if it has not ended: its descriptor may be closed by then, and the number another file's."""
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._bell, 1)

    def stop(self, patience: float) -> None:
        """End the thread; wait for it for `patience` seconds at most."""
        self._is_over = True
        self.wake()
        self._thread.join(patience)

    def _open(self) -> tuple[int, float]:
        """Return a descriptor that becomes readable by changes, or -1, and how long to wait at most."""
        libc = ctypes.CDLL(None, use_errno=True)
        changes = int(libc.inotify_init1(_CLOEXEC | _NONBLOCK))
        if changes < 0:
            return -1, _OFTEN
        added = [libc.inotify_add_watch(changes, os.fsencode(path), _CHANGES) for path in self._directories]
        is_told = all(number >= 0 for number in added) and not any(
            mounts.is_shared(str(path)) for path in self._directories
        )
        return changes, _SELDOM if is_told else _OFTEN

    def _run(self) -> None:
        poll = select.poll()
        for fd in (self._bell, self._changes):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        try:
            while True:
                poll.poll(self._interval * 1000)
                if self._is_over:
                    return
                with suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
                with suppress(BlockingIOError):
                    while self._changes >= 0 and os.read(self._changes, _CHUNK):
                        pass
                self._look()
        finally:
            with self._closing:
                self._is_closed = True
                for fd in (self._bell, self._changes):
                    if fd >= 0:
                        os.close(fd)


def _insist_on_spare() -> None:
    """Raise OSError where there are not so many descriptors to be had."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most - sum(1 for _ in Path("/proc/self/fd").iterdir()) < _SPARE:
        raise OSError(errno.EMFILE, f"fewer than {_SPARE} file descriptors are left: raise `ulimit -n`")
