"""A process is killed after a checkpoint, and another goes on from it as if nothing had happened, to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import midrun
from tests.e2e.conftest import Start
from tests.e2e.runs import REPOSITORY, Script
from tests.processes import wait_for
from tests.resuming import CASES

KILLED = -signal.SIGKILL
SOME = ("shuffled", "workers", "accumulation", "plateau of a validation", "stateful loader", "moving average")
"""Cases that are tried each time; the others take as long again."""
SPOTS = 3


def record(folder: Path, rank: int = 0) -> tuple[list[Any], list[Any], dict[tuple[Any, ...], tuple[int, int]]]:
    """Return what a trainer has seen and logged, and where it could have written a checkpoint."""
    seen, logged, spots = json.loads((folder / f"record-{rank}").read_bytes())
    return seen, logged, {tuple(spot[:3]): (spot[3], spot[4]) for spot in spots}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SOME else pytest.mark.long) for name in CASES])
def test_what_is_killed_after_a_checkpoint_goes_on_to_the_bit(
    name: str, start: Start, root: Path, times: Callable[[int], int]
) -> None:
    whole = start("resumed", case=name, logger=None)
    assert whole.ended(60) == 0, whole.told()
    seen, logged, spots = record(whole.root)
    able = [spot for spot in spots if spot[0] not in CASES[name].inexact]
    for number, spot in enumerate(random.Random(name).sample(able, times(SPOTS * 10) // 3 or 1)):  # noqa: S311 - no secret
        path = root / f"{number}.ckpt"
        killed = start("resumed", case=name, spot=list(spot), write=str(path), logger=None)
        assert killed.ended(60) == KILLED, killed.told()
        part = start("resumed", case=name, checkpoint=str(path), seed=99, logger=None)
        assert part.ended(60) == 0, part.told()
        first, after = spots[spot]
        assert record(part.root)[:2] == (seen[first:], logged[after:]), spot


@pytest.mark.timeout(900)
def test_however_often_it_is_killed_while_it_writes_the_newest_whole_checkpoint_loads(
    start: Start, root: Path, times: Callable[[int], int]
) -> None:
    drawn, here, reached = random.Random(7), root / "first" / "logs" / "v", 0  # noqa: S311 - no secret
    quiet = {"rest_enabled": False, "fuse_enabled": False, "hooks_enabled": False}
    (root / "first").mkdir()
    for number in range(times(300)):
        folder = root / "first" if not number else root / f"round-{number}"
        run = start("saving", in_=folder, here=str(here), version="v", midrun=quiet)
        wait_for((folder / "saving").exists, "it writes checkpoints", 60)
        # Somewhere in the writing of one of the next.
        time.sleep(drawn.random() * 0.05)
        os.kill(run.pid, signal.SIGKILL)
        assert run.ended(30) == KILLED, run.told()
        path = midrun.checkpoint(here, "latest")
        assert path is not None
        content = torch.load(path, weights_only=True)
        assert content["global_step"] == content["midrun"]["extra"]["position"] > reached
        reached = content["global_step"]
    run = start("saving", in_=root / "last", here=str(here), version="v", midrun=quiet)
    folder = here / "artifacts" / "checkpoints"
    wait_for((root / "last" / "saving").exists, "it writes checkpoints", 60)
    os.kill(run.pid, signal.SIGSTOP)
    try:
        names = {entry["id"] for entry in json.loads((folder / "index.json").read_bytes())["artifacts"]}
        # But for one that it may just be about to put there.
        assert len({path.name for path in folder.glob("*.ckpt")} ^ names) <= 1
        assert [path.name for path in folder.iterdir() if path.suffix == ".ckpt" and not path.stat().st_size] == []
    finally:
        os.kill(run.pid, signal.SIGCONT)
        os.kill(run.pid, signal.SIGKILL)
    assert run.ended(30) == KILLED, run.told()


@pytest.mark.ddp
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "spot"),
    [
        ("shuffled", ["tbe", 6, 2]),
        ("accumulation", ["tbe", 0, 2]),
        pytest.param("shuffled", ["tee", 4, 4], marks=pytest.mark.long),
        pytest.param("accumulation", ["bos", 0, 3], marks=pytest.mark.long),
        pytest.param("shuffled", ["ve", 8, 4], marks=pytest.mark.long),
        pytest.param("workers", ["tbe", 7, 3], marks=pytest.mark.long),
    ],
)
def test_two_ranks_go_on_to_the_bit_each_with_its_own_chance(name: str, spot: list[Any], root: Path) -> None:
    scripts: list[Script] = []

    def run(folder: str, **plan: Any) -> Script:
        (root / folder).mkdir()
        environ = {"PYTHONPATH": str(REPOSITORY)}
        script = Script("resumed", {"case": name, "ranks": 2, "logger": None, **plan}, root / folder, environ)
        scripts.append(script)
        return script

    try:
        whole = run("whole").run
        assert whole.ended(120) == 0, whole.told()
        killed = run("killed", spot=spot, write=str(root / "here.ckpt")).run
        assert killed.ended(120) == KILLED, killed.told()
        wait_for((root / "here.ckpt").exists, "the checkpoint is there")
        part = run("part", checkpoint=str(root / "here.ckpt"), seed=99).run
        assert part.ended(120) == 0, part.told()
        for rank in (0, 1):
            seen, logged, spots = record(root / "whole", rank)
            first, after = spots[tuple(spot)]
            assert record(root / "part", rank)[:2] == (seen[first:], logged[after:]), rank
    finally:
        for script in scripts:
            script.clean()
