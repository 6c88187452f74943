"""The wire: the four verbs between a face and the process that has the tree, over a socket pair.

A frame is two lengths (big-endian 32-bit: header, body), a JSON header and the body's bytes. A face sends requests
`{"id", "verb", "path", ...}`; each is answered, in any order, by `{"id", "value"}` or `{"id", "fault"}`. A face also sends
notices `{"notice", ...}` about itself, and the other side sends `{"quit": true}`.

This module has the frames and the face's end; `answers` has the other end. Neither end takes the end of file for a
sign of death, since a forked child may hold a copy of a socket: both watch the other process by pidfd.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import trio

from midrun.fs.faults import Fault, Gone, load
from midrun.fs.page import Page
from midrun.fs.verbs import Description, Entry

_LENGTHS = struct.Struct(">II")
LONGEST_HEADER = 64 << 20
LONGEST_BODY = 1 << 30
CHUNK = 256 << 10


class Garbled(ValueError):
    """The other end of the wire sent what no frame looks like."""


def frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


class Frames:
    """Turns received bytes into frames, whatever pieces they come in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Take received bytes and iterate over the frames that are now whole. Raises `Garbled`."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            header_size, body_size = _LENGTHS.unpack_from(self._buffer)
            if header_size > LONGEST_HEADER or body_size > LONGEST_BODY:
                message = f"a frame of {header_size} + {body_size} bytes"
                raise Garbled(message)
            middle = _LENGTHS.size + header_size
            end = middle + body_size
            if len(self._buffer) < end:
                return
            header = _header(bytes(self._buffer[_LENGTHS.size : middle]))
            body = bytes(self._buffer[middle:end])
            del self._buffer[:end]
            yield header, body


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        message = f"a header that is no JSON object: {text[:80]!r}"
        raise Garbled(message)
    return header


class Wire:
    """The face's end: the verbs, asked over a socket. `run` must be running, in the same trio loop."""

    def __init__(self, end: socket.socket, page: Page | None = None, slot: int = 0) -> None:
        end.setblocking(False)
        self._socket = end
        self._page = page
        self._slot = slot
        self._frames = Frames()
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Answer] = {}
        self._outgoing = bytearray()
        self._to_send = trio.Event()
        self._closed = False
        self.quit = trio.Event()
        """Set when the other side says quit, or closes the wire."""

    async def run(self) -> None:
        """Carry requests and answers until the wire is closed."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                await self._receive()
                nursery.cancel_scope.cancel()
        finally:
            self._closed = True
            self.quit.set()
            for answer in self._waiting.values():
                answer.settle({"fault": {"kind": "Gone", "message": "the run has ended", "errors": None}}, b"")

    async def list(self, path: str) -> list[Entry]:
        """Return the entries of the directory at `path`."""
        header, _ = await self._ask({"verb": "list", "path": path})
        return _value(header)

    async def read(self, path: str) -> bytes:
        """Return the rendered file at `path`."""
        _, body = await self._ask({"verb": "read", "path": path})
        return body

    async def write(self, path: str, data: bytes, *, check: bool = False) -> Any:  # noqa: ANN401 - any JSON value
        """Store `data` in the control file at `path`."""
        header, _ = await self._ask({"verb": "write", "path": path, "check": check}, data)
        return _value(header)

    async def describe(self, path: str) -> Description:
        """Return what is known of the node at `path`."""
        header, _ = await self._ask({"verb": "describe", "path": path})
        return _value(header)

    def notify(self, notice: str, **detail: Any) -> None:  # noqa: ANN401 - any JSON value
        """Tell the other side something about this face."""
        self._put(frame({"notice": notice, **detail}))

    async def _ask(self, request: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        if self._closed:
            message = "the run has ended"
            raise Gone(message)
        request_id = next(self._ids)
        answer = self._waiting[request_id] = _Answer()
        try:
            if self._page is not None:
                self._page.ask(self._slot)
            self._put(frame({"id": request_id, **request}, body))
            await answer.landed.wait()
        finally:
            del self._waiting[request_id]
        return answer.frame

    def _put(self, data: bytes) -> None:
        """Send what the socket takes now and leave the rest to `_send`: nobody ever waits to ask."""
        if not self._outgoing:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # `_receive` sees the end too, and settles who waits.
        if data:
            self._outgoing += data
            self._to_send.set()

    async def _send(self) -> None:
        while True:
            await self._to_send.wait()
            await trio.lowlevel.wait_writable(self._socket)
            try:
                del self._outgoing[: self._socket.send(self._outgoing[:CHUNK])]
            except BlockingIOError:
                continue
            except OSError:
                return
            if not self._outgoing:
                self._to_send = trio.Event()

    async def _receive(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                data = self._socket.recv(CHUNK)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            for header, body in self._frames.feed(data):
                if header.get("quit"):
                    return
                answer = self._waiting.get(header.get("id", 0))
                if answer is not None:
                    answer.settle(header, body)


class _Answer:
    """The answer that one request waits for."""

    def __init__(self) -> None:
        self.landed = trio.Event()
        self._header: dict[str, Any] = {}
        self._body = b""

    def settle(self, header: dict[str, Any], body: bytes) -> None:
        self._header, self._body = header, body
        self.landed.set()

    @property
    def frame(self) -> tuple[dict[str, Any], bytes]:
        """The answer's header and body; raises its fault."""
        fault = self._header.get("fault")
        if fault is not None:
            raise load(fault)
        return self._header, self._body


def _value(header: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    if "value" not in header:
        message = f"the run answered without a value: {header!r:.80}"
        raise Fault(message)
    return header["value"]


Notice = Callable[[str, dict[str, Any]], None]
"""Called with a face's notice and its details."""
