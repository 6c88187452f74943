"""Tailing the log and what was done to a run."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midrun.cli.output import clock
from midrun.cli.tail import entry
from tests.midrun.commandline import made_up, midrun

LR = {"what": "optimizers/0/groups/0/lr", "old": 0.01, "new": 0.0005}

CHANGED = "optimizers/0/groups/0/lr 0.01 -> 0.0005"


def said(seconds: float, **members: Any) -> dict[str, Any]:
    """Return a line of the control log."""
    return {
        "revision": 1,
        "time": seconds,
        "event": "done",
        "kind": "set_learning_rate",
        "args": {"value": 5e-4, "group": None},
        "source": "rest",
        "place": {"global_step": 12},
        "changes": [LR],
        "error": None,
        **members,
    }


class Tail:
    """`midrun tail`, and what it prints."""

    def __init__(self, run: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "midrun", "tail", str(run), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def line(self) -> str:
        return self._lines.get(timeout=30)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made_up(tmp_path / "run")


@pytest.fixture
def tail(run: Path) -> Iterator[Tail]:
    (run / "midrun.log").write_text("first\n")
    tail = Tail(run)
    assert tail.line() == "first"
    yield tail
    tail.end()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({}, "step 12: rest: set_learning_rate value=0.0005: optimizers/0/groups/0/lr 0.01 -> 0.0005"),
        (
            {"changes": [LR] * 9, "args": {}},
            f"step 12: rest: set_learning_rate: {', '.join([CHANGED] * 4)}, and 5 more",
        ),
        (
            {"event": "failed", "changes": [], "args": {}, "error": {"message": "no\nway"}},
            "step 12: rest: set_learning_rate: failed: no way",
        ),
        (
            {"event": "held", "kind": "pause", "args": {"reason": "a b"}, "changes": [], "place": None},
            'no step: rest: pause reason="a b": held',
        ),
    ],
)
def test_an_entry_says_who_did_what_at_which_step(members: dict[str, Any], text: str) -> None:
    assert entry(said(0.0, **members)) == f"{clock(0.0)} {text}"


def test_it_begins_with_the_last_lines_of_both_by_time(run: Path) -> None:
    (run / "midrun.log").write_text(
        f"{clock(100)} INFO old\n{clock(200)} WARNING broken:\n  File x\n{clock(400)} INFO new\n"
    )
    lines = [json.dumps(said(300)), "cut sho", json.dumps(said(500))]
    (run / "control-log.jsonl").write_text("\n".join([*lines, ""]))
    code, out, err = midrun("tail", run, "--no-follow", "-n", "5")
    assert (code, err) == (0, "")
    assert [line.split(" ", 3)[1:3] for line in out.splitlines() if line[0] != " "] == [
        [clock(200).split()[1], "WARNING"],
        [clock(300).split()[1], "step"],
        [clock(400).split()[1], "INFO"],
        [clock(500).split()[1], "step"],
    ]
    assert out.splitlines()[1] == "  File x"
    assert midrun("tail", run, "--no-follow", "-n", "0") == (0, "", "")


def test_it_shows_what_comes(run: Path, tail: Tail) -> None:
    append(run / "midrun.log", "sec")
    append(run / "midrun.log", "ond ünï\n")
    assert tail.line() == "second ünï"
    append(run / "control-log.jsonl", f"{json.dumps(said(0.0))}\n")
    assert tail.line() == entry(said(0.0))


def test_it_goes_on_after_the_file_was_cut_or_moved(run: Path, tail: Tail) -> None:
    log = run / "midrun.log"
    log.write_text("cut\n")
    assert tail.line() == "cut"
    log.rename(run / "midrun.log.1")
    append(run / "midrun.log.1", "late\n")
    append(log, "moved\n")
    assert [tail.line(), tail.line()] == ["late", "moved"]


def test_ctrl_c_ends_it(tail: Tail) -> None:
    tail.process.send_signal(signal.SIGINT)
    assert tail.process.wait(30) == 130
    assert tail.process.stderr is not None
    assert tail.process.stderr.read() == ""


def test_it_ends_when_its_reader_leaves_though_nothing_comes(run: Path) -> None:
    (run / "midrun.log").write_text("first\n")
    reading, writing = os.pipe()
    words = [sys.executable, "-m", "midrun", "tail", str(run)]
    with subprocess.Popen(words, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        assert os.read(reading, 6) == b"first\n"
        os.close(reading)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
