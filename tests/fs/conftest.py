"""Settings and fixtures of these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from trio.testing import MockClock

from tests.fs.busy import Changing, Trainer
from tests.fs.mounting import Mounted, mounting

# How long an example takes says nothing on a machine that does other things too.
settings.register_profile("midrun", deadline=None)
settings.load_profile("midrun")


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@pytest.fixture
def root() -> Changing:
    return Changing()


@pytest.fixture
def trainer(root: Changing) -> Trainer:
    return Trainer(root)


@pytest.fixture(scope="module")
def module_tree() -> Iterator[Mounted]:
    """A mounted tree that the tests of a module share."""
    with mounting() as mounted:
        yield mounted.ready()
        assert "Traceback" not in mounted.errors()


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read of rows or buckets has taken."""
    read: list[int] = []

    def counted(fd: int, buffers: list[memoryview], offset: int) -> int:
        read.append(done := preadv(fd, buffers, offset))
        return done

    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", counted)
    return read
