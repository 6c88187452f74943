"""Forks: what a forked child must not keep.

A DataLoader worker is a fork of the trainer. Were it to keep a wire or a listening port, they would outlive a trainer
that was killed, for as long as the worker is stuck.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Protocol


class Closing(Protocol):
    """Something with descriptors that children must not hold."""

    def close_in_child(self) -> None:
        """Close this process's copies of the descriptors."""


_owners: weakref.WeakSet[Closing] = weakref.WeakSet()


def close_in_children(owner: Closing) -> None:
    """Have `owner.close_in_child()` called in every child that is forked while `owner` lives and is not forgotten."""
    _owners.add(owner)


def forget(owner: Closing) -> None:
    """Undo `close_in_children`: the owner has closed its descriptors itself."""
    _owners.discard(owner)


def _close() -> None:
    for owner in list(_owners):
        # A child that was forked in the middle of a close finds a descriptor gone.
        with suppress(OSError, ValueError):
            owner.close_in_child()
    _owners.clear()


os.register_at_fork(after_in_child=_close)
