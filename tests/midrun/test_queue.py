"""The queue: what becomes of commands that earlier sessions have left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midrun.fs.spool import Spool
from tests.midrun.models import only_directory
from tests.midrun.steering import Steered, fit, until


def test_a_file_that_an_ended_process_had_taken_in_and_the_next_has_told_of_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Steered()
    command = {"kind": "hold", "execution": {"when": {"global_step": 10**9}}}
    model.plan[0] = lambda: _drop(model.live.directory / "spool", json.dumps(command))
    with monkeypatch.context() as ended:
        ended.setattr(Spool, "_remove", _leave)
        model.plan[1] = lambda: until(lambda: model.live.queue.table.record("later"))
        fit(model, tmp_path, 2)
    spool = only_directory(tmp_path) / "spool"
    before = json.loads((spool / "done" / "later.json").read_text())
    assert before["status"] == "expired"
    assert (spool / "new" / "later.json").exists()
    fit(model, tmp_path, 1)
    assert [list((spool / state).iterdir()) for state in ("new", "rejected")] == [[], []]
    assert json.loads((spool / "done" / "later.json").read_text()) == before


def _leave(spool: Spool, name: str, seen: Any) -> None:
    """Keep a file as a process does that ends before it can remove it."""
    seen.taken = True
    spool._seen[name] = seen


def _drop(spool: Path, text: str) -> None:
    (spool / "new" / ".later").write_text(text)
    (spool / "new" / ".later").rename(spool / "new" / "later.json")
