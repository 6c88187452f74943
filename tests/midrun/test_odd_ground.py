"""Odd ground under a run: what a program does to itself that has nothing to do with midrun never ends its training."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.midrun.models import Watched, batches, document, only_directory, read, record, trainer


def test_a_shallow_copy_of_a_model_has_a_run_of_its_own(tmp_path: Path) -> None:
    model = Watched()
    inner: list[Path] = []

    class Nesting(Watched):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            ours = self.midrun.run
            if not inner:
                inner.append(tmp_path / "inner")
                trainer(inner[0]).fit(copy.copy(self), batches(1))
            assert self.midrun.run is ours, "the outer run goes on"

    model = Nesting()
    fitting = trainer(tmp_path / "outer")
    fitting.fit(model, batches(2))
    assert fitting.global_step == 2
    for folder in ("outer", "inner"):
        assert record(only_directory(tmp_path / folder))["session"]["outcome"] == "finished"


def test_a_current_directory_that_is_gone(tmp_path: Path) -> None:
    before = Path.cwd()
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    try:
        (tmp_path / "gone").rmdir()
        fitting = trainer(tmp_path)
        fitting.fit(Watched(rest_enabled=True, rest_port=0), batches(2))
    finally:
        os.chdir(before)
    assert fitting.global_step == 2


@pytest.mark.parametrize("rate", [None, "much", [0.1], torch.zeros(2), complex(1, 1)], ids=str)
def test_a_learning_rate_that_is_none(rate: Any, tmp_path: Path) -> None:
    class Model(Watched):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.optimizers().param_groups[0]["lr"] = rate  # type: ignore[union-attr]  # one optimizer
            super().on_train_batch_end(outputs, batch, batch_idx)
            [group] = document(self, "state/optimizers.json")["optimizers"][0]["groups"]
            assert group["lr"] is None
            self.optimizers().param_groups[0]["lr"] = 0.1  # type: ignore[union-attr]  # as above

    fitting = trainer(tmp_path)
    fitting.fit(Model(), batches(2))
    assert fitting.global_step == 2


def test_a_log_that_is_a_pipe_which_nobody_reads(tmp_path: Path) -> None:
    class Model(Watched):
        def setup(self, stage: str) -> None:
            directory = tmp_path / "midrun"
            super().setup(stage)
            [run] = directory.iterdir()
            self.log_file = run / "midrun.log"

        def on_train_start(self) -> None:
            super().on_train_start()
            self.log_file.unlink(missing_ok=True)
            os.mkfifo(self.log_file)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            run = self.midrun.run
            assert run is not None
            run.log.say("a line that nobody reads")

    fitting = trainer(tmp_path)
    fitting.fit(Model(), batches(2))
    assert fitting.global_step == 2


def test_a_handler_of_logging_that_raises(tmp_path: Path) -> None:
    class Raising(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            raise ZeroDivisionError

    handler = Raising()
    logging.getLogger("midrun").addHandler(handler)
    try:
        fitting = trainer(tmp_path)
        fitting.fit(Watched(artifact_dir="a\0b"), batches(2))  # which there is something to say about
    finally:
        logging.getLogger("midrun").removeHandler(handler)
    assert fitting.global_step == 2


@contextmanager
def full_pipe() -> Iterator[int]:
    """Give a pipe's end into which nothing more goes, and which waits."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    try:
        while True:
            os.write(into, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(into, True)
    try:
        yield into
    finally:
        os.close(out)
        os.close(into)


def test_a_terminal_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote = threading.Event()

    def write(fd: int, data: bytes) -> int:
        if fd != 2:
            return real(fd, data)
        wrote.set()
        return real(into, data)

    real = os.write
    with full_pipe() as into:
        monkeypatch.setattr(os, "write", write)
        monkeypatch.setattr(logging.Logger, "hasHandlers", lambda _: False)
        monkeypatch.setattr(sys, "stderr", sys.__stderr__)
        fitting = trainer(tmp_path)
        fitting.fit(Watched(artifact_dir="a\0b"), batches(2))
        assert wrote.wait(5), "something was said"
        assert fitting.global_step == 2
        assert not any(thread.name == "midrun-disk" for thread in threading.enumerate())


def test_hyperparameters_of_a_hundred_megabytes_are_cut_and_cost_no_time(tmp_path: Path) -> None:
    class Model(Watched):
        def __init__(self, table: Any) -> None:
            super().__init__()
            self.save_hyperparameters(logger=False)

        def on_train_start(self) -> None:
            super().on_train_start()
            assert len(read(self, "model/hparams.json")) < 2_000_000

    fitting = trainer(tmp_path)
    fitting.fit(Model(list(range(5_000_000))), batches(1))
    assert fitting.global_step == 1


IN_ASCII = """
import locale, sys
from pathlib import Path
from tests.midrun.shapes import Forward
from tests.midrun.test_inspectors import captured
assert locale.getpreferredencoding(False) == "ANSI_X3.4-1968"
captured(Forward(), Path(sys.argv[1]), "torchinfo_capture")
assert "\\u251c" in Path(next(Path(sys.argv[1]).rglob("torchinfo*"))).read_text(encoding="utf-8")
"""


def test_a_run_whose_locale_knows_ascii_alone_is_shown_and_steered_like_any_other(tmp_path: Path) -> None:
    ascii_alone = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}
    done = subprocess.run(
        [sys.executable, "-c", IN_ASCII, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **ascii_alone},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert b"failed" not in done.stderr
