"""Tasks: what takes more than one safe point, such as the capture of a whole forward pass or the profile of some steps.

A task is a generator. It runs in the training thread, a piece at each safe point: each value that it yields is the safe
point at which it goes on, and what it returns is what came of it. Where it is closed, because training ends, its
`finally` blocks put back what it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from midrun.fs.faults import Conflict, Fault
from midrun.fs.later import Later
from midrun.fs.tracebacks import last_line

Steps = Generator[str, None, Any]
"""What a task does, from one safe point to the next."""


class Task:
    """One task that is under way.

    Parameters
    ----------
    steps
        What it does; it has not begun.
    succeeded
        Is told what it returns.
    failed
        Is told what it raises.
    """

    def __init__(
        self, steps: Steps, succeeded: Callable[[Any], object], failed: Callable[[BaseException], object]
    ) -> None:
        self._steps, self._succeeded, self._failed = steps, succeeded, failed
        self.point: str | None = None
        """Where it goes on; None once it is over."""

    def go_on(self) -> None:
        """Do what is to be done until the next safe point. What is no `Exception` is raised again."""
        try:
            self.point = next(self._steps)
        except StopIteration as over:
            self.point = None
            self._succeeded(over.value)
        except BaseException as error:
            self.point = None
            self._failed(error)
            if not isinstance(error, Exception):
                raise

    def end(self, why: str) -> None:
        """End it before it is done."""
        self.point = None
        try:
            self._steps.close()
        except Exception as error:  # noqa: BLE001 - what it would put back may be gone with what has ended training
            self._failed(error)
        else:
            self._failed(Conflict(why))


class Errand(NamedTuple):
    """A task that somebody waits for who is no command: the reader of a live file."""

    steps: Steps
    later: Later

    def task(self) -> Task:
        """Return the task, which tells the reader what came of it."""
        return Task(self.steps, self.later.set_result, self._fail)

    def _fail(self, error: BaseException) -> None:
        self.later.set_exception(error if isinstance(error, Fault) else Fault(last_line(error)))


class Tasks:
    """The tasks that are under way, in the order in which they began."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def begin(self, task: Task) -> None:
        """Begin a task."""
        task.go_on()
        if task.point is not None:
            self._tasks.append(task)

    def reach(self, is_at: Callable[[str], bool]) -> None:
        """Have those go on whose safe point this is."""
        for task in list(self._tasks):
            if task.point is not None and is_at(task.point):
                try:
                    task.go_on()
                finally:
                    self._tasks = [task for task in self._tasks if task.point is not None]

    def end(self, why: str) -> None:
        """End all of them."""
        ending, self._tasks = self._tasks, []
        for task in ending:
            task.end(why)
