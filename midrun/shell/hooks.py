"""The shell hooks of a run: the scripts that are executable run where Lightning calls its callbacks."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from midrun.fs.render import render
from midrun.fs.tracebacks import last_line
from midrun.fs.tree import Dir, file
from midrun.nested import described
from midrun.shell.execution import Ended, Waiter, beginning, execute
from midrun.shell.payload import save_parts
from midrun.shell.scripts import WEIGHTS, NoSet, Scripts, likest
from midrun.shell.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from midrun.config import MidrunConfig
    from midrun.log import RunLog
    from midrun.loop import Loop
    from midrun.run import Run
    from midrun.services import Service

FAILING = 3
"""Failures in a row from which on a script is said to fail."""
_LONG = 5.0
"""Seconds for which a script runs before that is worth a notice."""
_PATIENCE = 1.0
"""Seconds for the watch to end."""
_PREFIX = "midrun-hook-"


class ScriptRecord(TypedDict):
    """What became of one script."""

    enabled: bool
    runs: int
    failures: int
    failures_in_a_row: int
    is_failing: bool
    """Whether it has failed three times in a row or more; it goes on being run."""
    seconds: float | None
    """How long the last run took, in seconds."""
    trouble: str | None
    """What was wrong with the last run."""
    time: float | None
    """When it ended. Seconds since 1970."""


class Running(TypedDict):
    """The script that runs now."""

    script: str
    since: float
    """When it was started. Seconds since 1970."""
    pid: int
    """Of the script, which leads its own process group."""


_UNRUN = ScriptRecord(
    enabled=True,
    runs=0,
    failures=0,
    failures_in_a_row=0,
    is_failing=False,
    seconds=None,
    trouble=None,
    time=None,
)


class HooksIndex(TypedDict):
    """The shell hooks."""

    directory: str
    enabled: list[str]
    """The scripts that are executable."""
    running: Running | None
    """The script that training waits for."""
    scripts: dict[str, ScriptRecord]
    """Those, and the others that have run."""


class Hooked(Protocol):
    """What shell hooks need of a run: `Run` on rank zero, `follower._Here` on the others."""

    config: MidrunConfig
    loop: Loop
    directory: Path
    log: RunLog

    @property
    def run_id(self) -> str:
        """The run's id."""

    @property
    def rest_url(self) -> str | None:
        """Address of the REST API."""

    def void_cached(self) -> None:
        """Void what faces have kept."""

    def take_drops(self) -> None:
        """Take in what a script has dropped, so that the next safe point has it."""


