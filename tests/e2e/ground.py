"""The ground that a trainer stands on: what is missing, forbidden or full around it.

Each is made in the trainer's own process, before it trains, and for it and its children alone: mounts are made in a
mount namespace of its own, so there is nothing to take back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
from pathlib import Path
from typing import Any

_NEW_NAMESPACE = 0x20000
_NEW_USER = 0x10000000
_BIND, _MOVE, _RECURSIVE, _SLAVE, _REMOUNT, _READ_ONLY = 0x1000, 0x2000, 0x4000, 0x80000, 0x20, 0x1
_NO_NEW_PRIVS, _DROP_BOUNDING, _SYS_ADMIN, _CAPABILITIES = 38, 24, 21, 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def prepare(wanted: dict[str, Any]) -> None:
    """Make the ground that `wanted` describes: a name of a function below, and its argument, for each thing."""
    mounting = {make.__name__: make for make in (reachable, covered, no_fuse_device, full, read_only)}
    makers = mounting | {make.__name__: make for make in (files, user, no_new_privs, mountless, unheard, closed)}
    if set(mounting) & set(wanted):
        _own_namespace()
    for name, make in makers.items():  # in this order: who is nobody can't mount
        if name in wanted:
            make(wanted[name])


def reachable(folders: list[str]) -> None:
    """Have every user reach these folders, wherever they are: Python itself may lie in root's home."""
    inside: dict[str, dict[str, int]] = {}
    for folder in folders:
        closed = next((str(path) for path in reversed(Path(folder).parents) if not path.stat().st_mode & 0o001), None)
        if closed is not None:
            inside.setdefault(closed, {})[folder] = os.open(folder, os.O_PATH)
    for closed, opened in inside.items():
        _mount("tmpfs", closed, "tmpfs", 0, "mode=755")
        for folder, fd in opened.items():
            Path(folder).mkdir(parents=True)
            _mount(f"/proc/self/fd/{fd}", folder, None, _BIND, "")
            os.close(fd)


def covered(paths: dict[str, str]) -> None:
    """Put something over each path: a path of the disk, or a new tmpfs for `tmpfs`."""
    for path, cover in paths.items():
        if cover == "tmpfs":
            _mount("tmpfs", path, "tmpfs", 0, "")
        else:
            _mount(cover, path, None, _BIND, "")


def no_fuse_device(aside: str) -> None:
    """Have a /dev without /dev/fuse; it is put together in the folder `aside`."""
    _mount("tmpfs", aside, "tmpfs", 0, "")
    for name in ("null", "zero", "full", "random", "urandom"):
        Path(aside, name).touch()
        _mount(f"/dev/{name}", f"{aside}/{name}", None, _BIND, "")
    Path(aside, "shm").mkdir()
    _mount("/dev/shm", f"{aside}/shm", None, _BIND, "")  # noqa: S108 - torch's workers share memory there
    _mount(aside, "/dev", None, _MOVE, "")


def full(paths: list[str]) -> None:
    """Put a file system that has no room left over each path."""
    for path in paths:
        _mount("tmpfs", path, "tmpfs", 0, "size=4k")
        Path(path, "filling").write_bytes(bytes(4096))


def read_only(paths: list[str]) -> None:
    """Have each path read-only, as it is."""
    for path in paths:
        _mount(path, path, None, _BIND, "")
        _mount(path, path, None, _BIND | _REMOUNT | _READ_ONLY, "")


def files(count: int) -> None:
    """Allow so many open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def user(number: int) -> None:
    """Be an ordinary user."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(number, number, number)
        os.setresuid(number, number, number)


def no_new_privs(wanted: bool) -> None:
    """Have no program that is started gain rights, as containers do."""
    if wanted:
        _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def mountless(wanted: bool) -> None:
    """Be a root that may not mount, as in a container."""
    if wanted:
        if os.geteuid() != 0:
            _own_namespace(as_root=True)
        _check(_libc.prctl(_DROP_BOUNDING, _SYS_ADMIN, 0, 0, 0), "fewer rights")
        header = struct.pack("Ii", _CAPABILITIES, 0)
        held = ctypes.create_string_buffer(24)
        _check(_libc.capget(header, held), "own rights")
        effective, permitted, inheritable, *high = struct.unpack("6I", held.raw)
        left = ~(1 << _SYS_ADMIN)
        fewer = struct.pack("6I", effective & left, permitted & left, inheritable & left, *high)
        _check(_libc.capset(header, fewer), "fewer rights")


def _own_namespace(*, as_root: bool = False) -> None:
    """Begin to see mounts of one's own. An ordinary user may do so too, and stays one unless `as_root` is set."""
    if os.geteuid() == 0:
        _check(_libc.unshare(_NEW_NAMESPACE), "a mount namespace")
    else:
        own, group = os.geteuid(), os.getegid()
        _check(_libc.unshare(_NEW_NAMESPACE | _NEW_USER), "a mount namespace of a user's own")
        with contextlib.suppress(OSError):
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{0 if as_root else own} {own} 1")
        Path("/proc/self/gid_map").write_text(f"{0 if as_root else group} {group} 1")
    # What is unmounted outside is unmounted here too; what is mounted here is mounted here alone.
    _mount("none", "/", None, _RECURSIVE | _SLAVE, "")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str) -> None:
    done = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode()
    )
    _check(done, f"a mount of {source} at {target}")


def _check(done: int, what: str) -> None:
    if done != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unheard(_: object) -> None:
    """Ignore the end of children, as some daemons do: nobody learns an exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def closed(streams: list[int]) -> None:
    """Close some of standard input, output and error."""
    for fd in streams:
        os.close(fd)
