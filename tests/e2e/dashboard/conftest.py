"""Fixtures: a run whose dashboard somebody watches."""

from __future__ import annotations

from typing import Any

import pytest

from tests import browsing
from tests.browsing import Visit, Visiting
from tests.e2e.conftest import Start
from tests.e2e.dashboard.watching import Watch, look
from tests.e2e.runs import Run

chromium, visiting = browsing.chromium, browsing.visiting


@pytest.fixture
def watch(start: Start, visiting: Visiting) -> Watch:
    """Start a trainer and open its dashboard."""

    def watch(program: str = "fit", **plan: Any) -> tuple[Run, Visit]:
        plan = {"until": "wait_at" not in plan, "step_s": 0.01, **plan}
        run = start(program, **plan, midrun={"fuse_enabled": False})
        if "wait_at" in plan:
            run.at()
        return run, look(visiting, run)

    return watch
