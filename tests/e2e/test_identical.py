"""midrun changes nothing: a seeded run ends with the same bits with it, without it, and with readers all the while."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.runs import Run
from tests.processes import output

pytestmark = pytest.mark.mount

CATS = "while true; do cat $(find {place} -type f); done"
CURLS = "while true; do for path in run metrics files/state/services.json; do curl -s {url}/$path; done; done"


@contextlib.contextmanager
def readers(run: Run) -> Iterator[None]:
    url = run.cat("meta/rest/url").strip()
    commands = (CATS.format(place=run.procfs), CURLS.format(url=url))
    reading = [
        subprocess.Popen(["bash", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    try:
        yield
        assert [reader.poll() for reader in reading] == [None, None]
    finally:
        for reader in reading:
            reader.kill()
            reader.wait()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_seeded_run_is_bit_identical_with_and_without_midrun_read_or_not(start: Start, workers: int) -> None:
    plan: dict[str, Any] = {"seed": 3, "steps": 150, "batches": 64, "wait_at": 2, "workers": workers, "val": True}
    plain = start("hashed", **plan, midrun={"midrun_enabled": False})
    alone = start("hashed", **plan)
    read = start("hashed", **plan, step_s=0.01)
    for run in (plain, alone, read):
        run.at()
    read.live()
    with readers(read):
        for run in (plain, alone, read):
            run.go()
        for run in (plain, alone, read):
            assert run.ended() == 0, run.told()
    assert plain.mark("result")["steps"] == 150
    assert plain.mark("result") == alone.mark("result") == read.mark("result")
    for run in (alone, read):
        assert run.left() == []
        run.assert_content()
    logged = [(run.directory / "metrics.csv").read_text() for run in (plain, alone, read)]
    assert logged[0].splitlines()[0].split(",") == logged[1].splitlines()[0].split(",")
    assert logged[0] == logged[1] == logged[2]


def test_midrun_enabled_false_starts_nothing_and_writes_nothing(start: Start) -> None:
    run = start(wait_at=5, midrun={"midrun_enabled": False})
    run.at()
    assert run.faces() == {}
    assert output("find", run.root, "-name", "procfs", "-o", "-name", "run.json", "-o", "-name", "artifacts") == ""
    run.go()
    assert run.ended() == 0
    assert "midrun" not in run.err
