"""Processes that stand still: neither face nor trainer needs the other to go on."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.e2e.conftest import Report, Start
from tests.e2e.runs import MOUNT, WEB
from tests.processes import stand_still, wait_for

pytestmark = pytest.mark.mount

AGE = "x-midrun-age"


@pytest.mark.parametrize("modules", [(WEB,), (MOUNT,), (WEB, MOUNT)], ids=["web", "mount", "both"])
def test_a_face_that_stands_still_does_not_disturb_training(
    start: Start, report: Report, modules: tuple[str, ...]
) -> None:
    run = start(until=True, step_s=0.002).live()
    for module in modules:
        face = run.face(module)
        assert face is not None
        stand_still(face)
    run.passes(100)
    began = time.monotonic()
    run.enough()
    assert run.ended() == 0, run.told()
    report("seconds to end a run", time.monotonic() - began)
    report("longest time between two steps", run.mark("gap"))
    assert run.mark("gap") < 1
    assert run.left() == []


def test_a_trainer_that_stands_still_is_shown_as_it_was_and_rest_says_how_long_ago(
    start: Start, report: Report
) -> None:
    run = start(until=True, step_s=0.002).live()
    path = "/files/state/global-step"
    status, before, headers = run.get(path)
    assert (status, AGE in headers) == (200, False)
    run.cat("state/global-step")
    stand_still(run.pid)
    # The first answer may be one that was on its way.
    wait_for(lambda: AGE in run.get(path)[2], "old values are marked", 5)
    began = time.monotonic()
    status, body, headers = run.get(path)
    report("seconds for an old value by REST", time.monotonic() - began)
    assert status == 200
    assert int(body) >= int(before)
    began = time.monotonic()
    shown = run.cat("state/global-step")
    report("seconds for an old value by cat", time.monotonic() - began)
    assert int(shown) >= int(before)
    _, later, headers_later = run.get(path)
    assert later == body
    assert float(headers_later[AGE]) > float(headers[AGE]) > 0
    health = json.loads(run.get("/health")[1])
    assert (health["status"], health["trainer_answers"]) == ("ok", False)
    run.signal(signal.SIGCONT)
    wait_for(lambda: AGE not in run.get(path)[2] and run.step() > int(body), "the step rises again", 5)
    run.enough()
    assert run.ended() == 0
    assert run.left() == []
