"""Ranks: who trains, and in which directory.

Ranks tell each other through the store by which they found each other. None of it is a collective operation: ranks may
differ in what they do, one of them may not use midrun at all, and none ever waits for another.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict, cast

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_numbers = itertools.count()
"""Numbers the runs of this process; ranks that do the same number theirs alike."""


class Rank(TypedDict):
    """One process of a run."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    host: str
    pid: int
    device: str


class Ranks:
    """What the ranks of one run tell each other.

    Parameters
    ----------
    trainer
        The Trainer of this rank.
    directory
        The run directory that this rank has chosen: only rank zero chooses.
    """

    def __init__(self, trainer: Trainer, directory: str | None) -> None:
        self.own = Rank(
            rank=int(trainer.global_rank),
            local_rank=int(trainer.local_rank),
            node_rank=int(trainer.node_rank),
            world_size=int(trainer.world_size),
            host=socket.gethostname(),
            pid=os.getpid(),
            device=str(trainer.strategy.root_device),
        )
        self._directory = directory
        self._prefix = f"midrun/{next(_numbers)}"
        self._store = _store() if self.own["world_size"] > 1 else None
        if self._store is not None:
            self._store.set(f"{self._prefix}/{self.own['rank']}", json.dumps(self.own))
            if directory is not None:
                self._store.set(f"{self._prefix}/directory", directory)

    @property
    def directory(self) -> str | None:
        """The run directory, or None where rank zero has not told it."""
        if self._directory is None:
            self._directory = self._told("directory")
        return self._directory

    def known(self) -> list[Rank]:
        """Return the ranks that have told who they are. It may wait for the store."""
        told = (self._told(str(rank)) for rank in range(self.own["world_size"]) if rank != self.own["rank"])
        others: Iterable[Rank] = (cast("Rank", json.loads(text)) for text in told if text is not None)
        return sorted([self.own, *others], key=lambda rank: rank["rank"])

    def _told(self, key: str) -> str | None:
        path = f"{self._prefix}/{key}"
        if self._store is None or not self._store.check([path]):
            return None
        return cast("bytes", self._store.get(path)).decode()


def _store() -> Any:  # noqa: ANN401 - a c10d store, or None
    """Return the store of the default process group, or None where there is none."""
    from torch import distributed  # noqa: PLC0415 - only where there are several ranks

    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - the group has it, and no other way in
