"""Fixtures: a board, and a browser that opens its dashboard."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import browsing
from tests.browsing import Visiting
from tests.web.board import Board
from tests.web.dashboard.looking import Opening
from tests.web.dashboard.records import hooks, script

chromium, visiting = browsing.chromium, browsing.visiting

PHASES = {
    "phases": {
        "data": {"share": 0.5, "median_s": 0.0125, "p95_s": 0.02},
        "forward": {"share": 0.375, "median_s": 0.01, "p95_s": 0.011},
        "<b>backward</b>": {"share": 0.125},
    },
    "verdict": "The data is waited for.",
}


@pytest.fixture
def opening(visiting: Visiting) -> Iterator[Opening]:
    with ExitStack() as stack:
        yield Opening(visiting, stack)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    board = Board(str(tmp_path))
    board.furnish(
        phases=PHASES,
        memory={"allocated": 1024, "by <i>pool</i>": [1, 2.5, math.nan]},
        hooks=hooks(**{"light/notify.sh": script()}),
        host="machine",
    )
    board.summary = "a summary of <b>it</b>"
    return board
