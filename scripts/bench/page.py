"""The dashboard in a browser, for measuring what it costs a run, and how long the page itself stands still.

python -m scripts.bench.page URL       opens the page in live mode; reads "on" and "off" from its standard input
python -m scripts.bench.page           draws a chart of 100,000 points from a tree of its own, and prints a table
"""

import math
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import BrowserContext, Locator, Page, sync_playwright

from tests.web.board import Board, csv
from tests.web.sample import serving

POINTS = 100_000
WATCH = """
window.stalls = [];
new PerformanceObserver((list) => stalls.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({ entryTypes: ["longtask"] });
"""
"""Notes each task of the page's thread of 50 ms and more."""


@contextmanager
def browser() -> Iterator[BrowserContext]:
    """Run Debian's Chromium beside the block."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield chromium.new_context(viewport={"width": 1440, "height": 1000})
        finally:
            chromium.close()


def look(url: str) -> None:
    """Have the page open, in live mode, until standard input ends; "off" cuts it off from the run."""
    with browser() as context:
        page = context.new_page()
        page.goto(url)
        page.get_by_label("Live").check()
        page.get_by_role("button", name="Pause").wait_for()
        print("ready", flush=True)
        for line in sys.stdin:
            context.set_offline(line.strip() == "off")
            print("done", flush=True)


def first_chart(context: BrowserContext, url: str) -> float:
    """Return the seconds from opening the page to its first chart with points."""
    page = context.new_page()
    page.goto(url)
    page.locator(".plot[aria-label*=' points from ']").first.wait_for()
    took = float(page.evaluate("performance.now()")) / 1000
    page.close()
    return took


def stalls(page: Page) -> float:
    """Return the longest task since this was last asked, in seconds; 0 for none of 50 ms."""
    return float(page.evaluate("Math.max(0, ...stalls.splice(0))")) / 1000


def exercise(page: Page, board: Board, card: Locator) -> Iterator[tuple[str, float]]:
    """Do what people do with a chart; give each name with the longest time for which the page stood still."""

    def press(name: str, times: int) -> None:
        for _ in range(times):
            card.get_by_role("button", name=name, exact=True).click()
            page.evaluate("new Promise(requestAnimationFrame)")

    card.get_by_role("button", name="Larger").click()
    yield "larger", stalls(page)
    press("Zoom in", 12)
    yield "zoom in, 12 times", stalls(page)
    press("Later", 12)
    press("Earlier", 24)
    yield "scroll, 36 times", stalls(page)
    box = card.locator(".u-over").bounding_box()
    assert box is not None
    for at in range(60):
        page.mouse.move(box["x"] + at * box["width"] / 60, box["y"] + 40)
    yield "the pointer along the chart", stalls(page)
    press("Fit", 1)
    page.get_by_role("slider", name="Smoothing").fill("0.9")
    page.get_by_label("Log scale").check()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    yield "smoothing and log scale", stalls(page)
    page.get_by_label("Live").check()
    for new in range(5):
        board.step, board.metrics = POINTS + new + 1, {"train/loss": 0.1 + new / 100}
        with page.expect_response("**/poll?*"):
            pass
    yield "five new points in live mode", stalls(page)


def main() -> None:
    """Look at a run, or measure the page itself."""
    if len(sys.argv) > 1:
        look(sys.argv[1])
        return
    with tempfile.TemporaryDirectory(prefix="midrun-bench-") as directory:
        measure(Board(directory))


def measure(board: Board) -> None:
    """Draw charts of a tree of its own, and print what that takes."""
    noise = random.Random(0)  # noqa: S311 - a repeatable curve, no secret
    board.points = {"train/loss": csv(math.exp(-step / 30_000) + noise.random() / 10 for step in range(POINTS))}
    with serving(board) as served, browser() as context:
        url = f"http://127.0.0.1:{served.port}/"
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(url)
        card = page.get_by_role("article", name="train/loss")
        card.get_by_label(f"{POINTS:,} points").wait_for()
        print(f"| {POINTS:,} points | longest stall |\n|---|---|\n| load | {stalls(page) * 1000:.0f} ms |")
        for name, longest in exercise(page, board, card):
            print(f"| {name} | {longest * 1000:.0f} ms |", flush=True)
        board.points = {"train/loss": csv(math.exp(-step / 700) for step in range(2048))}
        seconds = [first_chart(context, url) for _ in range(7)]
        print(f"\nThe first chart, of 2,048 points: {statistics.median(seconds):.2f} s (median of 7 loads)")


if __name__ == "__main__":
    main()
