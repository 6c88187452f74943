"""The dashboard in a real browser, before a tree with whatever a run may show."""

from __future__ import annotations

import importlib.resources
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from midrun.fs.faults import Conflict
from midrun.fs.later import Later
from tests.browsing import PATIENCE_MS, Visit, Visiting, chromium, visiting  # noqa: F401 - fixtures
from tests.web.board import HOSTILE, Board, csv
from tests.web.sample import Served, serving, wait_until

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE_MS)

BY = re.compile("^By ")
NOTHING = "\N{EN DASH}"
"""What stands for no value."""
WIDTHS = (375, 1440, 3840)
WIDE = {"width": 1440, "height": 900}
TEXT = "\n".join(HOSTILE)
PHASES = {
    "phases": {
        "data": {"share": 0.5, "median_s": 0.0125, "p95_s": 0.02},
        "forward": {"share": 0.375, "median_s": 0.01, "p95_s": 0.011},
        "<b>backward</b>": {"share": 0.125},
    },
    "verdict": "The data is waited for.",
}


class Opening:
    """Serves boards and opens their dashboards, until the test is over."""

    def __init__(self, visiting: Visiting, stack: ExitStack) -> None:  # noqa: F811 - what the fixture gives
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


@pytest.fixture
def opening(visiting: Visiting) -> Iterator[Opening]:  # noqa: F811 - the fixture
    with ExitStack() as stack:
        yield Opening(visiting, stack)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    board = Board(str(tmp_path))
    board.furnish(
        phases=PHASES,
        memory={"allocated": 1024, "by <i>pool</i>": [1, 2.5, math.nan]},
        hooks={"hooks": {"notify.sh": {"state": "idle"}}},
        host="machine",
    )
    board.summary = "a summary of <b>it</b>"
    return board


def settle(page: Page) -> None:
    """Wait until all that is on the page has been seen once."""
    expect(page.locator(".freshness output")).to_contain_text("as of")
    expect(page.get_by_text("…", exact=True)).to_have_count(0)


def lead(visit: Visit, served: Served) -> None:
    """From now on, have another server answer under the address of a page."""

    def elsewhere(route: Route) -> None:
        there = route.request.url.replace(visit.address, f"http://127.0.0.1:{served.port}")
        route.fulfill(response=route.fetch(url=there))

    visit.page.route(f"{visit.address}/**", elsewhere)


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


def steps_in_view(page: Page, name: str) -> tuple[int, int]:
    """Return the steps at the left and the right end of a chart, as the readout tells them."""
    first, last = (re.match(r"step ([\d,]+):", read_at(page, name, part)) for part in (0, 1))
    assert first is not None
    assert last is not None
    return int(first[1].replace(",", "")), int(last[1].replace(",", ""))


def record(number: int, **more: Any) -> dict[str, Any]:
    """Return a command as it is listed."""
    return {
        "id": f"c{number}",
        "kind": "pause",
        "args": {},
        "execution": {},
        "status": "queued",
        "source": "test",
        "via": "rest",
        "submitted": 1_700_000_000.0,
        "started": None,
        "finished": None,
        "place": None,
        "result": None,
        "error": None,
        **more,
    }


def hold(**more: Any) -> dict[str, Any]:
    """Return a hold as it is listed."""
    return {
        "id": "h1",
        "status": "active",
        "reason": None,
        "is_pause": True,
        "source": "test",
        "place": None,
        "since": 1_700_000_000.0,
        "ended": None,
        "released_by": None,
        "joined_ids": [],
        **more,
    }


def exception(text: str) -> dict[str, Any]:
    return {
        "type": text,
        "message": text,
        "traceback": text,
        "global_step": 3,
        "epoch": 0,
        "batch": None,
        "time": 1_700_000_000.0,
    }


