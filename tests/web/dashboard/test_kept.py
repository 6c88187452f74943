"""What a look costs, and what the browser keeps of it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.web.board import Board
from tests.web.dashboard.looking import Opening, card, painted, plot, read_at, refresh, settle
from tests.web.sample import wait_until

pytestmark = pytest.mark.browser


def test_a_poll_that_brings_nothing_new_is_tiny_and_redraws_nothing(opening: Opening, board: Board) -> None:
    same = board.index()
    board.index = lambda: same  # type: ignore[method-assign]
    visit = opening(board)
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("3 points"))
    expect(page.get_by_label("Command", exact=True).locator("option")).to_have_count(5)
    refresh(page)
    page.evaluate(
        """() => {
            window.changes = [];
            for (const each of document.querySelectorAll("main *")) each.marker = true;
            new MutationObserver((seen) => changes.push(...seen.map(({ target }) => target.textContent || "?")))
                .observe(document.querySelector("main"),
                    { subtree: true, childList: true, attributes: true, characterData: true });
        }"""
    )
    for _ in range(2):
        with page.expect_response(lambda response: "/poll?" in response.url) as polling:
            page.get_by_role("button", name="Refresh").click()
        assert "seen=" in polling.value.url
        assert len(polling.value.body()) < 400
        painted(page)
    assert page.evaluate("changes") == []
    assert page.evaluate("[...document.querySelectorAll('main *')].every((each) => each.marker)")
    board.step += 1
    board.metrics["train/loss"] = 0.125
    refresh(page)
    expect(card(page, "train/loss").locator("header .number")).to_have_text("0.125")
    assert page.evaluate("[...document.querySelectorAll('main *')].every((each) => each.marker)")
    assert visit.was_clean()


def test_a_closed_panel_asks_for_nothing(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    polls = [url for url in visit.asked if "/poll?" in url]
    assert all(any(word in url for url in polls) for word in ("cuda", "hooks"))
    page.locator("summary", has_text="CUDA memory").click()
    page.locator("summary", has_text="Hooks").click()
    del visit.asked[:]
    refresh(page)
    assert not any(word in url for url in visit.asked for word in ("cuda", "hooks"))
    page.reload()
    settle(page)
    assert not any(word in url for url in visit.asked for word in ("cuda", "hooks"))
    page.locator("summary", has_text="CUDA memory").click()
    expect(page.get_by_role("table", name="CUDA memory")).to_contain_text("allocated")
    assert visit.was_clean()


def test_a_browser_that_keeps_nothing_shows_the_page_all_the_same(opening: Opening, board: Board) -> None:
    throws = "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }})"
    visit = opening(board, before=lambda page: page.add_init_script(throws))
    page = visit.page
    page.get_by_label("Theme").select_option("dark")
    page.get_by_label("Log scale").check()
    page.locator("summary", has_text="Hooks").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("table", name="Hooks")).to_have_count(0)
    assert visit.was_clean()


def test_what_an_older_page_has_left_in_the_browser_breaks_nothing(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    leave = """(kept) => ["drawing", "view", "theme", "live", "panel.Hooks"]
        .forEach((name) => localStorage.setItem(`midrun.${name}`, kept))"""
    for kept in ("null", "7", '"x"', "{}", "[]", "not JSON", '{"axis": "step"}'):
        page.evaluate(leave, kept)
        page.reload()
        assert read_at(page, "train/loss", 1) == "step 3: 0.25"
    assert visit.was_clean()


def test_the_theme_changes_colours_and_charts_and_is_kept(opening: Opening, board: Board) -> None:
    visit = opening(board, color_scheme="light")
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("3 points"))
    looks = "[getComputedStyle(document.body).backgroundColor, document.querySelector('canvas').toDataURL()]"
    painted(page)
    light = page.evaluate(looks)
    page.get_by_label("Theme").select_option("dark")
    wait_until(lambda: all(new != old for new, old in zip(page.evaluate(looks), light, strict=True)))
    dark = page.evaluate(looks)
    page.reload()
    expect(page.get_by_label("Theme")).to_have_value("dark")
    expect(page.locator("canvas")).to_have_count(1)
    wait_until(lambda: page.evaluate(looks)[0] == dark[0])
    page.get_by_label("Theme").select_option("auto")
    wait_until(lambda: page.evaluate(looks)[0] == light[0])
    page.emulate_media(color_scheme="dark")
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("3 points"))
    wait_until(lambda: page.evaluate(looks)[0] == dark[0])
    assert visit.was_clean()
