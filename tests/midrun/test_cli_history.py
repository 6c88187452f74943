"""What a run has logged, by `midrun history`, whether it lives or not."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest

from midrun.fs.segments import Segment
from tests.midrun.commandline import complaint, made_up, midrun


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two sessions, the second of which has made some steps again."""
    run = made_up(tmp_path / "run")
    for first, value in ((0, 1.0), (6, 2.0)):
        segment = Segment(run / "history", "fit", 1000.0, first)
        steps = range(first, 10)
        segment.append(("train/loss",), steps, [1000.0 + step for step in steps], [[value * step] for step in steps])
        segment.flush()
    return run


def points(out: str) -> list[tuple[int, float]]:
    header, *rows = csv.reader(out.splitlines())
    assert header == ["step", "time", "value"]
    return [(int(step), float(value)) for step, _, value in rows]


def test_the_points_of_a_name_are_printed_as_csv(run: Path) -> None:
    code, out, err = midrun("history", run, "train/loss")
    assert (code, err) == (0, "")
    assert out.splitlines()[1] == "0,1000.000,0.0"
    assert points(out) == [(step, step * (1.0 if step < 6 else 2.0)) for step in range(10)]


def test_what_a_later_session_has_made_again_is_printed_when_it_is_asked_for(run: Path) -> None:
    _, out, _ = midrun("history", run, "train/loss", "--every", "--from", "8")
    assert points(out) == [(8, 8.0), (9, 9.0), (8, 16.0), (9, 18.0)]


def test_a_range_and_a_number_of_points_may_be_asked_for(run: Path) -> None:
    assert points(midrun("history", "--from", "2", "--to", "3", run, "train/loss")[1]) == [(2, 2.0), (3, 3.0)]
    assert midrun("history", run, "train/loss", "-n", "2")[1].splitlines() == [
        "step,time,mean,low,high",
        "0,1000.000,2.5,0.0,5.0",
        "6,1006.000,15.0,12.0,18.0",
    ]
    assert midrun("history", run, "train/loss", "-n", "2", "--to", "1")[1].splitlines()[1:] == [
        "0,1000.000,0.0,0.0,0.0",
        "1,1001.000,1.0,1.0,1.0",
    ]
    assert "from 1 on" in complaint("history", run, "train/loss", "-n", "0", code=2)
    assert points(midrun("history", run, "train/loss", "--from", "50")[1]) == []


def test_nan_and_infinity_are_written_as_python_reads_them(run: Path) -> None:
    segment = Segment(run / "history", "fit", 1000.0, 10)
    segment.append(("odd",), [11, 12], [0.0, 0.0], [[math.nan], [-math.inf]])
    segment.flush()
    assert midrun("history", run, "odd")[1].splitlines()[1:] == ["11,0.000,nan", "12,0.000,-inf"]


def test_without_a_name_it_is_said_what_there_is(run: Path, tmp_path: Path) -> None:
    assert midrun("history", run)[1] == "          14  train/loss\n"
    made_up(tmp_path / "fresh")
    assert midrun("history", tmp_path / "fresh") == (0, "", "")


def test_the_one_live_run_here_needs_no_name(run: Path) -> None:
    assert midrun("history", cwd=run.parent)[1] == "          14  train/loss\n"
    assert len(points(midrun("history", "train/loss", cwd=run.parent)[1])) == 10


def test_what_is_wrong_is_one_line_and_2(run: Path) -> None:
    told = complaint("history", run, "train/los", code=2)
    assert told == f"midrun: {run} has no history of 'train/los': did you mean 'train/loss'?\n"
    assert "lists what there is" in complaint("history", run, "entropy", code=2)
    assert "'b' is one word too many" in complaint("history", run, "a", "b", code=2)
    assert "'x'" in complaint("history", run, "a", "--from", "x", code=2)
    assert "'--what' is no option" in complaint("history", run, "--what", code=2)


def test_a_history_that_can_not_be_read_is_told(run: Path) -> None:
    [file] = (run / "history" / "0002").glob("*.rows")
    file.unlink()
    file.mkdir()
    assert "Is a directory" in complaint("history", run, "train/loss", code=1)


def test_whoever_reads_no_further_ends_it(run: Path) -> None:
    segment = Segment(run / "history", "fit", 1000.0, 10)
    steps = range(10, 200_000)
    segment.append(("long",), steps, [0.0] * len(steps), [[0.5]] * len(steps))
    segment.flush()
    command = f"{sys.executable} -m midrun history {run} long | head -n 2"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("step,time,value\n10,0.000,0.5\n", "")


@pytest.mark.parametrize("odd", ['"first_step": Infinity', f'"started": 1{"0" * 400}', "[" * 100_000])
def test_a_segment_that_is_none_hides_no_other(run: Path, odd: str) -> None:
    index = run / "history" / "0001" / "columns.json"
    index.write_text(odd if odd.startswith("[") else index.read_text().replace("{", f"{{{odd},", 1))
    text = index.read_text()
    if not odd.startswith("["):  # The first of two members of one name is overridden.
        name = odd.partition(":")[0]
        at = text.index(name, text.index(odd) + len(odd))
        index.write_text(text[:at] + text[at:].replace(name, '"other"', 1))
    assert points(midrun("history", run, "train/loss")[1])[0] == (6, 12.0)


def test_a_directory_in_place_of_what_says_what_is_in_a_segment_hides_no_other(run: Path) -> None:
    index = run / "history" / "0001" / "columns.json"
    index.unlink()
    index.mkdir()
    assert points(midrun("history", run, "train/loss")[1])[0] == (6, 12.0)
