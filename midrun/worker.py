"""Workers: threads that do what may take time, so that neither training nor a face waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty

from midrun.fs.tracebacks import trace
from midrun.mailbox import Mailbox


class Worker:
    """One thread that does what it is handed, in order, and calls `tick` every `interval` seconds in between.

    A task that raises ends nothing: the thread goes on.

    Parameters
    ----------
    name
        The thread's name.
    broken
        Called with the traceback of a task that raised, and with the name of its error's class.
    tick
        Called every `interval` seconds, where nothing else is to be done.
    """

    def __init__(
        self,
        name: str,
        broken: Callable[[str, str], object],
        tick: Callable[[], object] = lambda: None,
        interval: float = 3600.0,
    ) -> None:
        self._tick = tick
        self._interval = interval
        self._broken = broken
        self._tasks: Mailbox[Callable[[], object] | None] = Mailbox()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start doing what was handed over."""
        self._thread.start()

    def put(self, task: Callable[[], object]) -> None:
        """Hand over a task. It neither locks nor waits; a signal handler may call it."""
        self._tasks.put(task)

    @property
    def is_awaited(self) -> bool:
        """Whether more has been handed over than what it does now."""
        return not self._tasks.empty()

    def stop(self, patience: float) -> bool:
        """Finish what was handed over and end; return whether that took less than `patience` seconds."""
        self._tasks.put(None)
        if self._thread.ident is None:
            self._run()
            return True
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while True:
            try:
                task = self._tasks.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                due = time.monotonic() + self._interval
                self._do(self._tick)
                continue
            if task is None:
                break
            self._do(task)
        # The last tasks may have had something to say.
        with suppress(Empty):
            while (task := self._tasks.get_nowait()) is not None:
                self._do(task)

    def _do(self, task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - a panic of Rust code is no Exception; the next task must be done
            with suppress(Exception):  # What can't be told is not told: telling that would fail as well.
                self._broken(trace(error), type(error).__name__)
