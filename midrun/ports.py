"""Ports: finding one that is free, and holding it."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

_BACKLOG = 128
"""Connections that the kernel keeps until they are accepted."""


def listen(host: str, first: int, count: int) -> socket.socket:
    """Return a socket that listens on the first free one of `count` ports, beginning with `first`.

    With SO_REUSEADDR two sockets can be bound to a port while neither listens: only listening is exclusive, so each
    port is tried with both. Raises OSError, which says what was tried.
    """
    try:
        address = socket.getaddrinfo(host, first, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise OSError(f"no address is known for {host}: {error.strerror}; set rest_host") from error
    candidates = [0] if first == 0 else range(first, min(first + count, 65536))
    for port in candidates:
        end = socket.socket(address[0], socket.SOCK_STREAM)
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            end.bind((host, port))
            end.listen(_BACKLOG)
        except OSError as error:
            end.close()
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                reason = os.strerror(error.errno or 0)
                raise OSError(f"can't listen on {host}:{port}: {reason}; set rest_host and rest_port") from error
        else:
            return end
    last = candidates[-1]
    why = f"port {first} of {host} is taken" if last == first else f"no port of {host} from {first} to {last} is free"
    raise OSError(f"{why}: set rest_port, or rest_port_search to try more")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def url(host: str, port: int) -> str:
    """Return the address at which a client on this machine reaches what listens on `host`."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - only compared with
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
