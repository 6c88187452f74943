"""How tests steer a live run: in the training thread from a hook, or from another thread while the run is held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lightning.pytorch import LightningModule, Trainer

from midrun.command import Command, CommandRecord
from midrun.commands import KINDS
from midrun.commands.kind import When
from midrun.hold import Active
from midrun.run import Run
from tests.midrun.models import Staged, batches, run_of, settled, trainer

T = TypeVar("T")

Place = tuple[str | None, int, int, int | None]
"""Safe point, step, epoch, batch."""

PATIENCE = 20.0
"""Seconds after which what has not come will not come."""


def until(look: Callable[[], T | None]) -> T:
    """Look until there is something, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.002)
    return found


def command(kind: str, when: dict[str, Any] | None = None, **args: Any) -> Command:
    """Return a command as Python sends it."""
    made = KINDS[kind]
    return Command(made, made.Arguments(**args), None if when is None else When(**when))


def give(run: Run, kind: str, when: dict[str, Any] | None = None, **args: Any) -> Command:
    """Send a command, and return it once it is taken in. Raises the fault that keeps it out."""
    sent = command(kind, when, **args)
    settled(run.queue.submit(sent))
    return sent


def outcome(run: Run, sent: Command) -> CommandRecord:
    """Return the record of a command that is over; that of a run that has ended is there too."""

    def over() -> CommandRecord | None:
        record = run.queue.table.record(sent.id)
        return record if record is not None and record["finished"] is not None else None

    return until(over)


def done(run: Run, sent: Command) -> dict[str, Any]:
    """Return the result of a command that was done."""
    record = outcome(run, sent)
    assert record["status"] == "succeeded", record
    assert record["result"] is not None
    return record["result"]


def failed(run: Run, sent: Command) -> tuple[str, str]:
    """Return why a command failed: the kind of error, and the message."""
    record = outcome(run, sent)
    assert record["status"] == "failed", record
    assert record["error"] is not None
    return record["error"]["type"], record["error"]["message"]


def where(run: Run, sent: Command) -> Place:
    """Return where a command was done."""
    place = outcome(run, sent)["place"]
    assert place is not None
    return place["safe_point"], place["global_step"], place["epoch"], place["batch"]


def held(model: LightningModule) -> Active:
    """Return the active hold of a model's run, once there is one that is not let go yet."""
    return until(lambda: _active(model))


def _active(model: LightningModule) -> Active | None:
    run: Run | None = model.midrun.run  # type: ignore[union-attr,assignment]  # a model with midrun
    active = None if run is None else run.holds.active
    return None if active is None or active.command.released_by is not None else active


@contextmanager
def aside(model: LightningModule, act: Callable[[], object]) -> Iterator[None]:
    """Have another thread `act` while this one trains. If it breaks, it lets go what is held, and the test fails."""
    errors: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)
            while not over.wait(0.01):
                if _active(model) is not None:
                    run_of(model).holds.release("a test that broke")

    thread = threading.Thread(target=work, name="steering")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if errors:
            raise errors[0]


@contextmanager
def let_go(model: LightningModule) -> Iterator[list[Place]]:
    """Let every hold go, and give the list of where they were; it grows."""
    over = threading.Event()
    seen: list[Place] = []

    def work() -> None:
        while not over.wait(0.002):
            active = _active(model)
            if active is not None:
                place = active.place
                seen.append((place["safe_point"], place["global_step"], place["epoch"], place["batch"]))
                run_of(model).holds.release("test")

    with aside(model, work):
        try:
            yield seen
        finally:
            over.set()


def records_of(run: Run) -> list[CommandRecord]:
    """Return the records of all commands, in the order they came."""
    records = [run.queue.table.record(id_) for id_ in run.queue.table.ids]
    return sorted([record for record in records if record is not None], key=lambda record: record["submitted"])


def fit(model: LightningModule, root: Path, train: int = 3, validation: int = 0, **options: Any) -> Trainer:
    """Train with so many batches of each kind, and return the Trainer."""
    quiet = {"num_sanity_val_steps": 0, "limit_val_batches": validation}
    fitting = trainer(root, **{**quiet, **options})
    fitting.fit(model, batches(train), batches(max(1, validation)))
    return fitting


class Steered(Staged):
    """A model that does what a test has planned at the start of a training batch, counted over all epochs.

    `live` is its run, which stays readable after its end.
    """

    live: Run

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.plan: dict[int, Callable[[], object]] = {}
        self.begun = 0

    def setup(self, stage: str) -> None:
        super().setup(stage)
        vars(self)["live"] = run_of(self)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self.begun += 1
        self.plan.get(self.begun - 1, int)()

    def give(self, kind: str, when: dict[str, Any] | None = None, **args: Any) -> Command:
        """Send a command to the live run."""
        return give(run_of(self), kind, when, **args)
