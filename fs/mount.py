"""The mount: the face that shows a tree as a directory, by FUSE.

It has a process of its own, see `face`. What keeps the tree from being mounted is told in one sentence that says what
to install or allow; nothing is mounted over files or over another mount.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from midrun.fs import mounts
from midrun.fs.readers import Readers

if TYPE_CHECKING:
    from midrun.fs.face import Face

_DEVICE = "/dev/fuse"
_NUMBER = os.makedev(10, 229)
"""The number that Linux gives to /dev/fuse."""
_ANSWERS = 1000
"""Requests that may wait for an answer at one time."""
_PROGRAMS = "/usr/local/bin:/usr/bin:/bin"
"""Where libfuse looks for fusermount3 besides the PATH."""
_ELSEWHERE = "set fuse_mountpoint to an empty directory"
_ALLOW = "in a container, start it with --device /dev/fuse --cap-add SYS_ADMIN"


_Task: TypeAlias = Callable[..., Awaitable[None]]


class Unmountable(Exception):  # noqa: N818 - what has happened, as all faults here are named
    """Why the tree is not mounted, and what to install or allow."""


async def serve(face: Face) -> None:
    """Mount the tree and serve it until cancelled, then unmount it.

    Options
    -------
    mountpoint
        Where, an absolute path. It is made if it is missing, and then taken away at the end.
    writable
        Control files may be written. If false, the whole mount is read-only.
    run_id
        The run's name, shown in the table of mounts.
    """
    mountpoint = str(face.options["mountpoint"])
    readers = Readers(face.trainer_pid)
    with ExitStack() as stack:
        try:
            fuse = _library()
            _check_device()
            _check_rights()
            path = mounts.resolve(mountpoint)
            left = await _clear(path)
            stack.enter_context(_directory(path, made=left))
            _mount(fuse, face, readers, path)
        except (Unmountable, OSError) as reason:
            face.failed(str(reason) if isinstance(reason, Unmountable) else f"{mountpoint} can't be mounted: {reason}")
            return
        stack.callback(_unmount, fuse, path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readers.watch)
            face.ready(mountpoint=mountpoint)
            await fuse.main(min_tasks=1, max_tasks=_ANSWERS)
            nursery.cancel_scope.cancel()
    face.failed(
        f"{mountpoint} was unmounted by somebody else: the run goes on without it, and its next start mounts it"
    )


def _library() -> ModuleType:
    """Return pyfuse3, fit for a loop that nobody can stop by being killed."""
    try:
        import pyfuse3  # noqa: PLC0415 - where it is missing this module says so
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "pyfuse3":
            raise Unmountable(
                "pyfuse3 is not installed: install Debian's packages libfuse3-dev, pkg-config and gcc,"
                " then run pip install 'midrun[fuse]'"
            ) from None
        raise Unmountable(
            f"pyfuse3 can't be loaded ({error}): install Debian's package fuse3; if that does not help, build it anew"
            " with pip install --force-reinstall --no-deps --no-binary pyfuse3 pyfuse3"
        ) from None
    vars(pyfuse3)["trio"] = _Trio()
    # It reports each answer to a reader who has been killed meanwhile.
    logging.getLogger("pyfuse3").setLevel(logging.CRITICAL)
    return pyfuse3


class _Trio:
    """The trio that pyfuse3 sees: one task that finds nothing to read does not end the others.

    pyfuse3 waits until there is a request and then reads it, blocking the whole process. When the asker is killed in
    between there is none. Its descriptor is made non-blocking against that, and pyfuse3 takes the error of a read that
    would block for the end: all requests that are being answered would be lost. Here the task just begins anew.
    """

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever trio has
        return getattr(trio, name)

    @asynccontextmanager
    async def open_nursery(self) -> AsyncIterator[_Nursery]:
        async with trio.open_nursery() as nursery:
            yield _Nursery(nursery)


class _Nursery:
    """The nursery that holds pyfuse3's tasks."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, task: _Task, *args: object, name: str) -> None:
        self._nursery.start_soon(self._run, task, args, name=name)

    async def _run(self, task: _Task, args: tuple[object, ...]) -> None:
        while True:
            with suppress(BlockingIOError):
                return await task(*args)


