"""The shared page: a few bytes of memory that the trainer and its faces both see.

It carries what must not wait for a message: whether a face waits, which a training loop that hardly ever lets go of the
GIL reads at each batch's end, and the generation, which voids what faces have kept.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref

SLOTS = 3
"""Faces that can share a page."""
CALLS = SLOTS
"""The slot of the trainer's own threads, when they have the tree thread do something."""

_SIZE = mmap.PAGESIZE
_GENERATION = slice(0, 8)
_ASKED = 64
"""Offset of the byte in which a face marks its last question, for each slot; a cache line away from the generation."""
_TAKEN = _ASKED + CALLS + 1
"""Offset of the byte in which the tree thread marks the last question it took, for each slot."""


class Page:
    """The page, made by the trainer (`Page()`) and opened by a face from the descriptor that it was handed."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("midrun-page", os.MFD_CLOEXEC)
            os.ftruncate(fd, _SIZE)
        self.fd = fd
        # The last thread to hold the page closes it: closed sooner, the number could be another file's by then.
        weakref.finalize(self, os.close, fd)
        self._memory = mmap.mmap(fd, _SIZE)
        self._generation = memoryview(self._memory)[_GENERATION].cast("Q")
        self._bumps = itertools.count(1)
        # The four slots, of one byte each, fill an "I" of four bytes: those asked the first, those taken the other.
        self.asks = memoryview(self._memory)[_ASKED : _TAKEN + CALLS + 1].cast("I")
        """Two numbers, the marks of all slots: while `asks[0] != asks[1]`, somebody waits for the tree thread.

        The training thread compares them at each batch's end, and gives the GIL away for as long as they differ. A
        face's mark has one writer on either side, so none is lost. In the slot of calls several threads may write
        theirs in either order; but each wakes the tree thread after it, which then takes the mark that stayed.
        """

    @property
    def generation(self) -> int:
        """Changes whenever what faces have kept is void."""
        return self._generation[0]

    def bump(self) -> None:
        """Void what faces have kept. Only the trainer calls it, from any of its threads."""
        # Each number is written once. Two threads may write theirs in either order: what was kept between is void.
        self._generation[0] = next(self._bumps)

    def ask(self, slot: int, number: int) -> None:
        """Mark, as the face of this slot, that the question with this number has been sent."""
        self._memory[_ASKED + slot] = number & 0xFF

    def asked(self, slot: int) -> int:
        """Return what has been marked in this slot."""
        return self._memory[_ASKED + slot]

    def take(self, slot: int, number: int) -> None:
        """Mark, as the tree thread, that it has taken that question."""
        self._memory[_TAKEN + slot] = number & 0xFF

    def release(self, slot: int) -> None:
        """Mark, as the tree thread, that nobody need make way for this slot: its face is gone, or does not read."""
        self.take(slot, self.asked(slot))