class ShellHooks:
    """The shell hooks of one run, or of one of its later ranks.

    Parameters
    ----------
    run
        The run.
    service
        Where it is told whether they work.
    rank
        Whose callbacks they run at.
    """

    def __init__(self, run: Hooked, service: Service, rank: int) -> None:
        self._run, self._service, self._rank = run, service, rank
        self.scripts = Scripts(run.directory)
        self._enabled: dict[str, list[Path]] = {}
        """By callback; replaced whole, by the thread that watches."""
        self._records: dict[str, ScriptRecord] = {}
        self._caller = run.loop.caller(self.call)
        self._running: Running | None = None
        self._began = 0.0
        self._watch: Watch | None = None
        self._is_over = False

    # ---- the run's life

    def start(self) -> None:
        """Make the scripts, and run from now on those that are executable."""
        config = self._run.config
        if not config.hooks_enabled:
            self._service.turn_off("hooks_enabled=False")
            return
        self._service.start()
        source = None if config.hooks_source_dir is None else Path(config.hooks_source_dir)
        self._begin(lambda: self.scripts.install(source))

    def follow(self) -> None:
        """Run from now on those that are executable, of the scripts that another rank has made."""
        self._begin(lambda: None)

    def _begin(self, prepare: Callable[[], object]) -> None:
        try:
            prepare()
            self._look()
            self._watch = Watch([self.scripts.directory / weight for weight in WEIGHTS], self._look)
        except NoSet as error:
            self._service.fail(str(error))
        except OSError as error:
            self._service.fail(f"{self.scripts.directory} can't be made or watched: {error}")
        else:
            self._service.run()

    def stop(self) -> None:
        """Run none any more. The training thread calls it."""
        self._is_over = True
        if self._watch is not None:
            self._watch.stop(_PATIENCE)
        self._enabled = {}
        self._caller.detach()

    def _look(self) -> None:
        """Look which scripts are executable. Once there is a watch, it alone does: else two might attach the caller."""
        enabled, strangers = self.scripts.executable()
        if self._is_over:
            return  # The disk has kept this look for so long that the Trainer may be another run's.
        before, self._enabled = self._enabled, enabled
        if enabled:
            self._caller.attach()  # Again, should somebody have put the Trainer's callbacks aside meanwhile.
        if enabled != before:
            self._run.void_cached()
        for script in strangers:
            close = likest(script)
            hint = f"did you mean {close}?" if close else "docs/hooks.md says which there are"
            self._run.log.alert(f"hook {_shown(script)} never runs: no callback has that name; {hint}")

    # ---- the training thread

    def call(self, name: str, arguments: dict[str, Any]) -> None:
        """Run the scripts of a callback. Whatever they do, training goes on."""
        enabled = self._enabled
        if not enabled:
            self._caller.detach()
            if self._enabled and self._watch is not None:
                self._watch.wake()  # One was enabled just now, while the Trainer still had the caller.
            return
        for script in enabled.get(name, ()):
            try:
                trouble, seconds = self._call(script, name, arguments)
            except Exception as error:  # noqa: BLE001 - a batch is anybody's code, and the disk may be full
                trouble, seconds = last_line(error), 0.0
            self._note(script, trouble, seconds)
        if name in enabled:
            self._run.take_drops()

    def _call(self, script: Path, name: str, arguments: dict[str, Any]) -> tuple[str, float]:
        """Run one script, and return what was wrong and how long it took."""
        with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as made:
            directory = Path(made)
            payload = directory / "payload.json"
            payload.write_bytes(render(payload.name, self._payload(script, name, arguments, directory)))
            try:
                ended = self._execute(script, payload, name)
            except OSError as error:
                return _why_not_started(script, error), 0.0
        return ended.trouble, ended.seconds

    def _payload(self, script: Path, name: str, arguments: dict[str, Any], directory: Path) -> dict[str, Any]:
        run, weight = self._run, script.parent.name
        sample = run.loop.sample(arguments.get("batch_idx", run.loop.batch))
        return {
            "callback": name,
            "kind": weight,
            "run_id": run.run_id,
            "run_dir": str(run.directory),
            "rank": self._rank,
            "stage": run.loop.stage,
            "global_step": sample.global_step,
            "epoch": sample.epoch,
            "batch_idx": sample.batch,
            "time": sample.time,
            "metrics": sample.values().metrics,
            "arguments": save_parts(arguments, directory) if weight == "heavy" else described(arguments),
        }

    def _execute(self, script: Path, payload: Path, name: str) -> Ended:
        run, shown = self._run, _shown(script)
        return execute(
            script,
            [str(payload)],
            environment={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
                "MIDRUN_RUN_DIR": str(run.directory),
                "MIDRUN_SPOOL": str(run.directory / "spool" / "new"),
                "MIDRUN_URL": run.rest_url or "",
                "MIDRUN_RANK": str(self._rank),
                "MIDRUN_CALLBACK": name,
            },
            directory=run.directory,
            timeout=run.config.hooks_timeout_s,
            waiter=Waiter(
                is_told=lambda: run.loop.told_to_end_by is not None,
                begun=lambda pid: self._begun(shown, pid),
                line=lambda text: run.log.note(f"hook {shown}: {text}"),
            ),
        )

    def _begun(self, shown: str, pid: int) -> None:
        self._began, self._running = time.monotonic(), Running(script=shown, since=time.time(), pid=pid)

    def _note(self, script: Path, trouble: str, seconds: float) -> None:
        self._running = None
        shown, log = _shown(script), self._run.log
        before = self._records.get(shown, _UNRUN)
        in_a_row = before["failures_in_a_row"] + 1 if trouble else 0
        self._records[shown] = ScriptRecord(
            enabled=True,
            runs=before["runs"] + 1,
            failures=before["failures"] + bool(trouble),
            failures_in_a_row=in_a_row,
            is_failing=in_a_row >= FAILING,
            seconds=round(seconds, 6),
            trouble=trouble or None,
            time=time.time(),
        )
        if trouble and not log.alert(f"hook {shown} failed, and training goes on: {trouble}", f"hook {shown}"):
            log.note(f"hook {shown} failed: {trouble}")
        if in_a_row == FAILING:
            log.alert(f"the hook {shown} has failed {FAILING} times in a row; it goes on being run", f"hooks {shown}")

    # ---- any thread

    def index(self) -> HooksIndex:
        """Return the scripts that are executable, and what became of all that have run."""
        enabled = [_shown(script) for scripts in self._enabled.values() for script in scripts]
        records = {**dict.fromkeys(enabled, _UNRUN), **dict(self._records)}
        return HooksIndex(
            directory=str(self.scripts.directory),
            enabled=sorted(enabled),
            running=self._running,
            scripts={name: _now(record, enabled=name in enabled) for name, record in sorted(records.items())},
        )

    @property
    def notices(self) -> list[str]:
        """What somebody who looks at the run should know."""
        running, index = self._running, self.index()
        told = [
            f"the hook {name} has failed {script['failures_in_a_row']} times in a row: {script['trouble']}"
            for name, script in index["scripts"].items()
            if script["is_failing"]
        ]
        if running is not None and time.monotonic() - self._began > _LONG:
            since = time.strftime("%H:%M:%S", time.localtime(running["since"]))
            how = f"kill -- -{running['pid']}"
            told.append(f"training waits for the hook {running['script']} since {since}; to end that script: {how}")
        return told


class Hooks(Dir):
    """The scripts that run at Lightning's callbacks: which are executable, and what became of them."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("index.json", cached=False)
    def index(self) -> HooksIndex:
        """The scripts that are executable, and what became of those that have run."""
        return self._run.shell_hooks.index()


def _now(record: ScriptRecord, *, enabled: bool) -> ScriptRecord:
    return {**record, "enabled": enabled, "is_failing": enabled and record["is_failing"]}


def _shown(script: Path) -> str:
    """Return a script's name below `hooks/`."""
    return f"{script.parent.name}/{script.name}"


def _why_not_started(script: Path, error: OSError) -> str:
    """Return why a script could not be started: the system's words name the script, whatever it misses."""
    try:
        first = beginning(script, 200).split(b"\n")[0].decode(errors="backslashreplace")
    except OSError:
        return str(error)
    if first.startswith("#!") and first.endswith("\r"):
        return "its lines end as those of Windows do, with CR LF: remove the CR, as dos2unix does"
    if isinstance(error, FileNotFoundError) and first.startswith("#!"):
        return f"its first line names an interpreter that is not there: {first}"
    return str(error)
