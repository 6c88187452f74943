"""A run that goes, and one that comes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import APIResponse, Download, Page, Route, expect

from tests.browsing import Visit, Visiting
from tests.web.board import Board, csv
from tests.web.dashboard.looking import WIDE, Opening, kneading, plot, refresh, settle
from tests.web.dashboard.records import exception, hold, record
from tests.web.sample import Served, serving

pytestmark = pytest.mark.browser


def lead(visit: Visit, served: Served) -> None:
    """From now on, have another server answer under the address of a page."""

    def elsewhere(route: Route) -> None:
        there = route.request.url.replace(visit.address, f"http://127.0.0.1:{served.port}")
        route.fulfill(response=route.fetch(url=there))

    visit.page.route(f"{visit.address}/**", elsewhere)


def test_a_run_that_stops_answering_is_told_and_so_is_that_it_is_back(
    opening: Opening, visiting: Visiting, tmp_path: Path
) -> None:
    board = Board(str(tmp_path))
    board.given = [record(1)]
    board.tunables = {"depth": {"value": 3, "type": "int"}}
    board.holding = {**board.holding, "pending": [hold(id="h2", status="pending", is_pause=False)]}
    with serving(board) as served:
        visit = visiting(f"http://127.0.0.1:{served.port}", viewport=WIDE)
        page = visit.page
        page.goto(f"{visit.address}/")
        settle(page)
        kneading(page).get_by_label("Value").fill("7")
        page.get_by_label("depth").fill("4")
        answered = page.locator(".freshness output").inner_text()
    alert = page.locator("main > [role=alert]")
    page.get_by_role("button", name="Refresh").click()
    expect(alert).to_contain_text("The run does not answer")
    expect(alert).to_contain_text(f"What is below is {answered}.")
    expect(page.locator(".pill")).to_have_text("no answer")
    expect(page.get_by_role("heading", level=1)).to_have_text("run-1")
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("3 points"))
    expect(page.get_by_text("100", exact=True).first).to_be_visible()
    off = ["Pause", "Checkpoint", "Stop…", "Send", "Set", "Cancel the command c1", "Cancel the hold h2"]
    for name in off:
        for button in page.get_by_role("button", name=name, exact=True).all():
            expect(button).to_be_disabled()
    lead(visit, opening.serve(board))
    refresh(page)
    expect(alert).to_be_empty()
    expect(page.locator(".pill")).to_have_text("running")
    for name in off:
        expect(page.get_by_role("button", name=name, exact=True).last).to_be_enabled()
    expect(page.get_by_label("Value (required)")).to_have_value("7")
    expect(page.get_by_label("depth")).to_have_value("4")
    assert visit.was_clean(may_be_cut=True)


def test_a_stop_that_is_taken_while_an_older_poll_is_under_way_is_not_forgotten(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    under_way: list[tuple[Route, APIResponse]] = []

    def hold_back(route: Route) -> None:
        if under_way:
            route.abort()  # The run ends so soon that no later poll is answered.
        else:
            under_way.append((route, route.fetch()))

    page.route("**/poll?*", hold_back)
    with page.expect_request("**/poll?*"):
        page.get_by_role("button", name="Refresh").click()
    page.get_by_role("button", name="Stop…").click()
    with page.expect_response(lambda response: response.request.method == "POST"):
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    [(route, answer)] = under_way
    route.fulfill(response=answer)
    expect(page.get_by_role("alert")).to_contain_text("The run has ended: it was told to stop.")
    assert visit.was_clean(may_be_cut=True)


def test_of_another_run_under_the_same_address_nothing_is_shown(opening: Opening, board: Board, tmp_path: Path) -> None:
    visit = opening(board, before=lambda page: page.clock.install())
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("3 points"))
    board.step, board.metrics["train/loss"] = 101, 0.125
    board.points["train/loss"] = csv([0.5, 0.4, 0.25, 0.125])
    page.clock.run_for(5_000)
    refresh(page)
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("4 points .* the last 0.125"))
    described = plot(page, "train/loss").get_attribute("aria-label")
    (tmp_path / "other").mkdir()
    other = Board(str(tmp_path / "other"))
    other.run_id, other.status, other.step = "run-2", "held", 5
    other.metrics = {"alien": 1.0, "train/loss": 987.654}
    other.points = {"train/loss": csv([987.654] * 9), "alien": csv([987.654])}
    other.exception = exception("AlienError")
    other.services["mount"] = {"state": "failed", "reason": "alien", "since": 0.0}
    lead(visit, opening.serve(other))
    refresh(page)
    alert = page.locator("main > [role=alert]")
    expect(alert).to_contain_text("Another run answers under this address now.")
    expect(page.locator(".pill")).to_have_text("another run")
    for _ in range(3):
        page.clock.run_for(20_000)
        refresh(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("run-1")
    assert plot(page, "train/loss").get_attribute("aria-label") == described
    for word in ("alien", "Alien", "987.654"):
        expect(page.locator("main")).not_to_contain_text(word)
    for name in ("Pause", "Checkpoint", "Stop…", "Set"):
        expect(page.get_by_role("button", name=name, exact=True).first).to_be_disabled()
    alert.get_by_role("link", name="Show the new one").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("run-2")
    expect(alert).to_contain_text("mount does not work: alien")
    assert visit.was_clean(allow_statuses={409})


def test_services_that_failed_are_told_at_the_top(opening: Opening, board: Board) -> None:
    board.services["mount"] = {"state": "failed", "reason": "there is no fuse", "since": 0.0}
    visit = opening(board)
    alert = visit.page.locator("main > [role=alert]")
    expect(alert).to_have_text("mount does not work: there is no fuse. Training goes on.")
    assert visit.page.evaluate("document.querySelector('main').firstElementChild.textContent").startswith("mount")
    board.services["mount"]["state"] = "running"
    refresh(visit.page)
    expect(alert).to_be_empty()
    assert visit.was_clean()


def test_a_run_that_many_wait_for_is_still_there(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    put_off = {"detail": "the run is slow to answer, and 4 polls wait for it: try again"}
    page.route("**/poll?*", lambda route: route.fulfill(status=503, json=put_off))
    refresh(page)
    expect(page.locator(".pill")).to_have_text("running")
    expect(page.locator("main > [role=alert]")).to_be_empty()
    expect(page.get_by_role("button", name="Pause")).to_be_enabled()
    board.status = "held"
    page.unroute("**/poll?*")
    expect(page.locator(".pill")).to_have_text("held", timeout=8_000)  # by itself, and long before the 15 s are over
    assert visit.was_clean(allow_statuses={503})


def test_who_says_later_in_other_words_is_not_the_run(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    page.route("**/poll?*", lambda route: route.fulfill(status=503, body="<html>no backend</html>"))
    refresh(page)
    expect(page.locator(".pill")).to_have_text("no answer")
    expect(page.get_by_role("button", name="Pause")).to_be_disabled()
    assert visit.was_clean(allow_statuses={503})


def test_a_page_that_is_opened_while_many_wait_says_that_the_run_is_slow(opening: Opening, board: Board) -> None:
    board.status = "held"
    put_off = {"detail": "the run is slow to answer, and 4 polls wait for it: try again"}
    answers = ["put off", "put off"]

    def answer(route: Route) -> None:
        if answers:
            answers.pop()
            route.fulfill(status=503, json=put_off)
        else:
            route.continue_()

    seen: list[str] = []

    def see(text: str) -> None:
        seen.append(text)

    note = """new MutationObserver(() => seen(document.body?.innerText ?? ""))
        .observe(document, {subtree: true, childList: true, characterData: true})"""

    def before(page: Page) -> None:
        page.expose_function("seen", see)
        page.add_init_script(note)
        page.route("**/poll?*", answer)

    visit = opening(board, before=before)
    expect(visit.page.locator(".pill")).to_have_text("held")
    assert any("the run is slow to answer" in text for text in seen)
    assert not any("does not answer" in text for text in seen)
    assert visit.was_clean(allow_statuses={503})


def test_a_page_that_is_painted_after_the_first_answer_says_of_when_it_is(
    opening: Opening, visiting: Visiting, board: Board
) -> None:
    late = """(() => {
        const later = setTimeout;
        window.setTimeout = (task, pause, ...rest) => later(task, pause < 200 ? 2000 : pause, ...rest);
        window.requestAnimationFrame = (task) => later(() => task(performance.now()), 2000);
    })()"""
    visit = visiting(f"http://127.0.0.1:{opening.serve(board).port}", viewport=WIDE)
    visit.page.add_init_script(late)
    visit.page.goto(f"{visit.address}/")
    # It has to come with the first answers: 15 s later the page asks again.
    expect(visit.page.locator(".freshness output")).to_contain_text("as of", timeout=10_000)
    assert visit.was_clean()


def test_a_file_of_another_run_under_the_same_address_is_not_saved(
    opening: Opening, board: Board, tmp_path: Path
) -> None:
    (tmp_path / "debug").mkdir()
    (tmp_path / "debug" / "a.txt").write_text("the other's")
    board.written = [{"path": "debug/a.txt", "size": 1, "modified": 0.0}]
    visit = opening(board)
    other = Board(str(tmp_path))
    other.run_id = "run-2"
    lead(visit, opening.serve(other))
    saved: list[Download] = []
    visit.page.on("download", lambda download: saved.append(download))  # noqa: PLW0108 - Playwright takes no builtin
    artifacts = visit.page.get_by_role("list", name="Artifacts")
    artifacts.get_by_role("link").click()
    expect(artifacts).to_contain_text("another run answers here now")
    assert saved == []
    assert visit.was_clean(allow_statuses={409})
