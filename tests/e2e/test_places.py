"""Wherever the run directory is, whatever it is called and whoever else is in it, the mount finds its place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.machine import mounts
from tests.processes import output, sh, wait_for

pytestmark = pytest.mark.mount


def test_mountpoint_and_artifacts_may_be_elsewhere(start: Start, root: Path) -> None:
    place, artifacts = root / "deep/er/view", root / "art"
    run = start(wait_at=5, midrun={"fuse_mountpoint": str(place), "artifact_dir": str(artifacts)})
    run.at()
    run.live(mount=False)
    wait_for(lambda: mounts(place), "the mount is there")
    assert output("cat", place / "state/global-step") == "5\n"
    assert output("cat", place / "meta/artifacts-path") == f"{artifacts}\n"
    assert output("readlink", place / "artifacts/checkpoints") == f"{artifacts}/checkpoints\n"
    assert run.record()["fuse_mountpoint"] == str(place)
    assert not run.procfs.exists()
    run.go()
    assert run.ended() == 0, run.told()
    assert mounts(root) == {}
    run.assert_content()


@pytest.mark.parametrize("name", ["a b", "größe", "100%", "a\\040b", "-rf", "comma,ro", 'quo"te'])
def test_the_run_directory_may_have_any_name(start: Start, name: str) -> None:
    run = start(wait_at=5, logger=name)
    run.at()
    run.live()
    assert run.cat("state/global-step") == "5\n"
    assert run.cat("meta/run-dir") == f"{run.directory}\n"
    assert json.loads(run.cat("state/services.json"))["services"]["fuse"]["state"] == "running"
    run.go()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()


def test_a_run_directory_behind_a_link_is_mounted_where_it_leads(start: Start, root: Path) -> None:
    (root / "0").mkdir()
    (root / "real").mkdir(mode=0o777)
    (root / "0/logs").symlink_to(root / "real")
    run = start(wait_at=5)
    run.at()
    run.live(mount=False)
    wait_for(lambda: mounts(root / "real"), "the mount is there")
    assert run.cat("state/global-step") == "5\n"
    run.go()
    assert run.ended() == 0, run.told()
    assert mounts(root) == {}
    run.assert_content()


def test_a_run_directory_that_is_renamed_takes_its_mount_along_and_nothing_is_left(start: Start) -> None:
    run = start(wait_at=5, logger=None)  # a logger of Lightning's would fail
    run.at()
    run.find()
    run.live()
    wait_for(lambda: run.service("fuse")[0] == "running", "the mount serves")
    moved = run.directory.with_name("moved")
    run.directory.rename(moved)
    assert output("cat", moved / "procfs/state/global-step") == "5\n"
    run.go()
    assert run.ended() == 0, run.told()
    assert mounts(run.root) == {}
    assert run.left() == []


def test_who_sits_in_the_mount_does_not_keep_it(start: Start) -> None:
    run = start(wait_at=5)
    run.at()
    run.live()
    program = "import sys\nfile = open('global-step')\nprint(file.read(), flush=True)\nsys.stdin.read()"
    sitting = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=run.procfs / "state",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    tail = subprocess.Popen(
        ["tail", "-f", str(run.procfs / "state/global-step")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        for reader in (sitting, tail):
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"5\n"
        run.go()
        assert run.ended() == 0, run.told()
        assert run.left() == []
    finally:
        for reader in (sitting, tail):
            reader.kill()
            reader.communicate()


def test_a_second_run_in_the_directory_of_a_live_one_leaves_its_mount_alone_and_says_so(
    start: Start, root: Path
) -> None:
    first = start(until=True, in_=root / "same").live()
    second = start(in_=root / "same", wait_at=5)
    second.at()
    wait_for(second.answers, "REST answers for the second")
    wait_for(lambda: second.service("fuse")[0] != "starting", "the second mount has started or failed")
    state, reason = second.service("fuse")
    assert state == "failed"
    assert str(first.procfs) in (reason or "")
    assert first.cat("meta/pid") == f"{first.pid}\n"
    second.go()
    assert second.ended() == 0, second.told()
    assert first.cat("meta/pid") == f"{first.pid}\n"
    first.enough()
    assert first.ended() == 0
    assert mounts(root) == {}


def test_fuse_control_false_mounts_all_of_it_read_only(start: Start) -> None:
    run = start(wait_at=5, midrun={"fuse_control": False})
    run.at()
    run.live()
    options = [
        line.split()[3] for line in output("cat", "/proc/mounts").splitlines() if line.split()[1] == str(run.procfs)
    ]
    assert "ro" in options[0].split(",")
    assert "Read-only file system" in sh("touch", run.procfs / "new").stderr
    run.go()
    assert run.ended() == 0
    assert run.left() == []
    run.assert_content()
