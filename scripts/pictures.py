"""Draws docs/img/ anew: the dashboard in the states in which people meet it, in Debian's Chromium.

PYTHONPATH=. .venv/bin/python scripts/pictures.py [NAME ...]

The runs are the playground's; the exception's page is of a made tree, as a run that fails takes its page with it.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image  # tensorboard brings it
from playwright.sync_api import Browser, Page, sync_playwright

from tests.web.board import Board, csv
from tests.web.sample import serving

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "img"
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 375, "height": 800}
PATIENCE = 60.0


@contextmanager
def playground(*arguments: str) -> Iterator[str]:
    """Run the playground beside the block; give its address."""
    folder = Path(tempfile.gettempdir(), "runs")
    folder.mkdir()  # A name that looks well in a picture, and nobody else's.
    run = folder / "spirals"
    command = [sys.executable, "-m", "examples.playground.run", "--no-progress", "--run-dir", str(run), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield address(run / "run.json")
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


def address(record: Path) -> str:
    """Wait for a run's record, and return the address in it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if record.exists() and (url := json.loads(record.read_text())["rest_url"]):
            return f"{url}/"
        time.sleep(0.1)
    raise TimeoutError(f"no address in {record} after {PATIENCE:g} s")


def idle(page: Page) -> None:
    """A run that has not finished its first step."""
    with playground("--step-ms", "60000") as url:
        page.goto(url)
        page.get_by_text("has logged nothing yet").wait_for()
        save(page, "idle")


def training(page: Page) -> None:
    """A run that trains; and the same held, after a checkpoint and a change of the learning rate."""
    with playground("--step-ms", "15", "--epochs", "40") as url:
        page.goto(url)
        page.get_by_label("Live").check()
        page.get_by_role("article", name="val/loss").wait_for(timeout=PATIENCE * 1000)
        page.get_by_role("slider", name="Smoothing").fill("0.6")
        page.wait_for_timeout(20_000)  # For charts with something in them.
        save(page, "training")
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("Held for").wait_for()
        page.get_by_role("button", name="Checkpoint").click()
        page.get_by_text("Checkpoint: succeeded").wait_for()
        rate = page.get_by_label("Learning rate of SGD")
        rate.fill("0.002")
        rate.press("Enter")
        page.get_by_text("Set learning rate: succeeded").wait_for()
        save(page, "held")
        page.emulate_media(color_scheme="dark")
        save(page, "dark")
        page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
        save(page, "phone")


def finished(page: Page) -> None:
    """A run that has come to its end."""
    with playground("--step-ms", "20", "--epochs", "3", "--steps-per-epoch", "150") as url:
        page.goto(url)
        page.get_by_label("Live").check()
        page.get_by_role("alert").get_by_text("The run has").wait_for(timeout=PATIENCE * 1000)
        save(page, "finished")


def exception(page: Page) -> None:
    """A run that an exception has ended."""
    with tempfile.TemporaryDirectory() as aside, chdir(aside):  # Its name is seen.
        show_exception(page, Board("spirals/artifacts"))


def show_exception(page: Page, board: Board) -> None:
    """Have a made tree show it."""
    board.run_id, board.status, board.step = "run-20261129-101500-4711-ab12cd", "failed", 2249
    board.points = {"train/loss": csv([1.1, 0.9, 0.8, 0.75, 0.5, 0.44, 0.41, float("nan")])}
    board.metrics = {"train/loss": float("nan")}
    board.exception = {
        "type": "builtins.RuntimeError",
        "message": "the loss is nan at step 2249",
        "traceback": 'Traceback (most recent call last):\n  File "train.py", line 41, in training_step\n'
        '    raise RuntimeError(f"the loss is {loss} at step {self.global_step}")\n'
        "RuntimeError: the loss is nan at step 2249\n",
        "global_step": 2249,
        "epoch": 5,
        "batch": 249,
        "time": time.time(),
    }
    with serving(board) as served:
        page.goto(f"http://127.0.0.1:{served.port}/")
        page.get_by_text("Traceback", exact=True).click()
        save(page, "exception")


def save(page: Page, name: str) -> None:
    """Take the picture."""
    IMAGES.mkdir(exist_ok=True)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(1_200)  # The last poll has been drawn.
    with Image.open(BytesIO(page.screenshot())) as picture:
        picture.convert("RGB").quantize(128).save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size / 1024:.0f} KiB")


def new_page(browser: Browser) -> Page:
    """Return a new page of a browser that knows nothing yet."""
    options: dict[str, Any] = {"viewport": DESK, "color_scheme": "light"}
    return browser.new_context(**options).new_page()


PICTURES: dict[str, Callable[[Page], None]] = {
    "idle": idle,
    "training": training,
    "finished": finished,
    "exception": exception,
}


def main() -> None:
    """Draw all of them, or those that are named."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name in sys.argv[1:] or PICTURES:
            PICTURES[name](new_page(browser))
        browser.close()


if __name__ == "__main__":
    main()
