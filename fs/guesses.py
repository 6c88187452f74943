"""Guesses: which of the known names somebody meant who wrote another."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question for the one of the known names that somebody may have meant, or what all of them are."""
    known = list(known)
    close = closest(name, known)
    return f"it is one of {', '.join(known)}" if close is None else f"did you mean {close!r}?"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of the known names that is most like a name, or None where none is like it."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
