"""Names: how any string becomes one file name, and back.

A metric may be called `train/loss`, `..` or anything else. Its file name keeps every character that a file name can
hold and percent-encodes the rest (RFC 3986, section 2.1), so distinct names never share a file and no name leaves
its directory.
"""

from __future__ import annotations

import hashlib
import re

INDEX = "index.json"
LONGEST_NAME = 255
"""Bytes in the longest file name that Linux takes (NAME_MAX)."""

_EMPTY = "%"
_JSON = ".json"
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f/%\ud800-\udfff]")
_ESCAPED = re.compile(r"((?:%[0-9A-F]{2})+)")


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))


def escape(name: str, *, one_value: bool = False) -> str:
    """Return the one file name of `name`.

    `/`, `%` and control characters are percent-encoded, as are the whole names `.` and `..` and the dot of
    `index.json`, which directories use themselves. A file name that would be longer than 255 bytes is cut and ends in
    a hash of the whole name instead; `unescape` does not undo that, `index.json` lists the unescaped names.

    Parameters
    ----------
    one_value
        The file shows one value. A file named `*.json` holds a document, so the dot of a final `.json` is
        percent-encoded too.
    """
    if not name:
        return _EMPTY
    if name in {".", ".."}:
        return _percent(name)
    escaped = _UNSAFE.sub(lambda match: _percent(match[0]), name)
    if name == INDEX or (one_value and name.endswith(_JSON)):
        escaped = escaped.removesuffix(_JSON) + _percent(_JSON[0]) + _JSON[1:]
    data = escaped.encode()
    if len(data) <= LONGEST_NAME:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    # A cut can fall inside an escape: "%2" left over would be no escape, and `%~` never begins one.
    head = data[: LONGEST_NAME - len(digest) - 2].decode("utf-8", "ignore")
    return f"{re.sub(r'%[0-9A-F]?$', '', head)}%~{digest}"


def unescape(file_name: str, *, one_value: bool = False) -> str | None:
    """Return the name whose file name `escape` makes this, or None when no name has it."""
    if file_name == _EMPTY:
        return ""
    parts = _ESCAPED.split(file_name)
    try:
        parts[1::2] = [bytes.fromhex(part.replace("%", "")).decode("utf-8", "surrogatepass") for part in parts[1::2]]
    except UnicodeDecodeError:
        return None
    name = "".join(parts)
    return name if escape(name, one_value=one_value) == file_name else None


def split(path: str) -> list[str]:
    """Return the file names along `path`, which is relative to the root: `""` is the root itself.

    Raises ValueError for a path that no node can have: an empty, `.` or `..` segment, a NUL.
    """
    if not path:
        return []
    segments = path.split("/")
    if any(segment in {"", ".", ".."} or "\0" in segment for segment in segments):
        raise ValueError(f"{path!r} is no path: a segment of it is empty, '.' or '..', or holds a NUL")
    return segments


def join(directory: str, file_name: str) -> str:
    """Return the path of an entry of the directory at a path."""
    return f"{directory}/{file_name}" if directory else file_name
