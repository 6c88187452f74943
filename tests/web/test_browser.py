"""The API's documentation in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browsing import Visiting, chromium, visiting  # noqa: F401 - fixtures
from tests.web.sample import Root, serving

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_route_can_be_tried_in_the_documentation(
    visiting: Visiting,  # noqa: F811 - the fixture
    root: Root,
    tmp_path: Path,
    scheme: str,
) -> None:
    with serving(root) as served:
        size = {"width": 1100, "height": 900}
        visit = visiting(f"http://127.0.0.1:{served.port}", color_scheme=scheme, viewport=size)
        page = visit.page
        page.goto(f"{visit.address}/docs")
        page.screenshot(path=tmp_path / "docs.png")
        files = page.locator(".opblock", has_text="/files/{path}").first
        files.locator(".opblock-summary").click()
        files.get_by_placeholder("path").fill("state/metrics/train%2Floss")
        files.get_by_role("button", name="Execute").click()
        tried = files.locator(".live-responses-table").first
        tried.get_by_text("0.25").first.wait_for()
        assert visit.asked[-1] == f"{visit.address}/files/state/metrics/train%252Floss?format=list"
        scale = page.locator(".opblock-post", has_text="/control/scale")
        scale.locator(".opblock-summary").click()
        scale.get_by_role("button", name="Execute").click()
        scale.locator(".live-responses-table").first.get_by_text("200").first.wait_for()
        page.screenshot(path=tmp_path / "tried.png", full_page=True)
        assert visit.was_clean()
