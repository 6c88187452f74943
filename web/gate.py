"""The gate: which requests are let in at all, whatever their method.

Three checks, in this order. The Host header names this machine (see `hosts`), else 400. The request does not come from
another site's page, which a browser says in Sec-Fetch-Site or Origin, else 403: so no page can steer the run behind
its user's back. And a browser sends documents as JSON, else 415: what a plain HTML form can send is never taken.
Clients that are no browsers send none of these headers, and `curl -d` works as it is.
"""

from __future__ import annotations

import falcon

from midrun.web.calls import JSON
from midrun.web.hosts import Hosts

_PAGES = {"/", "/docs"}
"""Pages that another site, a chat or a mail may link to: they show nothing until their own script asks."""
_OWN = {"same-origin", "none"}
"""Sec-Fetch-Site of requests by our own pages, and by the user's own hand."""
_BARE_METHODS = {"GET", "HEAD", "OPTIONS"}

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer."""
DEFAULTS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Of every answer that says nothing else."""


class Gate:
    """The checks, as Falcon middleware.

    Parameters
    ----------
    hosts
        The names that the Host header may have.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Refuse a request that has no business here."""
        host = req.env.get("HTTP_HOST")
        if not self._hosts.admits(host):
            raise falcon.HTTPError(400, description=_invalid_host(host))
        site, origin = req.get_header("Sec-Fetch-Site"), req.get_header("Origin")
        if site is not None and site not in _OWN and not _is_link(req):
            raise falcon.HTTPError(403, description=_foreign(f"Sec-Fetch-Site: {site!a:.40}"))
        if origin is not None and not self._is_own(origin, host or ""):
            raise falcon.HTTPError(403, description=_foreign(f"Origin: {origin!a:.100}"))
        if (
            req.method not in _BARE_METHODS
            and req.content_length
            and not _is_json(req.content_type)
            and _is_browser(req)
        ):
            kind = f"{req.content_type!a:.100}" if req.content_type else "of no type"
            raise falcon.HTTPError(415, description=f"the body is {kind}: a browser sends {JSON} here")

    def process_response(self, req: falcon.Request, resp: falcon.Response, resource: object, ok: bool) -> None:  # noqa: FBT001 - Falcon's signature
        """Add the headers that keep browsers strict."""
        resp.set_headers(HEADERS)
        for name, value in DEFAULTS.items():
            if resp.get_header(name) is None:
                resp.set_header(name, value)

    def _is_own(self, origin: str, host: str) -> bool:
        scheme, separator, authority = origin.lower().partition("://")
        if not separator or scheme not in {"http", "https"}:
            return False
        # A reverse proxy may pass on another Host than the one in the browser's address bar: its name counts too.
        return authority == host.lower() or self._hosts.added(authority)


def _is_browser(req: falcon.Request) -> bool:
    return any(name == "HTTP_ORIGIN" or name.startswith("HTTP_SEC_FETCH_") for name in req.env)


def _is_link(req: falcon.Request) -> bool:
    """Return whether the user followed a link to one of our pages, in a tab of its own."""
    return (
        req.method in {"GET", "HEAD"}
        and req.get_header("Sec-Fetch-Mode") == "navigate"
        and req.get_header("Sec-Fetch-Dest") == "document"
        and req.path in _PAGES
    )


def _is_json(content_type: str | None) -> bool:
    return (content_type or "").partition(";")[0].strip().lower() == JSON


def _invalid_host(host: str | None) -> str:
    if host is None:
        return "Invalid host header: there is none; send one that names this machine, such as Host: localhost"
    return (
        f"Invalid host header: {host!a:.100} is no name of this machine; open it as localhost or by its address, or "
        "add the name to rest_allowed_hosts"
    )


def _foreign(header: str) -> str:
    return f"a page of another site asked ({header}); ask from the run's own page, or without a browser"