def harm(board: Board) -> None:
    """Give everything on a board a hostile name or text."""
    board.run_id, board.label = HOSTILE[0], HOSTILE[3]
    board.directory += "/<img src=x onerror=alert(9)>"
    board.metrics = {name: float(at) for at, name in enumerate(HOSTILE)}
    board.points = {name: csv([at, at + 0.5], start=10 * at) for at, name in enumerate(HOSTILE)}
    board.tunables = {
        name: {"value": name, "type": name, "label": label, "min": 0, "max": 1e300}
        for name, label in zip(HOSTILE, reversed(HOSTILE), strict=True)
    }
    board.exception = exception(TEXT)
    board.services = {name: {"state": "failed", "reason": TEXT, "since": 0.0} for name in HOSTILE}
    board.written = [{"path": f"debug/{name}", "size": 1 << 50, "modified": 0.0} for name in HOSTILE]
    board.written += [{"path": name, "size": 0, "modified": 0.0} for name in [*HOSTILE, "\udcff.ckpt"]]
    change = {"what": HOSTILE[0], "old": HOSTILE[1], "new": HOSTILE[2]}
    place = {"safe_point": HOSTILE[3], "global_step": 1, "epoch": 0, "batch": 0}
    board.given = [
        record(0, kind=HOSTILE[0], args=dict.fromkeys(HOSTILE, TEXT), execution={"when": dict.fromkeys(HOSTILE, TEXT)}),
        record(1, source=TEXT, status="succeeded", place=place, result={"changes": [change], "notes": HOSTILE}),
        record(2, status="failed", error={"type": HOSTILE[0], "message": TEXT}),
        record(3, status=HOSTILE[0], result={"artifact": {"id": TEXT}, "will_be_overwritten_by": HOSTILE}),
    ]
    board.log = [
        {
            "revision": at,
            "time": 0.0,
            "event": name,
            "kind": name,
            "source": name,
            "place": place,
            "changes": [change],
            "error": {"type": name, "message": name},
        }
        for at, name in enumerate(HOSTILE)
    ]
    active, due = hold(reason=TEXT, source=TEXT, place=place), hold(id="h2", status="pending", reason=TEXT, source=TEXT)
    board.holding = {
        "active": active,
        "exception": exception(TEXT),
        "pending": [due],
        "waiting": [],
        "stopped": False,
    }
    board.furnish(
        phases={"verdict": TEXT, "phases": {name: {"share": 1 / len(HOSTILE)} for name in HOSTILE}},
        memory=dict.fromkeys(HOSTILE, TEXT),
        hooks=dict.fromkeys(HOSTILE, TEXT),
        host=HOSTILE[0],
    )
    board.summary = TEXT
    board.graph = graph_of_harm()


QUOTE = '\\"'


def graph_of_harm() -> str:
    """Return a graph whose labels, fonts, links and pictures are what a person who means harm would make them."""
    quoted = [name.replace("\\", "\\\\").replace('"', '\\"').replace("\0", "") for name in HOSTILE]
    nodes = [f'n{at} [label="{name}" URL="{name}" tooltip="{name}"]' for at, name in enumerate(quoted)]
    fonts = [name.replace(QUOTE, "") for name in quoted]
    edges = [f'n{at} -> n{at + 1} [label="{n}" fontname="{fonts[at]}"]' for at, n in enumerate(quoted[:-1])]
    styles = ['stylesheet="http://127.0.0.1:9/x"', 'URL="javascript:alert(7)"', 'fontname="<script>alert(8)</script>"']
    return "digraph {\n" + "\n".join([*styles, 'n0 [image="/x.png"]', *nodes, *edges]) + "\n}"


def open_all(page: Page) -> None:
    """Open whatever can be opened, and what that brings, but not the list of all files."""
    closed = page.locator("details:not([open]) > summary").filter(has_not_text="All files")
    while closed.count():
        closed.first.click()
    settle(page)


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.locator(selector).evaluate_all("(found) => found.map((each) => each.textContent)")
    return found


NAMES = "(all) => all.map((each) => each.ariaLabel)"
"""The names of elements, as people are told them who do not see."""


def made(page: Page) -> Mapping[str, int]:
    """Count the elements that a text would have made were it taken for markup."""
    counted: dict[str, int] = page.evaluate(
        """() => Object.fromEntries(["script", "img", "svg", "iframe", "b", "i", "base", "link", "style", "object"]
            .map((name) => [name, document.querySelectorAll(name).length]))"""
    )
    return {name: count for name, count in counted.items() if count}


# ---- What names and texts may do


