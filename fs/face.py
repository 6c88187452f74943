"""A face process: what the mount and the web face have in common.

A face is started by the trainer with the trainer's interpreter and module path, in a session of its own, and asks the
trainer over a wire. It ends when the trainer says quit and also when the trainer ends in any way, kill -9 included,
which it sees by pidfd; then it takes away what it put up.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio

from midrun.fs.faults import Gone
from midrun.fs.page import Page
from midrun.fs.view import View
from midrun.fs.wire import Wire

UNWANTED = signal.SIGUSR2
"""Ends a face that has yet to begin, which would take long to hear the trainer say quit."""
_NICENESS = 5


@dataclass(frozen=True)
class Handed:
    """What the trainer hands to a face process, as JSON on its command line."""

    module: str
    """The face's module; it has `async def serve(face)`."""
    trainer_pid: int
    wire: int
    page: int
    slot: int
    options: dict[str, Any] = field(default_factory=dict)


class Notified(Protocol):
    """Takes a face's notices about itself."""

    def notify(self, notice: str, **detail: Any) -> None:  # noqa: ANN401 - any JSON value
        """Tell the trainer."""


class Face:
    """What a face's `serve` works with.

    Parameters
    ----------
    view
        The tree to show.
    options
        What the trainer set for this face.
    trainer_pid
        Process id of the trainer, or None where there is none.
    """

    def __init__(
        self, view: View, options: dict[str, Any], wire: Notified | None = None, trainer_pid: int | None = None
    ) -> None:
        self.view = view
        self.options = options
        self.trainer_pid = trainer_pid
        self._wire = wire

    def ready(self, **detail: Any) -> None:  # noqa: ANN401 - any JSON value
        """Tell the trainer that the face serves, and where."""
        self._notify("running", detail)

    def failed(self, reason: str) -> None:
        """Tell the trainer that the face can't serve: why, and what to do. `serve` returns after it."""
        self._notify("failed", {"reason": reason})

    def _notify(self, notice: str, detail: dict[str, Any]) -> None:
        if self._wire is not None:
            self._wire.notify(notice, **detail)


Serve = Callable[[Face], Awaitable[None]]


def main(handed: str) -> None:
    """Run the face that `handed`, a JSON object with the members of `Handed`, describes, until it must end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        # These come to whole groups, sessions and jobs. The trainer decides what they mean and says quit.
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    config = Handed(**json.loads(handed))
    try:
        trainer = os.pidfd_open(config.trainer_pid)
    except ProcessLookupError:
        return
    if os.getppid() != config.trainer_pid:
        return  # The trainer ended before it could be watched; the number may be another process's by now.
    serve: Serve = importlib.import_module(config.module).serve
    signal.signal(UNWANTED, signal.SIG_IGN)  # From here on there may be something to take away.
    trio.run(_live, config, serve, trainer)


async def _live(config: Handed, serve: Serve, trainer: int) -> None:
    page = Page(config.page)
    wire = Wire(socket.socket(fileno=config.wire), page, config.slot)
    async with trio.open_nursery() as outer:
        outer.start_soon(wire.run)
        async with View(wire, lambda: page.generation) as view, trio.open_nursery() as nursery:
            nursery.start_soon(_end_with, trainer, nursery.cancel_scope)
            nursery.start_soon(_quit_with, wire, nursery.cancel_scope)
            try:
                await serve(Face(view, config.options, wire, config.trainer_pid))
            except* Gone:
                if not wire.quit.is_set():
                    raise
            nursery.cancel_scope.cancel()
        outer.cancel_scope.cancel()


async def _end_with(trainer: int, scope: trio.CancelScope) -> None:
    await trio.lowlevel.wait_readable(trainer)
    scope.cancel()


async def _quit_with(wire: Wire, scope: trio.CancelScope) -> None:
    await wire.quit.wait()
    scope.cancel()
