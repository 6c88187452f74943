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

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Swagger UI sets style attributes. Its script is bound to the same origin like ours.
_DOCS_POLICY = _POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")


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
    return Answer(path.read_bytes(), _TYPES.get(path.suffix, TEXT), headers={"Cache-Control": kept})


def _page(name: str, policy: str) -> Answer:
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
    return Answer(_FILES[name].read_bytes(), _TYPES[".html"], headers=headers)
