"""The server: waitress over a listener that is already open, with limits for slow clients and a clean stop.

waitress has no way to stop: closing it from another thread hangs or hits file descriptors that are others' by then. So
its loop is turned here, one round at a time, and the thread that turns it also takes it apart.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from waitress import wasyncore  # type: ignore[import-untyped]
from waitress.adjustments import Adjustments  # type: ignore[import-untyped]
from waitress.buffers import ReadOnlyFileBasedBuffer  # type: ignore[import-untyped]
from waitress.channel import HTTPChannel  # type: ignore[import-untyped]
from waitress.parser import HTTPRequestParser  # type: ignore[import-untyped]
from waitress.server import TcpWSGIServer  # type: ignore[import-untyped]
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask  # type: ignore[import-untyped]

from midrun.fs.write import LONGEST_WRITE
from midrun.web.calls import JSON
from midrun.web.gate import DEFAULTS, HEADERS

WORKERS = 8
CONNECTIONS = 200
"""Open connections; more wait in the kernel's queue."""
RECEIVE_SECONDS = 5
"""Seconds in which a request is received whole, and a new connection's first one begins and ends."""
IDLE_SECONDS = 15
"""Seconds for which a connection may be silent between requests, or while it takes an answer."""

SHARE = 1 << 20
"""Bytes sent to one client before others have their turn."""

_DRAIN_SECONDS, _LEAVE_SECONDS = 0.12, 0.06
"""At its end: for answers that are nearly done, and for its workers."""

_left: list[object] = []
"""Triggers that are not closed before the process ends."""


