"""A run of two processes is one run: all ranks know its directory, and rank zero shows it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import alive, end, faces_of, session_of, wait_for
from tests.e2e.runs import Run, Script

pytestmark = [pytest.mark.mount, pytest.mark.ddp, pytest.mark.timeout(110)]

STARTED = 90.0
"""Seconds in which both ranks have imported Lightning and found each other, on a machine with other things to do."""


@pytest.fixture
def run(root: Path) -> Iterator[Run]:
    script = Script("distributed", {"wait_at": 5, "workers": 1}, root)
    yield script.run
    script.clean()


def test_a_run_of_two_ranks_has_its_services_on_rank_zero_alone(run: Run) -> None:
    run.at("waiting-0", STARTED)
    run.at("waiting-1", STARTED)
    run.live()
    ranks = [json.loads(run.cat(f"meta/ranks/{rank}.json")) for rank in (0, 1)]
    assert [(rank["rank"], rank["world_size"]) for rank in ranks] == [(0, 2), (1, 2)]
    assert ranks[0]["pid"] == run.pid
    assert run.shown_names("meta/ranks") == ["0.json", "1.json"]
    directories = {(run.root / f"run-dir-{rank}").read_text() for rank in (0, 1)}
    assert directories == {str(run.directory)}
    # What one rank alone would do could hang the others, or make them differ.
    for kind, args in (
        ("pause", {}),
        ("hold", {}),
        ("stop", {}),
        ("checkpoint", {}),
        ("set_learning_rate", {"value": 1}),
    ):
        status, body, _ = run.post(f"/control/{kind}", json.dumps(args))
        assert status == 409, (kind, body)
        assert "runs of one process only" in json.loads(body)["detail"]
    other = ranks[1]["pid"]
    assert alive(other)
    assert faces_of(other) == {}
    assert len(run.faces()) == 2
    run.go()
    assert run.ended(60) == 0, run.told()
    assert run.left() == []
    wait_for(lambda: session_of(run.pid) == [], "no rank and no worker is left")
    assert run.record()["session"]["outcome"] == "finished"
    run.assert_content()


def test_when_both_ranks_are_killed_nothing_is_left(run: Run) -> None:
    run.at("waiting-0", STARTED)
    run.at("waiting-1", STARTED)
    run.live()
    for pid in session_of(run.pid):
        end(pid, signal.SIGKILL)
    run.gone()
