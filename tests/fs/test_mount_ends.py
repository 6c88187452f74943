"""However a run or its mount face ends, the mount goes; what a killed face leaves is taken away by the next one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midrun.fs import mounts
from tests.fs.mounting import Mounted, alive, end, mounting, needs_root, python, report
from tests.processes import sh, stand_still, start, wait_for

pytestmark = pytest.mark.mount


@pytest.fixture
def tree() -> Iterator[Mounted]:
    with mounting() as mounted:
        yield mounted.ready()
        assert "Traceback" not in mounted.errors()


def stat(path: Path) -> str:
    """Return the name of the error that a stat of `path` gives, or nothing."""
    script = "import errno, os, sys\ntry: os.stat(sys.argv[1])\nexcept OSError as e: print(errno.errorcode[e.errno])"
    return python(script, path).strip()


def reader(file: Path) -> subprocess.Popen[str]:
    """Return a cat that waits for a file to be made."""
    process = start("cat", file)
    wchan = Path(f"/proc/{process.pid}/wchan")
    wait_for(lambda: wchan.read_text() == "request_wait_answer", "cat waits for its file")
    return process


def test_a_face_that_is_told_to_quit_unmounts_and_ends_at_once(tree: Mounted) -> None:
    tree.cat("values/text")
    code, seconds = tree.do("quit")
    assert code == 0
    assert tree.mounted() == []
    assert not tree.mountpoint.exists()
    report("seconds to stop", seconds)
    assert seconds < 1


def test_a_mount_in_use_is_unmounted_all_the_same(tree: Mounted) -> None:
    holder = start(
        "bash",
        "-c",
        'cd "$1"; exec 3< values/text; echo; read -r; cat <&3',
        "-",
        tree.mountpoint,
        stdin=subprocess.PIPE,
    )
    waiting = reader(tree.path("live/waiting"))
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        code, seconds = tree.do("quit")
        assert code == 0
        assert seconds < 1
        assert tree.mounted() == []
        assert not tree.mountpoint.exists()
        assert waiting.wait(2) == 1
        assert "ransport endpoint" in holder.communicate("\n")[1]
    finally:
        end(holder)
        end(waiting)


def test_a_mountpoint_that_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for mountpoint, left in ((tmp_path / "there", True), (tmp_path / "made/in/folders", False)):
        with mounting({"mountpoint": str(mountpoint)}) as tree:
            assert tree.notice()["mountpoint"] == str(mountpoint)
            assert tree.do("quit")[0] == 0
        assert mountpoint.exists() is left
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_mountpoint_may_be_a_link_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "real folder").mkdir()
    (tmp_path / "link").symlink_to("real folder")
    with mounting({"mountpoint": str(tmp_path / "link")}) as tree:
        tree.ready()
        mount = mounts.find(str(tmp_path / "real folder"))
        assert mount is not None
        assert mount.pid == tree.face
        assert tree.do("quit")[0] == 0
        assert mounts.find(str(tmp_path / "real folder")) is None


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("with_child", [False, True], ids=["alone", "with a child that holds all it held"])
def test_a_run_that_is_killed_leaves_no_mount_and_nobody_waiting(
    tree: Mounted, *, with_child: bool, stopped: bool
) -> None:
    child = tree.do("fork") if with_child else None
    waiting = reader(tree.path("live/waiting"))
    try:
        if stopped:
            stand_still(tree.pid)
        began = time.monotonic()
        os.kill(tree.pid, signal.SIGKILL)
        assert waiting.wait(5) == 1
        wait_for(lambda: not tree.mounted(), "it is unmounted", 5)
        seconds = time.monotonic() - began
        wait_for(lambda: not alive(tree.face), "the face ends", 5)
        assert not tree.mountpoint.exists()
        assert child is None or alive(child)
        report("seconds from kill -9 to the end of the mount", seconds)
        assert seconds < 1
    finally:
        end(waiting)
        if child is not None:
            os.kill(child, signal.SIGKILL)


def test_signals_to_a_whole_session_do_not_end_a_face(tree: Mounted) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(tree.face, number)
    assert tree.cat("still/constant") == "42\n"


def test_a_face_that_is_killed_leaves_a_mount_that_the_next_one_takes_away(tree: Mounted) -> None:
    for _ in range(2):
        killed = tree.face
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: not alive(killed), "the face is gone")  # noqa: B023 - called at once
        assert stat(tree.mountpoint) == "ENOTCONN"
        assert [mount.pid for mount in tree.mounted()] == [killed]
        tree.restart()
        tree.ready()
        assert [mount.pid for mount in tree.mounted()] == [tree.face]
        assert tree.cat("still/constant") == "42\n"
    assert tree.do("quit")[0] == 0
    assert not tree.mountpoint.exists(), "the face that was killed made it"


def test_who_waits_is_freed_when_the_face_is_killed(tree: Mounted) -> None:
    waiting = reader(tree.path("live/waiting"))
    os.kill(tree.face, signal.SIGKILL)
    assert waiting.wait(5) == 1
    end(waiting)
    mounts.clean(str(tree.mountpoint))


def test_a_mount_that_a_killed_face_left_is_cleaned_and_cleaning_again_is_harmless(tree: Mounted) -> None:
    os.kill(tree.face, signal.SIGKILL)
    wait_for(lambda: not alive(tree.face), "the face is gone")
    began = time.monotonic()
    assert mounts.clean(str(tree.mountpoint)) is None
    assert mounts.clean(str(tree.mountpoint)) is None
    assert time.monotonic() - began < 3
    assert tree.mounted() == []
    assert stat(tree.mountpoint) == ""


def test_a_mount_that_lives_is_not_cleaned_not_even_while_its_face_is_stopped(tree: Mounted) -> None:
    kept = mounts.clean(str(tree.mountpoint))
    assert kept is not None
    assert kept.pid == tree.face
    stand_still(tree.face)
    began = time.monotonic()
    assert mounts.clean(str(tree.mountpoint)) == kept
    assert time.monotonic() - began < 5
    os.kill(tree.face, signal.SIGCONT)
    assert tree.cat("still/constant") == "42\n"


@needs_root
def test_a_dead_mount_in_use_and_what_is_stacked_over_it_is_cleaned(tree: Mounted) -> None:
    holder = start("sleep", "60", cwd=tree.path("values"))
    try:
        with mounting() as other:
            other.ready()
            assert sh("mount", "--bind", other.mountpoint, tree.mountpoint).returncode == 0
            for face in (tree.face, other.face):
                os.kill(face, signal.SIGKILL)
                wait_for(lambda: not alive(face), "the face is gone")  # noqa: B023 - called at once
            assert [mount.pid for mount in tree.mounted()] == [tree.face, other.face]
            assert mounts.clean(str(tree.mountpoint)) is None
            assert mounts.clean(str(other.mountpoint)) is None
        assert tree.mounted() == []
    finally:
        end(holder)


@needs_root
def test_a_dead_mount_under_a_live_one_stays(tree: Mounted) -> None:
    with mounting() as other:
        other.ready()
        assert sh("mount", "--bind", other.mountpoint, tree.mountpoint).returncode == 0
        os.kill(tree.face, signal.SIGKILL)
        wait_for(lambda: not alive(tree.face), "the face is gone")
        top = mounts.clean(str(tree.mountpoint))
        assert top is not None
        assert top.pid == other.face
        assert len(tree.mounted()) == 2
        assert sh("umount", tree.mountpoint).returncode == 0
    assert mounts.clean(str(tree.mountpoint)) is None


HOLD = """
import ctypes, os, sys
face = os.pidfd_open(int(sys.argv[1]))
for fd in os.listdir(f"/proc/{sys.argv[1]}/fd"):
    if os.readlink(f"/proc/{sys.argv[1]}/fd/{fd}") == "/dev/fuse":
        print(ctypes.CDLL(None).syscall(438, face, int(fd), 0), flush=True)  # pidfd_getfd
