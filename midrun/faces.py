"""Faces: what the trainer knows of each process that shows the run."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

import midrun
from midrun import ports
from midrun.config import MidrunConfig
from midrun.fs import mounts
from midrun.process import FaceProcess, Ties
from midrun.services import Service

_REBIND_PATIENCE = 2.0
"""Seconds to wait for a port that a face had which died: its clients know the address."""
_REBIND_PAUSE = 0.02
"""Seconds between two attempts."""


class Rest(FaceProcess):
    """The REST API.

    Parameters
    ----------
    service, ties
        As for every face.
    config
        The options.
    run
        The run as `/health` names it: `run_id` and `run_dir`.
    port
        A port to try first: the one that the last fit had.
    is_paired
        Whether its port goes with that of PyTorch's debug server: both are as many hundreds above their first ones.
    """

    module = "midrun.web.face"
    slot = 0

    def __init__(
        self,
        service: Service,
        ties: Ties,
        config: MidrunConfig,
        run: dict[str, str],
        port: int | None,
        *,
        is_paired: bool = False,
    ) -> None:
        super().__init__(service, ties)
        self.is_paired = is_paired and config.rest_enabled and 0 not in {config.rest_port, config.torch_debug_port}
        self.port = port
        """Where it listens; None before it has."""
        self._config = config
        self._run = run
        self._listened = False

    @property
    def url(self) -> str | None:
        """The address, or None when there is none."""
        if self.port is None or not self._listened or not self.service.is_up:
            return None
        return ports.url(self._config.rest_host, self.port)

    def options(self) -> dict[str, Any]:
        """Return what the face is told."""
        host, allowed = self._config.rest_host, list(self._config.rest_allowed_hosts)
        return {"host": host, "allowed_hosts": allowed, "version": midrun.__version__, **self._run}

    def listener(self) -> socket.socket:
        """Return a listening socket: on the port that the run had, if it gets free, else on another."""
        host, again = self._config.rest_host, self._listened
        deadline = time.monotonic() + (_REBIND_PATIENCE if again else 0.0)
        listener = None
        while listener is None and self.port is not None and not self._stopping:
            with suppress(OSError):
                listener = ports.listen(host, self.port, 1)
            if time.monotonic() >= deadline:
                break
            if listener is None:
                time.sleep(_REBIND_PAUSE)
        if listener is None:
            listener = self._search()
        self.port, self._listened = listener.getsockname()[1], True
        self.service.announce()
        if not again and not ports.is_loopback(host):
            self.service.warn(
                f"it listens on {host}, not on this machine alone, and asks for no password: set rest_host to "
                "127.0.0.1, unless you trust all who reach it"
            )
        return listener

    def _search(self) -> socket.socket:
        config, host = self._config, self._config.rest_host
        if self.is_paired:
            beside, attempts = config.torch_debug_port, config.paired_port_search_attempts
            return ports.listen_beside(host, config.rest_port, beside, attempts)
        return ports.listen(host, config.rest_port, config.rest_port_search)


class Mount(FaceProcess):
    """The mount.

    Parameters
    ----------
    service, ties
        As for every face.
    mountpoint
        Absolute path.
    run_id
        The run's id, shown in the table of mounts.
    writable
        Whether control files can be written.
    """

    module = "midrun.fs.mount"
    slot = 1

    def __init__(self, service: Service, ties: Ties, mountpoint: str, run_id: str, *, writable: bool) -> None:
        super().__init__(service, ties)
        self._told = {"mountpoint": mountpoint, "run_id": run_id, "writable": writable}

    def options(self) -> dict[str, Any]:
        """Return what the face is told."""
        return {**self._told}

    def clear(self) -> None:
        """Take away the mount of a face that was killed."""
        mounts.clean(mounts.resolve(str(self._told["mountpoint"])))
