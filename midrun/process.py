"""Processes: how the trainer starts a face, keeps it alive and ends it.

A face is started by its module's name, never imported: it runs in a process and a session of its own, with the
trainer's interpreter and module path. One that dies is started again, a few times; one that says why it can't serve is
not.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import midrun
from midrun.fs import forks
from midrun.fs.answers import Answers
from midrun.fs.face import UNWANTED, Handed
from midrun.fs.page import Page
from midrun.services import Service

_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]);from midrun.fs.face import main; main(sys.argv[2])"
_DEATHS = 5
"""How often a face may die within `_WINDOW` and be started again."""
_WINDOW = 600.0


@dataclass(frozen=True)
class Ties:
    """What ties every face of a run to the run."""

    answers: Answers
    page: Page
    log: Path
    """File that a face's own errors go to."""
    aside: Callable[[Callable[[], object]], object]
    """Hands a task to the thread that may wait."""


class FaceProcess:
    """One face's process and its successors. What is special to a face is in the methods that its class overrides.

    Parameters
    ----------
    service
        Where the face's state is told.
    ties
        What ties it to the run.
    """

    module: ClassVar[str]
    """The face's module; it has `serve`."""
    slot: ClassVar[int]
    """The face's mark on the shared page."""

    def __init__(self, service: Service, ties: Ties) -> None:
        self.service = service
        self._ties = ties
        self._process: subprocess.Popen[bytes] | None = None
        self._disconnect: Callable[[], None] = lambda: None
        self._deaths: list[float] = []
        self._turn = threading.Lock()
        """Held to start a process and to stop the last one: no process is started behind the back of a stop."""
        self._stopping = False

    def options(self) -> dict[str, Any]:
        """Return what a new process is told."""
        return {}

    def listener(self) -> socket.socket | None:
        """Return the listening socket that a new process serves, if it serves one."""
        return None

    def clear(self) -> None:
        """Take away what a process has left that was killed."""

    def start(self) -> None:
        """Start the process; what goes wrong is told by the service."""
        with self._turn:
            if self._stopping:
                return
            try:
                self._spawn()
            except Exception as error:  # noqa: BLE001 - whatever it was, the other services start
                self.service.fail(str(error))

    def stop(self) -> None:
        """Tell the process to end. `join` waits for it."""
        self._stopping = True
        with self._turn:
            self._disconnect()
            if self._process is not None and self.service.state == "starting":
                self._process.send_signal(UNWANTED)

    def join(self, deadline: float) -> None:
        """Wait until the process has ended, and end it by force at `deadline` (of the monotonic clock)."""
        process = self._process
        if process is None:
            return
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.returncode != 0:
            self.clear()
        if self.service.state != "failed":
            self.service.turn_off("the run has ended")

    def _spawn(self) -> None:
        listening = self.listener()
        listener = None if listening is None else _Handover(listening)
        ours, theirs = socket.socketpair()
        try:
            given = [theirs.fileno(), self._ties.page.fd, *([] if listener is None else [listener.fileno()])]
            handed = Handed(
                module=self.module,
                trainer_pid=os.getpid(),
                wire=theirs.fileno(),
                page=self._ties.page.fd,
                slot=self.slot,
                options={**self.options(), **({} if listener is None else {"listener": listener.fileno()})},
            )
            process = self._process = self._popen(json.dumps(asdict(handed)), given)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if listener is not None:
                listener.close()
        self._disconnect = self._ties.answers.connect(ours, self._hear, self.slot)
        with suppress(ProcessLookupError):
            self._ties.answers.watch(os.pidfd_open(process.pid), lambda: self._ties.aside(lambda: self._ended(process)))

    def _popen(self, handed: str, given: list[int]) -> subprocess.Popen[bytes]:
        errors = subprocess.DEVNULL
        with suppress(OSError):
            # Without waiting: the log may be a pipe that nobody reads.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
            errors = os.open(self._ties.log, flags, 0o666)
        try:
            return subprocess.Popen(  # noqa: S603 - this interpreter, and a text of ours
                [sys.executable, "-I", "-c", _BOOT, json.dumps(module_path()), handed],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                start_new_session=True,
            )
        finally:
            if errors != subprocess.DEVNULL:
                os.close(errors)

    def _hear(self, notice: str, detail: dict[str, Any]) -> None:
        if notice == "running":
            self.service.run(**detail)
        elif notice == "failed":
            self.service.fail(str(detail.get("reason", "it gave no reason")))

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        """Start the process again, unless it was told to end, or has said that it can't serve."""
        code = process.wait()
        if self._stopping or self.service.state == "failed":
            return
        self._disconnect()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        now = time.monotonic()
        self._deaths = [*(death for death in self._deaths if now - death < _WINDOW), now]
        count = len(self._deaths)
        if count > _DEATHS:
            self.clear()
            self.service.fail(f"its process ended {how}, {count} times in {_WINDOW / 60:.0f} min; it stays so")
            return
        self.service.start(f"its process ended {how} and is started again ({count} of {_DEATHS})")
        self.start()


class _Handover:
    """A listening socket on its way to a face: no child that is forked meanwhile keeps it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        forks.close_in_children(self)

    def fileno(self) -> int:
        return self._listener.fileno()

    def close(self) -> None:
        forks.forget(self)
        self._listener.close()

    close_in_child = close


def module_path() -> list[str]:
    """Return the module path for a face: the trainer's, without the folder of the user's own script.

    A script's folder may hold an `app.py` or a `trio.py` that the trainer never imports and a face would.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    own = {"", _here()} | ({os.path.dirname(os.path.abspath(script))} if script else set())
    home = os.path.dirname(os.path.abspath(midrun.__path__[0]))
    return [*(os.path.abspath(entry) for entry in sys.path if entry not in own), home]


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # The current directory has been deleted.
