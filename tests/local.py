"""The verbs over a tree in the same process, for tests that need no wire."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio

from midrun.fs.later import Later
from midrun.fs.tree import Dir
from midrun.fs.verbs import Description, Entry, Tree
from midrun.fs.write import Writer


class Local:
    """The verbs over a tree, answered in the loop that asks."""

    def __init__(self, root: Dir) -> None:
        self._tree = Tree(root)

    async def list(self, path: str) -> list[Entry]:
        return self._tree.list(path)

    async def read(self, path: str) -> bytes:
        data: bytes = await _come(self._tree.read(path))
        return data

    async def write(self, path: str, data: bytes, *, check: bool = False, key: str | None = None) -> Any:
        return await _come(self._tree.write(path, data, check=check, writer=Writer(key=key)))

    async def describe(self, path: str) -> Description:
        return self._tree.describe(path)


async def _come(value: object) -> Any:
    """Return a verb's value, once it is there."""
    if not isinstance(value, Later):
        return value
    done = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def come(_: Later) -> None:
        with suppress(trio.RunFinishedError):  # The reader has gone.
            token.run_sync_soon(done.set)

    value.add_done_callback(come)
    await done.wait()
    return value.result()
