"""Hosts: the names under which this machine may be addressed.

A web page that points its own name at this machine (DNS rebinding) could read the API as if it were its own, were it
not for the Host header: the browser puts the page's name there. So only requests for one of this machine's names, or
for one that the user has added, are answered.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address

WHITELIST = "MIDRUN_WHITELIST_IP"
"""Environment variable with more IP addresses of this machine, separated by commas."""

_LOCAL = ("localhost", "127.0.0.1", "::1")
_HEADER = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")


class Hosts:
    """The names that a Host header may have.

    Parameters
    ----------
    names
        Names and addresses of this machine.
    added
        Names that the user has added, such as a reverse proxy's.
    """

    def __init__(self, names: Iterable[str], added: Iterable[str] = ()) -> None:
        self._added = frozenset(map(_plain, added))
        self._names = {*map(_plain, names), *self._added}

    @classmethod
    def of_machine(cls, environ: Mapping[str, str], rest_host: str, allowed: Iterable[str]) -> Hosts:
        """Return the names of this machine, without its fully qualified one: see `learn`.

        Parameters
        ----------
        environ
            The environment variables, which are read now and not again.
        rest_host
            The option: the address or name that REST listens on.
        allowed
            The option `rest_allowed_hosts`.

        Raises ValueError for an entry of `MIDRUN_WHITELIST_IP` or of `allowed` that is none.
        """
        names = [*_LOCAL, socket.gethostname(), *_whitelisted(environ.get(WHITELIST, ""))]
        if rest_host and not _is_unspecified(rest_host):
            names.append(rest_host)
        # "client address, client port, server address, server port": the user reached this machine by the third.
        connection = environ.get("SSH_CONNECTION", "").split()
        if len(connection) == 4:  # noqa: PLR2004 - as the line above says
            names.append(connection[2])
        return cls(names, map(_checked, allowed))

    def learn(self, look_up: Callable[[], str] = socket.getfqdn) -> threading.Thread:
        """Look up the fully qualified name of this machine in a thread, and add it when it is known.

        A resolver that does not answer takes seconds, and nothing must wait for it.
        """
        thread = threading.Thread(target=lambda: self._names.add(_plain(look_up())), name="midrun-fqdn", daemon=True)
        thread.start()
        return thread

    def admits(self, header: str | None) -> bool:
        """Return whether a Host header names this machine. The port is not compared: a tunnel may change it."""
        match = _HEADER.fullmatch(header or "")
        return match is not None and _plain(match[1]) in self._names

    def added(self, authority: str) -> bool:
        """Return whether an authority is a name that the user has added, on its scheme's own port."""
        match = _HEADER.fullmatch(authority)
        return match is not None and match[1] == authority and _plain(authority) in self._added


@lru_cache(maxsize=64)
def _plain(name: str) -> str:
    """Return the one spelling of a name or an address, without brackets, zone and final dot."""
    name = name.strip().removeprefix("[").removesuffix("]").rstrip(".").lower()
    try:
        return str(ip_address(name)).partition("%")[0]
    except ValueError:
        return name


def _is_unspecified(host: str) -> bool:
    try:
        return ip_address(_plain(host)).is_unspecified
    except ValueError:
        return False


def _whitelisted(value: str) -> Iterable[str]:
    for entry in filter(None, map(str.strip, value.split(","))):
        try:
            ip_address(entry)
        except ValueError:
            raise ValueError(
                f"{WHITELIST} has the entry {entry!a:.100}, which is neither an IPv4 nor an IPv6 address: give "
                "addresses separated by commas, such as 203.0.113.9,2001:db8::9, or unset the variable"
            ) from None
        yield entry


def _checked(entry: str) -> str:
    match = _HEADER.fullmatch(entry)
    if match is not None:
        return match[1]
    try:
        return str(ip_address(entry))
    except ValueError:
        raise ValueError(
            f"rest_allowed_hosts has the entry {entry!a:.100}, which is no host name: give names alone, such as "
            "train.example.org, without scheme and path, and international ones in their xn-- form"
        ) from None
