"""The follower: midrun on a later rank. It does what all ranks must do, at the same safe points as rank zero.

Rank zero tells it the run directory, and has all that shows the run or takes commands. Where `hooks_rank_policy` is
"all", a follower runs the shell hooks too. Training waits for none of it but in a meeting, see `meeting`.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from midrun import torch_debug
from midrun.channel import Gone
from midrun.command import EVALUATION, STEP
from midrun.commands import KINDS
from midrun.config import MidrunConfig
from midrun.finite import FiniteCheck
from midrun.fs.faults import Fault
from midrun.fs.tracebacks import last_line, message, trace
from midrun.hooks import Halt
from midrun.log import RunLog, tell
from midrun.meeting import DO, Answer, Numbers
from midrun.member import Member
from midrun.ranks import Ranks, state_of
from midrun.records import RUN_RECORD
from midrun.services import Service
from midrun.shell.hooks import ShellHooks
from midrun.shell.scripts import Scripts
from midrun.worker import Worker

if TYPE_CHECKING:
    from midrun.checkpoints.resume import Resume
    from midrun.commands.kind import Shared
    from midrun.loop import Loop

_PAUSE = 0.1
"""Seconds between two looks whether rank zero has told the directory, and made the scripts."""
_STATE_EVERY = 1.0
"""Seconds between two words to rank zero on how far this rank has come."""
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
    resume
        What the model's checkpoints have of midrun.
    """

    def __init__(self, config: MidrunConfig, loop: Loop, ranks: Ranks, resume: Resume) -> None:
        self._config, self.loop, self._ranks, self._resume = config, loop, ranks, resume
        self.turns = Turns(loop)
        self._here: _Here | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._join, name="midrun-follower", daemon=True)

    def start(self) -> None:
        """Follow rank zero, once it is known where."""
        self._thread.start()

    def stop(self, outcome: str) -> None:
        """Do nothing any more; `outcome` is how training has ended."""
        self._over.set()
        if self.turns.member is not None:
            self.turns.member.stop()
        self._thread.join(_PATIENCE)
        if self._here is not None:
            self._here.stop(outcome)

    def _join(self) -> None:
        try:
            while (directory := self._ranks.directory) is None:
                if self._over.wait(_PAUSE):
                    return
            here = self._here = _Here(self._config, self.loop, Path(directory), self._ranks, self._resume)
            member = self.turns.member = Member(self.loop, self.turns.numbers, self._ranks, here.answer, here.log)
            here.start()
            if not self._over.is_set():
                member.hear()
        except Gone:
            pass  # Rank zero has gone, and its store with it.
        except Exception as error:  # noqa: BLE001 - training goes on
            tell(logging.WARNING, f"midrun does not work on rank {self._ranks.own['rank']}:\n{trace(error)}")


