"""Commands: their forms, what is sent, and what is asked first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.board import Board
from tests.web.dashboard.looking import NOTHING, Opening, kneading, painted, refresh
from tests.web.sample import wait_until

pytestmark = pytest.mark.browser


def sent(page: Page, press: Callable[[], object]) -> Any:
    """Return the document that is sent when something is pressed."""
    with page.expect_request(lambda request: request.method == "POST") as asking:
        press()
    return asking.value.post_data_json


def test_a_kind_that_no_dashboard_has_heard_of_has_its_form(opening: Opening, board: Board) -> None:
    visit = opening(board)
    form = kneading(visit.page)
    expect(form.locator("p").first).to_have_text("Knead the dough.\n\nIt rises afterwards.")
    value, unit, gently = form.get_by_label("Value (required)"), form.get_by_label("Unit"), form.get_by_label("Gently")
    expect(value).to_have_accessible_description("The amount. (at least 0)")
    expect(unit).to_have_accessible_description("What it is counted in.")
    expect(gently).to_have_accessible_description("Whether with care.")
    assert unit.locator("option").all_inner_texts() == [NOTHING, "grams", "ounces"]
    assert gently.locator("option").all_inner_texts() == [NOTHING, "true", "false"]
    form.get_by_text("Later").click()
    expect(form.get_by_label("Global step")).to_have_accessible_description("Not before so many steps.")
    assert visit.was_clean()


SENT: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"Value": "1e-4"}, {"args": {"value": 1e-4}}),
    ({"Value": " 3 "}, {"args": {"value": 3}}),
    ({"Value": ".5", "Unit": "ounces", "Gently": "false"}, {"args": {"value": 0.5, "unit": "ounces", "gently": False}}),
    (
        {"Value": "12345678901.25", "Unit": NOTHING, "Gently": "true", "Global step": "100"},
        {"args": {"value": 12345678901.25, "gently": True}, "execution": {"when": {"global_step": 100}}},
    ),
]


def test_a_form_sends_what_was_typed_and_nothing_else(opening: Opening, board: Board) -> None:
    visit = opening(board)
    form = kneading(visit.page)
    form.get_by_text("Later").click()
    for typed, expected in SENT:
        for name, text in typed.items():
            field = form.get_by_label(name)
            if name in {"Unit", "Gently"}:
                field.select_option(text)
            else:
                field.fill(text)
        document = sent(visit.page, form.get_by_role("button", name="Send").click)
        assert document == {"kind": "knead", **expected}
        assert isinstance(document["args"].get("gently", True), bool)
        expect(form.locator("output")).to_contain_text("Knead: queued")
        given = {"args": board.given[-1]["args"], "execution": board.given[-1]["execution"]}
        assert given == {"execution": {}, **expected}
        assert isinstance(given["execution"].get("when", {}).get("global_step", 0), int)
        expect(form.get_by_role("button", name="Send")).to_be_enabled()
    assert len(board.given) == len(SENT)
    assert visit.was_clean()


def test_a_wrong_field_is_told_beside_it_and_what_was_typed_stays(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    form = kneading(page)
    value = form.get_by_label("Value")
    value.fill("abc")
    form.get_by_label("Unit").select_option("grams")
    assert sent(page, form.get_by_role("button", name="Send").click)["args"] == {"value": "abc", "unit": "grams"}
    expect(value).to_have_attribute("aria-invalid", "true")
    expect(value).to_have_accessible_description("Input should be a valid number")
    expect(form.get_by_label("Unit")).to_have_attribute("aria-invalid", "false")
    refresh(page)
    expect(value).to_have_value("abc")
    expect(form.get_by_label("Unit")).to_have_value("grams")
    for text, words in (("-1", "Input should be greater than or equal to 0"), ("", "Field required")):
        value.fill(text)
        form.get_by_role("button", name="Send").click()
        expect(value).to_have_accessible_description(words)
    board.refuses = "knead"
    value.fill("1")
    form.get_by_role("button", name="Send").click()
    expect(form.locator("output")).to_contain_text("knead is refused: <b>no</b> (")
    expect(value).to_have_value("1")
    assert board.given == []
    assert visit.was_clean(allow_statuses={422, 400})


def test_stop_asks_in_its_own_words_wherever_it_is_asked_for(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    dialog = page.get_by_role("dialog", name="Stop it?")
    page.get_by_label("Command", exact=True).select_option("stop")
    form = page.get_by_role("form", name="stop")
    for button in (page.get_by_role("button", name="Stop…"), form.get_by_role("button", name="Send")):
        button.click()
        expect(dialog).to_have_accessible_description("It ends, and nothing brings it back.")
        refresh_behind(page)
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        assert board.given == []
        expect(button).to_be_enabled()
    page.get_by_role("button", name="Stop…").click()
    dialog.get_by_role("button", name="Stop", exact=True).click()
    wait_until(lambda: [each["kind"] for each in board.given] == ["stop"])
    assert visit.was_clean()


def refresh_behind(page: Page) -> None:
    """Have the page ask anew while a dialog is open."""
    with page.expect_response(lambda response: "/poll?" in response.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    painted(page)


def test_what_the_run_takes_is_asked_for_again_when_it_could_not_be_said(opening: Opening, board: Board) -> None:
    asked: list[str] = []

    def fail_once(route: Route) -> None:
        asked.append(route.request.url)
        route.abort() if len(asked) == 1 else route.continue_()

    visit = opening(board, before=lambda page: page.route("**/openapi.json", fail_once))
    kinds = visit.page.get_by_label("Command", exact=True).locator("option")
    expect(kinds.filter(has_text="stop")).to_have_count(1)
    assert len(asked) == 2
    assert visit.was_clean(may_be_cut=True)


def test_stop_asks_too_when_nobody_can_say_what_it_does(opening: Opening, board: Board) -> None:
    visit = opening(board, before=lambda page: page.route("**/openapi.json", lambda route: route.abort()))
    page = visit.page
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Stop…").click()
    expect(dialog).to_have_accessible_name("Send stop?")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert board.given == []
    page.get_by_role("button", name="Stop…").click()
    dialog.get_by_role("button", name="Send").click()
    wait_until(lambda: [each["kind"] for each in board.given] == ["stop"])
    expect(page.get_by_text("What the run takes can't be shown: the run does not answer")).to_be_visible()
    assert visit.was_clean(may_be_cut=True)
