"""Operations: what the kernel asks of a mounted tree, answered from a view.

Every handler answers with what it returns or with an errno. Anything else that came out of one would end the loop that
serves the mount, and leave those who read it stuck.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FUSEError

from midrun.fs.faults import Fault, NotFound, ReadOnly, TimedOut
from midrun.fs.handles import Draft, Handle
from midrun.fs.inodes import Content, Inode, Inodes
from midrun.fs.names import LONGEST_NAME, join
from midrun.fs.readers import Interrupted, Readers
from midrun.fs.verbs import Entry
from midrun.fs.view import LIVE_PATIENCE, PATIENCE, Rendered, View

P = ParamSpec("P")
T = TypeVar("T")

_FOREVER = 86400.0
"""Seconds for which the kernel may remember what can't change."""
_NAMED = 1.0
"""Seconds for which the kernel may remember a name of what comes and goes; whether it is gone is always asked."""
_BACKOFF = 1.0
"""Seconds in which no further stat waits for a run that did not answer one."""
_FOR_THE_TRAINER = (
    b"This file is made while training goes on, for which its own process can't wait: read it from another.\n"
)
_MOST = 100
"""Tracebacks that are printed."""
_logged: set[str] = set()


def errno_only(handler: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let nothing but an errno come out of a handler."""

    @functools.wraps(handler)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await handler(*args, **kwargs)
        except FUSEError:
            raise
        except Fault as fault:
            code = fault.errno
        except Interrupted:
            code = errno.EINTR
        except trio.Cancelled:
            # The mount ends. Whoever waits gets an answer first; the task is cancelled again where it waits next.
            code = errno.ENODEV
        except Exception:  # noqa: BLE001 - see above
            _log_once(traceback.format_exc())
            code = errno.EIO
        raise FUSEError(code)

    return answer


def _log_once(trace: str) -> None:
    """Print the traceback of a bug of ours, once: a file may be read a thousand times a second."""
    if trace not in _logged and len(_logged) < _MOST:
        _logged.add(trace)
        with suppress(OSError):
            sys.stderr.write(trace)


class Operations(pyfuse3.Operations):
    """A tree as a file system: a method for each request of the kernel's, as pyfuse3 calls it in its loop.

    Each raises FUSEError, with the errno of the fault, and nothing else.

    Parameters
    ----------
    view
        The tree.
    readers
        Takes note of whoever waits for an answer, so that a signal to them ends their wait.
    """

    supports_dot_lookup = False

    def __init__(self, view: View, readers: Readers) -> None:
        super().__init__()
        self.inodes = Inodes()
        self._view = view
        self._readers = readers
        self._owner = os.getuid(), os.getgid()
        self._born = time.time_ns()
        self._files: dict[int, Handle] = {}
        self._listings: dict[int, tuple[Inode, list[Entry]]] = {}
        self._last = 0
        self._backs_off_until = 0.0

    @errno_only
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> EntryAttributes:
        """Find an entry of a directory."""
        path = _below(self.inodes[parent_inode], name)
        inode = self.inodes.known(path)
        if inode is None or not inode.entry["fixed"]:
            entry = await self._ask(ctx.pid, partial(self._view.entry, path), brief=True)
            inode = self.inodes.inode(path, entry)
        rendered = self._at_hand(inode)
        inode.promise(ctx.pid, rendered, self._view.generation)
        self._tell(inode)
        return self._attributes(inode, rendered)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Take back what the kernel was told."""
        for number, times in inode_list:
            self.inodes.forget(number, times)

    @errno_only
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> EntryAttributes:
        """Show what `stat` shows."""
        node = self.inodes[inode]
        rendered = self._at_hand(node)
        if rendered is None and node.is_plain:
            try:
                rendered = await self._ask(ctx.pid, partial(self._view.read, node.path), brief=True)
            except Fault as fault:
                # A file that breaks is there all the same: whoever opens it is told.
                if type(fault) is not Fault:
                    raise
        elif not node.is_plain and not node.entry["fixed"]:
            node.renew(await self._ask(ctx.pid, partial(self._view.entry, node.path), brief=True))
        node.promise(ctx.pid, rendered, self._view.generation)
        return self._attributes(node, rendered)

    @errno_only
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """Show where a link leads."""
        node = self.inodes[inode]
        entry = await self._ask(ctx.pid, partial(self._view.entry, node.path))
        return os.fsencode(entry["target"] or "")

    @errno_only
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        """Say whether a process may do something, as `test -w` asks."""
        entry = self.inodes[inode].entry
        if mode & os.W_OK and not entry["writable"]:
            raise ReadOnly(entry["name"])
        return not mode & os.X_OK or entry["kind"] != "file"

    @errno_only
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """Open a directory: its listing stands still while it is open."""
        node = self.inodes[inode]
        entries = await self._ask(ctx.pid, lambda _: self._view.list(node.path))
        self._last += 1
        self._listings[self._last] = node, entries
        return self._last

    @errno_only
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List a directory from an entry on."""
        directory, entries = self._listings[fh]
        for at in range(start_id, 2 + len(entries)):
            if at < 2:  # noqa: PLR2004 - these two
                name, inode = (b".", b"..")[at], directory
            else:
                name = entries[at - 2]["name"].encode()
                inode = self.inodes.inode(_below(directory, name), entries[at - 2])
            if not pyfuse3.readdir_reply(token, name, self._attributes(inode, self._at_hand(inode)), at + 1):
                return
            if at >= 2:  # noqa: PLR2004
                self._tell(inode)

    @errno_only
    async def releasedir(self, fh: int) -> None:
        """Close a directory."""
        del self._listings[fh]

    @errno_only
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open a file. What its readers will see is made now, because only now is it known who they are."""
        node = self.inodes[inode]
        access = flags & os.O_ACCMODE
        writes = access != os.O_RDONLY or bool(flags & os.O_TRUNC)
        if writes and not node.entry["writable"]:
            raise ReadOnly(node.path)
        handle = Handle(node, ctx.pid, Draft(appends=bool(flags & os.O_APPEND)) if writes else None)
        if access != os.O_WRONLY:
            handle.use(await self._content(node, ctx.pid))
        self._last += 1
        self._files[self._last] = handle
        return pyfuse3.FileInfo(fh=self._last, direct_io=True, keep_cache=False)

    @errno_only
    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Read from the content; whoever has read it all and reads on some time later gets the file as it is then."""
        handle = self._files[fh]
        if handle.reads_on and (off == 0 or handle.ended):
            rendered = await self._ask(_user(handle), partial(self._view.read, handle.inode.path))
            handle.use(Content(rendered, self._view.generation, taken=0.0))
            handle.ended = False
        data = handle.data[off : off + size]
        handle.ended = handle.ended or not data
        return data

    @errno_only
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """Take a piece of a command. A mistake is told here: shells do not show one that is told when they close."""
        handle = self._files[fh]
        draft = handle.draft
        if draft is None:
            raise FUSEError(errno.EBADF)
        before = bytes(draft.text)
        try:
            draft.put(off, buf)
            if not draft.may_go_on(len(buf)):
                await self._write(handle, bytes(draft.text), check=True)
        except Interrupted:
            draft.text[:] = before  # Whoever goes on after the signal writes the piece again.
            raise
        except Fault:
            draft.take()
            raise
        return len(buf)

    @errno_only
    async def flush(self, fh: int) -> None:
        """Do what was written, once. Shells also close files that they have not written to yet, which is nothing."""
        handle = self._files[fh]
        text = handle.draft.take() if handle.draft is not None else b""
        if text:
            await self._write(handle, text)

    @errno_only
    async def release(self, fh: int) -> None:
        """Close a file."""
        self._files.pop(fh).leave()

    @errno_only
    async def setattr(
        self,
        inode: int,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> EntryAttributes:
        """Let programs that write a control file empty it first, or set its mode or times after: it means nothing."""
        node = self.inodes[inode]
        if not node.entry["writable"]:
            raise ReadOnly(node.path)
        return self._attributes(node, None)

    @errno_only
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Describe a file system without room: nothing is stored here."""
        stats = pyfuse3.StatvfsData()
        stats.f_bsize = stats.f_frsize = 4096
        stats.f_namemax = LONGEST_NAME
        return stats

    @errno_only
    async def create(self, *args: object) -> NoReturn:
        """Refuse: a tree has the files that it has."""
        raise ReadOnly("the tree's files are declared")

    mknod = mkdir = rmdir = symlink = create  # type: ignore[assignment]  # it takes whatever these take
    link = rename = unlink = create  # type: ignore[assignment]  # as above

    @errno_only
    async def removexattr(self, inode: int, *args: object) -> NoReturn:
        """Refuse: files have no such attributes, and programs that copy theirs to a control file go on without."""
        if self.inodes[inode].entry["writable"]:
            raise FUSEError(errno.EOPNOTSUPP)
        raise ReadOnly(self.inodes[inode].path)

    setxattr = removexattr  # type: ignore[assignment]  # it takes whatever this takes

    def _tell(self, inode: Inode) -> None:
        """Note that the kernel is told of an inode, and have it forget another one if there are too many."""
        self.inodes.tell(inode)
        surplus = self.inodes.surplus()
        if surplus is not None:
            above, _, name = surplus.path.rpartition("/")
            parent = self.inodes.known(above)
            if parent is not None:
                # In a thread: the kernel waits for those who are just using the directory.
                pyfuse3.invalidate_entry_async(parent.number, name.encode(), ignore_enoent=True)

    def _at_hand(self, inode: Inode) -> Rendered | None:
        """Return what a file shows to those who have it open, or what is kept of it."""
        held = inode.held(self._view.generation)
        return held.rendered if held is not None else self._view.at_hand(inode.path)

    async def _content(self, inode: Inode, pid: int) -> Content:
        """Return what a file that is being opened will show: the same as to others who have it open."""
        generation = self._view.generation
        rendered = (inode.promised(pid, generation) or self._at_hand(inode)) if inode.is_shared else None
        if rendered is None and inode.entry["live"] and self._readers.is_trainer(pid):
            # A logger that looks through the run directory, say. An error might end its training.
            return Content(Rendered(_FOR_THE_TRAINER, time.time_ns()), generation, time.monotonic())
        if rendered is None:
            patience = LIVE_PATIENCE if inode.entry["live"] else PATIENCE
            rendered = await self._ask(pid, partial(self._view.read, inode.path), patience)
        held = inode.held(generation)
        if held is None or not inode.is_shared:
            held = inode.content = Content(rendered, generation, time.monotonic())
        return held

    async def _write(self, handle: Handle, text: bytes, *, check: bool = False) -> None:
        await self._ask(_user(handle), lambda _: self._view.write(handle.inode.path, text, check=check))

    async def _ask(
        self,
        pid: int,
        question: Callable[[float], Awaitable[T]],
        patience: float = PATIENCE,
        *,
        brief: bool = False,
    ) -> T:
        """Return the view's answer to `question`, which takes how long to wait for a first value.

        After one that was waited for in vain, those that are `brief` wait no more for some time: a listing of 500
        files would else take 500 times 5 s.
        """
        began = time.monotonic()
        first = 0.0 if brief and began < self._backs_off_until else patience
        try:
            return await self._readers.wait(pid, partial(question, first), patience)
        except TimedOut:
            # A file that is made on demand may take its time.
            if patience == PATIENCE and time.monotonic() - began > patience / 2:
                self._backs_off_until = time.monotonic() + _BACKOFF
            raise

    def _attributes(self, inode: Inode, rendered: Rendered | None) -> EntryAttributes:
        entry = inode.entry
        attributes = EntryAttributes()
        attributes.st_ino = inode.number
        attributes.st_mode = inode.mode
        attributes.st_nlink = 1  # For directories too, where it says that subdirectories are not counted.
        attributes.st_uid, attributes.st_gid = self._owner
        size = len(rendered.data) if rendered is not None else len(os.fsencode(entry["target"] or ""))
        attributes.st_size = size
        attributes.st_blocks = (size + 511) // 512
        changed = rendered.changed_ns if rendered is not None else self._born
        attributes.st_mtime_ns = attributes.st_ctime_ns = attributes.st_atime_ns = changed
        # What can't change the kernel need not ask twice: that a declared node is there, and all of a directory.
        attributes.entry_timeout = _FOREVER if entry["fixed"] else _NAMED
        attributes.attr_timeout = _FOREVER if entry["fixed"] and entry["kind"] == "dir" else 0
        return attributes


def _user(handle: Handle) -> int:
    """Return who uses an open file: the one who opened it, or 0 if that one has ended and left it to others."""
    return handle.pid if Path(f"/proc/{handle.pid}").exists() else 0


def _below(directory: Inode, name: bytes) -> str:
    """Return the path of an entry of a directory."""
    if len(name) > LONGEST_NAME:
        raise FUSEError(errno.ENAMETOOLONG)
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise NotFound(f"no name here is {name!r}") from None
    return join(directory.path, text)
