"""What keeps a tree from being mounted is told in one sentence that says what to install or allow."""

from __future__ import annotations

import os
import shutil
import stat
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fs.mounting import Mounted, alive, mounting, needs_root
from tests.processes import output, sh, wait_for

pytestmark = pytest.mark.mount

NOBODY = 65534
OWN_MOUNTS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
assert libc.mount(b"none", b"/", None, ctypes.c_ulong(0x44000), None) == 0
"""
BE_NOBODY = f"""
import ctypes, os, sys
import midrun.fs.mount, midrun.fs.operations, midrun.fs.face
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0  # as after a login, it may look at itself
"""


def covered(over: str, path: str) -> str:
    """Return Python text that puts one file over another."""
    return f"assert libc.mount({over!r}.encode(), {path!r}.encode(), None, ctypes.c_ulong(0x1000), None) == 0\n"


@contextmanager
def failing(options: dict[str, object] | None = None, **plan: object) -> Iterator[str]:
    """Have a face fail; give the reason, and check that the face then ends and leaves nothing."""
    with mounting(options, **plan) as tree:
        yield tree.failure()
        wait_for(lambda: not alive(tree.face), "the face ends")
        assert tree.mounted() == []
        assert not tree.mountpoint.exists()
        assert tree.errors() == ""


def test_a_folder_that_holds_files_is_not_mounted_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with failing({"mountpoint": str(tmp_path)}) as reason:
        assert reason == f"{tmp_path} holds files: empty it, or set fuse_mountpoint to an empty directory"
    assert (tmp_path / "file").exists()


@needs_root
def test_the_mount_of_somebody_else_is_not_mounted_over(tmp_path: Path) -> None:
    output("mount", "-t", "tmpfs", "somebody", tmp_path)
    try:
        with failing({"mountpoint": str(tmp_path)}) as reason:
            assert f"at {tmp_path} there is a mount of somebody (tmpfs): " in reason
            assert "fuse_mountpoint" in reason
        assert sh("mountpoint", tmp_path).returncode == 0
    finally:
        output("umount", tmp_path)


def test_the_live_mount_of_another_run_is_not_mounted_over() -> None:
    with mounting() as tree:
        tree.ready()
        with failing({"mountpoint": str(tree.mountpoint)}) as reason:
            assert f"at {tree.mountpoint} another run is mounted, by process {tree.face}: " in reason
        assert tree.cat("still/constant") == "42\n"


def test_a_mountpoint_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for mountpoint, why in (("file/below", "Not a directory"), ("file", "File exists")):
        with failing({"mountpoint": str(tmp_path / mountpoint)}) as reason:
            assert reason == f"the mountpoint {tmp_path / mountpoint} can't be made: {why}"
    with failing({"mountpoint": str(tmp_path / ("x" * 300))}) as reason:
        assert "File name too long" in reason
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_pyfuse3_it_says_what_to_install(tmp_path: Path) -> None:
    packages = Path(sysconfig.get_paths()["purelib"])
    for entry in packages.iterdir():
        if "pyfuse3" not in entry.name:
            (tmp_path / entry.name).symlink_to(entry)
    before = f"""
import json, sys
paths = [path for path in json.loads(sys.argv[1]) if path != {str(packages)!r}]
sys.argv[1] = json.dumps([{str(tmp_path)!r}, *paths])
"""
    with failing(before=before) as reason:
        assert "pyfuse3 is not installed" in reason
        for word in ("pip install 'midrun[fuse]'", "libfuse3-dev", "pkg-config", "gcc"):
            assert word in reason


def test_a_pyfuse3_that_does_not_load_is_told_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "pyfuse3.py").write_text(
        "raise ImportError('libfuse3.so.3: cannot open shared object file: No such file or directory')\n"
    )
    with failing(paths=[str(tmp_path)]) as reason:
        assert "libfuse3.so.3: cannot open shared object file" in reason
        assert "install Debian's package fuse3" in reason
        assert "--no-deps --no-binary pyfuse3 pyfuse3" in reason, "it leaves torch alone"


@needs_root
def test_without_dev_fuse_it_says_how_to_allow_it() -> None:
    for cover in ('assert libc.mount(b"none", b"/dev", b"tmpfs", 0, None) == 0\n', covered("/dev/null", "/dev/fuse")):
        with failing(before=OWN_MOUNTS + cover) as reason:
            assert "/dev/fuse" in reason
            assert "--device /dev/fuse --cap-add SYS_ADMIN" in reason


@needs_root
def test_a_user_who_may_not_open_dev_fuse_is_told_what_root_has_to_do(tmp_path: Path) -> None:
    os.mknod(tmp_path / "fuse", stat.S_IFCHR | 0o600, os.makedev(10, 229))
    with failing(before=OWN_MOUNTS + covered(str(tmp_path / "fuse"), "/dev/fuse") + BE_NOBODY) as reason:
        assert "this user may not open /dev/fuse" in reason
        assert "chmod 666 /dev/fuse" in reason


@needs_root
def test_a_mount_that_the_kernel_refuses_is_told_with_the_words_of_libfuse() -> None:
    wrap = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    with failing(wrap=wrap) as reason:
        assert "mount failed: Operation not permitted" in reason
        assert "--cap-add SYS_ADMIN" in reason


@needs_root
def test_users_without_fusermount3_are_told_what_to_install() -> None:
    program = shutil.which("fusermount3") or "/usr/bin/fusermount3"
    with failing(before=OWN_MOUNTS + covered("/dev/null", program) + BE_NOBODY) as reason:
        assert reason == "there is no fusermount3, which mounts for users: apt-get install fuse3"


@needs_root
def test_users_who_may_gain_no_rights_are_told_what_to_allow() -> None:
    with failing(before=BE_NOBODY + "assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0\n") as reason:
        assert "no_new_privs" in reason
        assert "NoNewPrivileges=no" in reason


def as_nobody(*command: str | Path) -> tuple[str | Path, ...]:
    return ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", *command)


@pytest.fixture
def mounted_by_nobody() -> Iterator[tuple[Mounted, Path]]:
    # pytest's own folders are root's alone.
    with tempfile.TemporaryDirectory(prefix="midrun-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        procfs = Path(folder, "procfs")
        with mounting({"mountpoint": str(procfs)}, before=BE_NOBODY) as tree:
            yield tree.ready(), procfs


@needs_root
def test_an_ordinary_user_mounts_for_his_own_eyes(mounted_by_nobody: tuple[Mounted, Path]) -> None:
    tree, procfs = mounted_by_nobody
    assert output(*as_nobody("cat", procfs / "still/constant")) == "42\n"
    assert output(*as_nobody("stat", "-c", "%u %a", procfs / "control/rate")) == f"{NOBODY} 600\n"
    assert "Permission denied" in sh("cat", procfs / "still/constant").stderr
    for script in ('echo 1 > "$1/still/constant"', 'echo 1 > "$1/new"', 'rm "$1/still/constant"'):
        assert "Read-only file system" in sh(*as_nobody("bash", "-c", script, "-", procfs)).stderr
    assert sh(*as_nobody("bash", "-c", 'echo 0.5 > "$1"', "-", procfs / "control/rate")).stderr == ""
    assert tree.do("applied") == [0.5]
    assert tree.do("quit")[0] == 0
    assert not procfs.exists()
    assert tree.errors() == ""
