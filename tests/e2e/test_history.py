"""What a run has logged is on the disk, whatever becomes of the run."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

from midrun.fs.curves import Attempt, curve_of
from tests.e2e.conftest import Start
from tests.e2e.runs import Run
from tests.midrun.commandline import midrun
from tests.processes import on_this_machine, sh, wait_for


def logged(run: Run, name: str = "train/loss") -> Attempt:
    """Return the points of a run that has one session."""
    found = curve_of(run.directory / "history", name, points=10**6)
    assert found is not None
    [attempt] = found["attempts"]
    return attempt


def test_a_killed_run_has_left_every_step_but_those_of_its_last_moment(
    start: Start, times: Callable[[int], int]
) -> None:
    for number in range(times(20)):
        run = start(until=True, step_s=0.001, midrun={"fuse_enabled": False, "rest_enabled": False})
        wait_for(lambda run=run: (run.root / "steps").exists(), "the first steps")  # type: ignore[misc]
        run.passes(100 + 317 * number)
        killed = time.time()
        run.signal(signal.SIGKILL)
        assert run.ended() == -signal.SIGKILL
        attempt = logged(run)
        assert attempt["steps"] == list(range(1, len(attempt["steps"]) + 1))
        assert killed - attempt["times"][-1] < on_this_machine(2)
        assert attempt["times"] == sorted(attempt["times"])


def test_the_disk_the_route_the_file_and_the_command_line_agree(start: Start) -> None:
    run = start(until=True, step_s=0.005).live()
    run.passes(50)
    run.post("/control/hold")
    wait_for(lambda: run.shown("holds/index.json")["active"], "it is held")
    last = run.shown("state/metrics/index.json")["global_step"]
    wait_for(lambda: logged(run)["steps"][-1] == last, "the disk has the last step")
    attempt = logged(run)
    status, body, _ = run.get("/history?name=train/loss&points=50000")
    assert status == 200
    served = json.loads(body)
    assert served["attempts"] == [attempt]
    file = run.rest("history/train%2Floss.csv").decode().splitlines()
    step, _, value = file[-1].split(",")
    assert (int(step), float(value)) == (last, attempt["values"][-1])
    assert sh("readlink", run.procfs / "history" / "rows").stdout == f"{run.directory}/history\n"
    code, out, _ = midrun("history", run.directory, "train/loss", "--from", str(last))
    assert (code, out.splitlines()[1:]) == (0, [f"{last},{attempt['times'][-1]:.3f},{attempt['values'][-1]!r}"])
    run.post("/control/continue")
    run.enough()
    assert run.ended() == 0, run.told()
    run.assert_content()