def test_hostile_names_and_texts_are_shown_as_text_and_run_nothing(opening: Opening, board: Board) -> None:
    board.run_id = "run-1"
    harm(board)
    visit = opening(board, viewport={"width": 1440, "height": 6000})
    page = visit.page
    open_all(page)
    page.get_by_role("button", name=re.compile(r"^All \d")).first.click()
    page.get_by_role("button", name="Show a live summary").click()
    expect(page.get_by_role("region", name="model/summary-live.txt")).to_contain_text("{{constructor.constructor")
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE[0])
    expect(page.locator(".exception h2")).to_have_text(TEXT)
    assert texts(page, ".exception pre") == [TEXT]
    assert set(page.locator("article").evaluate_all(NAMES)) == set(HOSTILE)
    labels = [each or "(no name)" for each in reversed(HOSTILE)]
    assert texts(page, ".setting label")[1:] == labels
    for table in ("Hyperparameters", "Hooks", "CUDA memory"):
        assert texts(page, f"table[aria-label='{table}'] th") == [name or "(no name)" for name in HOSTILE]
    assert set(HOSTILE) <= {each.removeprefix(" ") for each in texts(page, "table[aria-label='Phases of a batch'] th")}
    assert texts(page, "table[aria-label=Services] th") == HOSTILE
    assert texts(page, "[role=alert] strong") == [f"{name} does not work" for name in HOSTILE]
    shown = "\0".join(texts(page, ".commands"))
    for text in (TEXT, f"{HOSTILE[0]} {HOSTILE[1]} → {HOSTILE[2]}", f"pause by {TEXT}: {TEXT}"):
        assert text in shown
    expect(page.locator(".run > .held")).to_contain_text("An exception holds the run")
    assert made(page) == {"script": 1, "link": 2}
    for _ in range(2):
        refresh(page)
    assert made(page) == {"script": 1, "link": 2}
    assert visit.was_clean()


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


def test_names_that_are_longer_or_shorter_than_another_are_other_metrics(opening: Opening, board: Board) -> None:
    board.metrics = {"a": 1.0, "b": 2.0}
    visit = opening(board)
    expect(visit.page.locator("article")).to_have_count(3)
    board.metrics = {"a\nb": 3.0}
    refresh(visit.page)
    wait_until(lambda: set(visit.page.locator("article").evaluate_all(NAMES)) == {"a\nb", "train/loss"})


def test_the_link_of_an_artifact_of_any_name_stays_on_this_server_and_saves_the_file(
    opening: Opening, board: Board, tmp_path: Path
) -> None:
    (tmp_path / "debug").mkdir()
    # Names with control characters can't be had: an address has them escaped, as names in the tree are.
    able = [name for name in HOSTILE if name and not re.search(r"[/\0\n]", name) and len(name) < 256]
    for name in able:
        (tmp_path / "debug" / name).write_text(f"content of {name}")
    listed = [f"debug/{name}" for name in able]
    odd = ["//example.org/x", "/\\example.org", "\udcff.ckpt", "http://example.org", "?a", "#b", "..", "."]
    outside = [*HOSTILE, *odd]
    board.written = [{"path": path, "size": 1, "modified": 0.0} for path in [*listed, *outside]]
    visit = opening(board)
    page = visit.page
    page.get_by_role("button", name=f"All {len(board.written)}").click()
    links = page.get_by_role("list", name="Artifacts").locator("a")
    expect(links).to_have_count(len(board.written))
    assert texts(page, "ul[aria-label=Artifacts] a") == [*listed, *outside]
    for address in links.evaluate_all("(all) => all.map((each) => each.href)"):
        assert urlsplit(address)[:2] == ("http", visit.address.removeprefix("http://"))
    for path in listed:
        with page.expect_download() as downloading:
            links.nth(listed.index(path)).click()
        assert Path(downloading.value.path()).read_text() == f"content of {path.removeprefix('debug/')}"
    assert page.url == f"{visit.address}/"
    assert visit.was_clean()


def test_a_graph_with_hostile_labels_is_a_picture_and_nothing_more(opening: Opening, board: Board) -> None:
    board.graph = graph_of_harm()
    visit = opening(board)
    page = visit.page
    page.get_by_role("button", name="Draw the model's graph").click()
    picture = page.get_by_role("img", name="Graph model/graph: ")
    expect(picture).to_be_visible()
    wait_until(lambda: picture.evaluate("(img) => img.naturalWidth") > 0)
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download SVG").click()
    svg = Path(downloading.value.path()).read_text()
    assert "&lt;img src=x onerror=alert(1)&gt;" in svg
    assert not re.search(r"<(script|image|a|foreignObject|style|iframe)\b|\bon\w+=\"", svg)
    assert not re.search(r"(?<!xmlns)=\"(http|javascript)", svg)
    page.goto("about:blank")
    page.set_content(svg)  # Opened by itself, it runs nothing either.
    assert made(page)["svg"] == 1
    assert visit.was_clean()


