"""Ranks: who trains, and in which directory.

Each rank writes down who it is and how far it has come, and rank zero reads it: see `channel`.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypedDict

from midrun.worker import Worker

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from midrun.channel import Channel
    from midrun.loop import Loop
    from midrun.sample import Sample

_COST, _SHARE = 1e-4, 0.002
"""Seconds to read what one rank has told, and the share of a thread's time that this may take."""
_STARTING = 60.0
"""Seconds after which a rank that has told nothing is not waited for."""
_PAUSE = 0.1
"""Seconds between two looks until then."""
_EXCHANGE, _BLINK = 600.0, 0.002
"""Seconds for which a rank waits for what others tell it, and between two looks."""
_SHOWN = 5
"""Ranks that are named in a sentence, at most."""

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
    global_step: int
    """How far it has come: a rank that lags shows."""
    epoch: int
    batch: int | None
    """Index of the training batch that is under way; null between two."""
    stage: str | None
    time: float
    """When that was. Seconds since 1970. A later rank tells it once a second; rank zero's is of its last safe point."""
    outcome: str | None
    """How its session has ended; null while it has not."""
    notices: list[str]
    """What somebody who looks at the run should know of it."""
    wants_hold: str | None
    """Why it has last wanted the run to be held."""


class Ranks:
    """What one rank tells the others, and knows of them.

    Parameters
    ----------
    trainer
        The Trainer of this rank.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.own = Rank(
            rank=int(trainer.global_rank),
            local_rank=int(trainer.local_rank),
            node_rank=int(trainer.node_rank),
            world_size=int(trainer.world_size),
            host=socket.gethostname(),
            pid=os.getpid(),
            device=str(trainer.strategy.root_device),
            global_step=0,
            epoch=0,
            batch=None,
            stage=None,
            time=time.time(),
            outcome=None,
            notices=[],
            wants_hold=None,
        )
        self._directory: str | None = None
        self._token = secrets.token_hex(8)
        self._prefix = ""
        self._hall: Channel | None = None
        """Where ranks find each other. What an attempt that has failed has left there, nobody takes for this one's."""
        self._channel: Channel | None = None
        self._welcomed: dict[int, str] = {}
        self._bundles = self._exchanges = 0
        if self.own["world_size"] > 1:
            from midrun.channel import connect, is_open  # noqa: PLC0415 - only where there are several ranks

            if is_open():
                self._prefix = f"midrun/{next(_numbers)}"
                self._hall = connect(self._prefix)
                if self.own["rank"] == 0:
                    self._enter(self._token)
                else:
                    self._hall.put(f"hello/{self.own['rank']}", self._token)

    @property
    def is_many(self) -> bool:
        """Whether there are several, and they can tell each other something."""
        return self._hall is not None

    @property
    def others(self) -> range:
        """The numbers of the later ranks."""
        return range(1, self.own["world_size"])

    def meet(self, patience: float) -> None:
        """Wait until rank zero has told where the run is, so that there is a channel, for so many seconds at most."""
        deadline = time.monotonic() + patience
        while self._hall is not None and self.directory is None and time.monotonic() < deadline:
            time.sleep(_BLINK)

    def exchange(self, word: str, own: str | None, told_to_end: Callable[[], object]) -> dict[int, str | None]:
        """Tell the others something in code that all of them run, and return what each has told, this one included.

        A rank that tells nothing in ten minutes, or until this process is told to end, has told so.
        """
        found: dict[int, str | None] = {self.own["rank"]: own}
        if self.own["world_size"] == 1:
            return found
        if self._hall is None:
            return {**found, self.own["rank"]: own or "the ranks can't tell each other anything"}
        self.meet(_EXCHANGE)
        self._exchanges += 1
        key = f"{word}/{self._exchanges}"
        self.channel.put(f"{key}/{self.own['rank']}", {"told": own})
        deadline = time.monotonic() + _EXCHANGE
        while len(found) < self.own["world_size"]:
            for rank in range(self.own["world_size"]):
                if rank not in found and (told := self.channel.get(f"{key}/{rank}")) is not None:
                    found[rank] = told["told"]
            if time.monotonic() > deadline or told_to_end():
                return {rank: found.get(rank, "it has told nothing") for rank in range(self.own["world_size"])}
            time.sleep(_BLINK)
        return found

    def next_bundle(self) -> int:
        """Return the number of a checkpoint: ranks that write the same ones number them alike."""
        self._bundles += 1
        return self._bundles

    @property
    def channel(self) -> Channel:
        """The connection for whoever does not wait with it. Raises RuntimeError until rank zero has said welcome."""
        if self._channel is None:
            raise RuntimeError("there is nobody to tell anything")
        return self._channel

    def connect(self) -> Channel:
        """Return a connection of its own for whoever waits with it."""
        from midrun.channel import connect  # noqa: PLC0415 - as above

        return connect(self._prefix)

    def welcome(self) -> None:
        """Tell each later rank that has said hello since, on rank zero, where the run is. Raises Gone."""
        if (hall := self._hall) is None:
            return
        for rank in self.others:
            token = hall.get(f"hello/{rank}")
            if token is not None and self._welcomed.get(rank) != token:
                self._welcomed[rank] = token
                told = {"hello": token, "session": self._token, "directory": self._directory}
                hall.put(f"welcome/{rank}", told)

    @property
    def directory(self) -> str | None:
        """The run directory, or None where rank zero has not told it. Raises Gone where it can't be asked."""
        if self._directory is None and self._hall is not None and self.own["rank"] != 0:
            told = self._hall.get(f"welcome/{self.own['rank']}")
            if told is not None and told["hello"] == self._token:
                self._enter(told["session"])
                self._directory = str(told["directory"])
        return self._directory

    @directory.setter
    def directory(self, directory: str) -> None:
        """Set what rank zero has chosen."""
        self._directory = directory

    def _enter(self, session: str) -> None:
        if self._hall is not None and self._channel is None:
            self._channel = self._hall.within(session)
            self._prefix = f"{self._prefix}/{session}"


