"""A face process: what the mount and the web face have in common.

A face is started by the trainer, see `birth`, and asks it over a wire. It ends when the trainer says quit and also when
the trainer ends in any way, kill -9 included, which it sees by pidfd; then it takes away what it put up.
"""

from __future__ import annotations

import importlib
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from midrun.fs.birth import UNWANTED, Handed
from midrun.fs.faults import Gone
from midrun.fs.page import Page
from midrun.fs.view import View
from midrun.fs.wire import Wire


class Notified(Protocol):
    """The face's end of its wire, as far as `Face` needs it: it takes notices to the trainer."""

    def notify(self, notice: str, **detail: Any) -> None:  # noqa: ANN401 - any JSON value
        """Tell the trainer."""


class Face:
    """A face's own process, as its `serve` sees it: the tree to show, its options, and how to tell the trainer.

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


def live(config: Handed, trainer_pidfd: int) -> None:
    """Run the face that `config` describes until it must end; it ends with the trainer, too."""
    serve: Serve = importlib.import_module(config.module).serve
    signal.signal(UNWANTED, signal.SIG_IGN)  # From here on there may be something to take away.
    trio.run(_live, config, serve, trainer_pidfd)


async def _live(config: Handed, serve: Serve, trainer_pidfd: int) -> None:
    page = Page(config.page)
    wire = Wire(socket.socket(fileno=config.wire), page, config.slot)
    async with trio.open_nursery() as outer:
        outer.start_soon(wire.run)
        async with View(wire, lambda: page.generation) as view, trio.open_nursery() as nursery:
            nursery.start_soon(_end_with, trainer_pidfd, nursery.cancel_scope)
            nursery.start_soon(_quit_with, wire, nursery.cancel_scope)
            try:
                await serve(Face(view, config.options, wire, config.trainer_pid))
            except* Gone:
                if not wire.quit.is_set():
                    raise
            nursery.cancel_scope.cancel()
        outer.cancel_scope.cancel()


async def _end_with(trainer_pidfd: int, scope: trio.CancelScope) -> None:
    await trio.lowlevel.wait_readable(trainer_pidfd)
    scope.cancel()


async def _quit_with(wire: Wire, scope: trio.CancelScope) -> None:
    await wire.quit.wait()
    scope.cancel()
