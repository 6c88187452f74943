"""Sending: what is sent once, what came of it, and what it wrote."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from midrun.fs.later import Later
from tests.web.board import Board
from tests.web.dashboard.looking import Opening, kneading, refresh
from tests.web.dashboard.records import hold, record
from tests.web.sample import wait_until

pytestmark = pytest.mark.browser


def test_a_double_click_sends_once(opening: Opening, board: Board) -> None:
    board.tunables = {"depth": {"value": 3, "type": "int"}}
    visit = opening(board)
    page = visit.page
    kneading(page).get_by_label("Value").fill("7")
    page.get_by_label("depth").fill("4")
    row, setting = page.locator(".buttons"), page.locator(".setting", has_text="depth")
    for place, name, kind in (
        (row, "Pause", "pause"),
        (row, "Checkpoint", "checkpoint"),
        (kneading(page), "Send", "knead"),
        (setting, "Set", "set_hparam"),
    ):
        button = place.get_by_role("button", name=name, exact=True)
        button.click()
        expect(place.locator("output").first).to_contain_text("queued")
        expect(row.get_by_role("button", name="Checkpoint")).to_be_enabled()
        if kind == "pause":  # The button has turned into its opposite by the second click.
            board.holding = {**board.holding, "pending": [hold(id=board.given[0]["id"], status="pending")]}
            refresh(page)
            button = row.get_by_role("button", name="Cancel pause")
        if kind == "set_hparam":
            page.get_by_label("depth").fill("4")
        second_click(page, button)
        refresh(page)
        assert board.given.pop()["kind"] == kind
        assert board.given == []
    assert visit.was_clean()


def second_click(page: Page, button: Locator) -> None:
    """Click as the second time of a double click, which came late."""
    expect(button).to_be_enabled()
    button.hover()
    page.mouse.down(click_count=2)
    page.mouse.up(click_count=2)


def test_a_question_that_is_answered_with_no_leaves_what_came_before(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    board.late = Later()
    form = page.get_by_role("form", name="stop")
    page.get_by_label("Command", exact=True).select_option("stop")
    send, dialog = form.get_by_role("button", name="Send"), page.get_by_role("dialog")
    send.click()
    dialog.get_by_role("button", name="Stop", exact=True).click()
    told = "The run did not answer in time"
    expect(form.locator("output")).to_contain_text(told)
    send.click()
    dialog.get_by_role("button", name="Cancel").click()
    expect(form.locator("output")).to_contain_text(told)
    assert visit.was_clean(allow_statuses={504})


def test_numbers_are_sent_as_they_were_typed_however_large(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    form = kneading(page)
    form.get_by_text("Later").click()
    form.get_by_label("Value").fill("1e400")
    form.get_by_label("Global step").fill("9007199254740993")
    send = form.get_by_role("button", name="Send")
    with page.expect_request(lambda request: request.method == "POST") as asking:
        send.click()
    assert '"global_step":9007199254740993' in (asking.value.post_data or "")
    expect(form.get_by_label("Value")).to_have_accessible_description("Input should be a valid number")
    form.get_by_label("Value").fill("1")
    send.click()
    wait_until(lambda: board.given)
    assert board.given[0]["execution"]["when"] == {"global_step": 9007199254740993}
    assert visit.was_clean(allow_statuses={422})


def test_what_the_run_did_not_answer_in_time_is_sent_again_under_the_same_key(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    keys: list[str] = []

    def note(request: Request) -> None:
        if request.method == "POST":
            keys.append(request.headers["idempotency-key"])

    page.on("request", note)
    form = kneading(page)
    board.late = Later()
    for text in ("1", "1", "2"):
        form.get_by_label("Value").fill(text)
        form.get_by_role("button", name="Send").click()
        expect(form.locator("output")).to_contain_text(
            "did not answer in time, and may still do it. To send the same again is safe"
        )
        expect(form.get_by_role("button", name="Send")).to_be_enabled()
    first, second, third = keys
    assert first == second != third
    board.given = [record(1, id=third, kind="knead", status="succeeded", finished=time.time(), result={})]
    refresh(page)
    expect(form.locator("output")).to_contain_text("Knead: succeeded")
    assert visit.was_clean(allow_statuses={504})


def test_what_is_typed_while_something_is_sent_stays(opening: Opening, board: Board) -> None:
    board.tunables = {"depth": {"value": 3, "type": "int"}}
    visit = opening(board)
    page = visit.page
    depth = page.get_by_label("depth")
    for typed_on, left in (("", ""), ("6", "56")):
        board.late = late = Later()
        depth.fill("5")
        depth.press("Enter")
        expect(page.get_by_role("button", name="Set").last).to_be_disabled()
        depth.press_sequentially(typed_on)
        late.set_result(record(1, kind="set_hparam"))
        expect(page.locator(".setting", has_text="depth").locator("output")).to_contain_text("Set hparam: queued")
        expect(depth).to_have_value(left)
    assert visit.was_clean()


def test_a_key_that_is_held_down_asks_once(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    stop, dialog = page.get_by_role("button", name="Stop…"), page.get_by_role("dialog")
    stop.click()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")  # Now the page knows what to ask, and need not wait for it.
    expect(dialog).to_have_count(0)
    stop.focus()
    stop.evaluate("(button) => { for (let i = 0; i < 6; i++) button.click(); }")
    expect(dialog).to_have_count(1)
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert board.given == []
    expect(stop).to_be_focused()
    assert visit.was_clean()


def test_a_pause_for_later_leaves_the_button_for_one_now(opening: Opening, board: Board) -> None:
    board.given = [record(1, execution={"when": {"global_step": 10**9}})]
    board.holding = {**board.holding, "pending": [hold(id="c1", status="pending")]}
    visit = opening(board)
    row = visit.page.locator(".buttons")
    expect(row.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    board.given = [record(1)]
    refresh(visit.page)
    expect(row.get_by_role("button", name="Cancel pause")).to_be_visible()
    assert visit.was_clean()


def test_a_command_that_changes_nothing_says_so(opening: Opening, board: Board) -> None:
    board.given = [record(1, kind="set_learning_rate", status="succeeded", result={"changes": []})]
    visit = opening(board)
    expect(visit.page.get_by_role("list", name="Finished")).to_contain_text("succeeded, nothing has changed")
    assert visit.was_clean()


def test_what_else_a_result_says_is_shown(opening: Opening, board: Board) -> None:
    result = {
        "notes": ["take care"],
        "steps_skipped": 0,
        "is_new": False,
        "limits": {"low": 1},
        "<b>text</b>": "y" * 100,
        "none": None,
        "empty": [],
        "nothing": {},
        "blank": "",
    }
    board.given = [record(1, kind="knead", status="succeeded", result=result)]
    visit = opening(board)
    [outcome] = visit.page.get_by_role("list", name="Finished").locator("li > div:nth-child(2)").all_inner_texts()
    said = f'take care, steps skipped: 0, is new: false, limits: {{"low":1}}, <b>text</b>: {"y" * 80}…'
    assert outcome.split(", ", 1)[1] == said
    assert visit.was_clean()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("rest", "over REST"),
        ("fuse", "through the mount"),
        ("spool", "by a file in the spool"),
        ("command line", "from the command line"),
        ("hook", "by a shell hook"),
        ("script", "by a script"),
        ("python", "from Python"),
        ("toString", "by toString"),
    ],
)
def test_who_asked_is_told_in_words(opening: Opening, board: Board, source: str, told: str) -> None:
    board.given = [record(1, source=source)]
    visit = opening(board)
    expect(visit.page.get_by_role("list", name="Waiting and running")).to_contain_text(f"{told}, ")
    assert visit.was_clean()


def test_what_somebody_took_back_has_not_failed(opening: Opening, board: Board) -> None:
    error = {"type": "E", "message": "by test"}
    board.given = [record(at, status=status, error=error) for at, status in enumerate(("cancelled", "failed"))]
    visit = opening(board)
    expect(visit.page.locator(".commands .wrong")).to_have_text("failed: by test")
    expect(visit.page.locator(".commands")).to_contain_text("cancelled: by test")
    assert visit.was_clean()


def test_a_command_s_words_are_those_of_the_page_and_link_the_file_that_it_wrote(
    opening: Opening, board: Board, tmp_path: Path
) -> None:
    (tmp_path / "debug").mkdir()
    (tmp_path / "debug" / "at 5.ckpt").write_text("weights")
    change = {"what": "optimizers/0/groups/0/lr", "old": 0.1, "new": 0.05}
    written = {"id": "at 5.ckpt", "path": f"{tmp_path}/debug/at 5.ckpt"}
    began = board.started
    board.given = [
        record(
            1,
            kind="set_learning_rate",
            source="fuse",
            status="succeeded",
            started=began + 1,
            result={"changes": [change]},
        ),
        record(2, kind="checkpoint", source="lunch bot", status="succeeded", result={"artifact": written}),
        record(
            3, kind="checkpoint", status="succeeded", result={"artifact": {"id": "away", "path": "/elsewhere/away"}}
        ),
    ]
    visit = opening(board)
    page = visit.page
    items = page.get_by_role("list", name="Finished").get_by_role("listitem")
    expect(items.nth(2)).to_contain_text("succeeded, lr of SGD 0.1 → 0.05")
    expect(items.nth(2)).to_contain_text("through the mount,")
    board.given[0]["started"] = began - 1  # Then another optimizer was in this place.
    refresh(page)
    expect(items.nth(2)).to_contain_text("succeeded, optimizers/0/groups/0/lr 0.1 → 0.05")
    expect(items.nth(1)).to_contain_text("by lunch bot,")
    with page.expect_download() as downloading:
        items.nth(1).get_by_role("link", name="at 5.ckpt").click()
    assert Path(downloading.value.path()).read_text() == "weights"
    expect(items.nth(0)).to_contain_text("succeeded, away")
    expect(items.nth(0).get_by_role("link")).to_have_count(0)
    assert visit.was_clean()


def test_only_what_the_run_gives_away_is_offered(opening: Opening, board: Board, tmp_path: Path) -> None:
    (tmp_path / "debug").mkdir()
    (tmp_path / "debug" / "a.dot").write_text("digraph { a }")
    paths = ["debug/a.dot", "b.dot", "elsewhere/c.dot", "debug/line\nfeed.dot", "debug/\udcff.dot"]
    board.written = [{"path": path, "size": 1, "modified": 0.0} for path in paths]
    visit = opening(board)
    page = visit.page
    items = page.get_by_role("list", name="Artifacts").get_by_role("listitem")
    expect(items).to_have_count(len(paths))
    expect(items.get_by_role("link")).to_have_text(["debug/a.dot"])
    expect(items.get_by_role("button", name="Draw")).to_have_count(1)
    link = items.get_by_role("link")
    with page.expect_download():
        link.click()
    asked = len(visit.asked)
    second_click(page, link)
    refresh(page)
    assert not [url for url in visit.asked[asked:] if "/artifacts/" in url]
    assert visit.was_clean()


def test_a_download_that_is_gone_says_so(opening: Opening, board: Board) -> None:
    board.written = [{"path": "debug/gone.txt", "size": 1, "modified": 0.0}]
    visit = opening(board)
    artifacts = visit.page.get_by_role("list", name="Artifacts")
    artifacts.get_by_role("link").click()
    expect(artifacts).to_contain_text(re.compile("gone.txt there is no such file now"))
    assert visit.page.url == f"{visit.address}/"
    assert visit.was_clean(allow_statuses={404})
