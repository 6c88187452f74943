"""The everyday tools work on the mount of a live run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midrun.fs.inodes import HELD
from tests.e2e.conftest import Start
from tests.e2e.runs import Run
from tests.processes import output, sh

pytestmark = pytest.mark.mount


@pytest.fixture
def run(start: Start) -> Run:
    """A run that goes on while the tools look at it."""
    return start(until=True, step_s=0.002, metrics={"a/b": 1.5}).live()


def finish(run: Run) -> None:
    run.enough()
    assert run.ended() == 0, run.told()
    assert run.left() == []
    run.assert_content()


def files_below(folder: Path) -> set[str]:
    return set(output("find", folder, "-type", "f", "-printf", "%P\\n").splitlines())


def test_cat_shows_every_file(run: Run) -> None:
    files = files_below(run.procfs)
    assert {"state/global-step", "meta/run-id", "model/class", "state/metrics/a%2Fb"} <= files
    for path in files:
        content = run.cat(path)
        if path.endswith(".json"):
            json.loads(content)
    finish(run)


def test_cp_r_and_rsync_a_copy_whole_files(run: Run, tmp_path: Path) -> None:
    tree = files_below(run.procfs)
    output("cp", "-r", run.procfs, tmp_path / "cp")
    output("rsync", "-a", f"{run.procfs}/", tmp_path / "rsync")
    for copy in (tmp_path / "cp", tmp_path / "rsync"):
        assert files_below(copy) == tree
        assert (copy / "meta/run-id").read_text() == run.cat("meta/run-id")
        assert int((copy / "state/global-step").read_text()) > 0
        assert float((copy / "state/metrics/a%2Fb").read_text()) == 1.5
        for path in tree:
            if path.endswith(".json"):
                json.loads((copy / path).read_text())
    finish(run)


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder. A file stands still for a second from its opening; on a machine that is slower, pack it again."""
    for _ in range(5):
        began = time.monotonic()
        done = sh("tar", "-cf", archive, "-C", folder, ".")
        if (done.returncode, done.stderr) == (0, ""):
            return
        assert "file changed as we read it" in done.stderr, done
        assert time.monotonic() - began > HELD, done
    pytest.fail(f"no whole archive on a machine this slow: {done}")


def test_tar_packs_whole_files_while_values_change_their_length(run: Run, tmp_path: Path) -> None:
    tree = files_below(run.procfs)
    for number in range(5):
        pack(run.procfs, tmp_path / f"{number}.tar")
        (tmp_path / str(number)).mkdir()
        output("tar", "-xf", tmp_path / f"{number}.tar", "-C", tmp_path / str(number))
        assert files_below(tmp_path / str(number)) == tree
        for path in tree:
            if path.endswith(".json"):
                json.loads((tmp_path / str(number) / path).read_text())
    steps = [int((tmp_path / str(number) / "state/global-step").read_text()) for number in range(5)]
    assert steps == sorted(steps)
    finish(run)


def test_grep_r_finds_what_a_file_says(run: Run) -> None:
    run_id = run.cat("meta/run-id").strip()
    found = output("grep", "-rlF", run_id, run.procfs).splitlines()
    assert {str(run.procfs / path) for path in ("meta/run-id", "state/index.json")} <= set(found)
    finish(run)


def test_less_jq_head_tail_wc_and_diff_read_a_file(run: Run) -> None:
    place = run.procfs / "meta/versions.json"
    text = output("cat", place)
    assert output("less", place) == text
    assert output("head", "-c", "5", place) == text[:5]
    assert output("tail", "-n", "2", place) == "".join(text.splitlines(keepends=True)[-2:])
    assert output("tail", "-c", "+3", place) == text[2:]
    assert output("wc", "-c", place).split()[0] == str(len(text.encode()))
    assert output("jq", "-r", ".midrun", place).strip() == json.loads(text)["midrun"]
    assert int(output("jq", ".global_step", run.procfs / "state/index.json")) > 0
    assert output("diff", place, place) == ""
    assert output("sha256sum", place).split()[0] == output("sha256sum", text=text).split()[0]
    finish(run)