class Roll:
    """What rank zero knows of the ranks: each second it reads what they have told.

    Parameters
    ----------
    ranks
        Who trains.
    loop
        What rank zero trains.
    sample
        Returns what rank zero looked like at its last safe point.
    broken
        Told of what goes wrong in the thread that reads.
    hold
        Called with the reason where another rank wants the run to be held.
    """

    def __init__(
        self,
        ranks: Ranks,
        loop: Loop,
        sample: Callable[[], Sample],
        broken: Callable[[str, str], object],
        hold: Callable[[str], object],
    ) -> None:
        self._ranks, self._loop, self._sample, self._hold = ranks, loop, sample, hold
        self._began = time.monotonic()
        self._told: dict[int, Rank] = {}
        self._is_over = False
        many = max(1.0, _COST * len(ranks.others) / _SHARE)
        self._worker = Worker("midrun-ranks", broken, self._look, many)

    def start(self) -> None:
        """Begin to look, where there is somebody else."""
        if self._ranks.is_many:
            self._worker.start()
            self._worker.put(self._look)

    def stop(self, patience: float) -> None:
        """Look no more."""
        self._is_over = True
        if self._ranks.is_many:
            self._worker.stop(patience)

    def _look(self) -> None:
        with suppress(ConnectionError):  # The process that had the store has ended.
            if not self.is_complete:
                self._ranks.welcome()
            for rank in self._ranks.others:
                told = self._ranks.channel.get(f"rank/{rank}")
                if told is not None:
                    self._hear(told)
            if not self.is_complete and not self._is_over and time.monotonic() - self._began < _STARTING:
                time.sleep(_PAUSE)
                self._worker.put(self._look)

    def _hear(self, told: Rank) -> None:
        before = self._told.get(told["rank"])
        self._told[told["rank"]] = told
        wanted = told["wants_hold"]
        if wanted is not None and (before is None or before["wants_hold"] != wanted):
            self._hold(f"rank {told['rank']}: {wanted}")

    # ---- any thread

    @property
    def known(self) -> list[Rank]:
        """The ranks that have told who they are, and rank zero, in their order."""
        told = dict(self._told)
        sample = self._sample()
        own: Rank = {
            **state_of(self._ranks.own, self._loop),
            "global_step": sample.global_step,
            "epoch": sample.epoch,
            "batch": sample.batch,
            "time": sample.time,
        }
        return [own, *(told[rank] for rank in sorted(told))]

    @property
    def is_complete(self) -> bool:
        """Whether every rank has told who it is."""
        return len(self._told) == len(self._ranks.others)

    @property
    def notices(self) -> list[str]:
        """What somebody who looks at the run should know of later ranks."""
        told = dict(self._told)
        return [f"rank {rank}: {notice}" for rank in sorted(told) for notice in told[rank]["notices"]]

    @property
    def refusal(self) -> str | None:
        """Why nothing can be asked of all ranks now; None where it can."""
        if not self._ranks.is_many:
            alone = self._ranks.own["world_size"] == 1
            return None if alone else "the process group has no store by which they could tell each other anything"
        told = dict(self._told)
        missing = [rank for rank in self._ranks.others if rank not in told]
        if missing and time.monotonic() - self._began > _STARTING:
            return f"{_named(missing)} told nothing yet: it may be starting, or run without midrun"
        ended = [rank for rank, state in told.items() if state["outcome"] is not None]
        return f"{_named(ended)} ended training" if ended else None


def _named(ranks: list[int]) -> str:
    """Return ranks as the beginning of a sentence about what they have done."""
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (", …" if ranks[_SHOWN:] else "")
    return f"ranks {shown} have" if ranks[1:] else f"rank {shown} has"


def state_of(own: Rank, loop: Loop, outcome: str | None = None) -> Rank:
    """Return how far a rank has come by now."""
    return {
        **own,
        "global_step": loop.step,
        "epoch": loop.epoch,
        "batch": loop.batch,
        "stage": loop.stage,
        "time": time.time(),
        "outcome": outcome,
    }