class Server:
    """A WSGI app served over one listening socket, which the server owns from then on.

    Parameters
    ----------
    app
        The WSGI app.
    listener
        A socket that is bound and listens.
    ended
        Called in the server's thread when it has ended, whether it was stopped or broke.
    """

    def __init__(self, app: Callable[..., Any], listener: socket.socket, ended: Callable[[], object]) -> None:
        # "Task queue depth is 1" is no news for a run's log.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self.clean = False
        """Whether the server ended with nothing left over."""
        self._ended = ended
        self._workers = ThreadedTaskDispatcher()
        self._workers.set_thread_count(WORKERS)
        self._listener = TcpWSGIServer(
            app,
            map={},
            _sock=listener,
            dispatcher=self._workers,
            adj=_adjustments(),
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            bind_socket=False,
        )
        self._listener.channel_class = _Channel
        self._stopping = threading.Event()
        self._trigger = threading.Lock()
        """Held to pull waitress's trigger and to close it: the number of a closed one could be another's by then."""
        self._thread = threading.Thread(target=self._run, name="midrun-web", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Free the port, finish what is nearly done and end. It returns at once; `ended` is called later."""
        with self._trigger:
            self._stopping.set()
            if self._thread.is_alive() and not self.clean:
                self._listener.trigger.pull_trigger()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._turn(1.0)
                self._close_overdue()
            self._take_down()
        finally:
            self._ended()

    def _turn(self, seconds: float) -> None:
        # poll, not select: a file descriptor over 1023 would end select, and with it the server.
        wasyncore.loop(timeout=seconds, use_poll=True, map=self._listener._map, count=1)  # noqa: SLF001 - waitress has no other way in

    def _close_overdue(self) -> None:
        # waitress closes a connection when it can be written to next, which for a client that reads nothing is never.
        now = time.monotonic()
        for channel in list(self._listener.active_channels.values()):
            if channel.is_overdue(now):
                channel.handle_close()

    def _take_down(self) -> None:
        listener, workers = self._listener, self._workers
        listener.accepting = False
        listener.del_channel()
        listener.socket.close()
        end = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < end and (workers.queue or workers.active_count > 0 or self._owes()):
            self._turn(0.01)
        workers.set_thread_count(0)
        for channel in list(listener.active_channels.values()):
            channel.handle_close()
        end = time.monotonic() + _LEAVE_SECONDS
        with workers.lock:
            while workers.threads and time.monotonic() < end:
                workers.thread_exit_cv.wait(end - time.monotonic())
            stuck = bool(workers.threads)
        if not stuck:
            with self._trigger:
                listener.trigger.close()
                self.clean = True
        else:
            # A worker is stuck. It may pull the trigger yet, and the number of a closed one could be another's.
            _left.append(listener.trigger)

    def _owes(self) -> bool:
        return any(channel.total_outbufs_len for channel in self._listener.active_channels.values())


class _Task(WSGITask):  # type: ignore[misc]  # waitress has no types
    """A request that the app answers."""

    def get_environment(self) -> dict[str, Any]:
        """Return the WSGI environment."""
        environ: dict[str, Any] = super().get_environment()
        environ["wsgi.file_wrapper"] = self._wrap
        return environ

    def _wrap(self, file: object, block_size: int) -> object:
        """Have a file sent by the server's loop, and its connection closed then.

        A client takes as long for it as it likes. With another request after it on the same connection, a worker would
        wait until the client is done.
        """
        self.set_close_on_finish()
        return ReadOnlyFileBasedBuffer(file, block_size)


class _ErrorTask(ErrorTask):  # type: ignore[misc]  # waitress has no types
    """The answer to what never reaches the app: a malformed request, one too large."""

    def execute(self) -> None:
        error = self.request.error
        body = f"{json.dumps({'detail': f'{error.reason}: {error.body}'})}\n".encode()
        self.status = f"{error.code} {error.reason}"
        self.response_headers.extend([("Content-Type", JSON), *HEADERS.items(), *DEFAULTS.items()])
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Parser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """A request as it comes. `curl` sends an address with an ï in it as it was typed: it is encoded here."""

    def parse_header(self, header_plus: bytes) -> None:
        line, separator, rest = header_plus.partition(b"\r\n")
        super().parse_header(re.sub(rb"[\x80-\xff]", lambda byte: b"%%%02X" % ord(byte[0]), line) + separator + rest)


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """One connection. It knows since when a request is being received."""

    task_class = _Task
    error_task_class = _ErrorTask
    parser_class = _Parser

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.receiving: float | None = time.monotonic()
        self._moved = time.monotonic()
        self._share = 0

    def received(self, data: bytes) -> bool:
        self._moved = time.monotonic()
        if self.receiving is None:
            self.receiving = self._moved
        took = bool(super().received(data))
        if self.request is None:
            self.receiving = None
        return took

    def _flush_some(self, do_close: bool = True) -> bool:  # noqa: FBT001, FBT002 - waitress's signature
        # A client that takes a large file as fast as it is sent would have the loop, or a worker, for itself.
        self._share = SHARE
        return bool(super()._flush_some(do_close=do_close))

    def send(self, data: bytes, do_close: bool = True) -> int:  # noqa: FBT001, FBT002 - waitress's signature
        # To have sent nothing is what waitress hears from a client that takes no more for now.
        sent = int(super().send(data, do_close=do_close)) if self._share > 0 else 0
        if sent > 0:
            self._moved = time.monotonic()
        self._share -= sent
        return sent

    def is_overdue(self, now: float) -> bool:
        """Return whether the client has been too slow."""
        if self.receiving is not None:
            return now - self.receiving > RECEIVE_SECONDS
        # A request that is being answered may take its time; an answer that nobody takes may not.
        resting = not self.requests or self.total_outbufs_len > 0
        return bool(resting and now - self._moved > IDLE_SECONDS)


def _adjustments() -> object:
    return Adjustments(
        threads=WORKERS,
        asyncore_use_poll=True,
        channel_request_lookahead=1,  # notices a client that has left
        connection_limit=CONNECTIONS,
        max_request_body_size=LONGEST_WRITE + 1,  # waitress refuses this many
        max_request_header_size=64 << 10,
        inbuf_overflow=2 * LONGEST_WRITE,  # nothing goes to the disk, which may be full
        outbuf_overflow=64 << 20,
        log_socket_errors=False,
        ident="midrun",
        backlog=128,
    )