def _check_device() -> None:
    try:
        device = Path(_DEVICE).stat()
    except OSError:
        raise Unmountable(f"there is no {_DEVICE}: {_ALLOW}; elsewhere, run modprobe fuse") from None
    if not stat.S_ISCHR(device.st_mode) or device.st_rdev != _NUMBER:
        raise Unmountable(f"{_DEVICE} is not the FUSE device: {_ALLOW}")
    if not os.access(_DEVICE, os.R_OK | os.W_OK, effective_ids=True):
        raise Unmountable(f"this user may not open {_DEVICE}: have root run chmod 666 {_DEVICE}, as udev would")


def _check_rights() -> None:
    """Only root mounts; for others the program fusermount3 does, which is root's and needs leave to act as root."""
    if os.geteuid() == 0:
        return
    if re.search(r"^NoNewPrivs:\s*1", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE):
        raise Unmountable(
            "this process may gain no rights (no_new_privs is set), so fusermount3 can't mount for it: allow it,"
            " as with NoNewPrivileges=no in a systemd unit or without --security-opt no-new-privileges in a container"
        )
    if shutil.which("fusermount3", path=f"{os.environ.get('PATH', os.defpath)}:{_PROGRAMS}") is None:
        raise Unmountable("there is no fusermount3, which mounts for users: apt-get install fuse3")


async def _clear(path: str) -> bool:
    """Take away what dead faces left at the mountpoint; return whether there was something.

    Raises `Unmountable` if something else is mounted there.
    """
    if mounts.find(path) is None:
        return False
    there = await trio.to_thread.run_sync(mounts.clean, path, abandon_on_cancel=True)
    if there is None:
        return True
    if there.pid is not None:
        what = f"at {path} another run is mounted, by process {there.pid}"
        raise Unmountable(f"{what}: {_ELSEWHERE}, or end the other run")
    raise Unmountable(f"at {path} there is a mount of {there.source} ({there.kind}): {_ELSEWHERE}, or unmount it")


@contextmanager
def _directory(path: str, *, made: bool) -> Iterator[None]:
    """Make the mountpoint and the directories above it, and take away those that were made.

    Parameters
    ----------
    made
        A dead face left the mountpoint: it is ours to take away, and may be there.
    """
    ours = [path] if made else []
    above = path
    while not os.path.lexists(above):
        ours.append(above)
        above = os.path.dirname(above)
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        holds = any(Path(path).iterdir())
    except OSError as error:
        raise Unmountable(f"the mountpoint {path} can't be made: {error.strerror}") from None
    if holds:
        raise Unmountable(f"{path} holds files: empty it, or {_ELSEWHERE}")
    try:
        yield
    finally:
        with suppress(OSError):
            for directory in dict.fromkeys(ours):
                Path(directory).rmdir()


def _mount(fuse: ModuleType, face: Face, readers: Readers, path: str) -> None:
    """Mount the tree, for the eyes of its owner alone."""
    from midrun.fs.operations import Operations  # noqa: PLC0415 - its base class is pyfuse3's

    options = {f"fsname={mounts.source(os.getpid(), str(face.options.get('run_id', '')))}", "subtype=midrun"}
    options |= {"nosuid", "nodev", "noexec"} | (set() if face.options.get("writable", True) else {"ro"})
    said: list[str] = []
    try:
        with _overheard(said):
            fuse.init(Operations(face.view, readers), path, options)
    except RuntimeError as error:
        _clear_ours()  # libfuse gives up where the mountpoint's directory is renamed just then, and leaves the mount.
        reason = "; ".join(said) or str(error)
        hint = f": {_ALLOW}" if os.strerror(errno.EPERM) in reason else ""
        raise Unmountable(f"the mount at {path} was refused ({reason}){hint}") from None
    for line in said:
        sys.stderr.write(f"{line}\n")
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # The listing's own descriptor is closed by now.
            if os.fstat(int(link.name)).st_rdev == _NUMBER:
                os.set_blocking(int(link.name), False)


@contextmanager
def _overheard(said: list[str]) -> Iterator[None]:
    """Collect what libfuse and fusermount3 print about a failure: pyfuse3 does not say what it was."""
    own = os.dup(2)
    with os.fdopen(os.memfd_create("midrun-stderr"), "r+b") as memory:
        os.dup2(memory.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)
            memory.seek(0)
            said += memory.read().decode(errors="replace").splitlines()


def _unmount(fuse: ModuleType, path: str) -> None:
    # A mount moves along when a directory above it is renamed, and by now the path may be somebody else's.
    there = mounts.find(path)
    fuse.close(unmount=there is not None and there.pid == os.getpid())
    _clear_ours()


def _clear_ours() -> None:
    for ours in mounts.of(os.getpid()):
        mounts.clean(ours.mountpoint)
