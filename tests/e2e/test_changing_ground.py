"""A run whose clock is set, or whose disk fails, while it trains: it trains on, and says what it could not do."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Report
from tests.e2e.machine import is_json, shown
from tests.e2e.runs import Run, Script
from tests.e2e.shim import Shim
from tests.processes import output, wait_for

pytestmark = pytest.mark.mount

DAY = 24 * 3600.0
FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS}
COMMANDS: dict[str, dict[str, Any]] = {
    "set_learning_rate": {"value": 0.001},
    "set_hparam": {"name": "hparams.l2", "value": 0.5},
    "snapshot": {},
    "checkpoint": {},
    "save_current_batch": {},
    "save_partial_gradients": {},
    "pause": {},
}
KEEPS = ("snapshot", "checkpoint", "save_current_batch", "save_partial_gradients")
"""Those that can't be done where nothing can be written."""


@contextlib.contextmanager
def standing_on(shim: Shim, folder: Path, **plan: Any) -> Iterator[Run]:
    """Have a trainer on ground that changes, which trains until it is told that it is enough."""
    # No logger: what Lightning itself writes on a disk that fails is no matter of ours.
    plan = {"until": True, "step_s": 0.002, "logger": None, **plan}
    trainer = Script("fit", plan, folder, shim.environ)
    try:
        trainer.run.find()
        yield trainer.run.live()
    finally:
        trainer.clean()


@pytest.fixture
def shim(root: Path) -> Shim:
    """Ground that works, until it is told otherwise: the disk is where the run's directory is."""
    return Shim(root, root / "midrun")


def sent(run: Run, kind: str) -> str:
    """Send a command; return its id."""
    status, body, _ = run.post("/commands", json.dumps({"kind": kind, "args": COMMANDS[kind]}))
    assert status == 200, body
    return str(json.loads(body)["id"])


def over(run: Run, id_: str) -> dict[str, Any]:
    """Wait until a command is over; return it."""

    def ended() -> dict[str, Any] | None:
        status, body, _ = run.get(f"/commands/{id_}")
        if status == 404:  # A file that has not been taken in yet.
            return None
        record: dict[str, Any] = json.loads(body)
        if record["kind"] == "pause" and record["status"] == "executing":
            run.post(f"/holds/{id_}/release")
        return record if record["status"] not in {"queued", "executing"} else None

    return wait_for(ended, f"{id_} is over")


def well(run: Run) -> bool:
    """Whether every service works."""
    services = run.shown("state/services.json")["services"]
    return all(service["state"] in {"running", "off"} for service in services.values())


def ends_well(run: Run) -> None:
    """Have a run end, and check that nothing is left of it, nor ended without being told."""
    run.enough()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    for word in ("Exception ignored", "Exception in thread", "ResourceWarning"):
        assert word not in run.err, run.told()


# ---- the disk


@pytest.mark.parametrize("fault", FAULTS)
def test_on_a_disk_that_takes_no_change_training_goes_on_and_commands_say_what_they_could_not_write(
    shim: Shim, root: Path, fault: str
) -> None:
    with standing_on(shim, root) as run:
        shim.fail(FAULTS[fault])
        for kind in COMMANDS:
            record = over(run, sent(run, kind))
            assert not record["durable"], record
            if kind in KEEPS:
                assert record["status"] == "failed", record
                assert os.strerror(FAULTS[fault]) in record["error"]["message"], record
            else:
                assert record["status"] == "succeeded", record
        run.passes(20)
        services = run.shown("state/services.json")["services"]
        assert (services["rest"]["state"], services["fuse"]["state"]) == ("running", "running")
        assert os.strerror(FAULTS[fault]) in services["spool"]["reason"]
        shim.heal()
        for kind in COMMANDS:
            record = over(run, sent(run, kind))
            assert record["status"] == "succeeded", record
        wait_for(lambda: well(run), "all is well again", 60)
        ends_well(run)
        for line in (run.directory / "control-log.jsonl").read_text().splitlines():
            json.loads(line)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_ends_on_a_disk_that_takes_no_change_ends_as_it_would(shim: Shim, root: Path, fault: str) -> None:
    with standing_on(shim, root) as run:
        shim.fail(FAULTS[fault])
        ends_well(run)


def test_on_a_disk_that_fails_now_and_then_no_command_is_lost_or_done_twice(
    shim: Shim, root: Path, report: Report, times: Callable[[int], int]
) -> None:
    chance = random.Random(3)  # noqa: S311 - no secret
    records: dict[str, dict[str, Any]] = {}
    with standing_on(shim, root) as run:
        deadline = time.monotonic() + times(60)
        while time.monotonic() < deadline:
            shim.fail(chance.choice([*FAULTS.values()]), chance.choice([0.05, 0.3, 0.9]))
            ids = [sent(run, chance.choice([*COMMANDS])) for _ in range(5)]
            records |= {id_: over(run, id_) for id_ in ids}
        shim.heal()
        last = sent(run, "set_learning_rate")
        records[last] = over(run, last)
        wait_for(lambda: well(run), "all is well again", 60)
        for record in records.values():
            if record["status"] != "succeeded":
                assert (record["kind"] in KEEPS, record["status"]) == (True, "failed"), record
        ends_well(run)
    spool = run.directory / "spool"
    # What is half written, and could not be taken away either, has a name with a dot: the next session removes it.
    assert [[*(spool / state).glob("[!.]*")] for state in ("new", "queued", "executing", "rejected")] == [[]] * 4
    written = [json.loads(path.read_bytes())["id"] for path in (spool / "done").glob("[!.]*")]
    assert len({*written}) == len(written)
    told = [json.loads(line) for line in (run.directory / "control-log.jsonl").read_text().splitlines()]
    done = [line["id"] for line in told if line["event"] in {"done", "failed"}]
    assert len({*done}) == len(done), "each is told once"
    for path in shown(run.directory, "*.json"):
        assert is_json(path), (path, path.read_bytes())
    report("commands", len(records))
    report("changes to the disk that failed", shim.failures)


# ---- the clock


@pytest.mark.parametrize("seconds", [-DAY, DAY], ids=["back", "forward"])
def test_a_clock_that_is_set_by_a_day_changes_nothing_but_the_times_that_are_told(
    shim: Shim, root: Path, seconds: float
) -> None:
    with standing_on(shim, root) as run:
        for kind in COMMANDS:
            assert over(run, sent(run, kind))["status"] == "succeeded"
        held = sent(run, "pause")
        wait_for(lambda: run.shown("state/hold.json"), "it is held")
        shim.set_clock(seconds)
        status, body, _ = run.post("/control/continue")
        assert status == 200, body
        record = over(run, held)
        assert 0 <= record["result"]["held_s"] < 60, record
        for kind in COMMANDS:
            record = over(run, sent(run, kind))
            assert record["status"] == "succeeded", record
            assert abs(record["started"] - time.time() - seconds) < 60
        dropped = run.directory / "spool/new/dropped.json"
        dropped.with_name(".aside").write_text(json.dumps({"kind": "snapshot"}))
        dropped.with_name(".aside").rename(dropped)
        assert over(run, "dropped")["status"] == "succeeded"
        told = output(
            "env",
            *(f"{name}={value}" for name, value in shim.environ.items()),
            sys.executable,
            *("-m", "midrun", "status", run.directory),
        )
        assert f"process {run.pid} lives" in told or "live" in told.splitlines()[0], told
        run.passes(20)
        assert run.answers()
        assert run.cat("meta/pid") == f"{run.pid}\n"
        assert well(run)
        assert "-86" not in run.log + told, run.told()
        ends_well(run)
        run.assert_content()
