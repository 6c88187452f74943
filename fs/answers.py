"""Answers: the thread that answers faces from a tree, at the tree's end of their wires.

It renders nodes and takes writes, and never waits: not for the device, not for the disk, not for a face that does not
read. What takes time is a `Later`, answered when another thread has set it.
"""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from midrun.fs import forks
from midrun.fs.faults import Fault, dump
from midrun.fs.frames import CHUNK, Frames, Garbled, Notice, frame
from midrun.fs.later import Later
from midrun.fs.page import CALLS, SLOTS, Page
from midrun.fs.verbs import Tree
from midrun.fs.write import Writer

_logger = logging.getLogger(__name__)

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
        self._marks = itertools.count(1)
        self._wires: set[_TreeEnd] = set()
        """Those whose socket is open, from `connect` on: a child that is forked at any moment must close its copies."""
        self._watched: set[int] = set()
        self._is_stopping = self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="midrun-tree", daemon=True)
        forks.close_in_children(self)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def call(self, work: Callable[[], object]) -> None:
        """Have the tree thread run `work` soon. Any thread may call it, a signal handler too."""
        self._calls.put(work)
        if not self._has_ended:
            self._page.ask(CALLS, next(self._marks))
        with suppress(BlockingIOError):  # A full counter: the thread has been woken already.
            os.eventfd_write(self._wake, 1)

    def connect(
        self, end: socket.socket, notice: Notice, slot: int | None = None, name: str = "face"
    ) -> Callable[[], None]:
        """Answer what is asked over `end`; return a function that says quit and closes it.

        Parameters
        ----------
        slot
            The face's slot of the page; without one, it is the one that its requests name.
        name
            By which way its writes come, as `Writer.via` says it.
        """
        wire = _TreeEnd(end, notice, slot, name)
        self._wires.add(wire)
        self.call(lambda: self._open(wire))
        if self._has_ended:
            self._close_all()
        return lambda: self.call(lambda: self._close(wire))

    def watch(self, fd: int, ended: Callable[[], object]) -> None:
        """Call `ended`, once, in the tree thread when `fd` can be read or has come to its end, and close it."""

        def end() -> None:
            self._unwatch(fd)
            ended()

        self._watched.add(fd)
        self.call(lambda: self._selector.register(fd, selectors.EVENT_READ, end))
        if self._has_ended:
            self._close_all()

    def stop(self, patience: float = 1.0) -> None:
        """Say quit on every wire, answer no more and end the thread, in `patience` seconds at most."""
        self.call(self._stop_soon)
        if self._thread.ident is None:
            self._run()
        else:
            self._thread.join(patience)

    def close_in_child(self) -> None:
        """Close this process's copies of the wires: called in a forked child, where the thread does not run."""
        self._selector.close()
        for wire in self._wires:
            wire.socket.close()
        for fd in self._watched:
            with suppress(OSError):
                os.close(fd)

    def _run(self) -> None:
        while not self._is_stopping:
            for key, _ in self._selector.select():
                self._safely(key.data)
        self._selector.close()
        self._has_ended = True
        self._close_all()
        for slot in range(CALLS + 1):
            self._page.release(slot)
        forks.forget(self)

    def _stop_soon(self) -> None:
        self._is_stopping = True

    def _run_calls(self) -> None:
        # A caller marks it before it wakes this thread: what is marked now is done below, or wakes it again.
        mark = self._page.asked(CALLS)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        with suppress(Empty):
            while True:
                self._safely(self._calls.get_nowait())
        self._page.take(CALLS, mark)

    def _safely(self, work: Callable[[], object]) -> None:
        """Run `work`; a bug in it must not end this thread, which answers every face."""
        try:
            work()
        except BaseException:
            _logger.exception("a task of the tree thread failed")

    def _close_all(self) -> None:
        """Close what is open. Once the thread has ended, whoever brings a wire or a descriptor calls it too."""
        for wire in list(self._wires):
            self._close(wire)
        for fd in list(self._watched):
            self._unwatch(fd)

    def _unwatch(self, fd: int) -> None:
        if fd in self._watched:
            self._watched.discard(fd)
            with suppress(KeyError):  # It is not registered yet, or no more.
                self._selector.unregister(fd)
            os.close(fd)

    def _open(self, wire: _TreeEnd) -> None:
        self._selector.register(wire.socket, selectors.EVENT_READ, partial(self._serve, wire))

    def _close(self, wire: _TreeEnd) -> None:
        if wire in self._wires:
            self._wires.discard(wire)
            with suppress(KeyError):  # It is not registered yet, or no more.
                self._selector.unregister(wire.socket)
            wire.close()
            self._release(wire)

    def _serve(self, wire: _TreeEnd) -> None:
        """Send what waits, then take what was asked for as long as the face reads what it gets."""
        try:
            wire.flush()
            for header, body in wire.receive():
                self._take(wire, header, body)
        except (OSError, Garbled):
            self._close(wire)
        else:
            self._await_more(wire)

    def _await_more(self, wire: _TreeEnd) -> None:
        if wire in self._wires:
            if wire.full:
                self._release(wire)
            elif not wire.outgoing and wire.slot is not None and wire.taken is not None:
                self._page.take(wire.slot, wire.taken)
            events = 0 if wire.full else selectors.EVENT_READ
            events |= selectors.EVENT_WRITE if wire.outgoing else 0
            self._selector.modify(wire.socket, events, partial(self._serve, wire))

    def _release(self, wire: _TreeEnd) -> None:
        """Have nobody make way for a face that is gone or does not read."""
        if wire.slot is not None:
            self._page.release(wire.slot)

    def _take(self, wire: _TreeEnd, header: dict[str, Any], body: bytes) -> None:
        """Answer a request, now or when its value has come; or pass on a notice."""
        if "notice" in header:
            self._safely(partial(wire.notice, str(header.pop("notice")), header))
            return
        try:
            value = self._ask(header, body, wire.name)
            if isinstance(value, Later):
                answer = partial(self._answer_later, wire, header.get("id"), value)
                value.add_done_callback(lambda _: self.call(answer))
            else:
                wire.answer(header.get("id"), value)
        except Fault as fault:
            wire.refuse(header.get("id"), fault)
        match header:
            case {"slot": int(slot), "id": int(number)} if 0 <= slot < SLOTS:
                wire.slot, wire.taken = slot, number

    def _ask(self, header: dict[str, Any], body: bytes, via: str) -> object:
        path = str(header.get("path"))
        match header.get("verb"):
            case "list":
                return self._tree.list(path)
            case "read":
                return self._tree.read(path)
            case "write":
                writer = Writer(via, header.get("key"))
                return self._tree.write(path, body, check=bool(header.get("check")), writer=writer)
            case "describe":
                return self._tree.describe(path)
        raise Fault(f"no verb {header.get('verb')!r}: it is list, read, write or describe")

    def _answer_later(self, wire: _TreeEnd, request: object, later: Later) -> None:
        """Answer the request whose value has come, if its wire is still there."""
        if wire not in self._wires:
            return
        try:
            try:
                wire.answer(request, later.result())
            except Fault as fault:
                wire.refuse(request, fault)
        except OSError:
            self._close(wire)
        else:
            self._await_more(wire)