# ---- What everybody must be able to see and to press


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
    page.get_by_label("Value (needed)").fill("abc")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".command .wrong")).not_to_have_count(0)
    card(page, "train/loss").get_by_role("button", name="Larger").click()
    page.get_by_role("button", name="Show the profiler's summary").click()
    page.get_by_role("button", name="Show a live summary").click()
    page.get_by_role("button", name="Draw the model's graph").click()
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
    page.get_by_role("button", name="Draw the model's graph").click()
    expect(page.get_by_role("img", name="Graph model/graph")).to_be_visible()
    card(page, "constructor").get_by_role("button", name="Larger").click()
    for view in ("charts", "table"):
        page.get_by_label("Show").select_option(view)
        for width in (320, *WIDTHS):
            resize(page, width)
            assert too_wide(page) == [], width
            assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.get_by_label("Value (needed)").evaluate("(field) => field.clientWidth") < 1000


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
    expect(page.locator(".buttons output")).to_contain_text("pause: queued")
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


# ---- Many metrics


def many(board: Board) -> None:
    board.metrics = {f"g{at % 10}/m{at}": float(at) for at in range(5, 500) if at % 10 or at < 200}
    board.metrics = dict(sorted(board.metrics.items(), key=lambda item: item[0]))
    extra = {f"g9/more{at}": float(at) for at in range(500 - len(board.metrics))}
    board.metrics |= extra
    board.points = {name: csv([1.0, value]) for name, value in board.metrics.items()}


def asked_for(visit: Visit) -> list[str]:
    """Return the metrics whose points were asked for."""
    paths = [urlsplit(url).path for url in visit.asked if "/files/history/" in url]
    return [
        unquote(unquote(path.rpartition("/")[2])).removesuffix(".csv") for path in paths if "index.json" not in path
    ]


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


# ---- Commands


def sent(page: Page, press: Callable[[], object]) -> Any:
    """Return the document that is sent when something is pressed."""
    with page.expect_request(lambda request: request.method == "POST") as asking:
        press()
    return asking.value.post_data_json


def kneading(page: Page) -> Locator:
    page.get_by_label("Command", exact=True).select_option("knead")
    return page.get_by_role("form", name="knead")


def test_a_kind_that_no_dashboard_has_heard_of_has_its_form(opening: Opening, board: Board) -> None:
    visit = opening(board)
    form = kneading(visit.page)
    expect(form.locator("p").first).to_have_text("Knead the dough.\n\nIt rises afterwards.")
    value, unit, gently = form.get_by_label("Value (needed)"), form.get_by_label("Unit"), form.get_by_label("Gently")
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
        expect(form.locator("output")).to_have_text("knead: queued")
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
    expect(form.locator("output")).to_have_text("knead is refused: <b>no</b>")
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


# ---- What a look costs


def test_a_poll_that_brings_nothing_new_is_tiny_and_redraws_nothing(opening: Opening, board: Board) -> None:
    same = board.index()
    board.index = lambda: same  # type: ignore[method-assign]
    visit = opening(board)
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("3 points"))
    expect(page.get_by_label("Command", exact=True).locator("option")).to_have_count(4)
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
    assert "optimizers" in visit.asked[-1] or any("cuda" in url for url in visit.asked if "/poll?" in url)
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


# ---- Panels


def test_panels_of_nodes_that_a_run_lacks_say_so(opening: Opening) -> None:
    visit = opening(Board())
    page = visit.page
    for lacks in ("timing of the pipeline's phases", "view of CUDA memory", "shell hooks", "summary of the model"):
        expect(page.get_by_text(f"This version of midrun has no {lacks}.")).to_be_visible()
    page.get_by_role("button", name="Show the profiler's summary").click()
    expect(page.get_by_text("This version of midrun has no profiler summary.")).to_be_visible()
    page.get_by_role("button", name="Show a live summary").click()
    expect(page.get_by_text("This version of midrun has no live summary of the model.")).to_be_visible()
    page.locator("summary", has_text="This run").click()
    expect(page.get_by_text("This version of midrun has no list of versions.")).to_be_visible()
    assert visit.was_clean(allow_statuses={404})


