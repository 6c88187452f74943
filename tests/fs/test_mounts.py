"""The table of mounts is read right, and only what is midrun's and dead is taken away."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from midrun.fs import mounts
from tests.fs.mounting import needs_root
from tests.processes import output, sh

pytestmark = pytest.mark.mount


@contextlib.contextmanager
def tmpfs(path: Path, kind: str = "tmpfs", source: str = "somebody") -> Iterator[None]:
    path.mkdir(exist_ok=True)
    output("mount", "-t", kind, source, path)
    try:
        yield
    finally:
        output("umount", "-l", path)


@needs_root
@pytest.mark.parametrize(
    "name", ["plain", "with space", "tab\tand\nnewline", "back\\slash", "\\040", "#", "ü", "a,b=c"]
)
def test_paths_are_read_with_all_that_they_may_hold(tmp_path: Path, name: str) -> None:
    with tmpfs(tmp_path / name, source="some body\\"):
        mount = mounts.find(str(tmp_path / name))
        assert mount is not None
        assert (mount.kind, mount.source, mount.pid) == ("tmpfs", "some body\\", None)
        assert mount.device == f"0:{os.minor((tmp_path / name).stat().st_dev)}"
    assert mounts.find(str(tmp_path / name)) is None


@needs_root
def test_the_topmost_of_several_mounts_is_found(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "a", source="lower"), tmpfs(tmp_path / "a", source="upper"):
        mount = mounts.find(str(tmp_path / "a"))
        assert mount is not None
        assert mount.source == "upper"


@needs_root
def test_a_path_is_told_as_the_table_tells_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "to link").symlink_to(tmp_path / "link/below")
    (tmp_path / "round").symlink_to("round")
    assert mounts.resolve(f"{tmp_path}/link/below/../below/") == str(tmp_path / "real/below")
    assert mounts.resolve(str(tmp_path / "to link")) == str(tmp_path / "real/below")
    assert mounts.resolve(str(tmp_path / "real/missing/far")) == str(tmp_path / "real/missing/far")
    assert mounts.resolve(str(tmp_path / "round")) == str(tmp_path / "round")
    with tmpfs(tmp_path / "real/below"):
        assert mounts.resolve(str(tmp_path / "to link")) == str(tmp_path / "real/below")


@needs_root
def test_what_is_not_midruns_is_never_taken_away(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "a", source="midrun:1:run"):
        mount = mounts.clean(str(tmp_path / "a"))
        assert mount is not None
        assert mount.pid is None
        assert sh("mountpoint", tmp_path / "a").returncode == 0
    assert mounts.clean(str(tmp_path / "a")) is None
    assert mounts.clean(str(tmp_path / "missing")) is None


def test_a_source_names_the_face_and_the_run() -> None:
    for run in ("run-1", "a,b:c d\\040", "ü" * 300, ""):
        mount = mounts.TableLine(1, "0:1", "/x", mounts.KIND, mounts.source(4711, run))
        assert mount.pid == 4711
        assert mount.source.isascii()
        assert not set(mount.source) & set(", \\")
    assert mounts.TableLine(1, "0:1", "/x", mounts.KIND, "sshfs").pid is None