def test_ls_find_du_test_and_stat_see_sizes_and_kinds(run: Run) -> None:
    assert "global-step" in output("ls", "-la", f"{run.procfs}/state")
    listed = output("ls", "-laR", run.procfs)
    assert "?" not in listed
    assert (
        output("find", run.procfs, "-name", "global-step", "-size", "+0").strip() == f"{run.procfs}/state/global-step"
    )
    assert output("find", run.procfs, "-empty", "-name", "run-id") == ""
    output("du", "-s", run.procfs)
    assert output("du", "-b", f"{run.procfs}/meta/run-id").split()[0] == str(len(run.cat("meta/run-id")))
    assert sh("test", "-s", f"{run.procfs}/state/global-step").returncode == 0
    assert sh("test", "-w", f"{run.procfs}/state/global-step").returncode != 0
    assert output("stat", "-c", "%F %U", f"{run.procfs}/state").strip().startswith("directory")
    assert output("readlink", run.procfs / "artifacts/checkpoints").strip() == str(
        run.directory / "artifacts/checkpoints"
    )
    finish(run)


def test_python_reads_it_in_every_way(run: Run) -> None:
    program = """
import json, mmap, pathlib, shutil, sys
place = pathlib.Path(sys.argv[1])
text = (place / "meta/run-id").read_text()
assert int(open(place / "state/global-step").read()) > 0
assert json.loads((place / "state/index.json").read_text())["run_id"] == text.strip()
shutil.copyfile(place / "meta/run-id", sys.argv[2])
assert open(sys.argv[2]).read() == text
with open(place / "meta/run-id", "rb") as file:
    file.seek(4)
    assert file.read(3) == text[4:7].encode()
    assert mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)[:] == text.encode()
"""
    output(sys.executable, "-c", program, run.procfs, run.root / "copy")
    finish(run)


WRITES = {
    "echo >": "echo 1 > {file}",
    "echo >>": "echo 1 >> {file}",
    "touch": "touch {folder}/new",
    "mkdir": "mkdir {folder}/new",
    "rm": "rm {file}",
    "rmdir": "rmdir {folder}",
    "mv": "mv {file} {folder}/other",
    "cp": "cp /etc/hostname {file}",
    "ln": "ln -s x {folder}/new",
    "chmod": "chmod 600 {file}",
    "chown": "chown 1 {file}",
    "truncate": "truncate -s 0 {file}",
    "touch -d": "touch -d 2000-01-01 {file}",
    "tee": "echo 1 | tee {file}",
    "dd": "dd if=/dev/zero of={file} count=1",
    "sed -i": "sed -i s/0/1/ {file}",
    "mkfifo": "mkfifo {folder}/new",
}


@pytest.fixture(params=["step", "metric"])
def file(request: pytest.FixtureRequest) -> str:
    return {"step": "state/global-step", "metric": "state/metrics/a%2Fb"}[request.param]


def test_every_write_is_answered_read_only_file_system(run: Run, file: str) -> None:
    place = run.procfs / file
    before = files_below(run.procfs)
    for name, command in WRITES.items():
        done = sh("bash", "-c", command.format(file=place, folder=place.parent))
        assert done.returncode != 0, (name, done)
        assert "Read-only file system" in done.stderr, (name, done)
    assert files_below(run.procfs) == before
    assert run.cat(file).strip()
    finish(run)


def test_every_write_by_rest_is_answered_405(run: Run) -> None:
    url = run.cat("meta/rest/url").strip()
    for path in ("state/global-step", "meta/run-id", "state"):
        code = output("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-d", "1", f"{url}/files/{path}")
        assert code == "405", path
    finish(run)


def test_watch_shows_the_step_rise(run: Run) -> None:
    steps: list[int] = []
    watched = subprocess.Popen(
        ["watch", "-n0.1", "-t", "cat", str(run.procfs / "state/global-step")],
        stdout=subprocess.PIPE,
        env={**os.environ, "TERM": "dumb"},
    )
    try:
        assert watched.stdout is not None
        while len(set(steps)) < 4:
            steps += [int(number) for number in re.findall(rb"\d+", os.read(watched.stdout.fileno(), 4096))]
    finally:
        watched.terminate()
        watched.communicate()
    finish(run)


def test_many_readers_at_once_all_read(run: Run) -> None:
    paths = [str(run.procfs / path) for path in files_below(run.procfs)]
    readers = [subprocess.Popen(["cat", *paths], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(16)]
    errors = [reader.communicate(timeout=30)[1] for reader in readers]
    assert [reader.returncode for reader in readers] == [0] * 16, errors
    finish(run)
