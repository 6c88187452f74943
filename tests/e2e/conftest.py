"""Fixtures: trainers that are started, and what must be left of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.e2e.machine import alive
from tests.e2e.runs import Forge, Run, drop, new_root


class Start(Protocol):
    """Starts a trainer."""

    def __call__(
        self, program: str = "fit", *, in_: Path | None = None, how: dict[str, Any] | None = None, **plan: Any
    ) -> Run: ...


class Report(Protocol):
    """Notes a figure."""

    def __call__(self, what: str, value: float) -> None: ...


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Forge]:
    """The fork server; all workers share one."""
    base = tmp_path_factory.getbasetemp()
    forge = Forge(base if worker_id == "master" else base.parent)
    try:
        yield forge
        left = [f"trainer {run.pid}: {what}" for run in forge.started for what in run.left()]
        left += [f"trainer {run.pid}" for run in forge.started if alive(run.pid)]
        assert not left, left
    finally:
        forge.close()
        for run in forge.started:
            run.clean()


@pytest.fixture
def root() -> Iterator[Path]:
    """A new folder, gone after the test with all that is mounted in it."""
    root = new_root()
    yield root
    drop(root)


@pytest.fixture
def start(forge: Forge, root: Path) -> Iterator[Start]:
    """Starts trainers, each in a folder of its own; after the test nothing of them is left."""
    started: list[Run] = []

    def start(program: str = "fit", *, in_: Path | None = None, how: dict[str, Any] | None = None, **plan: Any) -> Run:
        folder = in_ or root / str(len(started))
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        run = forge.start(program, plan, folder, **(how or {}))
        started.append(run)
        return run

    yield start
    for run in started:
        run.clean()


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Report:
    """Notes a figure, for the test report; -rP shows it too."""

    def note(what: str, value: float) -> None:
        record_property(what, value)
        sys.stdout.write(f"{what}: {value:.3f}\n")

    return note
