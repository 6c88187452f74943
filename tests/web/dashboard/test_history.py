"""Charts draw the history on the disk: every session of the run, each spike, and every point of what is looked at."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from midrun.fs.segments import Segment
from tests.web.board import Board, csv
from tests.web.dashboard.looking import Opening, card, plot, read_at, refresh
from tests.web.dashboard.test_charts import steps_in_view, steps_in_view_at_last

pytestmark = pytest.mark.browser


def add(parent: Path, first: int, values: dict[int, float], function: str = "fit") -> None:
    """Add a session in which this was logged as train/loss."""
    segment = Segment(parent, function, 1_700_000_000.0, first)
    times = [1_700_000_000.0 + step for step in values]
    segment.append(("train/loss",), [*values], times, [[value] for value in values.values()])
    segment.flush()


@pytest.fixture
def sessions(board: Board) -> Path:
    """The directory of the history, with nothing in it."""
    board.points = {"train/loss": csv([])}
    [empty] = (Path(board.directory) / "history").iterdir()
    (empty / "columns.json").unlink()
    return Path(board.directory) / "history"


def test_what_a_later_session_has_made_again_takes_the_place_of_what_was_there(
    opening: Opening, board: Board, sessions: Path
) -> None:
    add(sessions, 0, dict.fromkeys(range(1, 353), 1.0))
    add(sessions, 65, dict.fromkeys(range(65, 101), 2.0))
    add(sessions, 0, {0: 9.0, 100: 3.0}, "validate")  # It makes no step again, and may not know how far the run was.
    visit = opening(board)
    drawn = plot(visit.page, "train/loss")
    expect(drawn).to_have_attribute("aria-label", re.compile("points from 1 to 3, the last 3"))
    assert steps_in_view(visit.page, "train/loss") == (1, 100)
    assert read_at(visit.page, "train/loss", 0.5) == "step 50: 1"
    assert visit.was_clean()


def test_no_spike_of_a_long_run_is_lost_and_of_a_range_every_point_is_drawn(
    opening: Opening, board: Board, sessions: Path
) -> None:
    values = {step: 0.5 + step % 2 / 10 for step in range(1, 300_001)}
    values[123_456] = 77.0
    values[200_000] = math.nan
    add(sessions, 0, values)
    visit = opening(board)
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute(
        "aria-label", "train/loss by step: 300,000 points from 0.5 to 77, the last 0.5"
    )
    chart = card(page, "train/loss")
    chart.get_by_role("button", name="Larger").press("Enter")
    for _ in range(16):
        chart.get_by_role("button", name="Zoom in").click()
    first, last = steps_in_view_at_last(page, "train/loss", range(3, 6))
    assert read_at(page, "train/loss", 0) == f"step {first:,}: {values[first]:g}"
    assert read_at(page, "train/loss", 1) == f"step {last:,}: {values[last]:g}"
    asked = [url for url in visit.asked if "/history?" in url]
    assert len(asked) < 30, "a range is asked for when the zooming has come to rest"
    assert all("points=2000" in url for url in asked)
    chart.get_by_role("button", name="Fit", exact=True).click()
    refresh(page)
    assert steps_in_view(page, "train/loss") == (1, 300_000)
    assert visit.was_clean()


def test_while_the_disk_takes_nothing_the_points_in_memory_are_drawn(
    opening: Opening, board: Board, sessions: Path
) -> None:
    dict.__setitem__(board.points, "train/loss", csv([0.5, 0.25, 0.125]))
    visit = opening(board)
    expect(plot(visit.page, "train/loss")).to_have_attribute("aria-label", re.compile(": 3 points .* the last 0.125"))
    assert visit.was_clean(allow_statuses={404})
