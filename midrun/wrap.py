"""Wraps: methods of one object that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Wrap:
    """A method of one object, replaced until it is given back.

    Parameters
    ----------
    owner, name
        Whose method, and its name.
    by
        What is called in its place; `inner` is what was there.
    """

    def __init__(self, owner: object, name: str, by: Callable[..., Any]) -> None:
        self._owner, self._name, self._by = owner, name, by
        self.inner: Callable[..., Any] = getattr(owner, name)
        """The method as it was."""
        setattr(owner, name, by)  # On this object alone, not in its class.

    def undo(self) -> None:
        """Give the method back, unless somebody else has wrapped it since."""
        if vars(self._owner).get(self._name) != self._by:
            return
        if getattr(self.inner, "__func__", None) is getattr(type(self._owner), self._name, None):
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self.inner)
