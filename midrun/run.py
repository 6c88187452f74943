"""The run: one object that has a tree to show, and the threads and faces that show it.

It knows a `Loop`, not Lightning: a model's hooks feed it, see `hooks`. Whatever goes wrong in here is logged, told by
`state/services.json`, and never reaches the loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from midrun import finite, records, torch_debug
from midrun.chair import Chair
from midrun.checkpoints.resume import Resume, ResumeRecord, described
from midrun.checkpoints.rewinds import RewindRecord, Rewinds
from midrun.command import Command
from midrun.commands import KINDS
from midrun.commands.kind import Kind
from midrun.config import MidrunConfig
from midrun.control import ControlErrors
from midrun.directory import mountpoint
from midrun.ending import ExceptionRecord, Outcome, exception_record
from midrun.faces import Mount, Rest
from midrun.fs.answers import Answers
from midrun.fs.page import Page
from midrun.fs.tracebacks import last_line, trace
from midrun.fs.verbs import Tree
from midrun.history import History
from midrun.hold import Holds
from midrun.inspectors import Inspection
from midrun.live import Live
from midrun.log import RUN_LOG, RunLog
from midrun.loop import Loop
from midrun.memory import Cuda
from midrun.pace import Pace
from midrun.pipeline import Pipeline
from midrun.process import FaceProcess, Ties, fill_standard_streams
from midrun.profilers import Profilers
from midrun.queue import Queue
from midrun.ranks import Ranks, Roll
from midrun.root import Root
from midrun.safepoint import SafePoints
from midrun.sample import Reading, Sample
from midrun.services import Service, wait_until_ready
from midrun.shell.hooks import ShellHooks
from midrun.store import FOLDERS, Store
from midrun.turns import Turns
from midrun.worker import Worker

_SERVICES = ("rest", "fuse", "watcher", "records", "spool", "history", "hooks", "torch-debug")
_LAST_STATE_EVERY = 30.0
"""Seconds between two writings of `last-state.json`."""
_LOOK_PATIENCE, _READY_PATIENCE, _STOP_PATIENCE, _SLOW_PATIENCE = 1.0, 10.0, 2.0, 0.2
"""Seconds to wait: for a look at the spool, for all services, and at the end for each thread, or for the slow one."""


class Run:
    """A run that is live: from `start` to `stop`.

    Parameters
    ----------
    config
        The options.
    run_id
        The run's id, the same for sequential fits of one model.
    directory
        The run directory; it is made if it is missing.
    loop
        What is watched.
    ranks
        Who trains.
    resume
        What the model's checkpoints have of midrun.
    port
        A port to try first: the one that the last fit had.
    """

    def __init__(
        self,
        config: MidrunConfig,
        run_id: str,
        directory: str,
        loop: Loop,
        ranks: Ranks,
        resume: Resume,
        *,
        port: int | None = None,
    ) -> None:
        fill_standard_streams()
        self.config, self.run_id, self.loop, self.resume = config, run_id, loop, resume
        self.roll = Roll(ranks, loop, lambda: self.sample, self.log_crash, self._hold_for)
        self.chair: Chair | None = Chair(self, ranks) if ranks.is_many else None
        """What has all ranks do the same, where there are several."""
        self.directory = Path(directory)
        self.mountpoint = Path(mountpoint(config, directory))
        self.artifact_dir = Path(os.path.abspath(config.artifact_dir or self.directory / "artifacts"))
        self.session = records.new_session(time.time())
        self.exception: ExceptionRecord | None = None
        """The exception that holds the run, or has ended it."""
        self._greeting = ["once"]
        """What is to be said yet: several threads may come to say it, and one takes it out."""
        self._outcome: Outcome | None = None
        self._over = False
        self._unwatch: Callable[[], None] = lambda: None
        self._page = Page()
        self.disk = Worker("midrun-disk", self.log_crash, self._write_last_state, _LAST_STATE_EVERY)
        self._slow = Worker("midrun-slow", self.log_crash)
        self.values = Reading(lambda: self.sample, self.disk.put)
        log = self.directory / RUN_LOG
        self.log = RunLog(log, self.disk.put, self._slow.put)
        self.services = {name: Service(name, self.log, self._service_changed) for name in _SERVICES}
        folders = [*(self.artifact_dir / folder for folder in FOLDERS), self.directory / records.HISTORY]
        self._records = records.Records(self.directory, folders, self.services["records"])
        self.rewinds, self.store = Rewinds(self.directory, self.disk.put), Store(self, self.artifact_dir)
        self.control_errors = ControlErrors()
        self.queue = Queue(self, self.directory)
        self.holds = Holds(self)
        self.points = SafePoints(self)
        self.shell_hooks = ShellHooks(self, self.services["hooks"], ranks.own["rank"])
        self.finite_check = finite.FiniteCheck(self, partial(finite.hold_at_once, self))
        self.live = Live(self)
        self.inspection = Inspection(self)
        self.profilers = Profilers(self)
        self.pipeline: Pipeline = Pipeline(self)
        self.cuda: Cuda = Cuda()
        self.pace = Pace(lambda: self.loop.limits)
        self.turns = Turns(self, self._page)
        self.history = History(
            self.turns.noted,
            self.directory / records.HISTORY,
            lambda: self.loop.function,
            self.services["history"],
            self.turns.look,
        )
        self.root = Root(self)
        self.tree = Tree(self.root, aside=self._slow.put, refused=self.control_errors.add)
        self._answers = Answers(self.tree, self._page)
        ties = Ties(self._answers, self._page, log, self.disk.put)
        self._against_debug = torch_debug.reason_against(config)
        is_paired, told = self._against_debug is None, {"run_id": run_id, "run_dir": str(directory)}
        self.rest = Rest(self.services["rest"], ties, config, told, port, is_paired=is_paired)
        self.torch_debug = torch_debug.TorchDebug(
            self.services["torch-debug"], ties, config, ranks.own["world_size"], self.rest
        )
        self._answering: torch_debug.Answering | None = None
        self._mount = Mount(self.services["fuse"], ties, str(self.mountpoint), run_id, writable=config.fuse_control)

    # ---- life

    def start(self) -> None:
        """Start the services. Raises RuntimeError when one does not start and `inspection_strict` is set."""
        self._records.prepare()
        self.disk.start()
        self._slow.start()
        self.roll.start()
        self.services["spool"].start()
        self.queue.start()
        self.history.start()
        self._answers.start()
        self.shell_hooks.start()
        if self.config.dataloader_finite_check_enabled:
            self.finite_check.set(enabled=True, hold=False)
        for enabled, option, face in self._faces():
            if enabled:
                face.service.start()
                face.start()
            else:
                face.service.turn_off(f"{option}=False")
        self._start_torch_debug()
        self.disk.put(self._write_last_state)
        self.disk.put(self.store.sweep)
        self._unwatch = self.loop.watch_checkpoints(self.store.note, self.store.forget)
        if self.config.inspection_strict:
            wait_until_ready(self.services.values(), _READY_PATIENCE)

    def stop(self) -> None:
        """Stop every service; what they put up is gone when this returns. Calling it again does nothing."""
        if self._over:
            return
        self._over = True
        self._outcome = self._outcome or "finished"
        self.session["ended"] = time.time()
        self.session["outcome"] = self._outcome
        faces = [*(face for enabled, _, face in self._faces() if enabled), self.torch_debug]
        steps: list[Callable[[], object]] = [
            self.shell_hooks.stop,
            self.points.end_tasks,
            lambda: None if self.chair is None else self.chair.close(),
            self.pipeline.spoil,
            self.finite_check.stop,
            lambda: self.turns.publish(self.sample.batch),
            self.turns.note,
            self.history.stop,
            lambda: self.queue.stop(_STOP_PATIENCE),
            self._unwatch,
            self.loop.close,
            *(face.stop for face in faces),
            *(partial(face.join, time.monotonic() + _STOP_PATIENCE) for face in faces),
            lambda: self.disk.put(self._write_last_state),
            lambda: self.disk.put(self._write_run_record),
            lambda: torch_debug.stop(self._answering),
            self._answers.stop,
            lambda: self.roll.stop(_STOP_PATIENCE),
            self._stop_workers,
        ]
        # Each step is taken whatever becomes of the others, a Ctrl-C in the middle of them included.
        with ExitStack() as stack:
            for step in reversed(steps):
                stack.callback(self._attempt, step)

    def _start_torch_debug(self) -> None:
        service = self.services["torch-debug"]
        if self._against_debug is not None:
            service.turn_off(self._against_debug)
            return
        service.start()
        try:
            self._answering = torch_debug.Answering(0)
        except Exception as error:  # noqa: BLE001 - torch's own, which is said to change
            service.fail(last_line(error))
        else:
            self.torch_debug.start()

    def _faces(self) -> list[tuple[bool, str, FaceProcess]]:
        """Return the faces, each with whether the options want it, and which option that is."""
        return [
            (self.config.rest_enabled, "rest_enabled", self.rest),
            (self.config.fuse_enabled, "fuse_enabled", self._mount),
        ]

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever becomes of one step, the loop has ended well
            self.log_crash(trace(error), type(error).__name__)

    def _stop_workers(self) -> None:
        # A disk, or a terminal, that does not answer can't be told of either: it is left to itself.
        self.disk.stop(_STOP_PATIENCE)
        self._slow.stop(_SLOW_PATIENCE)

    def _hold_for(self, reason: str) -> None:
        """Have the run held at the next safe point, as another rank wants it."""
        later = self.queue.hold(reason, finite.POINTS, finite.SOURCE)
        later.add_done_callback(lambda _: finite.tell_refusal(self, later))

    def take_drops(self) -> None:
        """Take in what a script has dropped, so that the next safe point has it."""
        self.queue.look(_LOOK_PATIENCE)

    def note_resume(self, record: ResumeRecord) -> None:
        """Note that training goes on from a checkpoint, and set again what commands had set."""
        self.log.say(described(record))
        for name, args in self.resume.control.items():
            if (kind := KINDS.get(name)) is not None and name != "set_gradient_clip":  # Which every rank has set.
                self._attempt(partial(self._again, kind, args))
        self.disk.put(self._write_run_record)
        self._page.bump()

    def _again(self, kind: Kind, args: Mapping[str, object]) -> None:
        """Have a command done that was done in the run whose checkpoint was loaded."""
        self.queue.submit(Command(kind, kind.Arguments(**args), source="resume"))

    def note_rewind(self, rewind: RewindRecord) -> None:
        """Note that the run has gone back to an earlier step."""
        self.rewinds.add(rewind)
        self.turns.noted.began = rewind["to_step"]
        self.log.say(f"gone back from step {rewind['reached']:,} to {rewind['to_step']:,}: {rewind['checkpoint']}")
        self._page.bump()

    def void_cached(self) -> None:
        """Void what faces have kept."""
        self._page.bump()

    def raised(self, exception: BaseException, outcome: Outcome) -> None:
        """Note that the loop ends with an exception. One of a backward pass holds the run before."""
        self.pipeline.spoil()
        self.turns.publish(self.batch)
        record = self.exception = exception_record(exception, self.sample)
        # What is raised because another rank has ended tells of that rank, and this one is to end too.
        is_own = self.chair is None or "Connection closed by peer" not in str(exception)
        breaks = self.config.break_on_backward_exception and isinstance(exception, Exception) and is_own
        if breaks and self.loop.flight.is_of_backward(exception):
            self._attempt(lambda: self.points.hold_exception(exception, record))
        self._outcome = outcome
        self._page.bump()

    # ---- what the tree shows

    @property
    def sample(self) -> Sample:
        """What the run looked like at the last safe point."""
        return self.turns.sample

    @property
    def batch(self) -> int | None:
        """Index of the batch that is under way, or was the last; None before the first of an epoch."""
        return self.turns.batch

    @property
    def status(self) -> str:
        """`initializing`, `running`, `held`, `finished`, `interrupted` or `failed`."""
        held = self._outcome is None and self.holds.standing is not None
        return "held" if held else self._outcome or self.loop.status

    @property
    def stage(self) -> str | None:
        """`sanity_check`, `train`, `validate`, `test`, `predict`, or None between them and at the end."""
        return None if self._over else self.loop.stage

    @property
    def rest_url(self) -> str | None:
        """Address of the REST API, or None when there is none."""
        return self.rest.url

    # ---- the records

    def _write_run_record(self) -> None:
        self._write(records.RUN_RECORD, records.record_of(self))

    def write_down(self) -> None:
        """Have `last-state.json` written now."""
        self.disk.put(self._write_last_state)

    def _write_last_state(self) -> None:
        self._write(records.LAST_STATE, self.root.last_state())
        if not (self.directory / records.RUN_RECORD).exists():  # Somebody has tidied up.
            self._write_run_record()

    def _write(self, name: str, document: Mapping[str, object]) -> None:
        """Write a record. Another run that lives in the directory is the one that is found there, not this."""
        # Whoever finds the run by its record may drop a command at once.
        self.queue.begun.wait(_STOP_PATIENCE)
        if not self.queue.is_taken:
            self._records.write(name, document)

    # ---- services and faults

    def _service_changed(self) -> None:
        """Void what faces have kept, and write down what others find the run by."""
        self._page.bump()
        self.disk.put(self._write_run_record)
        # Each face sees by itself when this process ends, and takes away what it put up: the faces are the watcher.
        self._greet()
        watcher, watched = self.services["watcher"], any(face.service.state == "running" for *_, face in self._faces())
        if watched and watcher.state != "running":
            watcher.run()
        elif not watched and watcher.state == "running":
            watcher.turn_off("neither the mount nor REST runs")

    def _greet(self) -> None:
        """Say, once, where to look: when each face shows the run, or has said why it does not."""
        states = {face.service.state for enabled, _, face in self._faces() if enabled}
        if self._over or "starting" in states or "off" in states:
            return
        try:
            self._greeting.pop()
        except IndexError:
            return
        mounted = str(self.mountpoint) if self.services["fuse"].state == "running" else None
        self.log.say(" and ".join(filter(None, (self.rest.url, mounted))) or str(self.directory))

    def log_crash(self, text: str, kind: str) -> None:
        """Say that something of midrun's own failed: once for each kind of error."""
        self.log.alert(f"a part of midrun failed, and training goes on; please report it:\n{text}", once=f"task {kind}")
