"""How tests look at a board's dashboard."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.browsing import Visit, Visiting
from tests.web.board import Board
from tests.web.sample import Served, serving

NOTHING = "\N{EN DASH}"
"""What stands for no value."""
WIDE = {"width": 1440, "height": 900}
NAMES = "(all) => all.map((each) => each.ariaLabel)"
"""The names of elements, as people are told them who do not see."""


class Opening:
    """Serves boards and opens their dashboards, until the test is over."""

    def __init__(self, visiting: Visiting, stack: ExitStack) -> None:
        self._visiting = visiting
        self._stack = stack

    def serve(self, board: Board) -> Served:
        return self._stack.enter_context(serving(board, run_id=board.run_id))

    def __call__(self, board: Board, before: Callable[[Page], object] | None = None, **context: Any) -> Visit:
        """Open the dashboard of a board; `before` is told of the page when there is nothing in it yet."""
        context = {"viewport": WIDE, **context}
        visit = self._visiting(f"http://127.0.0.1:{self.serve(board).port}", **context)
        if before is not None:
            before(visit.page)
        visit.page.goto(f"{visit.address}/")
        settle(visit.page)
        return visit


def settle(page: Page) -> None:
    """Wait until all that is on the page has been seen once."""
    expect(page.locator(".freshness output")).to_contain_text("as of")
    expect(page.get_by_text("…", exact=True)).to_have_count(0)


def refresh(page: Page) -> None:
    """Press Refresh, and wait until its answer is there."""
    with page.expect_response(lambda response: "/poll?" in response.url):
        page.get_by_role("button", name="Refresh").click()
    painted(page)


def painted(page: Page) -> None:
    """Wait for the screen's next two pictures: whatever was to be drawn is drawn by then."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def card(page: Page, name: str) -> Locator:
    return page.locator("article").and_(page.locator(f"[aria-label={json.dumps(name, ensure_ascii=False)}]"))


def plot(page: Page, name: str) -> Locator:
    """Return a metric's chart, whose description says what it draws."""
    return card(page, name).get_by_role("img")


def read_at(page: Page, name: str, part: float) -> str:
    """Return the readout where the pointer is that part of the chart's width from its left."""
    painted(page)
    over = card(page, name).locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1 + part * (box["width"] - 2), box["y"] + box["height"] / 2)
    readout = card(page, name).locator(".readout")
    expect(readout).to_contain_text(":")
    painted(page)
    return readout.inner_text()


def open_all(page: Page) -> None:
    """Open whatever can be opened, and what that brings, but not the list of all files."""
    closed = page.locator("details:not([open]) > summary").filter(has_not_text="All files")
    while closed.count():
        closed.first.click()
    settle(page)
    painted(page)  # Until then things move, and a press may miss.


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.locator(selector).evaluate_all("(found) => found.map((each) => each.textContent)")
    return found


def kneading(page: Page) -> Locator:
    page.get_by_label("Command", exact=True).select_option("knead")
    return page.get_by_role("form", name="knead")
