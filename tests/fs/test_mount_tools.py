"""Everyday tools see files of a mount as they are at one moment, while values change their length all the time."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fs.mounting import Mounted, end, is_whole, mounting, python, shell
from tests.processes import output, sh, start, wait_for

pytestmark = pytest.mark.mount

MMAP = """
import mmap, sys
with open(sys.argv[1], 'rb') as f:
    sys.stdout.write(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)[:].decode())
"""
SHUTIL = "import shutil, sys; shutil.copyfile(sys.argv[1], sys.argv[2])"
PREAD = """
import os, sys
f = os.open(sys.argv[1], os.O_RDONLY)
sys.stdout.write(os.pread(f, os.fstat(f).st_size, 0).decode())
"""


@pytest.fixture(scope="module")
def tree() -> Iterator[Mounted]:
    with mounting() as mounted:
        yield mounted.ready()
        assert "Traceback" not in mounted.errors()


def through_tar(file: Path, folder: Path) -> str:
    output("bash", "-o", "pipefail", "-c", 'tar -cC "$1" "$2" | tar -xC "$3"', "-", file.parent, file.name, folder)
    return (folder / file.name).read_text()


def through(*command: str) -> Callable[[Path, Path], str]:
    """Return a reader of a file by a program that copies it into a folder."""

    def read(file: Path, folder: Path) -> str:
        output(*command, file, folder / "copy")
        return (folder / "copy").read_text()

    return read


READERS: dict[str, Callable[[Path, Path], str]] = {
    "cat": lambda file, _: output("cat", file),
    "tail": lambda file, _: output("tail", "-n", "5", file),
    "tail -c": lambda file, _: output("tail", "-c", "+1", file),
    "head -c": lambda file, _: output("head", "-c", "10000000", file),
    "grep": lambda file, _: output("grep", "", file),
    "grep -r": lambda file, _: output("grep", "-rh", "--include", file.name, "", file.parent),
    "less": lambda file, _: output("less", file),
    "dd": lambda file, _: output("dd", "status=none", f"if={file}"),
    "sort": lambda file, _: output("sort", file),
    "sed": lambda file, _: output("sed", "", file),
    "a shell's read": lambda file, _: shell('read -r line < "$1"; echo "$line"', file).stdout,
    "a shell's $(<file)": lambda file, _: shell('echo "$(<"$1")"', file).stdout,
    "cp": through("cp"),
    "rsync -a": through("rsync", "-a"),
    "install": through("install"),
    "tar": through_tar,
    "shutil": lambda file, folder: (python(SHUTIL, file, folder / "copy"), (folder / "copy").read_text())[1],
    "mmap": lambda file, _: python(MMAP, file),
    "pread": lambda file, _: python(PREAD, file),
}


@pytest.mark.parametrize("tool", READERS)
def test_a_tool_sees_whole_values_though_each_has_another_length(
    tree: Mounted, tmp_path: Path, tool: str, times: Callable[[int], int]
) -> None:
    def read() -> str:
        content = READERS[tool](tree.path("values/text"), tmp_path)
        assert is_whole(content), content
        return content

    first = read()
    for _ in range(times(60)):
        read()
    wait_for(lambda: read() != first, "the value changes")


@pytest.mark.parametrize("tool", ["cat", "tail -c", "cp", "rsync -a", "tar", "mmap", "dd"])
def test_a_tool_sees_whole_values_that_take_several_reads(tree: Mounted, tmp_path: Path, tool: str) -> None:
    for _ in range(3):
        content = READERS[tool](tree.path("values/big"), tmp_path)
        assert is_whole(content), (len(content), content[:100])
        assert len(content) > 300_000


def test_copies_of_a_whole_tree_are_right(tree: Mounted, tmp_path: Path) -> None:
    output("cp", "-r", tree.path("values"), tmp_path / "cp")
    output("rsync", "-a", f"{tree.path('values')}/", tmp_path / "rsync")
    python("import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2])", tree.path("values"), tmp_path / "shutil")
    for copy in ("cp", "rsync", "shutil"):
        assert is_whole((tmp_path / copy / "text").read_text())
        assert is_whole((tmp_path / copy / "big").read_text())
        json.loads((tmp_path / copy / "document.json").read_text())


def test_tar_packs_everything_and_complains_of_nothing(tree: Mounted, tmp_path: Path) -> None:
    output("tar", "-cf", tmp_path / "all.tar", "-C", tree.mountpoint, "values", "still", "control", "live", "link")
    output("tar", "-xf", tmp_path / "all.tar", "-C", tmp_path)
    assert is_whole((tmp_path / "values/text").read_text())
    assert (tmp_path / "still/constant").read_text() == "42\n"
    assert (tmp_path / "control/rate").read_text().startswith("Set the learning rate.")
    assert (tmp_path / "link").readlink() == tree.target


def test_jq_reads_documents(tree: Mounted) -> None:
    for _ in range(10):
        number, padding = output("jq", ".number, (.padding | length)", tree.path("values/document.json")).split()
        assert int(padding) == int(number) * 7 % 50


def test_numpy_reads_arrays(tree: Mounted) -> None:
    script = "import sys, numpy; a = numpy.fromfile(sys.argv[1]); print(len(a), a.min(), a.max())"
    for _ in range(2):
        length, least, most = output(sys.executable, "-c", script, tree.path("values/numbers")).split()
        assert least == most
        assert int(length) == 1 + int(float(least)) % 700


def test_sizes_are_those_of_what_is_read_afterwards(tree: Mounted) -> None:
    script = 'exec 3< "$1"; stat -Lc %s /dev/fd/3; cat <&3 | wc -c; du -b "$1" | cut -f1; wc -c < /dev/fd/3'
    for _ in range(10):
        opened, read, *_ = shell(script, tree.path("values/text")).stdout.split()
        assert opened == read
    assert output("wc", "-c", tree.path("still/constant")).split()[0] == "3"
    assert output("du", "-b", tree.path("still/constant")).split()[0] == "3"
    assert int(output("du", "-k", tree.path("values/big")).split()[0]) >= 293
    assert shell('test -s "$1/constant" && test ! -s "$1/empty"', tree.path("still")).returncode == 0


def test_find_lists_every_file_with_its_kind(tree: Mounted) -> None:
    found = output("find", tree.mountpoint, "-printf", "%P %y %m\n").splitlines()
    for line in ("values/text f 444", "control/rate f 600", "live d 555", "link l 777", " d 555"):
        assert line in found
    assert output("find", tree.path("still"), "-size", "+0").split() == [
        str(tree.path(f"still/{name}")) for name in ("constant", "uncached", "step")
    ]


def test_nothing_makes_a_live_file_but_reading_it(tree: Mounted) -> None:
    made = tree.do("made")
    output("find", tree.mountpoint, "-ls")
    output("ls", "-laR", tree.mountpoint)
    output("du", "-a", tree.mountpoint)
    output("tar", "-cf", "/dev/null", "-C", tree.mountpoint, "live")
    assert shell('test -s "$1"', tree.path("live/counted")).returncode == 1
    assert tree.do("made") == made
    assert tree.cat("live/counted") == f"made {made + 1} times\n"


def test_a_live_file_has_its_size_once_it_is_open(tree: Mounted, tmp_path: Path) -> None:
    for name in ("cp", "mmap", "pread", "tail -c"):
        assert READERS[name](tree.path("live/counted"), tmp_path).startswith("made ")


def test_the_moment_of_the_last_change_is_the_files_time(tree: Mounted) -> None:
    stat = ("stat", "-c", "%y", tree.path("still/constant"))
    first = output(*stat)
    uncached = output("stat", "-c", "%y", tree.path("still/uncached"))
    changing = output("stat", "-c", "%y", tree.path("values/text"))
    wait_for(
        lambda: output("stat", "-c", "%y", tree.path("values/text")) != changing, "the time changes with the value"
    )
    assert output(*stat) == first
    assert output("stat", "-c", "%y", tree.path("still/uncached")) == uncached


def test_a_file_that_breaks_is_listed_and_says_so_when_it_is_read(tree: Mounted) -> None:
    assert "value" in output("ls", "-l", tree.path("broken"))
    assert "Input/output error" in sh("cat", tree.path("broken/value")).stderr


def test_tail_f_follows_a_file_that_grows(tree: Mounted) -> None:
    follower = start("tail", "-n", "+1", "-s", "0.05", "-f", tree.path("values/log"))
    try:
        assert follower.stdout is not None
        for number in range(4):
            tree.do("log", text=f"line {number}\n")
            assert follower.stdout.readline() == f"line {number}\n"
    finally:
        end(follower)


@contextlib.contextmanager
def held_open(path: str | Path) -> Iterator[None]:
    """Have a program hold a file open."""
    holder = start("bash", "-c", 'exec 3< "$1"; echo; read -r', "-", path, stdin=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
    finally:
        end(holder)


def test_a_file_that_is_held_open_keeps_no_other_reader_from_new_values(tree: Mounted) -> None:
    with held_open(tree.path("values/text")):
        first = tree.cat("values/text")
        wait_for(lambda: tree.cat("values/text") != first, "the value changes", 3)


def test_what_was_shown_before_is_void_after_a_bump_though_the_file_is_held_open(tree: Mounted) -> None:
    with held_open(tree.path("values/text")):
        first = tree.cat("values/text")
        tree.do("bump")
        assert tree.cat("values/text") != first


def test_watch_shows_new_values(tree: Mounted) -> None:
    main, side = pty.openpty()
    watcher = subprocess.Popen(
        ["watch", "-n", "0.2", "cat", str(tree.path("values/text"))],
        stdin=side,
        stdout=side,
        stderr=side,
        env={**os.environ, "TERM": "xterm", "LC_ALL": "C"},
        start_new_session=True,
    )
    os.close(side)
    try:
        shown = b""

        def more() -> bool:
            nonlocal shown
            shown += os.read(main, 1 << 16)
            return shown.count(b":") > 6 and b"No such" not in shown

        wait_for(more, "watch draws two values")
        assert b"rror" not in shown
    finally:
        watcher.kill()
        watcher.wait()
        os.close(main)


NAMES = [
    "plain",
    "with space",
    "new\nline",
    "tab\t",
    "a/b",
    "..",
    ".",
    "",
    "ü€😀",
    "%",
    "index.json",
    "x" * 255,
    "x" * 300,
]
NAMES += ["é" * 127 + "e", "-n", "*", "'\"$(x)", "\udc80"]


def test_names_of_every_kind_are_files(tree: Mounted) -> None:
    tree.do("members", names=NAMES)
    script = "import os, sys\nfor e in os.scandir(sys.argv[1]): print(repr((e.name, open(e.path).read())))"
    found = python(script, tree.path("many")).splitlines()
    assert len(found) == len(NAMES)
    assert all("I am" in line for line in found)
    assert len(output("find", tree.path("many"), "-type", "f", "-print0").rstrip("\0").split("\0")) == len(NAMES)
    copies = sh("bash", "-c", 'tar -cC "$1" . | tar -t | wc -l', "-", tree.path("many"))
    assert (int(copies.stdout), copies.stderr) == (len(NAMES) + 1, "")
    tree.do("members", names=[])
    assert output("ls", "-A", tree.path("many")) == ""


def test_names_that_cannot_be_are_refused_as_the_kernel_does_it(tree: Mounted) -> None:
    tree.do("members", names=["gone"])
    script = r"""
import errno, os, sys
for name in [b"x" * 256, b"\xff\xfe", b"nothing", b"gone/below", b"x" * 255]:
    try:
        os.stat(os.path.join(os.fsencode(sys.argv[1]), name))
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    codes = python(script, tree.path("many")).split()
    assert codes == ["ENAMETOOLONG", "ENOENT", "ENOENT", "ENOTDIR", "ENOENT"]
    assert tree.cat("many/gone") == "I am 'gone'\n"
    tree.do("members", names=[])
    assert "No such file" in sh("cat", tree.path("many/gone")).stderr


def test_a_link_leads_to_a_real_file(tree: Mounted) -> None:
    assert tree.cat("link") == "a real file\n"
    assert output("readlink", tree.path("link")) == f"{tree.target}\n"
    assert output("stat", "-c", "%s", tree.path("link")) == f"{len(str(tree.target))}\n"


def test_the_table_of_mounts_says_whose_it_is(tree: Mounted) -> None:
    (mount,) = tree.mounted()
    assert (mount.kind, mount.pid, mount.source) == ("fuse.midrun", tree.face, f"midrun:{tree.face}:test")
    assert output("stat", "-fc", "%l", tree.mountpoint) == "255\n"
