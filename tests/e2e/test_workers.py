"""DataLoader workers are forks of the trainer, and have nothing of midrun's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.conftest import Start
from tests.e2e.machine import children_of, open_files
from tests.e2e.runs import Run
from tests.processes import wait_for

pytestmark = pytest.mark.mount


def workers_of(run: Run) -> list[int]:
    return [pid for pid in children_of(run.pid) if pid not in run.faces()]


def held_by(run: Run, worker: int) -> list[str]:
    """Return what a worker holds of the run's: ends of wires, the port, the mount's device, files in the mount."""
    sockets = {target for pid in (run.pid, *run.faces()) for target in open_files(pid) if target.startswith("socket:")}
    held = set(open_files(worker))
    return sorted(held & sockets) + [target for target in held if target.startswith(("/dev/fuse", str(run.procfs)))]


def test_workers_hold_no_wire_no_port_and_no_mount(start: Start) -> None:
    run = start(wait_at=5, workers=2)
    run.at()
    run.live()
    ours = [target for target in open_files(run.pid) if target.startswith("socket:")]
    assert len(ours) == 4  # a wire to each face and what tells of its end, and no listening port
    workers = workers_of(run)
    assert len(workers) == 2
    for worker in workers:
        assert held_by(run, worker) == []
    run.go()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()


def test_workers_that_are_forked_anew_each_epoch_while_faces_are_read_do_their_work(start: Start) -> None:
    run = start(until=True, workers=2, batches=10).live()
    loop = "import sys\nwhile True:\n    for path in sys.argv[1:]:\n        open(path).read()"
    reader = subprocess.Popen(
        [sys.executable, "-c", loop, run.procfs / "state/index.json", run.procfs / "state/global-step"],
        stderr=subprocess.DEVNULL,
    )
    try:
        epoch = int(run.rest("state/epoch"))
        wait_for(lambda: int(run.rest("state/epoch")) >= epoch + 5, "five epochs", 50)
        workers = workers_of(run)
        # Some may have been forked a moment ago.
        wait_for(
            lambda: not any(held_by(run, worker) for worker in workers), "the workers hold nothing of the run's", 5
        )
        assert reader.poll() is None
    finally:
        reader.kill()
        reader.wait()
    run.enough()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()
