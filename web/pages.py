"""Pages: the front page, the API's documentation page, and the files they are made of.

All of it lies in `static/` beside this module and asks no other host for anything, so that it works on a machine
without internet. The pages run under a policy that knows no inline script.
"""

from __future__ import annotations

from pathlib import Path

from midrun.fs.faults import NotFound
from midrun.web.calls import TEXT, Answer, Call
from midrun.web.site import Site

_STATIC = Path(__file__).parent / "static"
_FILES = {path.relative_to(_STATIC).as_posix(): path for path in _STATIC.rglob("*") if path.is_file()}
"""What may be asked for: a name that is not listed here is not there, whatever it is made of."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

_SHARED_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
# A graph's picture is an image from a blob, drawn in a worker. No text becomes markup or a script's address, but for
# the worker's, which the policy named here makes.
_POLICY = (
    f"{_SHARED_POLICY}; style-src 'self'; img-src 'self' data: blob:; worker-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types midrun"
)
# Swagger UI sets style attributes and writes markup. Its script is bound to the same origin like ours.
_DOCS_POLICY = f"{_SHARED_POLICY}; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
_POLICIES = {"graph.js": "default-src 'none'; script-src 'wasm-unsafe-eval'; frame-ancestors 'none'"}
"""What a file may do that runs by itself: a worker takes the policy of its own file, not its page's.

Graphviz is WebAssembly within `graph.js`, so there is nothing to load.
"""


def front(site: Site, call: Call) -> Answer:
    """Show the front page."""
    return _page("index.html", _POLICY)


def docs(site: Site, call: Call) -> Answer:
    """Show the API's documentation, in which each route can be tried."""
    return _page("docs.html", _DOCS_POLICY)


def static(site: Site, call: Call) -> Answer:
    """Show a file that a page is made of."""
    path = _FILES.get(call.node)
    if path is None:
        raise NotFound(f"'/static/{call.node:.200}': no such file")
    # Our own files change with midrun's version, under the same address: a browser asks for them each time.
    kept = "max-age=86400" if call.node.startswith("swagger/") else "no-cache"
    headers = {"Cache-Control": kept}
    if policy := _POLICIES.get(call.node):
        headers["Content-Security-Policy"] = policy
    return Answer(path.read_bytes(), _TYPES.get(path.suffix, TEXT), headers=headers)


def _page(name: str, policy: str) -> Answer:
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
    return Answer(_FILES[name].read_bytes(), _TYPES[".html"], headers=headers)
