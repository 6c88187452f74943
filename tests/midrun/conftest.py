"""What the tests of the training side share: one thread of torch, and an ear for what midrun says."""

import logging
import signal
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # The models are tiny and the cores are shared.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever a Trainer writes to the present directory is for one test.
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture
def signals() -> Iterator[None]:
    """Give back the handlers that Lightning replaces when it is interrupted."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class _Ear(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """Give the list of what midrun warns of; it grows. What a run says is in it when the run has stopped."""
    ear, logger = _Ear(), logging.getLogger("midrun")
    logger.addHandler(ear)
    yield ear.heard
    logger.removeHandler(ear)
