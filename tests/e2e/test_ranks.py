"""A run of two processes is one run: all ranks know its directory, and rank zero shows it."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import alive, end, faces_of, session_of
from tests.e2e.runs import Run, Script
from tests.processes import wait_for

pytestmark = [pytest.mark.mount, pytest.mark.ddp, pytest.mark.timeout(110)]

STARTED = 90.0
"""Seconds in which both ranks have imported Lightning and found each other, on a machine with other things to do."""


@pytest.fixture
def run(root: Path) -> Iterator[Run]:
    script = Script("distributed", {"wait_at": 5, "workers": 1, "midrun": {"torch_debug_enabled": False}}, root)
    yield script.run
    script.clean()


def test_a_run_of_two_ranks_has_its_services_on_rank_zero_alone(run: Run) -> None:
    run.at("waiting-0", STARTED)
    run.at("waiting-1", STARTED)
    run.live()
    wait_for(lambda: (told := shown(run)) and json.loads(told)["global_step"] == 5, "rank 1 has told where it is")
    ranks = [json.loads(run.cat(f"meta/ranks/{rank}.json")) for rank in (0, 1)]
    assert [(rank["rank"], rank["world_size"]) for rank in ranks] == [(0, 2), (1, 2)]
    assert [rank["global_step"] for rank in ranks] == [5, 5]
    assert ranks[0]["pid"] == run.pid
    assert run.shown_names("meta/ranks") == ["0.json", "1.json", "index.json"]
    directories = {(run.root / f"run-dir-{rank}").read_text() for rank in (0, 1)}
    assert directories == {str(run.directory)}
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


def shown(run: Run) -> str | None:
    """Return what rank zero shows of rank 1, once it knows it."""
    return run.rest("meta/ranks/1.json").decode() if "1.json" in run.shown_names("meta/ranks") else None


def watches(descriptors: Path) -> bool:
    """Whether a process watches files."""
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "inotify wd" in descriptor.read_text():
                return True
    return False


def test_hooks_run_on_every_rank_where_they_are_to(root: Path) -> None:
    hooks = root / "own/light"
    hooks.mkdir(parents=True)
    script = hooks / "on_train_batch_end.sh"
    script.write_text('grep -E "\\"(rank|run_id)\\":" "$1" >> "rank-$MIDRUN_RANK"; echo "rank $MIDRUN_RANK"')
    script.chmod(0o755)
    plan = {
        "wait_at": 5,
        "workers": 1,
        "midrun": {"hooks_source_dir": str(root / "own"), "hooks_rank_policy": "all", "torch_debug_enabled": False},
    }
    trainer = Script("distributed", plan, root)
    run = trainer.run
    try:
        run.at("waiting-0", STARTED)
        run.at("waiting-1", STARTED)
        run.live(mount=False)
        other = Path("/proc", str(json.loads(wait_for(lambda: shown(run), "rank 1 is known"))["pid"]), "fdinfo")
        wait_for(lambda: watches(other), "rank 1 watches the scripts")
        run.go()
        assert run.ended(60) == 0, run.told()
        for rank in (0, 1):
            called = (run.directory / f"rank-{rank}").read_text().splitlines()
            told = [line.strip().rstrip(",") for line in called]
            assert set(told) == {f'"rank": {rank}', f'"run_id": "{run.record()["run_id"]}"'}
            assert len(told) >= 2 * 15  # of twenty steps, those after the fifth
        assert "hook light/on_train_batch_end.sh: rank 1" in (run.directory / "midrun-rank-1.log").read_text()
        assert "rank 1" not in run.log
        run.assert_content()
    finally:
        trainer.clean()


def test_when_the_backward_of_a_later_rank_raises_rank_zero_does_not_stand_until_it_is_killed(root: Path) -> None:
    trainer = Script("distributed", {"fail_at": 5, "fail_rank": 1, "workers": 0}, root)
    run = trainer.run
    try:
        ended = run.ended(STARTED)
        assert "backward has failed, as the plan says" in run.err  # what rank 1 raised
        # Rank zero waited for a rank that is no more: what it raises for that is nothing to stand with.
        assert "The run is held" not in run.log
        assert run.last_state()["exception"]["type"] == "RuntimeError"
        # Every five seconds Lightning looks for ranks that have failed, and then kills all others, at their end too.
        assert ended in {1, -signal.SIGKILL}, run.told()
        if ended == 1:
            assert run.record()["session"]["outcome"] == "failed"
        run.gone()
    finally:
        trainer.clean()


def test_when_both_ranks_are_killed_nothing_is_left(run: Run) -> None:
    run.at("waiting-0", STARTED)
    run.at("waiting-1", STARTED)
    run.live()
    for pid in session_of(run.pid):
        end(pid, signal.SIGKILL)
    run.gone()


@pytest.mark.parametrize(("strategy", "method"), [("ddp_spawn", "spawn"), ("ddp_fork", "fork")])
@pytest.mark.parametrize("strict", [False, True])
def test_a_strategy_that_copies_the_process_is_refused(strategy: str, method: str, strict: bool, root: Path) -> None:
    trainer = Script("copied", {"strategy": strategy, "steps": 3, "midrun": {"inspection_strict": strict}}, root)
    try:
        assert trainer.run.ended(STARTED) == int(strict)
        why = f"the ranks were made by {method!r}, as with strategy={strategy!r}, which midrun does not support: use "
        assert f"{why}strategy='ddp'" in trainer.run.err
        assert ("Training goes on without midrun" in trainer.run.err) == (not strict)
        assert not (root / "logs/v/run.json").exists()
    finally:
        trainer.clean()
