"""Rendering: how a value becomes the bytes of its file. The only place where values turn into text.

A plain file holds one value and a newline, so that `$(cat file)` is the value; a value that does not exist is an empty
file. A file named `*.json` holds one JSON object. Numbers that JSON lacks (RFC 8259, section 6) are written as
null, and the object's member `_nonfinite` says what they were: a map from JSON pointer (RFC 6901) to "NaN", "Infinity"
or "-Infinity".
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

NONFINITE = "_nonfinite"


def render(name: str, value: object) -> bytes:
    """Return the bytes of the file called `name` that shows `value`.

    Raises TypeError for a `.json` file whose value is no mapping, and for a plain file whose value is not one of str,
    bytes, bool, a real number or None.
    """
    return _document(value) if name.endswith(".json") else _plain(value)


def jsonable(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return `value` in JSON's own types, as a document shows it: what JSON has no word for is text, or null."""
    return _finite(value, "", {})


def _plain(value: object) -> bytes:
    match value:
        case None:
            return b""
        case bytes():
            return value
        case str():
            return _line(value)
        case bool():
            return b"true\n" if value else b"false\n"
        case numbers.Integral():
            return f"{int(value)}\n".encode()
        case numbers.Real():
            return f"{float(value)}\n".encode()
    advice = "name the file *.json" if isinstance(value, Mapping) else "return one, or a dict from a file named *.json"
    raise TypeError(
        f"a plain file shows one value, which is text, bytes, a bool, a real number or None, not {_kind(value)}: "
        f"{value!r:.80}; {advice}"
    )


def _kind(value: object) -> str:
    """Return a value's type with its article."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in set('aeiou') else 'a'} {name}"


def _line(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    return data if data.endswith(b"\n") or not data else data + b"\n"


def _document(value: object) -> bytes:
    if not isinstance(value, Mapping):
        raise TypeError(f"a .json file shows one object, not {_kind(value)}: {value!r:.80}; return a dict")
    nonfinite: dict[str, str] = {}
    document = _finite(value, "", nonfinite)
    if nonfinite:
        document = {**document, NONFINITE: nonfinite}
    # A lone surrogate can't be written as UTF-8; JSON's own escape keeps it.
    text = json.dumps(document, indent=2, ensure_ascii=False)
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:
        return f"{json.dumps(document, indent=2)}\n".encode()


def _finite(value: object, pointer: str, nonfinite: dict[str, str]) -> Any:  # noqa: ANN401 - any JSON value
    """Return `value` in JSON's own types, and note in `nonfinite` each number that JSON has no word for."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return _real(value, pointer, nonfinite)
        case Mapping():
            members = ((str(key), item) for key, item in value.items())
            return {key: _finite(item, f"{pointer}/{_pointed(key)}", nonfinite) for key, item in members}
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "backslashreplace")
        case Sequence():
            return [_finite(item, f"{pointer}/{index}", nonfinite) for index, item in enumerate(value)]
        case set() | frozenset():
            return _finite(sorted(value, key=repr), pointer, nonfinite)
        case numbers.Integral():  # numpy's scalars register as these
            return int(value)
        case numbers.Real():
            return _real(float(value), pointer, nonfinite)
    return str(value)


def _real(value: float, pointer: str, nonfinite: dict[str, str]) -> float | None:
    if math.isfinite(value):
        return float(value)
    nonfinite[pointer] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return None


def _pointed(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
