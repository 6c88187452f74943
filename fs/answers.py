"""Answers: the thread that answers faces from a tree, at the tree's end of their wires.

It renders nodes and takes writes, and never waits: not for the device, not for the disk, not for a face that does not read.
What takes time is a `Later`, answered when another thread resolves it.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from midrun.fs import forks
from midrun.fs.faults import Fault, dump
from midrun.fs.page import Page
from midrun.fs.verbs import Later, Tree
from midrun.fs.wire import CHUNK, Frames, Garbled, Notice, frame

_BACKLOG = 16 << 20
"""Unsent bytes at which a wire's further requests wait for the face to read."""


class Answers:
    """The tree thread: one thread, any number of wires.

    Other threads hand it work by `call`, which neither locks nor waits.
    """

    def __init__(self, tree: Tree, page: Page) -> None:
        self._tree = tree
        self._page = page
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Closed with the last reference: closed sooner, a late `call` could write into another file.
        weakref.finalize(self, os.close, self._wake)
        self._selector.register(self._wake, selectors.EVENT_READ, self._run_calls)
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._wires: set[_End] = set()
        self._watched: set[int] = set()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="midrun-tree", daemon=True)
        forks.close_in_children(self)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def call(self, work: Callable[[], object]) -> None:
        """Have the tree thread run `work` soon. Any thread may call it, a signal handler too."""
        self._calls.put(work)
        with suppress(BlockingIOError):  # A full counter: the thread has been woken already.
            os.eventfd_write(self._wake, 1)

    def connect(self, end: socket.socket, notice: Notice) -> Callable[[], None]:
        """Answer what is asked over `end`; return a function that says quit and closes it."""
        wire = _End(end, notice)
        self.call(lambda: self._open(wire))
        return lambda: self.call(lambda: self._close(wire, quit_=True))

    def watch(self, pidfd: int, died: Callable[[], object]) -> None:
        """Call `died`, once, in the tree thread when the process of `pidfd` has ended, and close the descriptor."""

        def ended() -> None:
            self._unwatch(pidfd)
            died()

        self.call(lambda: (self._watched.add(pidfd), self._selector.register(pidfd, selectors.EVENT_READ, ended)))

    def stop(self, patience: float = 1.0) -> None:
        """Say quit on every wire, answer no more and end the thread."""
        self.call(self._end)
        if self._thread.ident is not None:
            self._thread.join(patience)

    def close_in_child(self) -> None:
        """Close this process's copies of the wires: called in a forked child, where the thread does not run."""
        self._selector.close()
        for wire in self._wires:
            wire.socket.close()
        for pidfd in self._watched:
            os.close(pidfd)

    def _run(self) -> None:
        while not self._over:
            for key, _ in self._selector.select():
                key.data()
        forks.forget(self)
        for wire in list(self._wires):
            self._close(wire, quit_=True)
        for pidfd in list(self._watched):
            self._unwatch(pidfd)
        self._selector.close()

    def _end(self) -> None:
        self._over = True

    def _run_calls(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        with suppress(Empty):
            while True:
                self._calls.get_nowait()()

    def _unwatch(self, pidfd: int) -> None:
        if pidfd in self._watched:
            self._watched.discard(pidfd)
            self._selector.unregister(pidfd)
            os.close(pidfd)

    def _open(self, wire: _End) -> None:
        self._wires.add(wire)
        self._selector.register(wire.socket, selectors.EVENT_READ, partial(self._serve, wire))

    def _close(self, wire: _End, *, quit_: bool = False) -> None:
        if wire not in self._wires:
            return
        self._wires.discard(wire)
        self._selector.unregister(wire.socket)
        with suppress(OSError):
            if quit_:
                wire.socket.send(frame({"quit": True}))
            # A forked child may hold a copy of the socket: closing ours would not end the connection.
            wire.socket.shutdown(socket.SHUT_RDWR)
        wire.socket.close()

    def _serve(self, wire: _End) -> None:
        """Send what waits, receive what came, answer what was asked."""
        try:
            wire.flush()
            if len(wire.outgoing) < _BACKLOG:
                self._page.asks[0] = 0
                for header, body in wire.receive():
                    self._take(wire, header, body)
        except (OSError, Garbled):
            self._close(wire)
        else:
            self._await_room(wire)

    def _await_room(self, wire: _End) -> None:
        if wire in self._wires:
            events = 0 if len(wire.outgoing) >= _BACKLOG else selectors.EVENT_READ
            events |= selectors.EVENT_WRITE if wire.outgoing else 0
            self._selector.modify(wire.socket, events, partial(self._serve, wire))

    def _take(self, wire: _End, header: dict[str, Any], body: bytes) -> None:
        if "notice" in header:
            wire.notice(str(header.pop("notice")), header)
            return
        request, path = header.get("id"), str(header.get("path"))
        try:
            value = self._answer(header, path, body)
        except Fault as fault:
            wire.put({"id": request, "fault": dump(fault)})
            return
        if isinstance(value, Later):
            again = partial(self._land, wire, header, path, value)
            value.tell(lambda: self.call(again))
        elif isinstance(value, bytes):
            wire.put({"id": request, "value": None}, value)
        else:
            wire.put({"id": request, "value": value})

    def _answer(self, header: dict[str, Any], path: str, body: bytes) -> object:
        match header.get("verb"):
            case "list":
                return self._tree.list(path)
            case "read":
                return self._tree.read(path)
            case "write":
                return self._tree.write(path, body, check=bool(header.get("check")))
            case "describe":
                return self._tree.describe(path)
        message = f"no verb {header.get('verb')!r}: it is list, read, write or describe"
        raise Fault(message)

    def _land(self, wire: _End, header: dict[str, Any], path: str, later: Later) -> None:
        """Answer the request whose value has come, if its wire is still there and it was not answered before."""
        request = header.pop("id", None)
        if wire not in self._wires or request is None:
            return
        try:
            value = later.result()
            if header["verb"] == "read":
                wire.put({"id": request, "value": None}, self._tree.finish(path, value))
            else:
                wire.put({"id": request, "value": value})
        except Fault as fault:
            wire.put({"id": request, "fault": dump(fault)})
        except OSError:
            self._close(wire)
            return
        self._await_room(wire)


class _End:
    """The tree's end of one wire, and what waits to be sent over it."""

    def __init__(self, end: socket.socket, notice: Notice) -> None:
        end.setblocking(False)
        self.socket = end
        self.notice = notice
        self.outgoing = bytearray()
        self._frames = Frames()

    def put(self, header: dict[str, Any], body: bytes = b"") -> None:
        self.outgoing += frame(header, body)
        self.flush()

    def flush(self) -> None:
        while self.outgoing:
            try:
                sent = self.socket.send(memoryview(self.outgoing)[:CHUNK])
            except BlockingIOError:
                return
            del self.outgoing[:sent]

    def receive(self) -> list[tuple[dict[str, Any], bytes]]:
        """Return the frames that have come. Raises OSError when the wire has ended."""
        try:
            data = self.socket.recv(CHUNK)
        except BlockingIOError:
            return []
        if not data:
            message = "the face closed its wire"
            raise ConnectionResetError(message)
        return list(self._frames.feed(data))
