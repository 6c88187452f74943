"""Metrics: their names and values, and which of many are loaded and shown."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browsing import Visit
from tests.web.board import HOSTILE, Board, csv
from tests.web.dashboard.looking import NAMES, Opening, refresh
from tests.web.sample import wait_until

pytestmark = pytest.mark.browser


def test_a_metric_of_any_name_has_its_value_and_the_points_of_its_own(opening: Opening, board: Board) -> None:
    board.metrics = {name: float(at) for at, name in enumerate(HOSTILE)}
    board.points = {name: csv([at, at + 0.5], start=10 * at) for at, name in enumerate(HOSTILE)}
    board.points["toString"] = csv([7.0])  # It was logged once, and is no longer.
    visit = opening(board, viewport={"width": 1440, "height": 3000})
    cards = visit.page.locator("article")
    expect(cards).to_have_count(len(HOSTILE) + 1)
    drawn = {f"{n} by step: 2 points from {at} to {at + 0.5:g}, the last {at + 0.5:g}" for at, n in enumerate(HOSTILE)}
    wait_until(lambda: drawn <= set(descriptions(visit.page)))
    values = dict(cards.evaluate_all("(all) => all.map((e) => [e.ariaLabel, e.querySelector('.number').textContent])"))
    assert values == {**{name: f"{at}" for at, name in enumerate(HOSTILE)}, "toString": "7"}
    assert visit.was_clean()


def descriptions(page: Page) -> list[str]:
    found: list[str] = page.locator(".plot").evaluate_all("(all) => all.map((each) => each.getAttribute('aria-label'))")
    return found


def test_a_line_break_in_a_name_is_no_end_of_it(opening: Opening, board: Board) -> None:
    board.metrics = {"a": 1.0, "b": 2.0}
    visit = opening(board)
    expect(visit.page.locator("article")).to_have_count(3)
    board.metrics = {"a\nb": 3.0}
    refresh(visit.page)
    wait_until(lambda: set(visit.page.locator("article").evaluate_all(NAMES)) == {"a\nb", "train/loss"})
    assert visit.was_clean()


def many(board: Board) -> None:
    board.metrics = {f"g{at % 10}/m{at}": float(at) for at in range(5, 500) if at % 10 or at < 200}
    board.metrics = dict(sorted(board.metrics.items(), key=lambda item: item[0]))
    extra = {f"g9/more{at}": float(at) for at in range(500 - len(board.metrics))}
    board.metrics |= extra
    board.points = {name: csv([1.0, value]) for name, value in board.metrics.items()}


def asked_for(visit: Visit) -> list[str]:
    """Return the metrics whose points were asked for."""
    queries = [parse_qs(urlsplit(url).query) for url in visit.asked if urlsplit(url).path.endswith("/history")]
    return [query["name"][0] for query in queries]


IN_VIEW = """(all) => all.map((each) => [each.ariaLabel, each.getBoundingClientRect()])
    .filter(([, box]) => box.bottom > -205 && box.top < innerHeight + 205).map(([name]) => name)"""


def test_of_500_metrics_only_the_charts_in_view_are_loaded(opening: Opening, board: Board) -> None:
    many(board)
    visit = opening(board, viewport={"width": 1440, "height": 600})
    page = visit.page
    assert len(board.metrics) == 500
    groups = page.locator(".metrics details.group")
    expect(groups).to_have_count(10)
    opened = groups.evaluate_all("(all) => all.map((each) => each.open)")
    assert opened == [True] + [False] * 9
    first = page.locator("article")
    assert first.count() <= 24
    wait_until(lambda: set(asked_for(visit)) == set(first.evaluate_all(IN_VIEW)))
    assert 0 < len(asked_for(visit)) < first.count()
    assert len(asked_for(visit)) == len(set(asked_for(visit)))
    groups.nth(4).locator("summary").click()
    expect(groups.nth(4).locator("article")).not_to_have_count(0)
    refresh(page)
    assert groups.evaluate_all("(all) => all.map((each) => each.open)") == [True, *[at == 4 for at in range(1, 10)]]
    wait_until(lambda: set(page.locator("article").evaluate_all(IN_VIEW)) <= set(asked_for(visit)))
    assert len(asked_for(visit)) < 60
    assert visit.was_clean()


def test_of_500_metrics_a_search_shows_those_and_values_shows_all(opening: Opening, board: Board) -> None:
    many(board)
    visit = opening(board)
    page = visit.page
    search = page.get_by_label("Search metrics")
    search.fill("G7 m3")
    wanted = [name for name in board.metrics if name.startswith("g7/") and "m3" in name]
    expect(page.locator("article")).to_have_count(len(wanted))
    refresh(page)
    assert page.locator("article").evaluate_all(NAMES) == wanted
    search.fill("nobody logs this")
    expect(page.get_by_text("No name of 500 has “nobody logs this” in it.")).to_be_visible()
    search.fill("")
    page.get_by_label("Show").select_option("table")
    expect(page.locator(".metrics tbody tr")).to_have_count(500)
    cells = "(all) => all.map((each) => [...each.cells].map((cell) => cell.innerText))"
    rows = page.locator(".metrics tbody tr").evaluate_all(cells)
    assert rows == [[name, f"{value:g}"] for name, value in board.metrics.items()]
    page.reload()
    expect(page.locator(".metrics tbody tr")).to_have_count(500)
    assert visit.was_clean()


def test_learning_rates_are_metrics_by_the_names_that_controls_have(opening: Opening, board: Board) -> None:
    place = "optimizers/0/groups/0/lr"
    board.points[place] = csv([0.2, 0.1])
    board.label = "Adam"
    visit = opening(board)
    page = visit.page
    described = page.get_by_role("img", name="Learning rate/Adam by step: 2 points from 0.1 to 0.2, the last 0.1")
    expect(described).to_be_visible()
    expect(page.get_by_role("article", name="Learning rate/Adam").get_by_role("heading")).to_have_text("Adam")
    page.get_by_label("Search metrics").fill("rate adam")
    expect(page.locator("article")).to_have_count(1)
    page.get_by_label("Show").select_option("table")
    assert page.locator(".metrics tbody tr").all_inner_texts() == ["Learning rate/Adam\t0.1"]
    board.rate = 0.025
    refresh(page)
    assert page.locator(".metrics tbody tr").all_inner_texts() == ["Learning rate/Adam\t0.025"]
    assert visit.was_clean()


def test_what_most_people_look_at_first_comes_first(opening: Opening, board: Board) -> None:
    names = ["aux/1", "z", "test/acc", "val/loss", "train/loss", "more/2"]
    board.metrics = dict.fromkeys(names, 1.0)
    board.points = {name: csv([1.0]) for name in names}
    visit = opening(board)
    groups = visit.page.locator(".metrics details.group > summary")
    expect(groups).to_have_text(["others 1", "train 1", "val 1", "test 1", "aux 1", "more 1"])
    assert visit.was_clean()


def test_a_metric_that_is_logged_later_comes_to_a_page_that_is_open(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    expect(page.locator("article")).to_have_count(1)
    board.metrics["val/acc"] = 0.5
    refresh(page)
    card = page.get_by_role("article", name="val/acc")
    expect(card.get_by_role("img")).to_have_attribute("aria-label", "val/acc: no points yet")
    expect(card.locator("header .number")).to_have_text("0.5")
    board.points["val/acc"] = csv([0.25, 0.5])
    board.step += 1
    refresh(page)
    expect(card.get_by_role("img")).to_have_attribute(
        "aria-label", "val/acc by step: 2 points from 0.25 to 0.5, the last 0.5"
    )
    assert visit.was_clean()
