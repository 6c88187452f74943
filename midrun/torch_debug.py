"""PyTorch's own debug server, for runs of a process group: stacks and dumps of all ranks in one page.

Each rank has a small server of torch's that answers for it, and rank zero a page that asks them all. The page has a
process of its own, as every face: torch would fork the trainer for it, with its threads, its mount and its ports.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from contextlib import suppress
from typing import Any

from torch import distributed

from midrun import ports
from midrun.config import MidrunConfig
from midrun.faces import Rest
from midrun.process import FaceProcess, Ties
from midrun.services import Service

_NEEDS = ("jinja2", "aiohttp", "tabulate", "requests")
"""What its page imports; torch asks for none of it when it is installed."""
_KEYS = ("MASTER_ADDR", "MASTER_PORT")
"""What the page finds the store by."""


def reason_against(config: MidrunConfig) -> str | None:
    """Return why there is no debug server in this run; None where there is one."""
    if not config.torch_debug_enabled:
        return "torch_debug_enabled=False"
    if not (distributed.is_available() and distributed.is_initialized()):
        return "torch.distributed is not initialized"
    if importlib.util.find_spec("torch.distributed.debug") is None:
        return "this version of torch has no torch.distributed.debug"
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        return f"it needs {' and '.join(missing)}: pip install 'midrun[torch-debug]'"
    unset = [key for key in _KEYS if key not in os.environ]
    return f"it finds the ranks by the environment, and {unset[0]} is not set" if unset else None


class Answering:
    """The server by which one rank answers for itself. Raises whatever torch raises where it can't be started."""

    def __init__(self, rank: int) -> None:
        from torch._C._distributed_c10d import _WorkerServer  # noqa: PLC0415 - not in every torch
        from torch.distributed import debug  # noqa: F401, PLC0415 - makes its handlers known

        from midrun.channel import announce  # noqa: PLC0415 - only where there is a process group

        self._server: Any = _WorkerServer("::", 0)
        # As torch.distributed.debug.start_debug_server tells it, which wants a RANK that Lightning does not set.
        announce("debug_server", f"rank{rank}", f"http://{socket.gethostname()}:{self._server.port}")

    def stop(self) -> None:
        """End it."""
        self._server.shutdown()


class TorchDebug(FaceProcess):
    """The page that shows all ranks.

    Parameters
    ----------
    service, ties
        As for every face.
    config
        The options.
    world_size
        How many ranks there are.
    rest
        The REST API, whose port is as far from its first one as this one's.
    """

    module = "midrun.torch_debug_face"
    slot = 2

    def __init__(self, service: Service, ties: Ties, config: MidrunConfig, world_size: int, rest: Rest) -> None:
        super().__init__(service, ties)
        self._config, self._world_size, self._rest = config, world_size, rest
        self._port: int | None = None

    @property
    def url(self) -> str | None:
        """The address, for a client on this machine; None where it does not serve."""
        return None if self._port is None or self.service.state != "running" else ports.url("127.0.0.1", self._port)

    def options(self) -> dict[str, Any]:
        """Return what the face is told."""
        environment = {key: os.environ[key] for key in _KEYS} | {"RANK": "0", "WORLD_SIZE": str(self._world_size)}
        return {"ports": self._ports(), "environment": environment}

    def served(self, detail: dict[str, Any]) -> None:
        """Note where it listens, and say who reaches it."""
        self._port = detail.get("port")
        self.service.warn(self._warning)

    @property
    def notices(self) -> list[str]:
        """What somebody who looks at the run should know."""
        return [f"PyTorch's debug server: {self._warning}"] if self.url is not None else []

    @property
    def _warning(self) -> str:
        return (
            f"it listens on all interfaces, port {self._port}, and asks for no password: whoever reaches it sees "
            "stacks and dumps of all ranks; torch_debug_enabled=False turns it off"
        )

    def _ports(self) -> list[int]:
        first, rest = self._config.torch_debug_port, self._rest.port
        if first == 0:
            return [0]
        if self._rest.is_paired and rest is not None:
            return [first + rest - self._config.rest_port]
        return [*range(first, min(first + self._config.torch_debug_port_search, 65536))]


def stop(answering: Answering | None) -> None:
    """End the server of this rank, if there is one."""
    if answering is not None:
        with suppress(Exception):  # torch's own, and the rank ends anyway.
            answering.stop()
