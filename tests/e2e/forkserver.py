"""The fork server: a process that has imported Lightning once and forks a trainer whenever it is asked for one.

Importing Lightning takes seconds, and a test of a whole process needs a whole process. The server has one thread and no
pools, so that what it forks is as good as a fresh interpreter. All pytest processes of a machine's run share one: each
holds a connection, over which it asks for trainers and hears of their ends. A connection's trainers end with it, and
the server with the last connection.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e import ground

FIRST_PATIENCE = 60.0
"""Seconds to wait for the first connection."""


class Server:
    """Serves until the last connection has ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, dict[int, int]] = {}
        """For each connection, the pidfds of its trainers, by process id."""
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def serve(self) -> dict[str, Any] | None:
        """Return None in the server when all is over, and in each forked child what the child is to do."""
        patience: float | None = FIRST_PATIENCE
        while self._clients or patience is not None:
            ready = self._selector.select(patience)
            if not ready:
                break
            patience = None
            for key, _ in ready:
                asked = key.data()
                if asked is not None:
                    return self._leave(asked)
        return None

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self._clients[client] = {}
        file = client.makefile("rwb")
        file.write(b"{}\n")
        file.flush()
        self._selector.register(client, selectors.EVENT_READ, lambda: self._hear(client, file))

    def _hear(self, client: socket.socket, file: Any) -> dict[str, Any] | None:
        line = b""
        with contextlib.suppress(OSError):
            line = file.readline()
        if not line:
            self._selector.unregister(client)
            for pid, pidfd in self._clients.pop(client).items():
                os.kill(pid, signal.SIGKILL)
                self._forget(pid, pidfd)
            file.close()
            client.close()
            return None
        asked: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return asked
        pidfd = self._clients[client][pid] = os.pidfd_open(pid)
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._ended(client, file, pid))
        self._tell(file, {"started": pid})
        return None

    def _ended(self, client: socket.socket, file: Any, pid: int) -> None:
        status = self._forget(pid, self._clients[client].pop(pid))
        self._tell(file, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _forget(self, pid: int, pidfd: int) -> int:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        return os.waitpid(pid, 0)[1]

    def _tell(self, file: Any, news: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            file.write(f"{json.dumps(news)}\n".encode())
            file.flush()

    def _leave(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Close all that is the server's, in a child."""
        self._selector.close()
        self._listener.close()
        for client, trainers in self._clients.items():
            client.close()
            for pidfd in trainers.values():
                os.close(pidfd)
        self._clients.clear()
        return asked


def become(asked: dict[str, Any]) -> Callable[[], None]:
    """Make this process what `asked` describes, and return what it is to do."""
    os.setsid()
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    sys.argv[1:] = []
    for number, name in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
        fd = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(fd, number)
        os.close(fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.path[:0] = asked["path"]
    ground.prepare(asked["ground"])
    from tests.e2e import trainers

    return lambda: trainers.main(asked["program"], asked["plan"])


def main(address: str) -> None:
    """Serve at `address`, a path; whoever sees it can connect."""
    import lightning.pytorch  # noqa: F401 - what it is for
    import torch

    import midrun.run  # noqa: F401 - as above
    import tests.e2e.trainers  # noqa: F401 - what it forks

    torch.set_num_threads(1)
    # What nobody closed is said when it is collected; the tests look for it.
    warnings.simplefilter("always", ResourceWarning)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen(64)
        Path(f"{address}.new").rename(address)
        gc.collect()
        gc.freeze()
        asked = Server(listener).serve()
    if asked is not None:
        # As a fresh interpreter would: the way to the exit code is the program's own.
        become(asked)()


if __name__ == "__main__":
    main(sys.argv[1])