class _TreeEnd:
    """The tree's end of one wire, and what waits to be sent over it. Sending raises OSError once the face is gone."""

    def __init__(self, end: socket.socket, notice: Notice, slot: int | None, name: str) -> None:
        end.setblocking(False)
        self.name = name
        self.socket = end
        self.notice = notice
        self.slot = slot
        """The face's slot of the page, as far as it is known."""
        self.outgoing = bytearray()
        self.taken: int | None = None
        """Number of the last question that was taken, to be marked once its answer is on the way whole."""
        self._frames = Frames()

    @property
    def full(self) -> bool:
        """Whether the face must read before it is answered further."""
        return len(self.outgoing) >= _BACKLOG

    def answer(self, request: object, value: object) -> None:
        if isinstance(value, bytes):
            self._put(frame({"id": request, "value": None}, value))
        else:
            self._put(frame({"id": request, "value": value}))

    def refuse(self, request: object, fault: Fault) -> None:
        self._put(frame({"id": request, "fault": dump(fault)}))

    def flush(self) -> None:
        while self.outgoing:
            try:
                sent = self.socket.send(memoryview(self.outgoing)[:CHUNK], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            del self.outgoing[:sent]

    def receive(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Iterate over the frames that have come, until the wire is full. Raises OSError when the wire has ended."""
        if not self.full:
            yield from self._frames_of(b"")
        if not self.full:
            with suppress(BlockingIOError):
                data = self.socket.recv(CHUNK)
                if not data:
                    raise ConnectionResetError("the face closed its wire")
                yield from self._frames_of(data)

    def close(self) -> None:
        with suppress(OSError):
            if not self.outgoing:
                self.socket.send(frame({"quit": True}), socket.MSG_NOSIGNAL)
            # A forked child may hold a copy of the socket: closing ours would not end the connection.
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _frames_of(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        for whole in self._frames.feed(data):
            yield whole
            if self.full:
                return

    def _put(self, data: bytes) -> None:
        self.outgoing += data
        self.flush()
