"""What is left when processes are killed: of a killed trainer nothing, and a killed face is there again."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Report, Start
from tests.e2e.machine import alive, children_of, end, faces_of, mounts, open_files
from tests.e2e.runs import MOUNT, WEB, Run
from tests.processes import on_this_machine, sh, stand_still, wait_for

pytestmark = pytest.mark.mount

GONE_SECONDS = 1.0
"""Seconds after a trainer's death in which mount, port and face processes are gone."""
STALL_SECONDS = 0.2
_PIDFD_GETFD = 438
"""Number of the system call, the same on every machine."""
RESTART_SECONDS = 20.0


def test_a_killed_trainer_with_a_live_and_a_stuck_worker_leaves_no_mount_no_port_and_no_face(
    start: Start, report: Report, times: Callable[[int], int]
) -> None:
    spent = []
    for _ in range(times(30)):
        run = start(workers=2, stuck=6)
        run.at("stuck")
        run.live()
        stuck = int((run.root / "stuck").read_text())
        assert len(children_of(run.pid)) == 2, "the faces are no children of the trainer"
        run.signal(signal.SIGKILL)
        spent.append(run.gone())
        assert alive(stuck)
        end(stuck)
        assert run.ended() == -signal.SIGKILL
    report("seconds until all is gone, median", statistics.median(spent))
    report("seconds until all is gone, longest", max(spent))
    assert statistics.median(spent) < on_this_machine(GONE_SECONDS), spent


def test_readers_blocked_by_a_killed_trainer_are_released(start: Start, report: Report) -> None:
    run = start(workers=2, stuck=6)
    run.at("stuck")
    run.live()
    url = run.cat("meta/rest/url").strip()
    # Nothing answers from here on, and neither file has been read before, so there is no last value to show.
    stand_still(run.pid)
    readers = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for command in (
            ["cat", str(run.procfs / "state/epoch")],
            ["curl", "-sS", f"{url}/files/state/batch"],
        )
    ]
    wait_for(lambda: all(_is_asking(reader.pid) for reader in readers), "both readers wait for an answer")
    began = time.monotonic()
    run.signal(signal.SIGKILL)
    for reader in readers:
        reader.wait(5)
    released = time.monotonic() - began
    errors = [reader.stderr.read() if reader.stderr else b"" for reader in readers]
    for reader in readers:
        if reader.stderr:
            reader.stderr.close()
    gone = run.gone()
    report("seconds until blocked readers are released", released)
    assert released < on_this_machine(GONE_SECONDS), errors
    assert gone < on_this_machine(GONE_SECONDS)
    assert readers[0].returncode != 0, errors


@pytest.mark.parametrize("module", [WEB, MOUNT])
def test_a_killed_face_is_started_again_and_training_is_untouched(start: Start, report: Report, module: str) -> None:
    run = start(until=True, step_s=0.002).live()
    port, killed = run.port, run.face(module)
    assert killed is not None
    began = time.monotonic()
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: run.face(module) not in {None, killed}, "there is a new face", RESTART_SECONDS)
    wait_for(lambda: run.answers() and _reads(run), "both faces serve", RESTART_SECONDS)
    report(f"seconds until {module} serves again", time.monotonic() - began)
    assert run.port == port
    service = "rest" if module == WEB else "fuse"
    wait_for(lambda: run.service(service) == ("running", None), "the service says so")
    assert not [pid for pid in children_of(run.pid, dead=True) if not alive(pid)]
    run.enough()
    assert run.ended() == 0, run.told()
    report("longest time between two steps", run.mark("gap"))
    assert run.mark("gap") < 1
    assert run.left() == []
    assert run.log.count("its process ended and is started again") == 1
    assert run.log.count("WARNING") == 1


