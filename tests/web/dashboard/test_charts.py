"""Charts: what they draw, tell and show of it."""

from __future__ import annotations

import math
import re

import pytest
from playwright.sync_api import Page, expect

from tests.processes import wait_for
from tests.web.board import Board, csv
from tests.web.dashboard.looking import Opening, card, painted, plot, read_at, refresh
from tests.web.sample import wait_until

pytestmark = pytest.mark.browser

BY = re.compile("^By ")


def steps_in_view(page: Page, name: str) -> tuple[int, int]:
    """Return the steps at the left and the right end of a chart, as the readout tells them."""
    first, last = (re.match(r"step ([\d,]+):", read_at(page, name, part)) for part in (0, 1))
    assert first is not None
    assert last is not None
    return int(first[1].replace(",", "")), int(last[1].replace(",", ""))


def steps_in_view_at_last(page: Page, name: str, count: range) -> tuple[int, int]:
    """Return the same once there are so many steps in view, or as many as the test can wait for."""

    def are_there() -> tuple[int, int] | None:
        painted(page)
        first, last = steps_in_view(page, name)
        return (first, last) if last - first in count else None

    return wait_for(are_there, "the points of the range are there")


def test_the_readout_tells_the_point_at_the_pointer(opening: Opening, board: Board) -> None:
    board.points["train/loss"] = csv([math.nan, 0.5, math.inf, -math.inf, 0.25])
    visit = opening(board)
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute(
        "aria-label", "train/loss by step: 5 points from 0.25 to 0.5, the last 0.25"
    )
    read = [read_at(page, "train/loss", part) for part in (0, 0.26, 0.51, 0.74, 1)]
    assert read == ["step 1: NaN", "step 2: 0.5", "step 3: Infinity", "step 4: -Infinity", "step 5: 0.25"]
    page.get_by_label("Smoothing").fill("0.5")
    assert read_at(page, "train/loss", 1) == "step 5: 0.25, smoothed 0.333333"
    page.get_by_label(BY).select_option("time")
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("by time: 5 points"))
    assert re.fullmatch(r".*2023.*: 0\.25, smoothed 0\.333333", read_at(page, "train/loss", 1))
    page.reload()
    expect(page.get_by_label(BY)).to_have_value("time")
    expect(page.get_by_label("Smoothing")).to_have_value("0.5")
    assert visit.was_clean()


ODD = {
    "none": [],
    "one": [3.0],
    "no number": [math.nan, math.nan],
    "infinite": [math.inf, -math.inf],
    "negative": [-1.0, -2.0, 0.0],
    "same": [2.0] * 50,
    "huge": [1.7e308, -1.7e308, 1.7e308],
    "tiny": [5e-324, 1e-320, 0.0],
    "one odd": [math.inf],
    "wide": [1e-300, 1e300],
    "fine": [1.0, 10.0, 100.0],
}


def test_charts_of_odd_points_are_drawn_in_every_way(opening: Opening, board: Board) -> None:
    board.metrics = dict.fromkeys(ODD, 1.0)
    board.points = {name: csv(values) for name, values in ODD.items()}
    visit = opening(board, viewport={"width": 1440, "height": 1500})
    page = visit.page
    for name, values in ODD.items():
        words = {0: f"{name}: no points yet", 1: f"{name} by step: 1 point"}.get(len(values), f": {len(values)} points")
        expect(plot(page, name)).to_have_attribute("aria-label", re.compile(words))
    for log in (False, True):
        page.get_by_label("Log scale").set_checked(log)
        for clipped in (True, False):
            if not log:
                page.get_by_label("Ignore outliers").set_checked(clipped)
            for smoothing, axis in (("0.9", "time"), ("0", "step")):
                page.get_by_label("Smoothing").fill(smoothing)
                page.get_by_label(BY).select_option(axis)
                page.get_by_role("button", name="Fit all").click()
                painted(page)
            assert read_at(page, "fine", 1).startswith("step 3: 100")
    expect(card(page, "none").locator(".readout")).to_have_text("no points yet")
    for name in ("none", "one", "no number", "huge", "wide"):
        card(page, name).get_by_role("button", name="Larger").press("Enter")
        card(page, name).get_by_role("button", name="Zoom in").click()
        card(page, name).get_by_role("button", name="Fit", exact=True).click()
        painted(page)
    assert visit.was_clean()


def test_points_without_a_finite_number_are_told_as_such(opening: Opening, board: Board) -> None:
    board.points["train/loss"] = csv([math.nan, math.inf])
    visit = opening(board)
    expect(plot(visit.page, "train/loss")).to_have_attribute(
        "aria-label", "train/loss by step: 2 points, none of them finite, the last Infinity"
    )
    assert visit.was_clean()


