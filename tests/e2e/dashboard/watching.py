"""A run's dashboard in the words of who uses it, and what came of that in the run's own files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, Response, expect

from tests.browsing import Visit, Visiting
from tests.e2e.runs import Run
from tests.processes import wait_for

Watch = Callable[..., tuple[Run, Visit]]


def look(visiting: Visiting, run: Run) -> Visit:
    run.live(mount=False)
    visit = visiting(f"http://127.0.0.1:{run.port}", viewport={"width": 1400, "height": 1000}, accept_downloads=True)
    visit.page.goto(f"{visit.address}/")
    expect(pill(visit.page)).to_have_text(re.compile("running|held"))
    return visit


# ---- the page, in the words of who uses it


def pill(page: Page) -> Locator:
    return page.get_by_label("Run", exact=True).get_by_role("status").first


def press(page: Page | Locator, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def live(page: Page) -> None:
    page.get_by_label("Live").check()


def command(page: Page, kind: str) -> Locator:
    """Choose a kind of command, and return its form."""
    page.get_by_label("Command", exact=True).select_option(kind)
    return page.get_by_role("form", name=kind)


def number(text: str) -> int:
    return int(text.replace(",", ""))


def fact(page: Page, name: str) -> str:
    return page.locator(".facts div", has=page.get_by_text(name, exact=True)).locator("dd").inner_text()


def is_poll(response: Response) -> bool:
    return "/poll?" in response.url


def polled(page: Page, count: int) -> list[Response]:
    """Wait for so many answers to polls."""
    found = []
    for _ in range(count):
        with page.expect_response(is_poll) as response:
            pass
        found.append(response.value)
    return found


# ---- the run, in its own files


def spooled(run: Run, *states: str) -> list[dict[str, Any]]:
    """Return the records in these folders of the spool."""
    folders = [run.directory / "spool" / state for state in states or ("new", "queued", "executing", "done")]
    return [json.loads(path.read_text()) for folder in folders for path in sorted(folder.glob("[!.]*.json"))]


def done(run: Run, kind: str, status: str = "succeeded") -> dict[str, Any]:
    """Wait until a command of this kind is over; there must be no other one."""
    [record] = wait_for(lambda: [each for each in spooled(run, "done") if each["kind"] == kind], f"{kind} is done")
    assert record["status"] == status, record
    return dict(record)


def logged(run: Run, kind: str) -> list[dict[str, Any]]:
    """Return the entries of a kind in the control log."""
    log = run.directory / "control-log.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [entry for entry in entries if entry["kind"] == kind]


def over(run: Run) -> None:
    run.enough()
    assert run.ended() == 0, run.told()
    run.assert_content()


def held(run: Run) -> dict[str, Any]:
    """Wait until the run is held; return the hold as the spool has it."""
    active = wait_for(lambda: run.shown("holds/index.json")["active"], "the run is held")
    file = run.directory / "spool/holds" / f"{active['id']}.json"

    def written() -> dict[str, Any] | None:
        record: dict[str, Any] = json.loads(file.read_text())
        return record if record["status"] == "active" else None

    return wait_for(written, "the disk knows of it")