def test_faces_killed_at_random_moments_while_they_are_read_leave_training_untouched_and_no_mount(
    start: Start, report: Report, times: Callable[[int], int]
) -> None:
    chance = random.Random(5)  # noqa: S311 - no secret
    deadline, kills, runs, gaps = time.monotonic() + times(60), 0, 0, []
    while time.monotonic() < deadline or runs < 2:
        run = start(until=True, step_s=0.002)
        run.at("steps")  # A training step that waits for nobody has been made.
        state = run.procfs / "state"
        reads = (
            f"while :; do cat {state}/index.json {state}/global-step; ls -l {state}; done",
            f"while :; do curl -s http://127.0.0.1:{run.first_port}/run; done",
        )
        readers = [
            subprocess.Popen(["bash", "-c", loop], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for loop in reads
        ]
        try:
            # Five of one face are endured; some are killed before they serve.
            for module in chance.sample([MOUNT] * 5 + [WEB] * 5, chance.randrange(2, 10)):
                time.sleep(chance.uniform(0, 0.4))  # the moment is the point
                if (face := run.face(module)) is not None:
                    os.kill(face, signal.SIGKILL)
                    kills += 1
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
        if runs % 2:
            # A mount that is killed together with its trainer is left to the next run: see the tests beside.
            wait_for(lambda run=run: _reads(run), "the mount serves", RESTART_SECONDS)  # type: ignore[misc]  # a default
            run.signal(signal.SIGKILL)
            assert run.ended() == -signal.SIGKILL
        else:
            run.enough()
            assert run.ended() == 0, run.told()
            gaps.append(run.mark("gap"))
        run.gone()
        runs += 1
    report("runs", runs)
    report("faces killed", kills)
    report("longest time between two steps", max(gaps))
    assert max(gaps) < on_this_machine(1)


def test_a_face_that_answers_garbage_is_started_again_and_nobody_else_notices(start: Start) -> None:
    run = start(until=True, step_s=0.002).live()
    for module, other in ((WEB, MOUNT), (MOUNT, WEB)):
        face, beside = run.face(module), run.face(other)
        assert face is not None
        with wire_of(face) as wire:
            # A header that announces more than there can be, as a face that has lost its place in the stream sends.
            wire.sendall(b"\xff" * 64)
        wait_for(lambda module=module, face=face: run.face(module) not in {None, face}, "there is a new face")  # type: ignore[misc]  # defaults
        run.live()
        assert run.face(other) == beside
    run.passes(20)
    run.enough()
    assert run.ended() == 0, run.told()
    assert run.mark("gap") < on_this_machine(1)
    assert run.left() == []
    assert "Traceback" not in run.err


@contextlib.contextmanager
def wire_of(face: int) -> Iterator[socket.socket]:
    """Have the face's end of its wire."""
    handed = json.loads(Path(f"/proc/{face}/cmdline").read_bytes().split(b"\0")[-2])
    pidfd = os.pidfd_open(face)
    try:
        fd = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, handed["wire"], 0)
        assert fd >= 0, os.strerror(ctypes.get_errno())
        with socket.socket(fileno=fd) as wire:
            yield wire
    finally:
        os.close(pidfd)


def test_signals_that_come_to_a_whole_job_do_not_end_a_face(start: Start) -> None:
    run = start(until=True).live()
    faces = run.faces()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        for face in faces:
            os.kill(face, number)
    run.passes(50)
    assert _reads(run)
    assert run.answers()
    assert run.faces() == faces
    run.enough()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()


def test_a_face_that_is_killed_too_often_is_reported_failed(start: Start) -> None:
    run = start(until=True, step_s=0.002).live()
    killed: set[int] = set()

    def failed() -> bool:
        face = run.face(MOUNT)
        if face is not None and face not in killed:
            os.kill(face, signal.SIGKILL)
            killed.add(face)
        return run.service("fuse")[0] == "failed"

    wait_for(failed, "the mount is reported failed", every=0.02)
    assert len(killed) == 6
    assert "its process ended 6 times" in (run.service("fuse")[1] or "")
    assert run.service("rest") == ("running", None)
    wait_for(lambda: not mounts(run.root), "no dead mount is left")
    run.enough()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    assert run.last_state()["services"]["fuse"]["state"] == "failed"


def test_a_mount_left_dead_by_killing_everything_at_once_is_removed_by_the_next_run(start: Start, root: Path) -> None:
    first = start(until=True, in_=root / "same").live()
    everybody = [*first.faces(), first.pid]
    stand_still(*everybody)  # nobody sees the others die
    for pid in everybody:
        os.kill(pid, signal.SIGKILL)
    assert first.ended() == -signal.SIGKILL
    wait_for(lambda: not any(map(alive, everybody)), "all are dead")
    assert mounts(root) == {str(first.procfs): "fuse"} or str(first.procfs) in mounts(root)
    assert "Transport endpoint is not connected" in sh("ls", first.procfs).stderr
    assert first.record()["session"]["ended"] is None
    second = start(wait_at=5, in_=root / "same")
    second.at()
    second.live()
    assert len(mounts(root)) == 1
    wait_for(lambda: _reads(second), "the new mount shows the new run")
    assert second.cat("meta/pid") == f"{second.pid}\n"
    second.go()
    assert second.ended() == 0, second.told()
    assert second.left() == []


