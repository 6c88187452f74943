"""The wire: the four verbs between a face and the process that has the tree, over a socket pair.

Here is the face's end; `answers` has the other, and `frames` what goes over it. Neither end relies on the wire's end to
learn of a death, since a forked child may hold a copy of a socket.
"""

from __future__ import annotations

import itertools
import socket
from typing import Any

import trio

from midrun.fs.faults import ENDED, Fault, Gone, dump, load
from midrun.fs.frames import CHUNK, Frames, Garbled, frame
from midrun.fs.page import Page
from midrun.fs.verbs import Description, Entry


class Wire:
    """The face's end: the verbs, asked over a socket. `run` must be running, in the same trio loop.

    Parameters
    ----------
    end
        The face's end of the socket pair.
    page
        The page that is shared with the other side, if there is one.
    slot
        This face's slot of the page.
    """

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
        """Carry requests and answers until the wire is closed; then close the socket."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                await self._receive()
                nursery.cancel_scope.cancel()
        finally:
            self._closed = True
            self._socket.close()
            self.quit.set()
            for answer in self._waiting.values():
                answer.settle({"fault": dump(Gone(ENDED))}, b"")

    async def list(self, path: str) -> list[Entry]:
        """Return the entries of the directory at `path`."""
        header, _ = await self._ask({"verb": "list", "path": path})
        entries: list[Entry] = _value(header)
        return entries

    async def read(self, path: str) -> bytes:
        """Return the rendered file at `path`."""
        _, body = await self._ask({"verb": "read", "path": path})
        return body

    async def write(self, path: str, data: bytes, *, check: bool = False, key: str | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Store `data` in the control file at `path`."""
        named = {} if key is None else {"key": key}
        header, _ = await self._ask({"verb": "write", "path": path, "check": check, **named}, data)
        return _value(header)

    async def describe(self, path: str) -> Description:
        """Return what is known of the node at `path`."""
        header, _ = await self._ask({"verb": "describe", "path": path})
        description: Description = _value(header)
        return description

    def notify(self, notice: str, **detail: Any) -> None:  # noqa: ANN401 - any JSON value
        """Tell the other side something about this face."""
        self._put(frame({"notice": notice, **detail}))

    async def _ask(self, request: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        if self._closed:
            raise Gone(ENDED)
        request_id = next(self._ids)
        answer = self._waiting[request_id] = _Answer()
        try:
            if self._page is None:
                self._put(frame({"id": request_id, **request}, body))
            else:
                self._put(frame({"id": request_id, "slot": self._slot, **request}, body))
                self._page.ask(self._slot, request_id)
            await answer.landed.wait()
        finally:
            del self._waiting[request_id]
        return answer.frame

    def _put(self, data: bytes) -> None:
        """Send what the socket takes now and leave the rest to `_send`: nobody ever waits to ask."""
        if not self._outgoing:
            try:
                data = data[self._socket.send(data, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # `_receive` sees the end too, and settles what waits.
        if data:
            self._outgoing += data
            self._to_send.set()

    async def _send(self) -> None:
        while True:
            await self._to_send.wait()
            await trio.lowlevel.wait_writable(self._socket)
            try:
                del self._outgoing[: self._socket.send(self._outgoing[:CHUNK], socket.MSG_NOSIGNAL)]
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
            try:
                for header, body in self._frames.feed(data):
                    if header.get("quit"):
                        return
                    request_id = header.get("id")
                    answer = self._waiting.get(request_id) if isinstance(request_id, int) else None
                    if answer is not None:
                        answer.settle(header, body)
            except Garbled:
                return


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
        raise Fault(f"the run answered without a value: {header!r:.80}")
    return header["value"]
