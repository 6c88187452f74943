"""Artifacts: the run's large files, sent as downloads.

They lie on the disk, below the directories that the links in the tree's `artifacts/` point to. A browser saves them and
never shows them: whatever a file holds, nothing in it runs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import partial
from typing import Any
from urllib.parse import quote

from midrun.fs.faults import NotFound, Unavailable
from midrun.web.calls import JSON, Answer, Call, Header, document
from midrun.web.disk import Part, open_beneath
from midrun.web.site import Site

BYTES = "application/octet-stream"

HEADERS = (
    Header("Range", "One range of bytes, such as bytes=100-199, bytes=100- or bytes=-100; more at once are ignored."),
    Header("If-Range", "An ETag: should the file be another now, all of it is sent."),
)

_RANGE = re.compile(r"bytes=\s*([0-9]{0,19})-([0-9]{0,19})\s*", re.IGNORECASE)
_POLICY = "sandbox; default-src 'none'"


def download(site: Site, call: Call) -> Answer:
    """Send a file below a link in `artifacts/`: all of it, or the range that is asked for."""
    file, status = _open(site, call.node)
    answer = _answer(call, file, status)
    if answer.body is not file:
        file.close()
    return answer


def _open(site: Site, node: str) -> tuple[Part, os.stat_result]:
    """Open the file at a path below `artifacts/`: the link's name, then names on the disk."""
    artifacts, link, *names = node.split("/")
    target = site.ask(partial(site.view.entry, f"{artifacts}/{link}"))["target"] if link and names else None
    # Where a link leads is not for everybody who may download: no message of the system's is passed on.
    absent = NotFound(f"'{node:.200}': no such file")
    if target is None or not target.startswith("/"):
        raise absent
    try:
        return open_beneath(target, names)
    except FileNotFoundError:
        raise absent from None
    except OSError as error:
        raise Unavailable(f"'{node:.200}' can't be opened now: {error.strerror}") from None


def _answer(call: Call, file: Part, status: os.stat_result) -> Answer:
    size = status.st_size
    tag = f'"{status.st_ino:x}-{size:x}-{status.st_mtime_ns:x}"'
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": disposition(call.node.rpartition("/")[2]),
        "Content-Security-Policy": _POLICY,
        "ETag": tag,
        # Never a date to come: a client could not tell by it that the file has changed.
        "Last-Modified": formatdate(max(0, min(status.st_mtime, time.time())), usegmt=True),
    }
    # HEAD asks for no range. What If-Range names must be the file's tag of now, else all is sent.
    asked = None if call.head or call.header("If-Range") not in {None, tag} else call.header("Range")
    part = _span(asked, size)
    if part is not None and not part:
        headers = {"Accept-Ranges": "bytes", "Content-Range": f"bytes */{size}"}
        detail = f"the file has {size} bytes, none of them in the range {asked!a:.100}: ask for these, or for all"
        return document({"detail": detail}, 416, headers)
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
        file.narrow(part.start, part.stop)
    headers["Content-Length"] = str(len(file))
    return Answer(b"" if call.head else file, BYTES, 200 if part is None else 206, headers)


def _span(asked: str | None, size: int) -> range | None:
    """Return the places in the file that a Range header names, none if it has none of them; None to send all.

    As HTTP has it (RFC 9110, section 14.2), what is no range of bytes is ignored. So are several: we send but one.
    """
    match = _RANGE.fullmatch(asked or "")
    first, last = match.groups() if match is not None else ("", "")
    if first:
        end = int(last) + 1 if last else size
        # A range that ends before it begins is none.
        return None if last and end <= int(first) else range(int(first), min(end, size))
    if last and size:
        return range(size)[-int(last) :] if int(last) else range(0)
    return None


def disposition(name: str) -> str:
    """Return the Content-Disposition that saves a file under its name (RFC 6266)."""
    plain = re.sub(r"[^A-Za-z0-9 ._=+@,()~-]", "_", name)
    if plain == name:
        return f'attachment; filename="{name}"'
    # Old clients take the first, all others the second, which can say any name.
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _headers(*more: str) -> Mapping[str, Any]:
    names = ("Accept-Ranges", "Content-Disposition", "ETag", "Last-Modified", *more)
    return {name: {"schema": {"type": "string"}} for name in names}


_FILE: Mapping[str, Any] = {BYTES: {}}

ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "200": {"description": "All of the file, to be saved.", "content": _FILE, "headers": _headers()},
    "206": {"description": "The range asked for.", "content": _FILE, "headers": _headers("Content-Range")},
    "416": {
        "description": "Nothing of the range is in the file.",
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Mistake"}}},
        "headers": {"Content-Range": {"schema": {"type": "string"}}},
    },
}
"""What is answered, as OpenAPI has it."""
