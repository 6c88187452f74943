"""Services live as long as what they show: they start with it and are gone when it has ended, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.runs import Run
from tests.processes import output, wait_for

pytestmark = pytest.mark.mount

STAGES = ("validate", "test", "predict")


ENDINGS: dict[str, tuple[dict[str, Any], int | None, int, str]] = {
    # How it ends: what the plan says, which signal, the exit code, and what midrun calls it.
    "success": ({}, None, 0, "finished"),
    "exception": ({"raise_at": 7}, None, 1, "failed"),
    "sys.exit": ({"raise_at": 7, "exit": 3}, None, 3, "interrupted"),
    "Ctrl-C": ({"workers": 2}, signal.SIGINT, 1, "interrupted"),
    "SIGTERM": ({"workers": 2}, signal.SIGTERM, 0, "interrupted"),  # Lightning raises a SystemExit without a code
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left_and_the_exit_code_is_lightnings_own_after(start: Start, ending: str) -> None:
    plan, number, expected, outcome = ENDINGS[ending]
    plain = start(wait_at=5, **plan, midrun={"midrun_enabled": False})
    run = start(wait_at=5, **plan)
    for one in (plain, run):
        one.at()
    run.live()
    assert len(run.faces()) == 2
    for one in (plain, run):
        if number == signal.SIGINT:
            os.killpg(one.pid, number)  # as a terminal does
        elif number is not None:
            one.signal(number)
        one.go()
    assert run.ended() == expected, run.told()
    assert run.left() == []
    assert plain.ended() == expected, plain.told()
    assert run.record()["session"]["outcome"] == outcome
    assert run.record()["session"]["ended"] is not None
    state = run.last_state()
    assert state["status"] == outcome
    assert (state["exception"] is None) is (ending == "success")
    if ending == "exception":
        assert (state["exception"]["type"], state["exception"]["message"]) == (
            "RuntimeError",
            "the plan says so",
        )
    assert not run.procfs.exists()
    if ending == "success":
        run.assert_content()


def test_an_exception_in_setup_leaves_nothing(start: Start) -> None:
    run = start("broken_setup")
    assert run.ended() == 1
    assert run.left() == []
    assert "the plan says so" in run.err


@pytest.mark.timeout(1500)  # its own deadline is shorter
def test_fits_one_after_the_other_keep_the_port_and_leak_no_thread_and_no_file(
    start: Start, times: Callable[[int], int]
) -> None:
    count = times(300)
    run = start("fits", count=count, steps=2, batches=2)
    assert run.ended(seconds=3 * count) == 0, run.told()
    noted = run.mark("noted")
    assert {one["url"] for one in noted} == {noted[0]["url"]}
    for what in ("threads", "files"):
        assert max(one[what] for one in noted[2:]) <= noted[1][what], noted
    assert run.left() == []
    run.assert_content()


def test_each_stage_is_shown_while_it_runs(start: Start) -> None:
    run = start("stages", wait_at=5, wait_in=list(STAGES))
    run.at()
    run.live()
    assert (run.cat("state/stage"), run.rest("state/stage")) == ("train\n", b"train\n")
    run_id = run.cat("meta/run-id")
    run.go()
    for stage in STAGES:
        run.at(f"waiting-{stage}")
        run.live()
        assert (run.cat("state/stage"), run.rest("state/stage")) == (f"{stage}\n", f"{stage}\n".encode())
        assert run.cat("meta/run-id") == run_id
        run.go(f"-{stage}")
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()


def test_two_runs_at_once_on_one_machine_have_different_ports_and_show_themselves(start: Start) -> None:
    first = start(wait_at=5)
    first.live()
    second = start(wait_at=5, midrun={"rest_port": first.first_port})
    for run in (first, second):
        run.at()
        run.live()
    assert first.port == first.first_port != second.port
    for run in (first, second):
        assert_shows_itself(run)
    first.go()
    assert first.ended() == 0
    assert first.left() == []
    assert_shows_itself(second)
    second.go()
    assert second.ended() == 0
    for run in (first, second):
        assert run.left() == []
        run.assert_content()


@pytest.mark.parametrize("how", ["threads", "nested"])
def test_two_models_at_once_in_one_process_are_two_runs(start: Start, how: str) -> None:
    if how == "nested":
        # The outer one stands still in a callback while the inner one waits in a step.
        outer = start(how, inner={"wait_at": 3, "logger": "w"})
    else:
        outer = start(how, wait_at=3, both=[{"logger": "v"}, {"logger": "w"}])
    inner = outer.other("w")
    outer.at()
    for run in (outer, inner):
        run.live()
    # A callback's turn at a batch's end is before the model's, and so before the safe point there.
    assert (outer.step(), inner.step()) == (2 if how == "nested" else 3, 3)
    assert outer.port != inner.port
    assert outer.cat("meta/run-id") != inner.cat("meta/run-id")
    assert len(outer.faces()) == 4
    for run in (outer, inner):
        assert run.cat("meta/run-dir") == f"{run.directory}\n"
        assert run.cat("meta/rest/url") == f"http://127.0.0.1:{run.port}\n"
    outer.go()
    assert outer.ended() == 0, outer.told()
    for run in (outer, inner):
        assert run.left() == []
        assert run.record()["session"]["outcome"] == "finished"
        run.assert_content()


def assert_shows_itself(run: Run) -> None:
    url = output("cat", run.procfs / "meta/rest/url").strip()
    assert url == f"http://127.0.0.1:{run.port}"
    run_id = run.record()["run_id"]
    assert run.cat("meta/run-id") == f"{run_id}\n"
    assert run.cat("meta/pid") == f"{run.pid}\n"
    assert output("curl", "-sS", f"{url}/files/meta/run-id") == f"{run_id}\n"
    assert f'"run_id": "{run_id}"' in output("curl", "-sS", f"{url}/health")


def test_global_step_rises_under_a_repeated_cat_and_a_repeated_curl(start: Start) -> None:
    run = start(until=True, step_s=0.002).live()
    seen = {"cat": -1, "curl": -1}

    def rose() -> bool:
        now = {
            "cat": int(run.cat("state/global-step")),
            "curl": int(output("curl", "-sS", f"{url}/files/state/global-step")),
        }
        assert all(now[who] >= seen[who] for who in seen), (now, seen)
        risen.append(all(now[who] > seen[who] for who in seen))
        seen.update(now)
        return sum(risen) >= 5

    url = run.cat("meta/rest/url").strip()
    risen: list[bool] = []
    wait_for(rose, "the step rises five times", every=0.15)
    run.enough()
    assert run.ended() == 0
    assert run.left() == []
    run.assert_content()


def test_a_program_that_waits_for_all_its_children_does_not_wait_for_the_faces(start: Start) -> None:
    run = start(touch="waited_for")
    run.at("touched", 20)
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()