sys.stdin.read()
"""


@needs_root
def test_a_mount_that_neither_lives_nor_ends_is_cleaned_and_who_hangs_in_it_is_freed(tree: Mounted) -> None:
    """A process that got hold of the connection, as a forked child does, keeps it open and answers nothing."""
    holder = start(sys.executable, "-c", HOLD, str(tree.face), stdin=subprocess.PIPE)
    waiting = reader(tree.path("live/waiting"))
    try:
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) > 0
        os.kill(tree.face, signal.SIGKILL)
        wait_for(lambda: not alive(tree.face), "the face is gone")
        late = start("cat", tree.path("values/text"))
        began = time.monotonic()
        tree.do("reap")
        assert mounts.clean(str(tree.mountpoint)) is None
        assert time.monotonic() - began < 6
        assert tree.mounted() == []
        assert waiting.wait(5) == late.wait(5) == 1
        end(late)
    finally:
        end(waiting)
        end(holder)


@needs_root
def test_a_mount_that_somebody_unmounts_is_given_up(tree: Mounted) -> None:
    assert sh("umount", tree.mountpoint).returncode == 0
    assert "unmounted by somebody else" in tree.failure()
    wait_for(lambda: not alive(tree.face), "the face ends")


def test_many_starts_and_stops_leave_nothing(times: Callable[[int], int]) -> None:
    for _ in range(times(30)):
        with mounting() as tree:
            tree.ready()
            tree.cat("values/text")
            assert tree.do("quit")[0] == 0
            assert tree.errors() == ""


CLEAN = """
import sys
from midrun.fs import mounts
print(mounts.clean(sys.argv[1]))
"""


def test_a_run_that_ended_with_all_its_processes_is_cleaned_by_hand(tree: Mounted) -> None:
    for pid in (tree.face, tree.pid):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(tree.face), "the face is gone")
    done = sh(sys.executable, "-c", CLEAN, tree.mountpoint)
    assert (done.stdout, done.stderr) == ("None\n", "")
    assert tree.mounted() == []


def test_reading_a_dead_mount_is_an_error_and_not_a_wait(tree: Mounted) -> None:
    os.kill(tree.face, signal.SIGKILL)
    wait_for(lambda: not alive(tree.face), "the face is gone")
    assert os.strerror(errno.ENOTCONN) in sh("cat", tree.path("values/text")).stderr
    mounts.clean(str(tree.mountpoint))
