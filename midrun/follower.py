"""The follower: midrun on a later rank, which runs the shell hooks there where `hooks_rank_policy` is "all".

Rank zero tells it the run directory, makes the scripts and takes the commands that they drop. Training waits for none
of it.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midrun.config import MidrunConfig
from midrun.log import RunLog
from midrun.ranks import Ranks
from midrun.records import RUN_RECORD
from midrun.services import Service
from midrun.shell.hooks import ShellHooks
from midrun.shell.scripts import Scripts
from midrun.worker import Worker

if TYPE_CHECKING:
    from midrun.loop import Loop

_PAUSE = 0.1
"""Seconds between two looks whether rank zero has told the directory, and made the scripts."""
_PATIENCE = 1.0
"""Seconds for each of its threads to end."""


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
        self._config, self._loop, self._ranks = config, loop, ranks
        self._member: _Member | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._join, name="midrun-follower", daemon=True)

    def start(self) -> None:
        """Run the scripts once it is known where they are."""
        self._thread.start()

    def stop(self) -> None:
        """Run none any more."""
        self._over.set()
        self._thread.join(_PATIENCE)
        if self._member is not None:
            self._member.stop()

    def _join(self) -> None:
        while not self._over.wait(_PAUSE):
            try:
                told = self._ranks.directory
            except RuntimeError:
                return  # Rank zero has gone, and its store with it.
            directory = Path(told or "")
            run_id = None if told is None else _record(directory).get("run_id")
            if isinstance(run_id, str) and Scripts(directory).are_there:
                self._member = _Member(self._config, self._loop, directory, run_id, self._ranks.own["rank"])
                return


class _Member:
    """A later rank of a run whose directory is known, as shell hooks want it."""

    def __init__(self, config: MidrunConfig, loop: Loop, directory: Path, run_id: str, rank: int) -> None:
        self.config, self.loop, self.directory, self.run_id = config, loop, directory, run_id
        self._disk = Worker("midrun-disk", lambda text, _: self.log.alert(text))
        # Of its own: ranks may be on several machines, and a shared disk mixes up what two of them append.
        self.log = RunLog(directory / f"midrun-rank-{rank}.log", self._disk.put, self._disk.put)
        self._disk.start()
        self._hooks = ShellHooks(self, Service("hooks", self.log), rank)
        self._hooks.follow()

    def stop(self) -> None:
        """Run no script any more."""
        self._hooks.stop()
        self._disk.stop(_PATIENCE)

    @property
    def rest_url(self) -> str | None:
        """Address of the REST API, which rank zero has."""
        url = _record(self.directory).get("rest_url")
        return url if isinstance(url, str) else None

    def void_cached(self) -> None:
        """Tell nobody: a later rank has no face."""

    def take_drops(self) -> None:
        """Leave what a script has dropped to rank zero, which looks every now and then."""


def _record(directory: Path) -> dict[str, Any]:
    """Return what rank zero has written into `run.json`."""
    try:
        record = json.loads((directory / RUN_RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
