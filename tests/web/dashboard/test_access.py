"""What everybody must be able to see and to press."""

from __future__ import annotations

import importlib.resources

import pytest
from playwright.sync_api import Page, expect

from tests.web.board import Board
from tests.web.dashboard.looking import Opening, card, open_all, painted
from tests.web.dashboard.records import exception, harm, hold, record
from tests.web.sample import wait_until

pytestmark = pytest.mark.browser

WIDTHS = (375, 1440, 3840)


def axe(page: Page) -> list[str]:
    """Return what axe finds wrong with the page as it is now."""
    if not page.evaluate("'axe' in window"):
        page.evaluate((importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [f"{each['id']}: {node['html']:.200} {node['failureSummary']}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_wrong_whatever_is_open(opening: Opening, board: Board, scheme: str) -> None:
    board.exception = exception("RuntimeError")
    board.services["mount"] = {"state": "failed", "reason": "no fuse", "since": 0.0}
    board.tunables = {"depth": {"value": 3, "type": "int", "min": 1, "max": 9}}
    board.written = [{"path": f"debug/{at}.dot", "size": at, "modified": 0.0} for at in range(20)]
    board.given = [
        record(at, status=status, error={"type": "E", "message": "wrong"} if status == "failed" else None)
        for at, status in enumerate(["queued", "executing", "succeeded", "failed", "cancelled", "expired"])
    ]
    board.holding = {**board.holding, "active": hold(reason="lunch"), "pending": [hold(id="h2", status="pending")]}
    board.status = "held"
    visit = opening(board, color_scheme=scheme)
    page = visit.page
    open_all(page)
    page.get_by_label("Command", exact=True).select_option("knead")
    page.get_by_label("Value (required)").fill("abc")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".command .wrong")).not_to_have_count(0)
    card(page, "train/loss").get_by_role("button", name="Larger").press("Enter")
    page.get_by_role("button", name="Show a live summary").press("Enter")
    page.get_by_role("button", name="Draw the model's graph").press("Enter")
    expect(page.get_by_role("img", name="Graph model/graph")).to_be_visible()
    for width in WIDTHS:
        resize(page, width)
        assert axe(page) == []
    page.get_by_label("Show").select_option("table")
    page.get_by_role("button", name="Stop…").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    resize(page, WIDTHS[0])
    assert axe(page) == []


def resize(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    painted(page)


def test_nothing_is_wider_than_the_page(opening: Opening, board: Board) -> None:
    harm(board)
    error = {"type": "E", "message": "z" * 4000}
    board.given.append(record(9, args={"value": "y" * 4000}, status="failed", error=error))
    board.metrics["long"] = -1.2345678901234567e-300
    visit = opening(board, viewport={"width": 375, "height": 900})
    page = visit.page
    open_all(page)
    page.get_by_label("Command", exact=True).select_option("knead")
    page.get_by_role("button", name="Draw the model's graph").press("Enter")
    expect(page.get_by_role("img", name="Graph model/graph")).to_be_visible()
    card(page, "constructor").get_by_role("button", name="Larger").press("Enter")
    for view in ("charts", "table"):
        page.get_by_label("Show").select_option(view)
        for width in (320, *WIDTHS):
            resize(page, width)
            assert too_wide(page) == [], width
            assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.get_by_label("Value (required)").evaluate("(field) => field.clientWidth") < 1000


def too_wide(page: Page) -> list[str]:
    """Return the elements that reach over the page's edge and are in no box that scrolls or cuts."""
    found: list[str] = page.evaluate(
        """() => {
            const cut = (element) => {
                for (let each = element.parentElement; each && each !== document.body; each = each.parentElement)
                    if (getComputedStyle(each).overflowX !== "visible") return true;
                return false;
            };
            return [...document.querySelectorAll("body *")]
                .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5 && !cut(each))
                .map((each) => `${each.tagName}.${each.className}: ${each.textContent.slice(0, 60)}`);
        }"""
    )
    return found


REACHABLE = """
    const REACHABLE = "a[href], button, input, select, textarea, summary, [tabindex='0']";
    window.reachable = () => [...document.querySelectorAll(REACHABLE)]
        .filter((each) => !each.disabled && each.checkVisibility({ visibilityProperty: true }));
    window.where = () => reachable().indexOf(document.activeElement);
"""


def test_tab_comes_to_every_control_in_the_order_in_which_they_are_read(opening: Opening, board: Board) -> None:
    board.tunables = {"depth": {"value": 3, "type": "int"}}
    board.given = [record(1)]
    visit = opening(board, before=lambda page: page.add_init_script(REACHABLE))
    page = visit.page
    page.get_by_label("Command", exact=True).select_option("knead")
    page.evaluate("document.activeElement.blur(); getSelection().removeAllRanges()")
    page.mouse.click(1, 1)
    count = page.evaluate("reachable().length")
    assert count > 40
    came = []
    for _ in range(count):
        page.keyboard.press("Tab")
        came.append(page.evaluate("where()"))
        outline = page.evaluate(
            "(({ outlineStyle, outlineWidth }) => [outlineStyle, outlineWidth])"
            "(getComputedStyle(document.activeElement))"
        )
        assert outline == ["solid", "2px"], page.evaluate("document.activeElement.outerHTML")
    assert came == list(range(count))
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("where()") == count - 2


def test_the_keyboard_does_all_that_the_mouse_does(opening: Opening, board: Board) -> None:
    board.tunables = {"depth": {"value": 3, "type": "int"}}
    visit = opening(board)
    page = visit.page
    pause = page.get_by_role("button", name="Pause")
    pause.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".buttons output").first).to_contain_text("Pause: queued")
    expect(pause).to_be_focused()
    page.get_by_role("button", name="Checkpoint").focus()
    page.keyboard.press("Space")
    wait_until(lambda: [each["kind"] for each in board.given] == ["pause", "checkpoint"])
    page.get_by_label("depth").focus()
    page.keyboard.type("5")
    page.keyboard.press("Enter")
    wait_until(lambda: len(board.given) == 3)
    assert board.given[-1]["args"] == {"name": "depth", "value": 5}
    expect(page.get_by_label("depth")).to_be_focused()
    about = page.get_by_text("This run", exact=True).locator("xpath=ancestor::details")
    about.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(about).to_contain_text("machine")
    page.keyboard.press("Space")
    expect(about).not_to_contain_text("machine")
    page.get_by_label("Live").focus()
    page.keyboard.press("Space")
    expect(page.get_by_label("Live")).to_be_checked()
    larger = card(page, "train/loss").get_by_role("button", name="Larger")
    larger.focus()
    page.keyboard.press("Enter")
    expect(card(page, "train/loss").get_by_role("button", name="Smaller")).to_be_focused()
    page.keyboard.press("Tab")
    expect(card(page, "train/loss").get_by_role("button", name="Earlier")).to_be_focused()
    assert visit.was_clean()


def test_a_question_keeps_the_focus_and_gives_it_back(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    stop, dialog = page.get_by_role("button", name="Stop…"), page.get_by_role("dialog")
    stop.focus()
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    outside = "document.activeElement !== document.body && !document.activeElement.closest('dialog')"
    for key in ["Tab"] * 5 + ["Shift+Tab"] * 5:
        page.keyboard.press(key)
        assert not page.evaluate(outside)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(stop).to_be_focused()
    page.keyboard.press("Space")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(stop).to_be_focused()
    assert board.given == []
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Stop", exact=True).focus()
    page.keyboard.press("Enter")
    wait_until(lambda: [each["kind"] for each in board.given] == ["stop"])
    expect(dialog).to_have_count(0)
    expect(stop).to_be_focused()
    assert visit.was_clean()
