"""The pages in a real browser, Debian's Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, expect, sync_playwright

from tests.web.sample import Root, Served, serving

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def served(root: Root) -> Iterator[Served]:
    with serving(root) as served:
        yield served


class Visit:
    """A browser page, with all that went wrong in it and all that it asked for."""

    def __init__(self, page: Page, served: Served) -> None:
        self.page = page
        self.address = f"http://127.0.0.1:{served.port}"
        self.asked: list[str] = []
        self.troubles: list[str] = []
        page.on("request", self._note)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", lambda said: self.troubles.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("dialog", lambda dialog: self.troubles.append(dialog.message))

    def _note(self, request: Request) -> None:
        if not request.url.startswith("data:"):
            self.asked.append(request.url)

    def was_clean(self) -> bool:
        assert self.troubles == []
        assert [url for url in self.asked if not url.startswith(self.address + "/")] == []
        return True


@pytest.fixture(params=["light", "dark"])
def visit(request: pytest.FixtureRequest, served: Served) -> Iterator[Visit]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(color_scheme=request.param, viewport={"width": 375, "height": 800})
        try:
            yield Visit(context.new_page(), served)
        finally:
            browser.close()


def test_the_front_page_shows_the_run_on_a_phone_in_any_light(visit: Visit, root: Root, tmp_path: Path) -> None:
    page = visit.page
    page.goto(f"{visit.address}/")
    run, metrics = page.locator("table").all()
    expect(run).to_contain_text("running")
    expect(run).to_contain_text("Infinity")
    expect(metrics).to_contain_text("train/loss")
    expect(metrics).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"As of \d"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=tmp_path / "front.png", full_page=True)
    page.evaluate("document.querySelector('#state').textContent = ''")
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"As of \d"))
    page.get_by_role("link", name="API").click()
    expect(page).to_have_url(f"{visit.address}/docs")
    expect(page.locator(".opblock")).not_to_have_count(0)
    assert visit.was_clean()


def test_a_route_can_be_tried_in_the_documentation(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    page.set_viewport_size({"width": 1100, "height": 900})
    page.goto(f"{visit.address}/docs")
    page.screenshot(path=tmp_path / "docs.png")
    files = page.locator(".opblock", has_text="/files/{path}").first
    files.locator(".opblock-summary").click()
    files.get_by_placeholder("path").fill("state/metrics/train%2Floss")
    files.get_by_role("button", name="Execute").click()
    expect(files.locator(".live-responses-table").first).to_contain_text("0.25")
    assert visit.asked[-1] == f"{visit.address}/files/state/metrics/train%252Floss?format=list"
    scale = page.locator(".opblock-post", has_text="/control/scale")
    scale.locator(".opblock-summary").click()
    scale.get_by_role("button", name="Execute").click()
    expect(scale.locator(".live-responses-table").first).to_contain_text("200")
    page.screenshot(path=tmp_path / "tried.png", full_page=True)
    assert visit.was_clean()
