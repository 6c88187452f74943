"""Ranks: who trains, as `meta/ranks/` shows it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class Rank(TypedDict):
    """One process of a run."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    host: str
    pid: int
    device: str


def own_rank(trainer: Trainer) -> Rank:
    """Return what is known of this process."""
    return Rank(
        rank=int(trainer.global_rank),
        local_rank=int(trainer.local_rank),
        node_rank=int(trainer.node_rank),
        world_size=int(trainer.world_size),
        host=socket.gethostname(),
        pid=os.getpid(),
        device=str(trainer.strategy.root_device),
    )


def all_ranks(trainer: Trainer) -> list[Rank]:
    """Return every process of the run; a collective operation, called on all of them."""
    mine = own_rank(trainer)
    if mine["world_size"] == 1:
        return [mine]
    from torch import distributed  # noqa: PLC0415 - only where there are several ranks

    gathered: list[Rank] = [mine] * mine["world_size"]
    distributed.all_gather_object(gathered, mine)
    return gathered
