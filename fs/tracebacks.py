"""Tracebacks: any exception as text. Its class, its message and what it holds are anybody's code, and may fail too."""

from __future__ import annotations

import traceback


def message(error: BaseException) -> str:
    """Return the message of an exception."""
    try:
        return plain(str(error))
    except BaseException:  # noqa: BLE001 - as said above
        return "<exception str() failed>"


def last_line(error: BaseException) -> str:
    """Return what the traceback of an exception ends with: `ValueError: no such thing`."""
    return f"{type(error).__name__}: {message(error)}"


def plain(text: str) -> str:
    """Return a text as a string of Python's own: a class that is derived from `str` is anybody's code, too."""
    return str.__getitem__(text, slice(None))


def trace(error: BaseException) -> str:
    """Return the traceback of an exception, with those that led to it where they can be told."""
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # noqa: BLE001 - what it holds is anybody's code, as its message is
        own = "".join(traceback.format_tb(error.__traceback__))
        return f"Traceback (most recent call last):\n{own}{type(error).__qualname__}: {message(error)}"