def test_panels_show_the_nodes_that_a_run_has(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    expect(page.get_by_text("The data is waited for.")).to_be_visible()
    rows = page.get_by_role("table", name="Phases of a batch").locator("tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["Phase", "Share", "Median", "95", "%"],
        ["data", "50.0", "%", "12.5", "ms", "20", "ms"],
        ["forward", "37.5", "%", "10", "ms", "11", "ms"],
        ["<b>backward</b>", "12.5", "%", NOTHING, NOTHING],
    ]
    parts = page.locator(".stack .phase")
    widths = parts.evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().width)")
    assert [width / sum(widths) for width in widths] == pytest.approx([0.5, 0.375, 0.125], abs=0.005)
    colours = "(all) => all.map((each) => getComputedStyle(each).backgroundColor)"
    assert parts.evaluate_all(colours) == page.locator(".key").evaluate_all(colours)
    memory = page.get_by_role("table", name="CUDA memory").locator("tr").all_inner_texts()
    assert [row.split("\t") for row in memory] == [
        ["allocated", "1,024"],
        ["by <i>pool</i> · 0", "1"],
        ["by <i>pool</i> · 1", "2.5"],
        ["by <i>pool</i> · 2", "NaN"],
    ]
    expect(page.get_by_role("table", name="Hooks")).to_contain_text("hooks · notify.sh · state")
    page.get_by_role("button", name="Show a live summary").click()
    expect(page.get_by_role("region", name="model/summary-live.txt")).to_have_text("a summary of <b>it</b>\n")
    assert visit.was_clean()


def test_a_phase_of_an_hundredth_is_drawn_as_such(opening: Opening, board: Board) -> None:
    shares = {"most": {"share": 0.7}, "little": {"share": 0.01}, "none": {"share": 0.0}}
    board.furnish(phases={"phases": shares}, memory={}, hooks={}, host="machine")
    visit = opening(board)
    parts = visit.page.locator(".stack .phase")
    widths = parts.evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().width)")
    assert widths[1] / widths[0] == pytest.approx(1 / 70, rel=0.5)
    assert widths[2] <= 1
    assert visit.was_clean()


