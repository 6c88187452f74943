"""A face for these tests: what it does is among its options."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

from midrun.fs.face import Face


async def serve(face: Face) -> None:
    """Do as the option `do` says; say in the file `cleaned` that what was put up has been taken away."""
    try:
        await _DOINGS[face.options["do"]](face)
    finally:
        Path(face.options["cleaned"]).write_text("cleaned")  # noqa: ASYNC240 - it is the last that the face does


async def _poll(face: Face) -> None:
    """Show one file again and again."""
    face.ready(pid=os.getpid(), nice=os.nice(0), session=os.getsid(0), modules=sorted(sys.modules))
    while True:
        await face.view.read("fresh")
        await trio.sleep(0.005)


async def _fail(face: Face) -> None:
    face.failed("there is no port left")


async def _crash(face: Face) -> None:
    raise ZeroDivisionError("by nought")


async def _outlive(face: Face) -> None:
    """Go on to ask when the wire has ended, as who cannot be interrupted does."""
    face.ready()
    with trio.CancelScope(shield=True):
        while True:
            await face.view.read("fresh")
            await trio.sleep(0.005)


async def _watch_generation(face: Face) -> None:
    while face.view.generation != 3:  # noqa: ASYNC110 - a number in shared memory has no event
        await trio.sleep(0.005)
    face.ready(step=(await face.view.read("step")).data.decode())


_DOINGS = {"poll": _poll, "fail": _fail, "crash": _crash, "outlive": _outlive, "watch generation": _watch_generation}
