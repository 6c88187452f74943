"""Frames: what goes over a wire between a face and the process that has the tree.

A frame is two lengths (big-endian 32-bit: header, body), a JSON header and the body's bytes. A face sends requests
`{"id", "verb", "path", ...}`; each is answered, in any order, by `{"id", "value"}` or `{"id", "fault"}`. A face also
sends notices `{"notice", ...}` about itself, and the other side sends `{"quit": true}`. A request whose face shares a
page with the trainer also has a `slot`: there the face marks the request's id once it is sent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

_LENGTHS = struct.Struct(">II")
LONGEST_HEADER = 64 << 20
LONGEST_BODY = 1 << 30
CHUNK = 256 << 10
"""Bytes that are sent or received at once."""

Notice = Callable[[str, dict[str, Any]], None]
"""Called with a face's notice and its details."""


class Garbled(ValueError):  # noqa: N818 - named for what happened, as faults are
    """The other end of the wire sent what no frame looks like."""


def frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


class Frames:
    """Turns received bytes into frames, whatever pieces they come in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Take received bytes and iterate over the frames that are now whole. Raises `Garbled`.

        Frames that are not asked for stay, for the next time.
        """
        self._buffer += data
        return self._whole()

    def _whole(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        while len(self._buffer) >= _LENGTHS.size:
            header_size, body_size = _LENGTHS.unpack_from(self._buffer)
            if header_size > LONGEST_HEADER or body_size > LONGEST_BODY:
                raise Garbled(f"a frame of {header_size} + {body_size} bytes")
            middle = _LENGTHS.size + header_size
            end = middle + body_size
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:
                text, body = bytes(view[_LENGTHS.size : middle]), bytes(view[middle:end])
            del self._buffer[:end]
            header = _header(text)
            yield header, body


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise Garbled(f"a header that is no JSON object: {text[:80]!r}")
    return header
