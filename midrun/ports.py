"""Ports: finding one that is free, and holding it."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from contextlib import suppress

_LAST = 65535
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
    candidates = [0] if first == 0 else range(first, min(first + count, _LAST + 1))
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


def listen_beside(host: str, first: int, beside: int, attempts: int) -> socket.socket:
    """Return a socket that listens on `first` or so many hundreds above it that the port as far from `beside` is free.

    Raises OSError, which says what was tried, after so many attempts.
    """
    for offset in range(0, 100 * attempts, 100):
        if max(first, beside) + offset > _LAST:
            break
        with suppress(OSError):
            _try_all_interfaces(beside + offset)
            return listen(host, first + offset, 1)
    raise OSError(
        f"of {attempts} pairs of ports from {first} and {beside} on, a hundred apart, none is free: set rest_port and "
        "torch_debug_port, or paired_port_search_attempts to try more"
    )


def _try_all_interfaces(port: int) -> None:
    """Raise OSError where a port is taken on any interface."""
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as end:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                end.bind(("", port))
                end.listen(1)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                raise  # Else the machine has no such family.


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def url(host: str, port: int) -> str:
    """Return the address at which a client on this machine reaches what listens on `host`."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - only compared with
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
