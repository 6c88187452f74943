"""`midrun resume`: what a run can go on from, and the choice of one, from its directory alone."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from midrun.checkpoints.shelf import Shelf
from tests.midrun.commandline import complaint, made_up, midrun


def kept(run: Path, step: int, **more: Any) -> str:
    """Put a checkpoint on the shelf of a run; return its path."""
    folder = run / "artifacts" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step={step}.ckpt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"")
    index = folder / "index.json"
    entries = json.loads(index.read_bytes())["artifacts"] if index.exists() else []
    entry = {
        "id": path.name,
        "path": str(path),
        "size": 1234567,
        "label": None,
        "global_step": step,
        "epoch": step // 4,
    }
    entries.insert(0, {**entry, "time": 1_700_000_000.0 + step, "control_revision": 0, **more})
    index.write_text(json.dumps({"artifacts": entries}))
    return str(path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make up a run that is at step 7, with two checkpoints."""
    run = made_up(tmp_path / "run")
    kept(run, 2, label="early")
    kept(run, 6)
    return run


def test_it_lists_the_newest_first_with_the_steps_to_redo(run: Path) -> None:
    code, out, err = midrun("resume", run)
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == ["step", "epoch", "to", "redo", "size", "written", "checkpoint"]
    assert [row.split()[:5] for row in rows] == [["6", "1", "1", "1.2", "MB"], ["2", "0", "5", "1.2", "MB"]]
    assert [row.split()[-1] for row in rows] == ["step=6.ckpt", "step=2.ckpt"]


def test_it_marks_what_is_older_than_the_last_change_and_what_is_chosen(run: Path) -> None:
    line = {"revision": 3, "changes": [{"what": "lr", "old": 1, "new": 2}], "event": "done", "id": "x"}
    (run / "control-log.jsonl").write_text(
        f"{json.dumps(line)}\n{json.dumps({**line, 'revision': 4, 'changes': []})}\n"
    )
    kept(run, 7, control_revision=3)
    assert midrun("resume", run, "--choose", "early")[0] == 0
    notes = [row.partition(".ckpt")[2] for row in midrun("resume", run)[1].splitlines()[1:]]
    older = "older than the last change by a command"
    assert notes == ["", f" ({older})", f" (chosen, {older})"]


def test_for_programs_it_is_json(run: Path) -> None:
    listed = json.loads(midrun("resume", run, "--json")[1])
    assert listed["reached"] == 7
    assert [one["global_step"] for one in listed["checkpoints"]] == [6, 2]
    assert listed == Shelf(run).listed()


@pytest.mark.parametrize("name", ["early", "step=2.ckpt", "path"])
def test_one_is_chosen_by_its_label_its_file_name_or_its_path(name: str, run: Path) -> None:
    path = str(run / "artifacts" / "checkpoints" / "step=2.ckpt")
    code, out, _ = midrun("resume", run, "--choose", path if name == "path" else name)
    assert code == 0
    assert out == f"midrun.checkpoint('{run}', 'resume') is {path}, once\n"
    assert Shelf(run).resolve("resume") == path
    assert midrun("resume", run, "--choose", "latest")[1].endswith("is the newest\n")
    assert str(Shelf(run).resolve("resume")).endswith("step=6.ckpt")


def test_what_can_t_be_chosen_is_told_in_one_line(run: Path, tmp_path: Path) -> None:
    assert "there is no checkpoint 'nine'; the newest are step=6.ckpt, step=2.ckpt" in complaint(
        "resume", run, "--choose", "nine", code=2
    )
    path = run / "artifacts" / "checkpoints" / "step=6.ckpt"
    path.write_bytes(path.read_bytes()[:-10])
    assert "is torn, or no checkpoint" in complaint("resume", run, "--choose", "step=6.ckpt", code=2)
    empty = made_up(tmp_path / "empty")
    assert "has no checkpoint: midrun send" in complaint("resume", empty, code=1)
    complaint("resume", run, "--choose", "early", "--list", code=2)


def test_two_of_one_name_are_told_apart_by_their_ids(run: Path) -> None:
    kept(run, 4, label="early")
    assert "several checkpoints are called 'early': give the id" in complaint(
        "resume", run, "--choose", "early", code=2
    )


def test_a_checkpoint_that_was_removed_is_not_listed(run: Path) -> None:
    (run / "artifacts" / "checkpoints" / "step=6.ckpt").unlink()
    assert [one["id"] for one in Shelf(run).listed()["checkpoints"]] == ["step=2.ckpt"]
