"""Segments: what came together stands together, each start has its own, and all of them are read as one history."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from midrun.fs import segments
from midrun.fs.curves import Curve, curve_of, names_in
from midrun.fs.rows import RowReader
from midrun.fs.segments import INDEX, MOST_TOGETHER, Segment

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def segment(parent: Path, first: int = 0, function: str = "fit", **curves: dict[int, float]) -> Segment:
    """Write a segment in which each name has its values by steps; what has the same steps comes together."""
    made = Segment(parent, function, 1000.0, first)
    together: dict[tuple[int, ...], list[str]] = {}
    for name, curve in curves.items():
        together.setdefault(tuple(curve), []).append(name)
    for steps, names in together.items():
        rows = [[curves[name][step] for name in names] for step in steps]
        made.append(tuple(names), steps, [1000.0 + step for step in steps], rows)
    made.flush()
    return made


def asked(parent: Path, name: str, **question: Any) -> Curve:
    found = curve_of(parent, name, **question)
    assert found is not None
    return found


def points(curve: Curve) -> list[dict[int, float]]:
    return [dict(zip(attempt["steps"], attempt["values"], strict=True)) for attempt in curve["attempts"]]


def line(first: int, end: int, slope: float = 1.0) -> dict[int, float]:
    return {step: step * slope for step in range(first, end)}


def test_columns_json_and_numpy_are_all_that_a_reader_needs(tmp_path: Path) -> None:
    import numpy as np

    segment(tmp_path, loss=line(1, 50), acc=line(1, 50, 0.5), val=line(10, 50))
    document = json.loads((tmp_path / "0001" / INDEX).read_text())
    assert (document["format"], document["function"], document["first_step"]) == ("midrun.history/1", "fit", 0)
    assert [file["columns"] for file in document["files"]] == [["step", "time", "loss", "acc"], ["step", "time", "val"]]
    rows = np.fromfile(tmp_path / "0001" / document["files"][0]["file"]).reshape(-1, 4)
    assert rows[:, 0].tolist() == list(range(1, 50))
    assert rows[10].tolist() == [11.0, 1011.0, 11.0, 5.5]


def test_names_that_come_together_in_another_order_are_in_one_file(tmp_path: Path) -> None:
    made = Segment(tmp_path, "fit", 0.0, 0)
    made.append(("a", "b"), [1], [0.0], [[1.0, 10.0]])
    made.append(("b", "a"), [2], [0.0], [[20.0, 2.0]])
    made.flush()
    assert points(asked(tmp_path, "a")) == [{1: 1.0, 2: 2.0}]
    assert points(asked(tmp_path, "b")) == [{1: 10.0, 2: 20.0}]
    assert sorted(path.name for path in (tmp_path / "0001").iterdir()) == ["0000.rows", INDEX]


def test_a_name_that_comes_with_these_and_with_those_is_one_curve(tmp_path: Path) -> None:
    made = Segment(tmp_path, "fit", 0.0, 0)
    for step in range(100):
        names = ("loss", "lr") if step % 10 == 0 else ("loss",)
        made.append(names, [step], [float(step)], [[float(step)] * len(names)])
    made.flush()
    assert points(asked(tmp_path, "loss")) == [line(0, 100)]
    assert list(points(asked(tmp_path, "lr"))[0]) == list(range(0, 100, 10))
    assert names_in(tmp_path)["loss"] == {"rows": 100, "segments": ["0001"]}


def test_many_names_are_in_several_files_so_that_one_of_them_is_read_alone(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(2 * MOST_TOGETHER + 1)]
    made = Segment(tmp_path, "fit", 0.0, 0)
    made.append(tuple(names), [7], [0.0], [[float(at) for at in range(len(names))]])
    made.flush()
    assert len(list((tmp_path / "0001").glob("*.rows"))) == 3
    assert [points(asked(tmp_path, name)) for name in names] == [[{7: float(at)}] for at in range(len(names))]


def test_names_in_ever_other_company_make_no_ever_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MOST_SETS", 4)
    made = Segment(tmp_path, "fit", 0.0, 0)
    for step in range(1, 256):
        together = tuple(f"m{bit}" for bit in range(8) if step >> bit & 1)
        made.append(together, [step], [0.0], [[float(step)] * len(together)])
    made.flush()
    assert len(list((tmp_path / "0001").glob("*.rows"))) <= 4 + 8
    for bit in range(8):
        assert points(asked(tmp_path, f"m{bit}")) == [{step: float(step) for step in range(1, 256) if step >> bit & 1}]


def test_a_range_and_a_number_of_points_may_be_asked_for(tmp_path: Path) -> None:
    segment(tmp_path, loss={**line(0, 10_000), 5000: 1e9, 6000: math.nan})
    assert points(asked(tmp_path, "loss", first=10, last=12)) == [line(10, 13)]
    whole = asked(tmp_path, "loss", points=100)
    assert (whole["rows"], whole["exact"]) == (10_000, False)
    [shown] = points(whole)
    assert {0, 5000, 6000, 9999} <= set(shown)
    assert 100 <= len(shown) <= 110
    low, high = whole["usual"]
    assert 0 < low < 400
    assert 9600 < high < 10_000, "though half of what is shown are the highest of their pieces"
    assert asked(tmp_path, "loss", last=10)["usual"] == []
    assert asked(tmp_path, "loss", first=20_000)["attempts"] == []
    assert asked(tmp_path, "loss", first=12, last=10)["rows"] == 0
    assert curve_of(tmp_path, "los") is None
    assert curve_of(tmp_path / "nowhere", "loss") is None


def test_each_start_has_a_segment_and_a_step_made_again_is_shown_twice_or_as_it_was_last(tmp_path: Path) -> None:
    segment(tmp_path, loss=line(1, 353), val={50: 1.0, 100: 2.0})
    segment(tmp_path, 65, loss=line(65, 101, 10.0), val={100: 3.0})
    assert points(asked(tmp_path, "loss")) == [line(1, 353), line(65, 101, 10.0)]
    assert points(asked(tmp_path, "loss", duplicates="last")) == [line(1, 65), line(65, 101, 10.0)]
    assert points(asked(tmp_path, "val", duplicates="last")) == [{50: 1.0}, {100: 3.0}], "also where it came later"
    assert [attempt["segment"] for attempt in asked(tmp_path, "loss")["attempts"]] == ["0001", "0002"]


def test_a_test_after_a_fit_makes_no_step_again(tmp_path: Path) -> None:
    segment(tmp_path, loss=line(1, 10))
    segment(tmp_path, 0, function="test", score={0: 0.5})
    assert points(asked(tmp_path, "loss", duplicates="last")) == [line(1, 10)]
    assert points(asked(tmp_path, "score", duplicates="last")) == [{0: 0.5}]


def test_what_is_no_segment_is_passed_over(tmp_path: Path) -> None:
    segment(tmp_path, loss=line(1, 4))
    for name, text in (("0002", "{"), ("0003", '{"format": "other/7"}'), ("0004", "[]"), ("notes", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / INDEX).write_text(text)
    (tmp_path / "0005").mkdir()
    (tmp_path / "0006").write_text("a file")
    hostile = json.loads((tmp_path / "0001" / INDEX).read_text())
    hostile["files"][0]["file"] = "../../secret.rows"
    (tmp_path / "0007").mkdir()
    (tmp_path / "0007" / INDEX).write_text(json.dumps(hostile))
    assert points(asked(tmp_path, "loss")) == [line(1, 4)]
    segment(tmp_path, loss=line(1, 3))
    assert (tmp_path / "0008").is_dir()


def test_two_writers_in_one_directory_have_a_segment_each(tmp_path: Path) -> None:
    one, other = (Segment(tmp_path, "fit", 0.0, 0) for _ in range(2))
    for made, value in ((one, 1.0), (other, 2.0)):
        made.append(("loss",), [1], [0.0], [[value]])
    one.flush()
    other.flush()
    assert points(asked(tmp_path, "loss")) == [{1: 1.0}, {1: 2.0}]


# It writes three rows of two names, and no more than a number of bytes into any file; says what became of it; and
# writes the rest when there is room again.
FULL = """
import resource, signal, sys
from pathlib import Path
from midrun.fs.segments import Segment
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
made = Segment(Path(sys.argv[1]), "fit", 0.0, 0)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for step in range(1, 4):
    made.append(("a", "b"), [step], [0.0], [[step * 1.0, step * 10.0]])
    if step == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
    try:
        made.flush()
        print("written")
    except OSError as error:
        print(error.strerror, made.waiting)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