def test_killed_at_random_moments_a_trainer_leaves_no_mount_no_process_and_no_port(
    start: Start, report: Report, times: Callable[[int], int]
) -> None:
    chance = random.Random(1)  # noqa: S311 - no secret
    runs, spent = [], []
    for number in range(times(200)):
        # Every fourth ends by itself at about the time when it is killed.
        run = start(until=number % 4 != 3, step_s=0.001, workers=number % 3, steps=50)
        runs.append(run)
        time.sleep(chance.uniform(0, 1.2))  # the moment is the point
        run.faces()
        end(run.pid)
        spent.append(run.gone())
        assert run.ended() in {-signal.SIGKILL, 0}, run.told()
    # A face that was just being started when its trainer died is found only now.
    wait_for(lambda: not [face for run in runs for face in faces_of(run.pid)], "no face is left", 5)
    left = [f"{run.pid}: {what}" for run in runs for what in run.left()]
    assert not left
    report("kills", len(spent))
    report("seconds until all is gone, median", statistics.median(spent))
    report("seconds until all is gone, longest", max(spent))
    assert statistics.median(spent) < on_this_machine(GONE_SECONDS)


def test_killing_the_whole_session_of_a_trainer_leaves_nothing(start: Start) -> None:
    run = start(until=True, workers=2).live()
    os.killpg(run.pid, signal.SIGKILL)
    run.gone()
    assert run.ended() == -signal.SIGKILL


@pytest.mark.parametrize("ending", ["kill", "success"])
def test_a_child_that_was_forked_past_python_keeps_nothing_alive(start: Start, ending: str) -> None:
    run = start(until=True, step_s=0.001, touch="c_fork")
    run.at("touched")
    run.live()
    [child] = {*children_of(run.pid)} - {*run.faces()}
    assert len([target for target in open_files(child) if target.startswith("socket:")]) >= 2  # the wires
    if ending == "kill":
        run.signal(signal.SIGKILL)
        assert run.gone() < on_this_machine(GONE_SECONDS)
        assert run.ended() == -signal.SIGKILL
    else:
        run.enough()
        assert run.ended() == 0, run.told()
        assert run.left() == []
        run.assert_content()
    assert alive(child)


def test_a_face_that_stood_still_when_its_trainer_was_killed_cleans_up_once_it_goes_on(start: Start) -> None:
    run = start(until=True).live()
    faces = list(run.faces())
    stand_still(*faces)
    run.signal(signal.SIGKILL)
    assert run.ended() == -signal.SIGKILL
    assert mounts(run.root)
    for face in faces:
        os.kill(face, signal.SIGCONT)
    assert run.gone() < on_this_machine(GONE_SECONDS)


def test_a_terminal_that_is_closed_takes_everything_with_it(start: Start) -> None:
    run = start(until=True, workers=1).live()
    os.killpg(run.pid, signal.SIGHUP)
    assert run.ended() == -signal.SIGHUP
    assert run.gone() < on_this_machine(GONE_SECONDS)


# Reads until its standard input ends, and says how long the longest read took.
STEADY = """
import select, sys, time
longest = 0.0
while not select.select([sys.stdin], [], [], 0.002)[0]:
    began = time.monotonic()
    open(sys.argv[1]).read()
    longest = max(longest, time.monotonic() - began)
print(longest)
"""


def test_readers_killed_while_they_read_stall_neither_training_nor_other_readers(
    start: Start, report: Report, times: Callable[[int], int]
) -> None:
    chance = random.Random(2)  # noqa: S311 - no secret
    run = start(until=True, step_s=0.002).live()
    reads = f"while :; do read -r x < {run.procfs}/state/global-step; read -r x < {run.procfs}/state/index.json; done"
    steady = subprocess.Popen(
        [sys.executable, "-S", "-c", STEADY, run.procfs / "state/epoch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(times(300)):
        reader = subprocess.Popen(["bash", "-c", reads])
        time.sleep(chance.uniform(0.005, 0.03))  # the moment is the point
        reader.send_signal(chance.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
        reader.wait(10)
    longest = float(steady.communicate("")[0])
    run.enough()
    assert run.ended() == 0, run.told()
    report("longest time between two steps", run.mark("gap"))
    report("longest read beside them", longest)
    assert run.mark("gap") < on_this_machine(STALL_SECONDS)
    assert longest < on_this_machine(STALL_SECONDS)
    assert run.left() == []
    run.assert_content()


def test_last_state_and_run_json_are_whole_after_a_kill(start: Start) -> None:
    run = start(until=True).live()
    run.signal(signal.SIGKILL)
    assert run.ended() == -signal.SIGKILL
    run.gone()
    assert run.record()["session"]["ended"] is None
    names = {path.name for path in run.directory.iterdir()}
    for name in names & {"run.json", "last-state.json"}:
        json.loads((run.directory / name).read_text())


def _reads(run: Run) -> bool:
    """Whether the mount answers, for this trainer."""
    done = sh("cat", run.procfs / "meta/pid", seconds=5)
    return done.stdout == f"{run.pid}\n"


def _is_asking(pid: int) -> bool:
    """Whether a reader is where it waits for an answer: in the mount, or for its socket; some kernels do not tell."""
    where = Path(f"/proc/{pid}/wchan").read_text()
    return where in {"", "0"} or any(word in where for word in ("fuse", "request", "poll"))
