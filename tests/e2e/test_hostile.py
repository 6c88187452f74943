"""On hostile ground training goes on and ends as usual, and one warning says what is wrong and what to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Report, Start
from tests.e2e.machine import inside, listening, mounts
from tests.e2e.runs import REPOSITORY, Run
from tests.processes import output, sh, stand_still, wait_for

pytestmark = pytest.mark.mount

NOBODY = 65534
FUSERMOUNT = shutil.which("fusermount3") or "/usr/bin/fusermount3"


def check(run: Run, service: str, *reasons: str, others: str = "rest", ends: int = 0) -> str:
    """Let the run fail to start `service`, for a reason that says so, while the other one works; then let it end."""
    run.at()
    if others == "rest":
        run.live(mount=False)
        wait_for(lambda: run.service(service)[0] != "starting", "the service has started or failed")
        state, reason = run.service(service)
        assert (state, run.service("rest")) == ("failed", ("running", None)), (state, reason)
    elif others == "fuse":
        run.live(rest=False)
        wait_for(lambda: '"failed"' in run.cat("state/services.json"), "the service has failed")
    run.go()
    assert run.ended() == ends, run.told()
    record = run.last_state()["services"][service]
    assert record["state"] == "failed", record
    for part in reasons:
        assert part in record["reason"], record["reason"]
    warnings = [line for line in run.log.splitlines() if " WARNING " in line]
    assert len(warnings) == 1, run.told()
    assert record["reason"].splitlines()[0] in warnings[0]
    assert run.err.count(record["reason"].splitlines()[0]) == 1, run.err
    for word in ("Traceback", "ResourceWarning", "Exception ignored"):
        assert word not in run.err + run.log, run.told()
    assert run.left() == []
    return str(record["reason"])


# ---- what FUSE needs


@pytest.mark.parametrize(
    ("error", "install"),
    [
        ("ModuleNotFoundError(\"No module named 'pyfuse3'\", name='pyfuse3')", "pip install 'midrun[fuse]'"),
        ("ImportError('libfuse3.so.3: cannot open shared object file')", "install Debian's package fuse3"),
    ],
    ids=["not installed", "without its library"],
)
def test_without_pyfuse3_a_warning_says_what_to_install(start: Start, root: Path, error: str, install: str) -> None:
    (root / "first").mkdir()
    (root / "first/pyfuse3.py").write_text(f"raise {error}\n")
    run = start(wait_at=5, how={"path": [root / "first"]})
    check(run, "fuse", "pyfuse3", install)


def test_without_dev_fuse_a_warning_says_so(start: Start, root: Path) -> None:
    (root / "dev").mkdir()
    run = start(wait_at=5, how={"ground": {"no_fuse_device": str(root / "dev")}})
    check(run, "fuse", "/dev/fuse")


def test_without_dev_fuse_and_fusermount3_a_warning_says_so(start: Start, root: Path) -> None:
    (root / "dev").mkdir()
    ground = {"no_fuse_device": str(root / "dev"), "covered": {FUSERMOUNT: "/dev/null"}}
    run = start(wait_at=5, how={"ground": ground})
    check(run, "fuse", "/dev/fuse")


def nobody(**more: Any) -> dict[str, Any]:
    """Return how to start a trainer as an ordinary user; who is one already starts it as himself."""
    folders = [os.path.realpath(folder) for folder in (sys.base_prefix, sys.prefix, REPOSITORY)]
    ground = {"user": NOBODY, **({"reachable": folders} if os.geteuid() == 0 else {}), **more}
    return {"ground": ground, "environ": {"HOME": "/tmp", "USER": "nobody"}}  # noqa: S108 - what it can write


def as_nobody(run: Run) -> tuple[str, ...]:
    """Return how to start a program as that user, seeing what the trainer sees."""
    change = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups") if os.geteuid() == 0 else ()
    return (*inside(run.pid), *change)


def test_an_unprivileged_user_without_fusermount3_is_told_what_to_install(start: Start) -> None:
    run = start(wait_at=5, how=nobody(covered={FUSERMOUNT: "/dev/null"}))
    check(run, "fuse", "fusermount3", "apt-get install fuse3")


def test_an_unprivileged_user_has_everything(start: Start) -> None:
    run = start(wait_at=5, how=nobody())
    run.at()
    run.live(mount=False)
    wait_for(lambda: run.service("fuse")[0] != "starting", "the mount has started or failed")
    assert run.service("fuse") == ("running", None), run.told()
    assert run.mounted
    assert output(*as_nobody(run), "cat", run.procfs / "state/global-step") == "5\n"
    if os.geteuid() == 0:
        # Nobody but its owner may look, not even root.
        assert "Permission denied" in sh(*inside(run.pid), "cat", run.procfs / "state/global-step").stderr
    run.go()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()


def test_a_killed_trainer_of_an_unprivileged_user_leaves_nothing(start: Start, report: Report) -> None:
    run = start(until=True, how=nobody()).live()
    # It keeps what the trainer sees, so that one can see it too when the trainer has gone.
    witness = subprocess.Popen([*inside(run.pid), "sleep", "60"])
    try:
        wait_for(lambda: mounts(run.root, witness.pid), "the witness sees the mount")
        run.signal(signal.SIGKILL)
        report("seconds until all is gone", run.gone())
        assert mounts(run.root, witness.pid) == {}
    finally:
        witness.kill()
        witness.wait()


def test_under_no_new_privs_an_unprivileged_user_is_told_why_there_is_no_mount(start: Start) -> None:
    run = start(wait_at=5, how=nobody(no_new_privs=True))
    check(run, "fuse", "fusermount3", "no_new_privs")


def test_a_root_that_may_not_mount_is_told_what_to_allow(start: Start) -> None:
    run = start(wait_at=5, how={"ground": {"mountless": True}})
    check(run, "fuse", "not permitted", "SYS_ADMIN")


# ---- where to mount


def test_no_mount_over_a_directory_with_files(start: Start, root: Path) -> None:
    procfs = root / "0/logs/v/procfs"
    procfs.mkdir(parents=True)
    (procfs / "precious").write_text("data")
    check(start(wait_at=5), "fuse", str(procfs), "holds files")
    assert (procfs / "precious").read_text() == "data"


def test_no_mount_over_another_mount(start: Start, root: Path) -> None:
    procfs = root / "0/logs/v/procfs"
    procfs.mkdir(parents=True)
    run = start(wait_at=5, how={"ground": {"covered": {str(procfs): "tmpfs"}}})
    run.at()
    before = mounts(procfs, run.pid)
    assert before == {str(procfs): "tmpfs"}
    run.live(mount=False)
    wait_for(lambda: run.service("fuse")[0] != "starting", "the service has started or failed")
    assert mounts(procfs, run.pid) == before
    check(run, "fuse", str(procfs), "mount")


def test_no_mount_over_a_file(start: Start, root: Path) -> None:
    (root / "0/logs/v").mkdir(parents=True)
    (root / "0/logs/v/procfs").write_text("data")
    check(start(wait_at=5), "fuse", str(root / "0/logs/v/procfs"))
    assert (root / "0/logs/v/procfs").read_text() == "data"


# ---- what REST needs


def test_with_every_port_taken_a_warning_says_which(start: Start) -> None:
    run = start(wait_at=5, midrun={"rest_enabled": False})
    first = run.first_port
    taken = [listening(port) for port in range(first, first + 3)]
    run.go()
    try:
        run = start(wait_at=5, midrun={"rest_port": first, "rest_port_search": 3})
        check(run, "rest", f"{first}", f"{first + 2}", "rest_port", others="fuse")
    finally:
        for one in taken:
            one.close()


def test_a_rest_host_that_is_not_this_machine_s_is_named_in_a_warning(start: Start) -> None:
    run = start(wait_at=5, midrun={"rest_host": "203.0.113.9"})
    check(run, "rest", "203.0.113.9", others="fuse")


def test_a_rest_host_that_no_resolver_knows_is_named_in_a_warning(start: Start) -> None:
    run = start(wait_at=5, midrun={"rest_host": "no-such-host.invalid"})
    check(run, "rest", "no-such-host.invalid", others="fuse")


def test_a_bad_entry_of_the_whitelist_keeps_rest_from_starting(start: Start) -> None:
    run = start(wait_at=5, how={"environ": {"MIDRUN_WHITELIST_IP": "203.0.113.9,neptune"}})
    check(run, "rest", "MIDRUN_WHITELIST_IP", "neptune", others="fuse")


# ---- the run directory


def test_a_run_directory_that_is_deleted_does_not_stop_training(start: Start) -> None:
    run = start(wait_at=5, logger=None, midrun={"fuse_enabled": False})
    run.at()
    run.find()
    run.live(mount=False)
    wait_for(lambda: sh("rm", "-r", run.directory).returncode == 0, "it is deleted, with what is being written in it")
    run.go()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    assert "Traceback" not in run.err


def test_rm_rf_of_a_live_run_directory_deletes_no_file_of_the_mount_and_training_goes_on(start: Start) -> None:
    run = start(wait_at=5, logger=None)
    run.at()
    run.find()
    run.live()
    port = run.port
    assert sh("rm", "-rf", run.directory).returncode != 0
    assert output("cat", run.procfs / "state/global-step") == "5\n"
    assert output("curl", "-sS", f"http://127.0.0.1:{port}/files/state/global-step") == "5\n"
    run.go()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    assert "Traceback" not in run.err


def test_a_read_only_place_for_runs_leaves_rest_alone_working(start: Start, root: Path) -> None:
    place = root / "0/midrun"
    place.mkdir(parents=True)
    run = start(wait_at=5, logger=None, how={"ground": {"read_only": [str(place)]}})
    assert_works_without_records(run, "Read-only file system")


def test_a_full_disk_leaves_rest_alone_working(start: Start, root: Path) -> None:
    place = root / "0/midrun"
    place.mkdir(parents=True)
    run = start(wait_at=5, logger=None, how={"ground": {"full": [str(place)]}})
    assert_works_without_records(run, "No space left on device")


def assert_works_without_records(run: Run, reason: str) -> None:
    run.at()
    assert wait_for(lambda: _services(run), "REST answers")["rest"]["state"] == "running"
    services = wait_for(lambda: _settled(run), "every service has started or failed")
    assert services["records"]["state"] == "failed"
    assert reason in services["records"]["reason"]
    run.go()
    assert run.ended() == 0, run.told()
    assert reason in run.err
    assert "Traceback" not in run.err
    assert run.left() == []


def _services(run: Run) -> dict[str, Any] | None:
    """Return the services of a run without records, whose port must be the first that was free."""
    done = sh("curl", "-sS", f"http://127.0.0.1:{run.first_port}/files/state/services.json")
    return dict(json.loads(done.stdout)["services"]) if done.returncode == 0 else None


def _settled(run: Run) -> dict[str, Any] | None:
    services = _services(run)
    return services if services and all(one["state"] != "starting" for one in services.values()) else None


# ---- limits


def test_200_file_descriptors_are_enough(start: Start) -> None:
    run = start(wait_at=5, workers=2, how={"ground": {"files": 200}})
    run.at()
    run.live()
    assert run.cat("state/global-step") == "5\n"
    run.go()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()


def test_with_no_file_descriptor_to_spare_training_goes_on(start: Start) -> None:
    # Enough to train; what is left is too little for wires and ports.
    run = start(wait_at=5, how={"ground": {"files": 12}})
    run.at()
    run.go()
    assert run.ended() == 0, run.told()
    assert run.left() == []


# ---- strict


@pytest.mark.parametrize("fault", ["fuse", "rest"])
def test_inspection_strict_raises_with_the_reason_and_leaves_nothing(start: Start, root: Path, fault: str) -> None:
    options: dict[str, Any] = {"inspection_strict": True}
    if fault == "fuse":
        (root / "0/logs/v/procfs").mkdir(parents=True)
        (root / "0/logs/v/procfs/precious").write_text("data")
    else:
        options["rest_host"] = "203.0.113.9"
    run = start(midrun=options)
    assert run.ended() == 1, run.told()
    last = run.err.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: inspection_strict=True"), run.err
    assert ("holds files" if fault == "fuse" else "203.0.113.9") in last
    assert run.left() == []


def test_inspection_strict_waits_until_all_is_there(start: Start) -> None:
    run = start(wait_at=0, midrun={"inspection_strict": True})
    run.at()
    assert run.mounted
    assert run.answers()
    run.go()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()


def test_where_nobody_learns_exit_codes_a_killed_face_leaves_no_mount(start: Start, root: Path) -> None:
    first = start(until=True, how={"ground": {"unheard": True}}, in_=root / "same").live()
    killed = first.faces()
    for face in killed:
        os.kill(face, signal.SIGKILL)
    wait_for(lambda: len({*first.faces()} - {*killed}) == len(killed), "there are new faces")
    first.live()
    everybody = [*first.faces(), first.pid]
    stand_still(*everybody)  # nobody takes the mount away
    for pid in everybody:
        os.kill(pid, signal.SIGKILL)
    first.ended()
    second = start(until=True, how={"ground": {"unheard": True}}, in_=root / "same").live()
    second.enough()
    assert second.ended() == 0, second.told()
    assert second.left() == []


@pytest.mark.parametrize("streams", [[0], [1, 2], [0, 1, 2]], ids=str)
def test_closed_standard_streams_take_nothing_of_the_run_s(start: Start, streams: list[int]) -> None:
    run = start(wait_at=5, how={"ground": {"closed": streams}})
    run.at()
    run.live()
    run.go()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()