class Turns:
    """The turns of a later rank's loop: each is a method, called with the arguments of the hook that has it.

    Which that is, is in `hooks`.

    With nothing to do each of them costs a look at a mark.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.numbers = Numbers(loop)
        self.member: Member | None = None
        """What meets the others, once it is known how."""
        self._step: int | None = None

    def begin_step(self, optimizer: object) -> None:
        """Reach an optimizer step. One that evaluates its closure again is the same step."""
        step = self._loop.step
        if step != self._step:
            self._step = step
            self._reach(STEP)

    def end_batch(self, outputs: object, batch: object, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Reach the end of a training batch."""
        self._reach("train_batch_end")

    def end_evaluation_batch(self, outputs: object, batch: object, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Reach the end of a batch of `trainer.validate`, `test` or `predict`."""
        if not self._loop.is_fitting:
            self._reach(EVALUATION)
        if self._loop.ends_after_batch:
            raise Halt

    def begin_fit(self) -> None:
        """Note where the fit begins."""
        self._loop.position.begin_fit()
        self.turn()

    def begin_epoch(self) -> None:
        """Note where the epoch begins, or end all the same where the Trainer has forgotten that it was told to."""
        self._loop.stop_again()
        self._loop.position.begin_epoch()

    def enter_validation(self) -> None:
        """Note where a validation begins."""
        self._loop.position.begin_validation()
        self.turn()

    def end_epoch(self) -> None:
        """Reach the end of an epoch of training."""
        self._reach("train_epoch_end")

    def end_validation(self) -> None:
        """Reach the end of a validation. The sanity check is none."""
        if self._loop.stage != "sanity_check":
            self._reach("validation_epoch_end")

    def end_fit(self) -> None:
        """Reach the end of training."""
        self._reach("fit_end")

    def _nothing(self) -> None:
        """Do nothing where rank zero shows a sample: it shows the run alone."""

    leave_validation = resample = _nothing

    def turn(self) -> None:
        """Have SIGTERM end all ranks together: where a stage begins, Lightning has its handler."""
        self._loop.sigterm.install()

    begin_training = turn

    def _reach(self, point: str) -> None:
        if self.member is not None and self.member.is_awaited:
            self.member.reach(point)
        self._loop.check_whole()
        self.numbers.leave(point)


class _Here:
    """A later rank of a run whose directory is known, as kinds of commands and shell hooks want it."""

    def __init__(self, config: MidrunConfig, loop: Loop, directory: Path, ranks: Ranks, resume: Resume) -> None:
        self.config, self.loop, self.directory, self._ranks = config, loop, directory, ranks
        self.resume = resume
        rank = ranks.own["rank"]
        self._disk = Worker("midrun-disk", lambda text, _: self.log.alert(text))
        # Of its own: ranks may be on several machines, and a shared disk mixes up what two of them append.
        self.log = RunLog(directory / f"midrun-rank-{rank}.log", self._disk.put, self._disk.put)
        self._wanted: str | None = None
        self._answering: torch_debug.Answering | None = None
        self._follows = False
        """Whether it runs the shell hooks."""
        self.finite_check = FiniteCheck(self, self._want_hold)
        self._hooks = ShellHooks(self, Service("hooks", self.log), rank) if _wants_hooks(config) else None
        self._rank = Worker("midrun-rank", self.log.alert, self._tell, _STATE_EVERY)

    def start(self) -> None:
        """Tell rank zero of this rank from now on, and run the scripts once they are there."""
        self._disk.start()
        if self.config.dataloader_finite_check_enabled:
            self.finite_check.set(enabled=True, hold=False)
        self._rank.start()
        self._rank.put(self._tell)
        if torch_debug.reason_against(self.config) is None:
            try:
                self._answering = torch_debug.Answering(self._ranks.own["rank"])
            except Exception as error:  # noqa: BLE001 - torch's own, which is said to change
                self.log.alert(f"torch-debug: {last_line(error)}")

    def stop(self, outcome: str) -> None:
        """Run no script any more, and say that this rank has ended."""
        self.finite_check.stop()
        if self._hooks is not None:
            self._hooks.stop()
        self._rank.put(lambda: self._tell(outcome))
        self._rank.stop(_PATIENCE)
        torch_debug.stop(self._answering)
        self.loop.close()
        self._disk.stop(_PATIENCE)

    def answer(self, told: dict[str, Any]) -> Answer:
        """Do what rank zero says, and return what came of it."""
        kind = cast("Shared", KINDS[told["kind"]])
        try:
            args = kind.Arguments.model_validate_json(json.dumps(told["args"]))
            if told["word"] == DO:
                result = kind.do_here(self, args)
                self.log.note(f"at step {self.loop.step} did {told['id']}: {kind.name} {json.dumps(told['args'])}")
                return {"result": result}
            kind.admit_here(self, args)
            kind.prepare_here(self, args)
        except Exception as error:  # noqa: BLE001 - whatever a command does, training goes on
            if not isinstance(error, Fault):
                self.log.alert(f"{kind.name} failed:\n{trace(error)}")
            return {"error": message(error)}
        return {"result": None}

    def _tell(self, outcome: str | None = None) -> None:
        """Tell rank zero how far this rank has come."""
        state = state_of(self._ranks.own, self.loop, outcome)
        state["notices"], state["wants_hold"] = self.finite_check.notices, self._wanted
        with suppress(Gone):
            self._ranks.channel.put(f"rank/{state['rank']}", state)
        if self._hooks is not None and not self._follows and Scripts(self.directory).are_there and self.run_id:
            self._follows = True
            self._hooks.follow()

    def _want_hold(self, reason: str) -> None:
        self._wanted = reason
        self._rank.put(self._tell)

    # ---- what shell hooks want

    @property
    def run_id(self) -> str:
        """The run's id, or "" until rank zero has written it down."""
        run_id = _record(self.directory).get("run_id")
        return run_id if isinstance(run_id, str) else ""

    @property
    def rest_url(self) -> str | None:
        """Address of the REST API, which rank zero has."""
        url = _record(self.directory).get("rest_url")
        return url if isinstance(url, str) else None

    def void_cached(self) -> None:
        """Tell nobody: a later rank has no face."""

    def take_drops(self) -> None:
        """Leave what a script has dropped to rank zero, which looks every now and then."""


def _wants_hooks(config: MidrunConfig) -> bool:
    return config.hooks_enabled and config.hooks_rank_policy == "all"


def _record(directory: Path) -> dict[str, Any]:
    """Return what rank zero has written into `run.json`."""
    try:
        record = json.loads((directory / RUN_RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
