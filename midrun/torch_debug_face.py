"""The face of PyTorch's debug server: the process that serves its page."""

from __future__ import annotations

import importlib
import os
from typing import Any

import trio

from midrun.fs.face import Face
from midrun.fs.tracebacks import last_line


async def serve(face: Face) -> None:
    """Serve until cancelled.

    `face.options` has: `ports`, which are tried in turn; `environment`, by which torch finds the ranks.
    """
    os.environ.update(face.options["environment"])
    try:
        server = _server(face.options["ports"])
    except Exception as error:  # noqa: BLE001 - torch's own, which is said to change
        face.failed(last_line(error))
        return
    face.ready(port=server._server.server_port)  # noqa: SLF001 - where else it says which port it has got
    await trio.sleep_forever()


def _server(ports: list[int]) -> Any:  # noqa: ANN401 - a class of torch's
    """Return torch's page, which serves on the first free port. Raises OSError where none is free."""
    frontend = importlib.import_module("torch.distributed.debug._frontend")
    tried: OSError | None = None
    for port in ports:
        try:
            return frontend.FrontendServer(port=port)
        except OSError as error:
            tried = error
    span = f"{ports[0]} to {ports[-1]}" if ports[1:] else f"{ports[0]}"
    raise OSError(f"no port of {span} is free: set torch_debug_port") from tried
