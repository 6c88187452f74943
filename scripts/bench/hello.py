"""A plain pyfuse3 file system with one file, `hello`: the floor under what any mount costs.

python -m scripts.bench.hello MOUNTPOINT: mounts, prints "ready" and serves until its standard input ends.
"""

import errno
import os
import stat
import sys

import pyfuse3
import trio

CONTENT = b"hello\n"
HELLO = pyfuse3.ROOT_INODE + 1


class Hello(pyfuse3.Operations):
    """A directory with one file. Its methods have pyfuse3's own signatures, untyped as they are there."""

    async def getattr(self, inode, ctx=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, D102
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = stat.S_IFDIR | 0o555 if inode == pyfuse3.ROOT_INODE else stat.S_IFREG | 0o444
        entry.st_size = 0 if inode == pyfuse3.ROOT_INODE else len(CONTENT)
        entry.attr_timeout = entry.entry_timeout = 0
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        return entry

    async def lookup(self, parent, name, ctx=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, D102
        if name != b"hello":
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(HELLO)  # type: ignore[no-untyped-call]  # as above

    async def open(self, inode, flags, ctx):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, D102
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh, offset, size):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, D102
        return CONTENT[offset : offset + size]


async def serve() -> None:
    """Serve until standard input ends."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    pyfuse3.init(Hello(), sys.argv[1], {*pyfuse3.default_options, "fsname=hello"})
    os.nice(5)  # as midrun's own faces
    try:
        trio.run(serve)
    finally:
        pyfuse3.close(unmount=True)
