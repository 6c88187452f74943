"""Faces as processes: they come, tell how they fare, and end with the trainer however it ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from midrun.fs.answers import Answers
from midrun.fs.page import Page
from midrun.fs.wire import Wire
from tests.fs.launch import launch
from tests.fs.sample import Sample, answering, file_behind, open_files, wait_until

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stage:
    """A trainer, which is this process, with one face."""

    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.root, self.page = Sample(), Page()
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.cleaned = tmp_path / "cleaned"
        self._options = options

    @contextmanager
    def playing(self) -> Iterator[tuple[Answers, subprocess.Popen[str]]]:
        with answering(self.root, self.page) as answers:
            face = launch(
                answers,
                self.page,
                lambda *notice: self.heard.append(notice),
                cleaned=str(self.cleaned),
                **self._options,
            )
            try:
                yield answers, face
            finally:
                face.kill()
                face.wait()
                if face.stderr is not None:
                    face.stderr.close()


def ended(pid: int, seconds: float = 20.0) -> float:
    """Wait until a process has ended; return how long that took. It need not be a child, nor be reaped."""
    begun = time.monotonic()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0.0
    try:
        assert select.select([pidfd], [], [], seconds)[0], "it goes on"
    finally:
        os.close(pidfd)
    return time.monotonic() - begun


def test_a_face_tells_when_it_serves_and_asks_over_its_wire(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="poll")
    with stage.playing() as (_, face):
        wait_until(lambda: stage.heard)
        ((notice, detail),) = stage.heard
        assert notice == "running"
        assert detail["pid"] == detail["session"] == face.pid
        assert detail["nice"] == min(19, os.nice(0) + 5)
        wait_until(lambda: stage.root.shown["fresh"] > 5)


def test_a_face_loads_nothing_heavy(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="poll")
    with stage.playing():
        wait_until(lambda: stage.heard)
    loaded = {name.partition(".")[0] for name in stage.heard[0][1]["modules"]}
    assert loaded & {"torch", "lightning", "numpy", "pydantic", "pydantic_core"} == set()
    assert "trio" in loaded


def test_a_face_tells_why_it_cannot_serve(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="fail")
    with stage.playing() as (answers, face):
        assert face.wait(20) == 0
        wait_until(lambda: stage.heard)
        assert stage.heard == [("failed", {"reason": "there is no port left"})]
        wait_until(lambda: not answers._wires)


def test_a_face_that_breaks_ends_and_leaves_its_traceback(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="crash")
    with stage.playing() as (answers, face):
        _, errors = face.communicate(timeout=20)
        assert face.returncode == 1
        assert "ZeroDivisionError: by nought" in errors
        assert stage.cleaned.exists()
        wait_until(lambda: not answers._wires)


def test_a_face_sees_the_generation_on_the_page(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="watch generation")
    with stage.playing():
        for _ in range(3):
            stage.page.bump()
        wait_until(lambda: stage.heard)
    assert stage.heard == [("running", {"step": "7\n"})]


def test_a_face_marks_its_questions_on_the_page(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="poll")
    with stage.playing():
        wait_until(lambda: stage.heard)
        wait_until(lambda: stage.page.asked(1))
        assert stage.page.asked(0) == 0, "its slot is the second"
        wait_until(lambda: stage.page.asks[0] == stage.page.asks[1])


def test_a_face_ends_when_the_trainer_says_quit(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="poll")
    with stage.playing() as (answers, face):
        wait_until(lambda: stage.heard)
        answers.stop()
        assert ended(face.pid) < 1
        _, errors = face.communicate()
        assert (face.returncode, errors) == (0, "")
        assert stage.cleaned.read_text() == "cleaned"


def test_a_face_that_is_told_to_quit_before_it_serves_ends_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="poll")
    with stage.playing() as (answers, face):
        answers.stop()
        _, errors = face.communicate(timeout=20)
        assert (face.returncode, errors) == (0, "")


def test_a_face_that_asks_once_more_after_the_quit_ends_as_well(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="outlive")
    with stage.playing() as (answers, face):
        wait_until(lambda: stage.heard)
        answers.stop()
        _, errors = face.communicate(timeout=20)
        assert (face.returncode, errors) == (0, "")


def test_signals_to_whole_groups_are_for_the_trainer_to_interpret(tmp_path: Path) -> None:
    stage = Stage(tmp_path, do="poll")
    with stage.playing() as (answers, face):
        wait_until(lambda: stage.heard)
        for number in SIGNALS * 3:
            os.killpg(face.pid, number)
        before = stage.root.shown["fresh"]
        wait_until(lambda: stage.root.shown["fresh"] > before + 5)
        assert face.poll() is None
        answers.stop()
        assert face.wait(20) == 0


def test_a_face_ends_within_a_second_when_the_trainer_is_killed_though_a_child_holds_its_sockets(
    tmp_path: Path,
) -> None:
    cleaned = tmp_path / "cleaned"
    command = [sys.executable, "-m", "tests.fs.doomed", str(cleaned)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        child, face = map(int, trainer.stdout.readline().split())
        try:
            trainer.kill()
            assert ended(face) < 1
            assert cleaned.read_text() == "cleaned"
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)
            ended(child)


def test_a_face_whose_trainer_has_gone_ends_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    stage = Stage(tmp_path, do="poll", trainer=gone.pid)
    with stage.playing() as (_, face):
        _, errors = face.communicate(timeout=20)
        assert (face.returncode, errors, stage.heard) == (0, "", [])
        assert not stage.cleaned.exists()


def test_a_face_whose_trainers_number_is_another_process_by_now_ends_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        stage = Stage(tmp_path, do="poll", trainer=other.pid)
        with stage.playing() as (_, face):
            _, errors = face.communicate(timeout=20)
            assert (face.returncode, errors, stage.heard) == (0, "", [])
        other.kill()


@pytest.mark.parametrize("listeners", [0, 3])
def test_a_face_that_is_started_while_others_run_holds_nothing_of_theirs(tmp_path: Path, listeners: int) -> None:
    stage = Stage(tmp_path, do="poll")
    others = [socket.create_server(("127.0.0.1", 0)) for _ in range(listeners)]
    with stage.playing() as (answers, _):
        wait_until(lambda: stage.heard)
        second = launch(answers, stage.page, lambda *_: None, cleaned=str(tmp_path / "other"), do="poll")
        wait_until(lambda: stage.page.asked(1))
        ours = {file_behind(end.fileno()) for end in [*others, *(wire.socket for wire in answers._wires)]}
        assert ours.isdisjoint(open_files(second.pid))
        second.kill()
        second.communicate()
    for listener in others:
        listener.close()


def test_a_wire_is_all_that_a_face_needs_to_notify() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Wire(theirs).notify("running")
        assert b'"running"' in ours.recv(1 << 16)
