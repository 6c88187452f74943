"""Settings and fixtures of these tests."""

from __future__ import annotations

import pytest
from hypothesis import settings
from trio.testing import MockClock

from tests.fs.busy import Changing, Trainer

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
