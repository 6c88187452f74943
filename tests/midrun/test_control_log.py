"""The control log keeps every line for good, whatever becomes of the disk, the process and the file."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from midrun import control_log as module
from midrun.control_log import SHOWN, ControlLog, Line

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def entry(id_: str = "a", **more: Any) -> Line:
    members: dict[str, Any] = {
        "revision": 0,
        "time": 1.5,
        "event": "done",
        "id": id_,
        "kind": "set_learning_rate",
        "args": {"value": 0.5},
        "source": "rest",
        "via": "rest",
        "place": None,
        "changes": [],
        "error": None,
        **more,
    }
    return members  # type: ignore[return-value]  # a Line, with whatever the test puts into it


def opened(path: Path) -> ControlLog:
    log = ControlLog(path, 1.0)
    log.open()
    return log


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the file, each of which must be whole."""
    data = path.read_bytes()
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.splitlines()]


def ids(log: ControlLog) -> list[tuple[int, str]]:
    return [(line["revision"], line["id"]) for line in log.log["entries"]]


def test_lines_are_counted_on_over_the_sessions(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = opened(path)
    assert first.log == {"revision": 0, "entries": []}
    first.add(entry("a"))
    first.add(entry("b"))
    second = opened(path)
    assert second.log == first.log
    second.add(entry("c"))
    assert ids(second) == [(1, "a"), (2, "b"), (3, "c")]
    assert lines(path) == list(second.log["entries"])


def test_the_newest_are_shown_and_all_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{json.dumps(entry(str(n), revision=n))}\n" for n in range(1, 1501)))
    log = opened(path)
    assert ids(log) == [(n, str(n)) for n in range(1501 - SHOWN, 1501)]
    log.add(entry("new"))
    assert len(log.log["entries"]) == SHOWN
    assert ids(log)[-1] == (1501, "new")
    assert len(lines(path)) == 1501


def test_of_a_long_control_log_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TAIL", 1000)
    path = tmp_path / "log"
    path.write_text("".join(f"{json.dumps(entry(str(n), revision=n))}\n" for n in range(1, 101)))
    size = path.stat().st_size
    log = opened(path)
    assert log.revision == 100
    assert 1 < len(log.log["entries"]) < 10
    assert path.stat().st_size == size


@pytest.mark.parametrize("value", ["ä€😀", "\ud800", "a\nb\r\u2028", "\0", {"deep": [[[[1]]]]}, 1e308, None])
def test_any_argument_comes_back_as_it_was(tmp_path: Path, value: object) -> None:
    opened(tmp_path / "log").add(entry(args={"value": value}))
    assert [line["args"] for line in opened(tmp_path / "log").log["entries"]] == [{"value": value}]
    assert len(lines(tmp_path / "log")) == 1


def test_a_line_that_a_crash_cut_short_is_cut_off_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = opened(path)
    log.add(entry("a"))
    start = path.stat().st_size
    log.add(entry("b", args={"value": "ä"}))
    whole = path.read_bytes()
    for end in range(start, len(whole) - 1):
        path.write_bytes(whole[:end])
        after = opened(path)
        assert ids(after) == [(1, "a")]
        after.add(entry("c"))
        assert [(line["revision"], line["id"]) for line in lines(path)] == [(1, "a"), (2, "c")]


def test_a_line_that_lacks_nothing_but_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = opened(path)
    log.add(entry("a"))
    log.add(entry("b"))
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    after = opened(path)
    after.add(entry("c"))
    assert [line["id"] for line in lines(path)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "foreign", [b"hello\n", b"[1]\n", b"{}\n", b'{"revision": "7"}\n', b"[" * 100_000 + b"\n", b"\xff\xfe\n", b"\n\n"]
)
def test_foreign_lines_are_passed_over_and_stay(tmp_path: Path, foreign: bytes) -> None:
    path = tmp_path / "log"
    opened(path).add(entry("a"))
    whole = path.read_bytes()
    path.write_bytes(foreign + whole + foreign * (SHOWN + 1 if len(foreign) < 100 else 2))
    after = opened(path)
    assert ids(after) == [(1, "a")]
    after.add(entry("b"))
    assert after.revision == 2
    assert path.read_bytes().startswith(foreign + whole + foreign)


def test_a_line_that_can_not_be_written_is_shown_and_is_written_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "folder/log"
    log = opened(path)
    for id_ in ("a", "b"):
        with pytest.raises(FileNotFoundError):
            log.add(entry(id_))
    assert ids(log) == [(1, "a"), (2, "b")]
    path.parent.mkdir()
    log.add(entry("c"))
    assert lines(path) == list(log.log["entries"])
    log.add(entry("d"))
    assert [(line["revision"], line["id"]) for line in lines(path)] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


# Adds lines until the size limit, then without it, and ends; the limit is in the middle of a line.
FULL = """
import json, resource, signal, sys
from pathlib import Path
from midrun.control_log import ControlLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, entry = Path(sys.argv[1]), json.loads(sys.argv[2])
log = ControlLog(path, 1.0)
log.open()
log.add(entry)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        log.add(entry)
        raise SystemExit("it was written")
    except OSError as error:
        print(error.strerror, path.stat().st_size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.add(entry)
"""


def test_a_disk_that_takes_a_part_of_a_line_leaves_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    outcome = subprocess.run(
        [sys.executable, "-c", FULL, path, json.dumps(entry())],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    size = len(path.read_bytes().splitlines(keepends=True)[0])
    assert outcome.stdout == f"File too large {size}\n" * 2
    assert [line["revision"] for line in lines(path)] == [1, 2, 3, 4]


# For each number that it reads it forks a child that adds lines for ever, kills it when so many have been added, and
# prints the revision of the last one that the child has said to be on the disk.
KILLS = """
import json, os, signal, sys
from pathlib import Path
from midrun.control_log import ControlLog
for line in sys.stdin:
    reading, telling = os.pipe()
    if (child := os.fork()) == 0:
        log = ControlLog(Path(sys.argv[1]), 1.0)
        log.open()
        while True:
            log.add(json.loads(sys.argv[2]))
            os.write(telling, b"%8d" % log.revision)
    os.close(telling)
    said = b"".join(os.read(reading, 8) for _ in range(int(line)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 4096):
        said += more
    os.close(reading)
    print(int(said[-8:]), flush=True)
"""


def test_no_line_that_was_added_is_lost_by_kill_and_one_cut_short_is_cut_off(
    tmp_path: Path, times: Callable[[int], int]
) -> None:
    path = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", KILLS, path, json.dumps(entry(args={"value": "x" * 5000}))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(times(500)):
            process.stdin.write(f"{1 + number % 7}\n")
            process.stdin.flush()
            added = int(process.stdout.readline())
            # A kill may come between two pages of one write: what it has cut short is the next session's to cut off.
            data = path.read_bytes()
            found = [_revision_of(line) for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True)]
            assert found == list(range(1, len(found) + 1))
            assert added <= len(found)
    assert added > times(500)


@pytest.mark.parametrize("written", ["nothing", "a part", "all"])
def test_a_line_that_the_disk_has_taken_and_not_kept_stands_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def writes(fd: int, data: bytes) -> None:
        write(fd, data[: 10 if written == "a part" else 0])
        fails()

    write = os.write
    path = tmp_path / "log"
    log = opened(path)
    log.add(entry())
    with monkeypatch.context() as disk:
        # It can't be cut off either.
        disk.setattr(os, "ftruncate", fails)
        disk.setattr(os, "fsync", fails)
        if written != "all":
            disk.setattr(os, "write", writes)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                log.add(entry())
    log.add(entry())
    assert [_revision_of(line) for line in path.read_bytes().splitlines(keepends=True)] == [1, 2, 3, 4]


def test_what_others_have_put_into_the_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    log = opened(path)
    log.add(entry())
    with path.open("a") as others:
        others.write("{}\n")
    log.add(entry())
    assert [line == b"{}" for line in path.read_bytes().splitlines()] == [False, True, False]


def _revision_of(line: bytes) -> int:
    assert line.endswith(b"\n")
    return int(json.loads(line)["revision"])


def test_the_lines_can_be_read_while_they_are_added(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    stop, seen = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            revisions = [line["revision"] for line in log.log["entries"]]
            if any(later != sooner + 1 for sooner, later in pairwise(revisions)):
                seen.append(revisions)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(2 * SHOWN):
        log.add(entry())
    stop.set()
    reader.join()
    assert seen == []
