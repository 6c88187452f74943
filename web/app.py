"""The app: Falcon, made from the table of routes.

Every mistake is answered with JSON, `{"detail": …}`: a sentence, or the list of wrong fields.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from urllib.parse import unquote

import falcon

from midrun.fs.faults import Conflict, Fault, FieldError, Invalid, IsADirectory, ReadOnly, Unavailable
from midrun.web.calls import JSON, KEY, RUN, Call, Responder, Route, arguments, key_of
from midrun.web.gate import Gate
from midrun.web.hosts import Hosts
from midrun.web.nodes import bind
from midrun.web.routes import ROUTES
from midrun.web.site import Site

_RETRY_SECONDS = 2


def make_app(site: Site, hosts: Hosts, routes: Iterable[Route] = ROUTES) -> falcon.App[falcon.Request, falcon.Response]:
    """Return the WSGI app that shows `site` to those who address it by one of `hosts`."""
    app = falcon.App(media_type=JSON, middleware=[Gate(hosts)])
    app.add_error_handler(Fault, _answer_fault)
    app.add_error_handler(Exception, _answer_bug)
    app.set_error_serializer(_serialize)
    for route in routes:
        app.add_route(route.path, _Resource(site, route))
    return app


class _Resource:
    """One row of the table as Falcon wants it: an attribute for each method that the row answers."""

    def __init__(self, site: Site, route: Route) -> None:
        self._site = site
        self._route = route
        if route.get is not None:
            self.on_get = self.on_head = self._responder(route.get)
        if route.post is not None:
            self.on_post = self._responder(route.post)
        if route.methods is not None:
            self.on_options = self._tell_methods

    def _responder(self, respond: Responder) -> Callable[..., None]:
        def answer(req: falcon.Request, resp: falcon.Response, **_: str) -> None:
            answered = respond(self._site, self._call(req, resp))
            resp.status = answered.status
            resp.content_type = answered.content_type
            resp.set_headers(answered.headers)
            if isinstance(answered.body, bytes):
                resp.data = answered.body
            else:
                resp.stream = answered.body

        return answer

    def _tell_methods(self, req: falcon.Request, resp: falcon.Response, **_: str) -> None:
        if self._route.methods is not None:
            methods = self._route.methods(self._site, self._call(req, resp))
            resp.set_header("Allow", ", ".join(method for method in methods if hasattr(self, f"on_{method.lower()}")))
        resp.content_length = 0

    def _call(self, req: falcon.Request, resp: falcon.Response) -> Call:
        route, env = self._route, req.env
        req.context.reads = route.get is not None
        posts = req.method == "POST"
        key = key_of(req.get_header(KEY)) if posts else ""
        if posts:
            resp.set_header(KEY, key)  # The answer has it, whatever the answer is.
        _expect(self._site.run.get("id", ""), req.get_header(RUN))
        node = route.written if posts else route.node
        if "{" in route.path:
            # PATH_INFO is decoded, and no longer tells a slash from an encoded one.
            node = node.format_map(bind(route.path, env.get("REQUEST_URI") or env["RAW_URI"]))
        query, lists = arguments(route.query, req.query_string) if req.query_string or route.query else ({}, {})
        body = req.bounded_stream.read() if posts else b""
        left = env.get("waitress.client_disconnected", lambda: False)
        return Call(node, query, lists, body, key, req.get_header, req.method == "HEAD", left)


def _expect(run: str, meant: str | None) -> None:
    # Percent-encoded, as a header has no other way to say every name.
    if meant is not None and run not in {meant, unquote(meant)}:
        raise Conflict(
            f"this is the run {run!r}, and not {meant!r:.150}, for which this was meant: nothing was done. `midrun ls` "
            "says where each run is"
        )


def _answer_fault(req: falcon.Request, resp: falcon.Response, fault: Fault, params: object) -> None:
    detail = fault.detail
    if isinstance(fault, Invalid) and fault.errors is None:
        detail = [FieldError(loc=["body"], msg=fault.message, type="value_error")]
    _write(resp, fault.status, detail)
    if isinstance(fault, ReadOnly | IsADirectory):
        resp.set_header("Allow", "GET, HEAD, OPTIONS" if getattr(req.context, "reads", True) else "OPTIONS")
    if isinstance(fault, Unavailable):
        resp.set_header("Retry-After", str(_RETRY_SECONDS))


def _answer_bug(req: falcon.Request, resp: falcon.Response, error: Exception, params: object) -> None:
    # The run's log is this process's standard error. The client learns what, not where.
    traceback.print_exception(error, file=sys.stderr)
    _write(resp, 500, f"a bug in midrun's REST server ({type(error).__name__}): midrun.log has the details")


def _serialize(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError) -> None:
    match error:
        case falcon.HTTPRouteNotFound():
            detail = f"{req.path!a:.200}: no such route; /docs lists them"
        case falcon.HTTPMethodNotAllowed():
            detail = f"{req.method:.20} is none of the methods here: {resp.get_header('Allow')}"
        case _:
            detail = error.description or error.title or str(error.status)
    _write(resp, error.status_code, detail)


def _write(resp: falcon.Response, status: int, detail: object) -> None:
    resp.status = status
    resp.content_type = JSON
    resp.data = f"{json.dumps({'detail': detail})}\n".encode()