made.flush()
"""


@pytest.mark.parametrize(("size", "said"), [(33, ["1", "2"]), (64, ["1"])])
def test_on_a_full_disk_rows_wait_and_come_later(tmp_path: Path, size: int, said: list[str]) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path), str(size)]
    told = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True).stdout.splitlines()
    assert told == ["written"] * (3 - len(said)) + [f"File too large {count}" for count in said]
    assert points(asked(tmp_path, "a")) == [{1: 1.0, 2: 2.0, 3: 3.0}]


def test_rows_beyond_the_room_are_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MOST_WAITING", 1000)
    made = Segment(tmp_path / "file" / "history", "fit", 0.0, 0)
    (tmp_path / "file").write_text("in the way")
    for step in range(200):
        made.append(("loss",), [step], [0.0], [[1.0]])
        with pytest.raises(NotADirectoryError):
            made.flush()
    assert made.lost + made.waiting == 200
    assert made.waiting * 24 <= 1000
    (tmp_path / "file").unlink()
    kept = made.waiting
    made.flush()
    assert names_in(tmp_path / "file" / "history")["loss"]["rows"] == kept


# It adds rows for ever, flushes each, and says so.
KILLS = """
import os, sys
from pathlib import Path
from midrun.fs.segments import Segment
made = Segment(Path(sys.argv[1]), "fit", 0.0, 0)
step = 0
while True:
    step += 1
    made.append(("a", "b"), [step], [0.0], [[step * 1.0, -1.0 * step]])
    if step % 7 == 0:
        made.append(("c",), [step], [0.0], [[step * 1.0]])
    made.flush()
    os.write(1, b"%8d" % step)
