"""The web face: the process that serves a run over HTTP.

The trainer binds the port, listens and hands the socket over, so that no two runs ever share one and no other process
of the trainer inherits it. The face ends within 250 ms of being told to, whatever its clients are doing.
"""

from __future__ import annotations

import os
import socket
from functools import partial

import trio

from midrun.fs.face import Face
from midrun.web.app import make_app
from midrun.web.hosts import Hosts
from midrun.web.server import Server
from midrun.web.site import Site

_LONGEST_STOP = 1.0
"""Seconds to wait for the server to end."""


async def serve(face: Face) -> None:
    """Serve until cancelled.

    `face.options` has: `listener`, the number of the file descriptor of a socket that listens; `host` and
    `allowed_hosts`, the options `rest_host` and `rest_allowed_hosts`; `run_id`, `run_dir` and `version`.
    """
    options = face.options
    listener = socket.socket(fileno=options["listener"])
    try:
        hosts = Hosts.of_machine(os.environ, options.get("host", ""), options.get("allowed_hosts", ()))
    except ValueError as error:
        listener.close()
        face.failed(str(error))
        return
    hosts.learn()
    run = {"id": options.get("run_id", ""), "dir": options.get("run_dir", "")}
    site = Site(face.view, run, options.get("version", ""))
    ended = trio.Event()
    loop = trio.lowlevel.current_trio_token()
    server = Server(make_app(site, hosts), listener, partial(loop.run_sync_soon, ended.set))
    server.start()
    face.ready(port=listener.getsockname()[1])
    try:
        await ended.wait()
        raise RuntimeError("the web server's loop has ended by itself")
    finally:
        site.close()
        server.stop()
        with trio.CancelScope(shield=True), trio.move_on_after(_LONGEST_STOP):
            await ended.wait()