def test_a_chart_is_zoomed_a_thousandfold_and_fitted_again(opening: Opening, board: Board) -> None:
    board.points["train/loss"] = csv([1 / step for step in range(1, 20_001)])
    visit = opening(board)
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("20,000 points"))
    chart = card(page, "train/loss")
    chart.get_by_role("button", name="Larger").press("Enter")
    assert steps_in_view(page, "train/loss") == (1, 20_000)
    for _ in range(10):
        chart.get_by_role("button", name="Zoom in").click()
    # Of 20,000 points the page has the tenth part; those of a range come when it is looked at.
    first, last = steps_in_view_at_last(page, "train/loss", range(15, 21))
    assert first < 10_000 < last
    assert read_at(page, "train/loss", 0) == f"step {first:,}: {10_000 / first:.4f}e-4"
    chart.get_by_role("button", name="Earlier").click()
    painted(page)
    assert steps_in_view(page, "train/loss")[1] in range(first, last)
    chart.get_by_role("button", name="Fit", exact=True).click()
    painted(page)
    assert steps_in_view(page, "train/loss") == (1, 20_000)
    for _ in range(3):
        drag(page, "train/loss", 0.45, 0.55)
    first, last = steps_in_view_at_last(page, "train/loss", range(12, 31))
    for _ in range(3):
        chart.get_by_role("button", name="Zoom out").click()
    painted(page)
    wider = steps_in_view(page, "train/loss")
    assert wider[1] - wider[0] == pytest.approx(8 * (last - first), rel=0.2)
    chart.locator(".u-over").dblclick()
    painted(page)
    assert steps_in_view(page, "train/loss") == (1, 20_000)
    # Numbers end somewhere: the chart must come back from there.
    chart.get_by_role("button", name="Zoom in").evaluate("(button) => { for (let i = 0; i < 70; i++) button.click(); }")
    painted(page)
    chart.get_by_role("button", name="Fit", exact=True).click()
    painted(page)
    assert steps_in_view(page, "train/loss") == (1, 20_000)
    assert visit.was_clean()


def drag(page: Page, name: str, start: float, end: float) -> None:
    """Drag from one part of a chart's width to another."""
    painted(page)  # A chart that was drawn anew is another element.
    over = card(page, name).locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + (start + end) / 2 * box["width"], middle)
    page.mouse.move(box["x"] + end * box["width"], middle)
    page.mouse.up()
    painted(page)


def test_new_points_are_appended_in_live_mode_and_leave_a_zoom_alone(opening: Opening, board: Board) -> None:
    board.step = 1000
    board.metrics["train/loss"] = 1 / 1000
    board.points["train/loss"] = csv([1 / step for step in range(1, 1001)])
    visit = opening(board)
    page = visit.page
    described = plot(page, "train/loss")
    expect(described).to_have_attribute("aria-label", re.compile(": 1,000 points"))
    card(page, "train/loss").get_by_role("button", name="Larger").press("Enter")
    drag(page, "train/loss", 0.8, 0.9)
    zoomed = steps_in_view(page, "train/loss")
    page.get_by_label("Live").check()
    board.step, board.metrics["train/loss"] = 1001, 5.0
    expect(described).to_have_attribute("aria-label", re.compile(": 1,001 points from 0.001 to 5, the last 5"))
    board.step, board.metrics["train/loss"] = 1002, math.nan
    expect(described).to_have_attribute("aria-label", re.compile(": 1,002 points from 0.001 to 5, the last NaN"))
    assert steps_in_view(page, "train/loss") == zoomed
    card(page, "train/loss").get_by_role("button", name="Fit", exact=True).click()
    painted(page)
    assert steps_in_view(page, "train/loss") == (1, 1002)
    expect(page.locator("header .number").first).to_have_text("NaN")
    assert visit.was_clean()


WRITTEN = """
    window.written = new Set();
    const { fillText } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
        if (this.textAlign === "right") written.add(text);
        fillText.call(this, text, x, ...rest);
    };
"""
"""Notes what is written along a chart's left side: there alone texts are aligned to the right."""


def values_on_axis(page: Page) -> list[float]:
    """Return the values that were written along the left side of charts."""
    return [float(text.replace(",", "")) for text in page.evaluate("[...written]") if text]


def test_outliers_can_be_ignored_and_the_wheel_zooms_with_ctrl_alone(opening: Opening, board: Board) -> None:
    board.points["train/loss"] = csv([1e9, *[0.5 + at / 1000 for at in range(200)]])
    visit = opening(board, before=lambda page: page.add_init_script(WRITTEN))
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("201 points"))
    for is_ignored, highest in ((False, 1e9), (True, 0.7), (False, 1e9)):
        page.get_by_label("Ignore outliers").set_checked(is_ignored)
        wait_until(lambda: values_on_axis(page))
        painted(page)
        assert max(values_on_axis(page)) == pytest.approx(highest, rel=0.05)
        page.evaluate("written.clear()")
    # Also where there are more points than the page has, of which most are extremes then.
    board.points["train/loss"] = csv([100.0 if at % 100 == 50 else at % 7 / 7 for at in range(5_000)])
    board.step, board.metrics["train/loss"] = 5_000, 0.125
    page.reload()
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("5,000 points"))
    page.get_by_label("Ignore outliers").check()
    painted(page)
    page.evaluate("written.clear()")
    page.get_by_label("Theme").select_option("dark")
    wait_until(lambda: values_on_axis(page))
    assert max(values_on_axis(page)) <= 1
    board.points["train/loss"] = csv([1e9, *[0.5 + at / 1000 for at in range(200)]])
    page.reload()
    page.get_by_label("Ignore outliers").check()
    assert read_at(page, "train/loss", 0) == "step 1: 1,000,000,000"
    page.mouse.wheel(0, -100)
    painted(page)
    read_at(page, "train/loss", 0.5)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    painted(page)
    first, last = steps_in_view(page, "train/loss")
    assert 150 <= last - first <= 170
    assert visit.was_clean()