"""


def test_a_killed_writer_has_left_every_row_that_it_said_was_written(
    tmp_path: Path, times: Callable[[int], int]
) -> None:
    for number in range(times(100)):
        parent = tmp_path / str(number)
        with subprocess.Popen([sys.executable, "-c", KILLS, parent], stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
            assert process.stdout is not None
            said = process.stdout.read(8 * (1 + 37 * number % 400))
            process.send_signal(signal.SIGKILL)
            said += process.stdout.read()
        last = int(said[-8:])
        for name, sign, every in (("a", 1, 1), ("b", -1, 1), ("c", 1, 7)):
            [found] = points(asked(parent, name)) if last >= 7 or every == 1 else [{}]
            steps = list(found)
            assert len(steps) >= last // every
            assert found == {step: sign * step for step in range(every, len(steps) * every + 1, every)}


def test_a_million_points_are_drawn_from_few_reads(
    tmp_path: Path, bytes_read: list[int], times: Callable[[int], int]
) -> None:
    count, made = times(10_000_000), Segment(tmp_path, "fit", 0.0, 0)
    block = 1000
    for first in range(0, count, block):
        steps = range(first, first + block)
        made.append(("loss",), [*steps], [float(step) for step in steps], [[step % 1000 / 1000] for step in steps])
        if first % (50 * block) == 0:
            made.flush()
    made.flush()
    whole = asked(tmp_path, "loss", points=1000)
    assert whole["rows"] == count
    assert 1000 <= len(whole["attempts"][0]["steps"]) <= 1002
    assert sum(bytes_read) < 3 << 20
    bytes_read.clear()
    middle = asked(tmp_path, "loss", first=count // 2, last=count // 2 + 999, points=1000)
    assert middle["exact"]
    assert len(middle["attempts"][0]["steps"]) == 1000
    assert sum(bytes_read) < 1 << 20


def test_a_file_that_can_not_be_read_is_told_and_none_stays_open(tmp_path: Path) -> None:
    segment(tmp_path, loss=line(1, 4))
    segment(tmp_path, loss=line(1, 4))
    file = tmp_path / "0002" / "0000.rows"
    file.unlink()
    file.mkdir()
    with pytest.raises(IsADirectoryError) as told:
        curve_of(tmp_path, "loss")
    held = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert told.value.errno == errno.EISDIR
    assert not [path for path in held if tmp_path in path.parents]


def test_a_reader_without_rights_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment(tmp_path, loss=line(1, 4))

    def refuses(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuses)
    with pytest.raises(PermissionError):
        curve_of(tmp_path, "loss")


def test_who_goes_on_where_another_has_begun_anew_leaves_what_that_one_has_alone(tmp_path: Path) -> None:
    parent = tmp_path / "history"

    def add(to: Segment, first: int, end: int, value: float) -> None:
        to.append(("loss",), range(first, end), [1.0] * (end - first), [[value]] * (end - first))

    mine, other = Segment(parent, "fit", 1.0, 0), Segment(parent, "fit", 2.0, 0)
    add(mine, 0, 10, 1.0)
    mine.flush()
    shutil.rmtree(parent)
    add(other, 0, 500, 2.0)
    other.flush()
    add(mine, 10, 20, 1.0)
    with pytest.raises(FileNotFoundError):
        mine.flush()
    add(other, 500, 510, 2.0)
    other.flush()
    assert points(asked(parent, "loss")) == [dict.fromkeys(range(510), 2.0)]


def test_a_name_may_be_in_more_files_than_a_process_may_have_open(tmp_path: Path) -> None:
    made = Segment(tmp_path, "fit", 1.0, 0)
    for number in range(100):
        made.append(("loss", f"other{number}"), range(number * 70, number * 70 + 70), [1.0] * 70, [[0.5, 1.0]] * 70)
    made.flush()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 20, limits[1]))
    try:
        every, few = asked(tmp_path, "loss", points=10_000), asked(tmp_path, "loss", points=500)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert points(every) == [dict.fromkeys(range(7000), 0.5)]
    assert (few["rows"], few["usual"]) == (7000, [0.5, 0.5])


def test_nobody_waits_for_the_other_end_of_a_pipe(tmp_path: Path) -> None:
    made = segment(tmp_path, loss=line(0, 10))
    segment(tmp_path, first=10, loss=line(10, 20))
    os.mkfifo(tmp_path / "0003")
    for place in ("0001/columns.json", "0002/0000.rows"):
        (tmp_path / place).unlink()
        os.mkfifo(tmp_path / place)
    with pytest.raises(OSError, match="seek"):
        RowReader(tmp_path / "0002" / "0000.rows", 1).points(0, 0, 1)
    assert names_in(tmp_path)["loss"] == {"rows": 0, "segments": ["0002"]}
    (tmp_path / "0001" / "0000.rows").unlink()
    os.mkfifo(tmp_path / "0001" / "0000.rows")
    made.append(("loss",), [10], [1.0], [[1.0]])
    with pytest.raises(OSError, match="No such device"):
        made.flush()


def test_what_is_no_text_and_names_something_keeps_no_other_away(tmp_path: Path) -> None:
    made = Segment(tmp_path, "fit", 1.0, 0)
    made.append(cast("Any", ("loss", frozenset(), 5)), [1], [1.0], [[1.0, 2.0, 3.0]])
    made.flush()
    assert list(names_in(tmp_path)) == ["loss", "frozenset()", "5"]


def test_where_no_directory_can_be_made_what_waits_stays_and_what_is_beyond_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MOST_WAITING", 40 * 3 * 8)
    (tmp_path / "history").write_text("")
    made = Segment(tmp_path / "history", "fit", 1.0, 0)
    for step in range(0, 100, 10):
        made.append(("loss",), range(step, step + 10), [1.0] * 10, [[1.0 * at] for at in range(step, step + 10)])
        with pytest.raises(OSError, match="exists"):
            made.flush()
    assert (made.lost, made.waiting) == (60, 40)
    (tmp_path / "history").unlink()
    made.flush()
    assert points(asked(tmp_path / "history", "loss")) == [line(0, 40)]