def test_live_files_are_made_when_somebody_asks_and_once_each_time(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    open_all(page)
    refresh(page)
    assert board.drawn == 0
    draw = page.get_by_role("button", name="Draw the model's graph")
    draw.click()
    expect(page.get_by_role("img", name="Graph model/graph: 2 nodes, 1 edge")).to_be_visible()
    assert board.drawn == 1
    refresh(page)
    assert board.drawn == 1
    board.graph = Later()
    board.graph.fail(Conflict("the run is held at <b>lunch</b>"))
    draw.click()
    expect(page.locator(".on-demand", has=draw).locator("output")).to_have_text("the run is held at <b>lunch</b>")
    expect(draw).to_be_enabled()
    assert board.drawn == 2
    assert visit.was_clean(allow_statuses={409})


def test_the_model_is_drawn_and_its_texts_can_be_kept(opening: Opening, board: Board) -> None:
    board.graph = 'digraph { a -> b [label="naïve ✓"] }'
    visit = opening(board)
    page = visit.page
    page.get_by_role("button", name="Draw the model's graph").click()
    picture = page.get_by_role("img", name="Graph model/graph: 2 nodes, 1 edge")
    wait_until(lambda: picture.evaluate("(img) => img.naturalWidth") > 0)
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download DOT").click()
    assert downloading.value.suggested_filename == "model-graph.dot"
    assert Path(downloading.value.path()).read_text() == f"{board.graph}\n"
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download SVG").click()
    assert downloading.value.suggested_filename == "model-graph.svg"
    svg = Path(downloading.value.path()).read_text()
    assert svg.startswith("<?xml")
    assert "naïve ✓</text>" in svg
    page.get_by_role("button", name="Full size").click()
    expect(page.get_by_role("button", name="Full size")).to_have_attribute("aria-pressed", "true")
    assert visit.was_clean()


def test_an_artifact_in_dot_is_drawn_from_the_list(opening: Opening, board: Board, tmp_path: Path) -> None:
    (tmp_path / "debug").mkdir()
    (tmp_path / "debug" / "a graph.dot").write_text("digraph { x -> y -> z }")
    board.written = [{"path": f"debug/{name}", "size": 24, "modified": 0.0} for name in ("a graph.dot", "gone.gv")]
    visit = opening(board)
    page = visit.page
    items = page.get_by_role("list", name="Artifacts").get_by_role("listitem")
    items.nth(0).get_by_role("button", name="Draw").click()
    expect(items.nth(0).get_by_role("img")).to_have_attribute("alt", "Graph debug/a graph.dot: 3 nodes, 2 edges")
    items.nth(0).get_by_role("button", name="Close").click()
    expect(items.nth(0).get_by_role("img")).to_have_count(0)
    items.nth(1).get_by_role("button", name="Draw").click()
    expect(items.nth(1).locator(".wrong")).to_contain_text("no such file")
    assert visit.was_clean(allow_statuses={404})


def test_a_graph_that_is_none_says_so_and_the_page_lives(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    draw = page.get_by_role("button", name="Draw the model's graph")
    for text in ("this is no graph", "", "digraph { a -> ", 'digraph { a [label="x" fontname="\\"<svg>"] }'):
        board.graph = text
        draw.click()
        expect(page.locator(".graph [role=alert]")).to_contain_text("Graphviz: ")
    board.graph = "digraph { good -> again }"
    draw.click()
    expect(page.get_by_role("img", name="Graph model/graph: 2 nodes, 1 edge")).to_be_visible()
    refresh(page)
    assert visit.was_clean()


# ---- Charts


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
            page.get_by_label("Ignore outliers").set_checked(clipped)
            for smoothing, axis in (("0.9", "time"), ("0", "step")):
                page.get_by_label("Smoothing").fill(smoothing)
                page.get_by_label(BY).select_option(axis)
                page.get_by_role("button", name="Fit all").click()
                painted(page)
            assert read_at(page, "fine", 1).startswith("step 3: 100")
    expect(card(page, "none").locator(".readout")).to_have_text("no points yet")
    for name in ("none", "one", "no number", "huge", "wide"):
        card(page, name).get_by_role("button", name="Larger").click()
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


def test_a_chart_is_zoomed_a_thousandfold_and_fitted_again(opening: Opening, board: Board) -> None:
    board.points["train/loss"] = csv([1 / step for step in range(1, 20_001)])
    visit = opening(board)
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("20,000 points"))
    chart = card(page, "train/loss")
    chart.get_by_role("button", name="Larger").click()
    assert steps_in_view(page, "train/loss") == (1, 20_000)
    for _ in range(10):
        chart.get_by_role("button", name="Zoom in").click()
    painted(page)
    first, last = steps_in_view(page, "train/loss")
    assert 15 <= last - first <= 20
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
    first, last = steps_in_view(page, "train/loss")
    assert 12 <= last - first <= 30
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
    card(page, "train/loss").get_by_role("button", name="Larger").click()
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


def test_outliers_can_be_ignored_and_the_wheel_zooms_with_ctrl_alone(opening: Opening, board: Board) -> None:
    board.points["train/loss"] = csv([1e9, *[0.5 + at / 1000 for at in range(200)]])
    visit = opening(board)
    page = visit.page
    page.get_by_label("Ignore outliers").check()
    assert read_at(page, "train/loss", 0) == "step 1: 1e+9".replace("1e+9", "1,000,000,000")
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


# ---- A run that goes, and one that comes


def test_a_run_that_stops_answering_is_told_and_so_is_that_it_is_back(opening: Opening, visiting: Visiting) -> None:  # noqa: F811 - the fixture
    board = Board()
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
    expect(page.get_by_label("Value (needed)")).to_have_value("7")
    expect(page.get_by_label("depth")).to_have_value("4")
    assert visit.was_clean(may_be_cut=True)


def test_of_another_run_under_the_same_address_nothing_is_shown(opening: Opening, board: Board) -> None:
    visit = opening(board, before=lambda page: page.clock.install())
    page = visit.page
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("3 points"))
    board.step, board.metrics["train/loss"] = 101, 0.125
    board.points["train/loss"] = csv([0.5, 0.4, 0.25, 0.125])
    page.clock.run_for(5_000)
    refresh(page)
    expect(plot(page, "train/loss")).to_have_attribute("aria-label", re.compile("4 points .* the last 0.125"))
    described = plot(page, "train/loss").get_attribute("aria-label")
    other = Board()
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


# ---- What the browser keeps


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
