"""The run: one object that has a tree to show, and the threads and faces that show it.

It knows a `Loop`, not Lightning: `mixin` feeds it from a LightningModule's hooks. Whatever goes wrong in here is
logged, told by `state/services.json`, and never reaches the loop.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import midrun
from midrun import ports, records
from midrun.config import MidrunConfig
from midrun.directory import mountpoint
from midrun.disk import DiskThread
from midrun.faces import Face, Ties
from midrun.fs import mounts
from midrun.fs.answers import Answers
from midrun.fs.faults import Fault
from midrun.fs.later import Later
from midrun.fs.page import Page
from midrun.fs.verbs import Tree
from midrun.log import RunLog
from midrun.loop import Loop
from midrun.ranks import Rank
from midrun.root import Root
from midrun.sample import NOTHING, Sample, Values
from midrun.services import Service
from midrun.state import ExceptionRecord

T = TypeVar("T")

_ARTIFACTS = ("checkpoints", "snapshots", "debug")
"""The directories in the artifact directory."""
_LAST_STATE_EVERY = 30.0
"""Seconds between two writings of `last-state.json`."""
_GIL_BREAK = 0.0002
"""Seconds for which the training thread gives the GIL away when a face waits for it."""
_STOP_PATIENCE = 2.0
_READY_PATIENCE = 10.0
_REBIND_PATIENCE = 2.0
_REBIND_PAUSE = 0.02


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
    port
        A port to try first: the one that the last fit had.
    ranks
        Who trains.
    """

    def __init__(
        self,
        config: MidrunConfig,
        run_id: str,
        directory: str,
        loop: Loop,
        *,
        port: int | None = None,
        ranks: Iterable[Rank] = (),
    ) -> None:
        self.config, self.run_id, self.loop = config, run_id, loop
        self.ranks = list(ranks)
        self.directory = Path(directory)
        self.mountpoint = Path(mountpoint(config, directory))
        self.artifact_dir = Path(os.path.abspath(config.artifact_dir or self.directory / "artifacts"))
        self.session = records.new_session(time.time())
        self.sample: Sample = NOTHING
        self.batch: int | None = None
        self.exception: ExceptionRecord | None = None
        self.port = port
        """Port of the REST API; None while there is none."""
        self._outcome: str | None = None
        self._over = False
        self._page = Page()
        self._asks = self._page.asks
        self.disk = DiskThread(self._write_last_state, _LAST_STATE_EVERY, self._note_fault)
        self.log = RunLog(self.directory / "midrun.log", self.disk.put)
        self.services = {
            name: Service(name, self.log, self._page.bump) for name in ("rest", "fuse", "watcher", "records")
        }
        self._answers = Answers(Tree(Root(self), aside=self.disk.put), self._page)
        self._faces = self._declare_faces()

    # ---- life

    def start(self) -> None:
        """Start the services. Raises RuntimeError when one does not start and `inspection_strict` is set."""
        if self._make_directories():
            self.services["records"].run()
        self.disk.start()
        self._answers.start()
        for face in self._faces:
            face.service.start()
            face.start()
        self._watch_over()
        self.disk.put(self._write_run_record)
        if self.config.inspection_strict:
            self._insist()
        self.log.say(self._greeting())

    def stop(self) -> None:
        """Stop every service; what they put up is gone when this returns. Calling it again does nothing."""
        if self._over:
            return
        self._over = True
        self._outcome = self._outcome or "finished"
        self.session["ended"] = time.time()
        self.session["outcome"] = self._outcome
        deadline = time.monotonic() + _STOP_PATIENCE
        steps: list[Callable[[], object]] = [
            self.safe_point,
            *(face.stop for face in self._faces),
            lambda: self.disk.put(self._write_last_state),
            *(partial(face.join, deadline) for face in self._faces),
            lambda: self.disk.put(self._write_run_record),
            self._answers.stop,
        ]
        for step in steps:
            try:
                step()
            except Exception:  # noqa: BLE001 - whatever becomes of one, the others must stop too
                self._note_fault(traceback.format_exc().rstrip())
        if not self.disk.stop(_STOP_PATIENCE):
            # Past the disk thread, which is the one that does not answer.
            logging.getLogger("midrun").warning("the disk does not answer; the last records of this run may be missing")

    # ---- what the loop tells, in the training thread

    def safe_point(self) -> None:
        """Publish a sample: called before each optimizer step and at each training batch end."""
        self.publish()
        asks = self._asks
        if asks[0] != asks[1]:
            # A face waits, and this loop may be one that never leaves the GIL for long.
            time.sleep(_GIL_BREAK)

    def publish(self) -> None:
        """Take a sample and show it."""
        try:
            self.sample = self.loop.sample(self.batch)
        except Exception:  # noqa: BLE001 - whatever the loop's insides do, training goes on
            self.log.alert(f"the state of the loop could not be read:\n{traceback.format_exc().rstrip()}")

    def turn(self, batch: int | None = None) -> None:
        """Publish a sample at a turn of the loop, where a stage begins or ends, and void what faces have kept."""
        self.batch = batch
        self.safe_point()
        self._page.bump()

    def raised(self, exception: BaseException) -> None:
        """Note that the loop ends with an exception."""
        interrupted = isinstance(exception, KeyboardInterrupt | SystemExit) or "SIGTERM" in type(exception).__name__
        self._outcome = "interrupted" if interrupted else "failed"
        self.exception = ExceptionRecord(
            type=f"{type(exception).__module__}.{type(exception).__qualname__}",
            message=_message(exception),
            traceback="".join(traceback.format_exception(exception)),
            global_step=self.sample.global_step,
            epoch=self.sample.epoch,
            batch=self.batch,
            time=time.time(),
        )
        self._page.bump()

    # ---- what the tree shows

    @property
    def status(self) -> str:
        """`initializing`, `running`, `finished`, `interrupted` or `failed`."""
        return self._outcome or self.loop.status

    @property
    def rest_url(self) -> str | None:
        """Address of the REST API, or None when there is none."""
        off = self.port is None or self.services["rest"].state in {"off", "failed"}
        return None if off or self.port is None else ports.url(self.config.rest_host, self.port)

    def valued(self, show: Callable[[Sample, Values], T]) -> T | Later:
        """Return what `show` makes of the last sample and its values, or a `Later` while a device computes them."""
        sample = self.sample
        if sample.arrived:
            return show(sample, sample.values())
        later = Later()

        def wait() -> None:
            try:
                later.resolve(show(sample, sample.values()))
            except Exception as error:  # noqa: BLE001 - who waits must be told, whatever became of the device
                later.fail(Fault(f"the values could not be read: {type(error).__name__}: {error}"))

        self.disk.put(wait)
        return later

    # ---- the faces

    def _declare_faces(self) -> list[Face]:
        ties = Ties(self._answers, self._page, self.directory / "midrun.log", self.disk.put)
        rest, fuse = self.services["rest"], self.services["fuse"]
        faces = []
        if self.config.rest_enabled:
            faces.append(Face("midrun.web.face", rest, ties, 0, self._rest_options, self._listen))
        else:
            rest.turn_off("rest_enabled=False")
        if self.config.fuse_enabled:
            faces.append(Face("midrun.fs.mount", fuse, ties, 1, self._fuse_options, clear=self._clear_mount))
        else:
            fuse.turn_off("fuse_enabled=False")
        return faces

    def _rest_options(self) -> dict[str, Any]:
        return {
            "host": self.config.rest_host,
            "allowed_hosts": list(self.config.rest_allowed_hosts),
            "run_id": self.run_id,
            "run_dir": str(self.directory),
            "version": midrun.__version__,
        }

    def _fuse_options(self) -> dict[str, Any]:
        return {"mountpoint": str(self.mountpoint), "writable": self.config.fuse_control, "run_id": self.run_id}

    def _clear_mount(self) -> None:
        """Take away the mount of a face that was killed."""
        mounts.clean(mounts.resolve(str(self.mountpoint)))

    def _listen(self) -> Any:  # noqa: ANN401 - a socket, which this module needs not import
        """Return the listening socket for REST: on the port that the run had, if it gets free, else on another."""
        host, before = self.config.rest_host, self.port
        again = len(self.services["rest"].detail) > 0
        deadline = time.monotonic() + (_REBIND_PATIENCE if again else 0.0)
        while before is not None:
            with suppress(OSError):
                return self._took(ports.listen(host, before, 1))
            if time.monotonic() >= deadline:
                break
            time.sleep(_REBIND_PAUSE)
        return self._took(ports.listen(host, self.config.rest_port, self.config.rest_port_search))

    def _took(self, listener: Any) -> Any:  # noqa: ANN401 - as above
        self.port = listener.getsockname()[1]
        self.disk.put(self._write_run_record)
        return listener

    def _watch_over(self) -> None:
        """The watcher is in the faces themselves: each sees by pidfd when this process ends."""
        if self._faces:
            self.services["watcher"].run()
        else:
            self.services["watcher"].turn_off("no face runs")

    def _insist(self) -> None:
        """Wait until every service runs or has failed. Raises RuntimeError with the reasons of those that failed."""
        deadline = time.monotonic() + _READY_PATIENCE
        while any(s.state == "starting" for s in self.services.values()) and time.monotonic() < deadline:
            time.sleep(_REBIND_PAUSE)
        late = f"not ready in {_READY_PATIENCE:g} s"
        failed = [
            f"{service.name}: {service.reason if service.state == 'failed' else late}"
            for service in self.services.values()
            if service.state in {"failed", "starting"}
        ]
        if failed:
            message = f"inspection_strict=True, and {'; '.join(failed)}"
            raise RuntimeError(message)

    def _greeting(self) -> str:
        places = [self.rest_url, str(self.mountpoint) if self.services["fuse"].state != "off" else None]
        return " and ".join(filter(None, places)) or str(self.directory)

    # ---- the records

    def _make_directories(self) -> bool:
        """Make the directories of the run; return whether they are there."""
        for directory in (self.directory, *(self.artifact_dir / kind for kind in _ARTIFACTS)):
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except (OSError, ValueError) as error:
                self._unrecorded(f"{directory} can't be made: {error}")
                return False
        return True

    def _write_run_record(self) -> None:
        record = records.RunRecord(
            format=records.FORMAT,
            run_id=self.run_id,
            midrun=midrun.__version__,
            state="open",
            artifact_dir=str(self.artifact_dir),
            fuse_mountpoint=str(self.mountpoint) if self.config.fuse_enabled else None,
            rest_url=self.rest_url,
            session=self.session,
        )
        self._record("run.json", record)

    def _write_last_state(self) -> None:
        self._record("last-state.json", Root(self).last_state())

    def _record(self, name: str, document: Any) -> None:  # noqa: ANN401 - a TypedDict or a dictionary
        service = self.services["records"]
        made = service.state == "running" or self._make_directories()
        try:
            records.write_whole(self.directory / name, document)
        except OSError as error:
            self._unrecorded(f"{name} can't be written: {error}")
        else:
            if made and service.state != "running":
                service.run()

    def _unrecorded(self, reason: str) -> None:
        """Say that something can't be written. While one thing can't, the next reason would only follow from it."""
        if self.services["records"].state != "failed":
            self.services["records"].fail(reason)

    # ---- faults

    def _note_fault(self, text: str) -> None:
        self.log.alert(f"a task failed:\n{text}")


def _message(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception:  # noqa: BLE001 - the text of an exception is anybody's code
        return "<exception str() failed>"
