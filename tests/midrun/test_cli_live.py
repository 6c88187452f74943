"""The command line and real runs: another process, which only sees the directory."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.machine import end
from tests.e2e.runs import MOUNT, Forge, Run, drop, new_root
from tests.midrun.commandline import complaint, midrun
from tests.processes import wait_for

BARE: dict[str, Any] = {"rest_enabled": False, "fuse_enabled": False}


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Forge]:
    base = tmp_path_factory.getbasetemp()
    forge = Forge(base if worker_id == "master" else base.parent)
    yield forge
    forge.close()


@contextmanager
def training(forge: Forge, root: Path, name: str = "v", **options: Any) -> Iterator[Run]:
    """A run that trains until it is told to stop; afterwards it is gone."""
    folder = root / f"of-{name}"
    folder.mkdir()
    folder.chmod(0o777)
    plan = {"until": True, "step_s": 0.005, "logger": name, "midrun": options}
    run = forge.start("fit", plan, folder)
    try:
        wait_for(lambda: (folder / "steps").exists() or run._ended_early(), "it trains")
        yield run
    finally:
        run.clean()
        run.ended()


@pytest.fixture
def root() -> Iterator[Path]:
    root = new_root()
    yield root
    drop(root)


def wait(run: Run, *words: str) -> dict[str, Any]:
    """Send a run a command, and return its record when it is over."""
    code, out, err = midrun(*words[:1], run.directory, *words[1:], "--wait", "--json", "--timeout", "30")
    assert (code, err) == (0, ""), err
    return dict(json.loads(out))


def test_a_run_with_neither_port_nor_mount_is_seen_and_steered(forge: Forge, root: Path) -> None:
    with training(forge, root, **BARE) as run:
        assert "live: running (train)" in midrun("status", cwd=root)[1]
        record = wait(run, "send", "set_hparam", "name=hparams.l2", "value=0.5")
        assert (record["source"], record["status"]) == ("command line", "succeeded")
        assert record["result"]["changes"] == [{"what": "hparams.l2", "old": 0.0, "new": 0.5}]

        assert "value=7: " in complaint("send", run.directory, "set_hparam", "name=hparams.l2", "value=7", code=2)
        assert "kind=frobnicate: " in complaint("send", run.directory, "frobnicate", code=2)
        assert "safe_point=noon" in complaint("stop", run.directory, "--at", "noon", code=2)

        code, out, _ = midrun("pause", "--wait", "--reason", "naïve ☃", cwd=root)
        assert (code, "holds the run at step" in out) == (0, True)
        shown = midrun("status", cwd=root)[1]
        assert "live: held" in shown
        assert "by command line at step" in shown
        assert "naïve ☃" in shown
        code, later, _ = midrun("send", "set_learning_rate", "value=5e-4", "--at", "fit_end", cwd=root)
        assert code == 0
        assert later.strip() in midrun("status", cwd=root)[1]
        assert wait(run, "send", "cancel", f"id={later.strip()}")["result"] == {"cancelled": later.strip()}
        assert wait(run, "continue")["result"]["released"] == out.split()[0]

        log = midrun("tail", run.directory, "--no-follow")[1]
        assert "command line: set_hparam name=hparams.l2 value=0.5: hparams.l2 0 -> 0.5" in log
        assert "naïve ☃" in log

        assert midrun("stop", "--wait", cwd=root)[0] == 0
        assert run.ended() == 0
        assert "ended: finished" in midrun("status", run.directory)[1]
        complaint("continue", run.directory, code=1)


def test_what_comes_to_nothing_when_the_run_ends_is_told(forge: Forge, root: Path) -> None:
    with training(forge, root, **BARE) as run:
        words = ("send", "set_learning_rate", "value=1e-3", "--step", "1000000", "--id", "late")
        assert midrun(*words, cwd=root) == (0, "late\n", "")
        run.enough()
        assert run.ended() == 0
        assert json.loads((run.directory / "spool/done/late.json").read_text())["status"] == "expired"


def test_a_run_that_was_killed_is_gone(forge: Forge, root: Path) -> None:
    with training(forge, root, **BARE) as run:
        run.signal(signal.SIGKILL)
        run.ended()
        assert "gone: process" in midrun("status", run.directory)[1]
        assert "is gone" in complaint("pause", run.directory, code=1)
        assert midrun("ls", cwd=root)[1].split()[0] == "gone"


def test_of_several_live_runs_one_must_be_named(forge: Forge, root: Path) -> None:
    with training(forge, root, "one", **BARE) as one, training(forge, root, "two", **BARE):
        code, out, err = midrun("stop", cwd=root)
        assert (code, out) == (2, "")
        assert [line.split()[0] for line in err.splitlines()] == ["live", "live", "midrun:"]
        assert midrun("stop", err.split()[5], "--wait", cwd=root)[0] == 0
        assert one.ended() == 0


@pytest.mark.mount
def test_fresh_values_come_from_the_server_and_a_silent_mount_is_left_alone(forge: Forge, root: Path) -> None:
    with training(forge, root) as run:
        run.live()
        found = json.loads(midrun("status", "--json", cwd=root)[1])
        assert (found["shown_from"], found["age_s"]) == ("rest", 0.0)
        assert found["state"]["global_step"] > 0
        assert found["learning_rates"] == [[0.01]]
        assert "train/loss" in found["metrics"]
        assert found["services"]["rest"]["state"] == "running"
        face = run.face(MOUNT)
        assert face is not None
        end(face, signal.SIGSTOP)
        try:
            assert midrun("ls", cwd=root)[1].split()[0] == "live"
            assert "live: running" in midrun("status", run.procfs)[1]
            assert midrun("pause", cwd=run.directory)[0] == 0
        finally:
            end(face, signal.SIGCONT)
