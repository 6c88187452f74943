"""The follower: midrun on a later rank, which runs the shell hooks there where `hooks_rank_policy` is "all".

Rank zero makes the scripts and takes the commands that they drop. A follower looks at the same directory, which it is
told by rank zero or never; training waits for none of it.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midrun.config import MidrunConfig
from midrun.log import RunLog
from midrun.ranks import Rank, Ranks
from midrun.services import Service
from midrun.shell.hooks import ShellHooks
from midrun.shell.scripts import Scripts
from midrun.worker import Worker

if TYPE_CHECKING:
    from midrun.loop import Loop

_PAUSE = 0.1
"""Seconds between two looks whether rank zero has told the directory, and made the scripts."""
_PATIENCE = 1.0


class Follower:
    """What a later rank has of a run.

    Parameters
    ----------
    config
        The options.
    loop
        What is watched.
    ranks
        Who trains.
    """

    def __init__(self, config: MidrunConfig, loop: Loop, ranks: Ranks) -> None:
        self.config, self.loop = config, loop
        self.ranks: list[Rank] = [ranks.own]
        self.directory = Path()
        self.run_id = ""
        self._all_ranks = ranks
        self._hooks: ShellHooks | None = None
        self._over = threading.Event()
        self._disk = Worker("midrun-disk", lambda text, _: self.log.alert(text))
        self.log = RunLog(Path(), self._disk.put, self._disk.put)
        self.services: dict[str, Service] = {}
        self._thread = threading.Thread(target=self._follow, name="midrun-follower", daemon=True)

    def start(self) -> None:
        """Run the scripts once it is known where they are."""
        self._disk.start()
        self._thread.start()

    def stop(self) -> None:
        """Run none any more."""
        self._over.set()
        self._thread.join(_PATIENCE)
        if self._hooks is not None:
            self._hooks.stop()
        self.loop.close()
        self._disk.stop(_PATIENCE)

    @property
    def rest_url(self) -> str | None:
        """Address of the REST API, which rank zero has."""
        url = self._record().get("rest_url")
        return url if isinstance(url, str) else None

    def changed(self) -> None:
        """Tell nobody: a later rank has no face."""

    def take_drops(self) -> None:
        """Leave what a script has dropped to rank zero, which looks every now and then."""

    def _follow(self) -> None:
        while not self._over.wait(_PAUSE):
            try:
                told = self._all_ranks.directory
            except RuntimeError:
                return  # Rank zero has gone, and its store with it.
            self.directory = Path(told or "")
            run_id = None if told is None else self._record().get("run_id")
            if isinstance(run_id, str) and Scripts(self.directory).are_there:
                self.run_id = run_id
                self._begin()
                return

    def _begin(self) -> None:
        rank = self.ranks[0]["rank"]
        # Of its own: ranks may be on several machines, and a shared disk mixes up what two of them append.
        self.log = RunLog(self.directory / f"midrun-rank-{rank}.log", self._disk.put, self._disk.put)
        self.services = {"hooks": Service("hooks", self.log)}
        self._hooks = ShellHooks(self)
        self._hooks.follow()

    def _record(self) -> dict[str, Any]:
        try:
            record = json.loads((self.directory / "run.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}
