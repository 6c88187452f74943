"""Mounts: what is mounted where, and taking away a midrun mount that its process left behind.

A dead or silent mount hangs whoever touches it, so nothing here touches a mountpoint in this process: the kernel's
table says what is there, and a child process, which may be left to hang, tries whether it answers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

KIND = "fuse.midrun"
"""File system type of every mount of ours."""
_ANSWER = 2.0
"""Seconds in which a live mount answers a stat."""
_PATIENCE = 3.0
"""Seconds for a program that unmounts."""
_FREED = 0.5
"""Seconds in which a process ends that was killed and is not stuck any more."""
_STACKED = 16
"""Mounts, one over the other, that are taken away from one mountpoint."""

_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "tmpfs", "ramfs", "overlay", "squashfs"}
)
_DEAD = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
_FORCE, _DETACH, _NOFOLLOW = 1, 2, 8
_OCTAL = re.compile(rb"\\([0-7]{3})")
_SOURCE = re.compile(r"midrun:(\d+)(?::.*)?")
_STAT = """
import os, sys
try:
    os.stat(sys.argv[1])
    print(0)
except OSError as error:
    print(error.errno)
"""

# Children that were killed and did not end: a signal does not reach what waits for a mount that never answers.
_stuck: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class TableLine:
    """One line of the kernel's table of mounts."""

    number: int
    device: str
    """Major and minor number, as in `0:52`."""
    mountpoint: str
    kind: str
    source: str

    @property
    def pid(self) -> int | None:
        """Process id of the face that serves a mount of ours."""
        named = _SOURCE.fullmatch(self.source)
        return int(named[1]) if named is not None and self.kind == KIND else None


def source(pid: int, run_id: str) -> str:
    """Return the source of the mount that face `pid` makes for a run, as `findmnt` shows it."""
    return f"midrun:{pid}:{re.sub(r'[^A-Za-z0-9._-]', '_', run_id)[:64]}"


def table() -> list[TableLine]:
    """Return all mounts that this process sees, the later ones over the earlier ones."""
    return [_mount(line) for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]


def find(mountpoint: str) -> TableLine | None:
    """Return the topmost mount at `mountpoint`, a path without links, or None."""
    return next((mount for mount in reversed(table()) if mount.mountpoint == mountpoint), None)


def of(pid: int) -> list[TableLine]:
    """Return the mounts of face `pid`, wherever they are by now."""
    return [mount for mount in table() if mount.pid == pid]


def resolve(path: str) -> str:
    """Return `path` without links, as the table names it, not touching what is mounted there."""
    mounted = {mount.mountpoint for mount in table()}
    path = os.path.abspath(path)
    for _ in range(40):  # As many links as the kernel follows.
        # The directory of a mountpoint is somebody else's file system; only the last name may be ours and dead.
        path = os.path.join(os.path.realpath(os.path.dirname(path)), Path(path).name)
        if path in mounted or not Path(path).is_symlink():
            break
        path = os.path.join(os.path.dirname(path), Path(path).readlink())
    return path


def is_shared(path: str) -> bool:
    """Whether a path may lie on a file system that other machines write to, where the kernel tells of no change."""
    path = resolve(path)
    below = [
        mount for mount in table() if path == mount.mountpoint or path.startswith(f"{mount.mountpoint.rstrip('/')}/")
    ]
    return not below or max(below, key=lambda mount: len(mount.mountpoint)).kind not in _LOCAL


def clean(mountpoint: str) -> TableLine | None:
    """Unmount what dead midrun faces left at `mountpoint`; return what is still mounted there, or None.

    A mount that answers, or whose face lives, is left alone, and so is every mount that is not midrun's. It starts
    processes, since only another one may touch a mount that is dead, and waits for them: it may take seconds. Raises
    OSError where the kernel's table of mounts can't be read.
    """
    for _ in range(_STACKED):
        mount = find(mountpoint)
        if mount is None or mount.kind != KIND or not _is_stale(mount):
            return mount
        _remove(mount)
        _reap()
        if find(mountpoint) == mount:
            return mount
    return find(mountpoint)


def _mount(line: bytes) -> TableLine:
    left, _, right = line.partition(b" - ")
    number, _, device, _, mountpoint, *_ = left.split(b" ")
    kind, origin, *_ = right.split(b" ")
    return TableLine(int(number), device.decode(), _plain(mountpoint), _plain(kind), _plain(origin))


def _plain(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))


def _is_stale(mount: TableLine) -> bool:
    said = _run([sys.executable, "-I", "-S", "-c", _STAT, mount.mountpoint], _ANSWER)
    if said:
        return int(said) in _DEAD
    # It neither answers nor says that it is dead. With its face gone nobody ever will, else the face is only stopped.
    return mount.pid is not None and not Path(f"/proc/{mount.pid}").exists()


def _remove(mount: TableLine) -> None:
    """End the connection, which frees whoever hangs on it, and take the mount away even if it is in use."""
    minor = mount.device.partition(":")[2]
    # The control file system need not be mounted. The number may have gone to another mount meanwhile; what was opened
    # while this one is in the table is this one's.
    with suppress(OSError), Path(f"/sys/fs/fuse/connections/{minor}/abort").open("w", encoding="ascii") as abort:
        if mount in table():
            abort.write("1")
    libc = ctypes.CDLL(None, use_errno=True)
    # As umount -f -l does, but without a look at the path, which could hang.
    if libc.umount2(os.fsencode(mount.mountpoint), _FORCE | _DETACH | _NOFOLLOW) == 0:
        return
    for program in (["fusermount3", "-u", "-z", "--"], ["umount", "-l", "--"]):
        if find(mount.mountpoint) == mount:
            _run([*program, mount.mountpoint], _PATIENCE)


def _run(command: list[str], patience: float) -> bytes | None:
    """Return what a program prints, or None when there is no such program or it did not end in time.

    What its exit code says is lost in a program that ignores SIGCHLD.
    """
    quiet = subprocess.DEVNULL
    try:
        child = subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet)  # noqa: S603 - named here
    except OSError:
        return None
    try:
        return child.communicate(timeout=patience)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        if child.stdout is not None:
            child.stdout.close()
        _stuck.append(child)
        return None


def _reap() -> None:
    """Wait for those who were stuck in a mount that is gone now."""
    for child in list(_stuck):
        with suppress(subprocess.TimeoutExpired):
            child.wait(_FREED)
            _stuck.remove(child)
