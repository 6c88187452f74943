"""What names and texts may do: be shown, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.web.board import HOSTILE, Board
from tests.web.dashboard.looking import NAMES, Opening, open_all, refresh, texts
from tests.web.dashboard.records import TEXT, graph_of_harm, harm
from tests.web.sample import wait_until

pytestmark = pytest.mark.browser


def made(page: Page) -> Mapping[str, int]:
    """Count the elements that a text would have made were it taken for markup."""
    counted: dict[str, int] = page.evaluate(
        """() => Object.fromEntries(["script", "img", "svg", "iframe", "b", "i", "base", "link", "style", "object"]
            .map((name) => [name, document.querySelectorAll(name).length]))"""
    )
    return {name: count for name, count in counted.items() if count}


def test_hostile_names_and_texts_are_shown_as_text_and_run_nothing(opening: Opening, board: Board) -> None:
    board.run_id = "run-1"
    harm(board)
    visit = opening(board, viewport={"width": 1440, "height": 6000})
    page = visit.page
    open_all(page)
    # By key: so long a page moves while it fills, and a mouse is pressed in one place and let go in another.
    page.get_by_role("button", name=re.compile(r"^All \d")).first.press("Enter")
    expect(page.get_by_role("button", name="Fewer")).to_be_visible()
    page.get_by_role("button", name="Show a live summary").press("Enter")
    expect(page.get_by_role("region", name="model/summary-live.txt")).to_contain_text("{{constructor.constructor")
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE[0])
    expect(page.locator(".exception h2")).to_have_text(TEXT)
    assert texts(page, ".exception pre") == [TEXT]
    assert set(page.locator("article").evaluate_all(NAMES)) == set(HOSTILE)
    labels = [each or "(no name)" for each in reversed(HOSTILE)]
    assert texts(page, ".setting label")[1:] == labels
    for table in ("Hyperparameters", "CUDA memory"):
        assert texts(page, f"table[aria-label='{table}'] th") == [name or "(no name)" for name in HOSTILE]
    assert set(HOSTILE) <= {each.removeprefix(" ") for each in texts(page, "table[aria-label='Phases of a batch'] th")}
    assert texts(page, "table[aria-label=Services] th") == HOSTILE
    assert texts(page, "table[aria-label=Hooks] tbody th") == [f"{name or '(no name)'} {TEXT}" for name in HOSTILE]
    assert texts(page, "[role=alert] strong") == [f"{name} does not work" for name in HOSTILE]
    shown = "\0".join(texts(page, ".commands"))
    for text in (TEXT, f"{HOSTILE[0]} {HOSTILE[1]} → {HOSTILE[2]}", f"pause by {TEXT}: {TEXT}"):
        assert text in shown
    expect(page.locator(".run > .held")).to_contain_text("Held by an exception for")
    assert made(page) == {"script": 1, "link": 2}
    for _ in range(2):
        refresh(page)
    assert made(page) == {"script": 1, "link": 2}
    assert visit.was_clean()


def test_the_link_of_an_artifact_of_any_name_stays_on_this_server_and_saves_the_file(
    opening: Opening, board: Board, tmp_path: Path
) -> None:
    (tmp_path / "debug").mkdir()
    # Names with control characters can't be had: an address has them escaped, as names in the tree are.
    able = [name for name in HOSTILE if name and not re.search(r"[/\0\n]", name) and len(name) < 256]
    for name in able:
        (tmp_path / "debug" / name).write_text(f"content of {name}")
    odd = ["//example.org/x", "/\\example.org", "\udcff.ckpt", "http://example.org", "?a", "#b", "..", "."]
    listed = [f"debug/{name}" for name in [*able, *(name for name in odd if name.isprintable())]]
    outside = [*HOSTILE, *odd]  # The tree has no link to where these are, so the page has none.
    board.written = [{"path": path, "size": 1, "modified": 0.0} for path in [*listed, *outside]]
    visit = opening(board)
    page = visit.page
    page.get_by_role("button", name=f"All {len(board.written)}").press("Enter")
    links = page.get_by_role("list", name="Artifacts").locator("a")
    expect(links).to_have_count(len(listed))
    assert texts(page, "ul[aria-label=Artifacts] li > :first-child") == [*listed, *outside]
    for address in links.evaluate_all("(all) => all.map((each) => each.href)"):
        assert urlsplit(address)[:2] == ("http", visit.address.removeprefix("http://"))
    for path in listed[: len(able)]:
        with page.expect_download() as downloading:
            links.nth(listed.index(path)).click()
        assert Path(downloading.value.path()).read_text() == f"content of {path.removeprefix('debug/')}"
    assert page.url == f"{visit.address}/"
    assert visit.was_clean()


def test_a_graph_with_hostile_labels_is_a_picture_and_nothing_more(opening: Opening, board: Board) -> None:
    board.graph = graph_of_harm()
    visit = opening(board)
    page = visit.page
    page.get_by_role("button", name="Draw the model's graph").press("Enter")
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