def test_a_chosen_range_stays_when_the_chart_is_drawn_in_another_way_and_a_double_click_fits_all(
    opening: Opening, board: Board
) -> None:
    board.points = {name: csv([1 / step for step in range(1, 1001)]) for name in ("a", "b")}
    board.metrics = dict.fromkeys(board.points, 1.0)
    visit = opening(board, viewport={"width": 1440, "height": 2000})
    page = visit.page
    expect(plot(page, "b")).to_have_attribute("aria-label", re.compile("1,000 points"))
    drag(page, "a", 0.4, 0.6)
    chosen = {name: steps_in_view(page, name) for name in ("a", "b")}
    assert chosen["a"] == pytest.approx(chosen["b"], abs=3)
    assert 180 < chosen["a"][1] - chosen["a"][0] < 220
    page.get_by_label("Smoothing").fill("0.5")
    page.get_by_label("Log scale").check()
    page.get_by_label("Theme").select_option("dark")
    card(page, "a").get_by_role("button", name="Larger").press("Enter")
    for name in ("a", "b"):
        assert steps_in_view(page, name) == pytest.approx(chosen[name], abs=3)
    card(page, "b").locator(".u-over").dblclick()
    painted(page)
    for name in ("a", "b"):
        assert steps_in_view(page, name) == (1, 1000)
    assert visit.was_clean()


def test_fit_all_fits_also_charts_that_are_not_in_view(opening: Opening, board: Board) -> None:
    names = [f"m{at}" for at in range(24)]
    board.points = {name: csv([1 / step for step in range(1, 101)]) for name in names}
    board.metrics = dict.fromkeys(names, 1.0)
    visit = opening(board, viewport={"width": 600, "height": 700})
    page = visit.page
    first = card(page, "m0")
    first.scroll_into_view_if_needed()
    drag(page, "m0", 0.4, 0.6)
    assert steps_in_view(page, "m0") != (1, 100)
    card(page, "m23").scroll_into_view_if_needed()
    expect(plot(page, "m0")).to_have_count(0)
    page.get_by_role("button", name="Fit all").evaluate("(button) => button.click()")
    first.scroll_into_view_if_needed()
    assert steps_in_view(page, "m0") == (1, 100)
    assert visit.was_clean()


def test_a_session_of_the_same_run_draws_its_own_points_alone(opening: Opening, board: Board) -> None:
    board.points["train/loss"] = csv([1.0] * 50)
    visit = opening(board)
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("50 points"))
    board.points["train/loss"] = csv([2.0] * 3)
    board.started += 100
    board.step = 3
    board.metrics["train/loss"] = 2.0
    page.get_by_label("Live").check()  # so that it asks again soon
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile(": 3 points from 2 to 2"))
    assert visit.was_clean()


def test_the_last_points_come_also_when_nothing_is_logged_any_more(opening: Opening, board: Board) -> None:
    board.points["train/loss"] = csv([0.5])
    visit = opening(board, before=lambda page: page.clock.install())
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile(": 1 point"))
    page.clock.run_for(10_000)
    board.status = "held"
    board.metrics["train/loss"] = 0.125
    refresh(page)
    # The record has the newest point only now, and nothing changes after it.
    board.points["train/loss"] = csv([0.5, 0.125])
    page.clock.run_for(10_000)
    refresh(page)
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile(": 2 points .* the last 0.125"))
    assert visit.was_clean()


def test_a_learning_rate_is_drawn_as_it_was_set_and_never_smoothed(opening: Opening, board: Board) -> None:
    board.points = {"optimizers/0/groups/0/lr": csv([0.1, 0.1, 0.2]), "train/loss": csv([0.1, 0.1, 0.2])}
    visit = opening(board)
    page = visit.page
    page.get_by_label("Smoothing").fill("0.9")
    assert "smoothed" in read_at(page, "train/loss", 1)
    assert read_at(page, "Learning rate/SGD", 1) == "step 3: 0.2"
    assert visit.was_clean()


def test_a_clock_that_is_set_back_leaves_the_points_in_their_order(opening: Opening, board: Board) -> None:
    times = [0, 60, 120, 30, 90, 180]
    lines = [f"{step},{1_700_000_000 + time},{step / 8}" for step, time in enumerate(times, 1)]
    board.points["train/loss"] = "\n".join(["step,time,value", *lines, ""])
    visit = opening(board)
    page = visit.page
    page.get_by_label(BY).select_option("time")
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("by time: 6 points"))
    read = [read_at(page, "train/loss", part) for part in (0, 0.34, 1)]
    assert [text.rpartition(": ")[2] for text in read] == ["0.125", "0.25", "0.75"]
    assert visit.was_clean()
