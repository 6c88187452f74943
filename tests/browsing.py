"""A real browser for tests of pages, Debian's Chromium.

A module that drives it has the mark `browser` and takes the fixtures from here:

    from tests import browsing

    pytestmark = pytest.mark.browser
    chromium, visiting = browsing.chromium, browsing.visiting

    def test_a_page(visiting: browsing.Visiting) -> None:
        visit = visiting(f"http://127.0.0.1:{port}", color_scheme="dark")
        visit.page.goto(f"{visit.address}/")
        assert visit.was_clean()
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

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
PATIENCE_MS = 15_000
"""How long the browser is given for whatever is waited for, on a machine that has other things to do."""
expect.set_options(timeout=PATIENCE_MS)

_FAILED = re.compile(r"Failed to load resource: (?:the server responded with a status of (?P<status>\d+)|net::ERR_)")
_TELL_VIOLATIONS = """
    addEventListener("securitypolicyviolation", (event) =>
        console.error(`content security policy: ${event.effectiveDirective} forbids ${event.blockedURI}`));
"""


class Visit:
    """A browser with one page of one run in it, and all that it asked for and all that went wrong in it since."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.context = context
        self.address = address
        """Where the run is: http://HOST:PORT, or that with a prefix."""
        self.asked: list[str] = []
        """The address of each request, by any page of this browser."""
        self.troubles: list[str] = []
        """Exceptions that no page has caught, errors and warnings of the console, dialogs."""
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(_TELL_VIOLATIONS)
        context.on("request", self._note_request)
        context.on("console", self._note_words)
        context.on("weberror", lambda error: self.troubles.append(str(error.error)))
        context.on("dialog", self._note_dialog)
        self.page: Page = context.new_page()

    def was_clean(self, *, allow_statuses: Container[int] = (), may_be_cut: bool = False) -> bool:
        """Whether nothing went wrong and no other host was asked for anything.

        Chromium prints an error for each answer that is a mistake, and for each request without an answer. Answers with
        the allowed statuses are taken as meant, and requests without one where the way to the run may be cut.
        """
        for page in self.context.pages:
            page.evaluate("0")  # whatever the browser told before this is known after it
        wrong = [trouble for trouble in self.troubles if not _is_meant(trouble, allow_statuses, may_be_cut)]
        assert not wrong, wrong
        elsewhere = [url for url in self.asked if not url.startswith(f"{self.address}/")]
        assert not elsewhere, elsewhere
        return True

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            self.asked.append(request.url)

    def _note_words(self, said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"}:
            self.troubles.append(said.text)

    def _note_dialog(self, dialog: Dialog) -> None:
        self.troubles.append(f"a dialog: {dialog.message}")
        dialog.dismiss()


def _is_meant(trouble: str, statuses: Container[int], may_be_cut: bool) -> bool:
    failed = _FAILED.match(trouble)
    if not failed:
        return False
    return may_be_cut if failed["status"] is None else int(failed["status"]) in statuses


class Visiting(Protocol):
    """Opens a browser of its own, with nothing kept from others, for a run at an address."""

    def __call__(self, address: str, **context: Any) -> Visit: ...


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium; it ends with the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visited(chromium: Browser, address: str, **context: Any) -> Iterator[Visit]:
    """Open a browser for a run at an address; `context` has options of Playwright's contexts."""
    opened = chromium.new_context(**context)
    try:
        yield Visit(opened, address)
    finally:
        # Answers on their way through a route would fail in a later test. "wait" would raise what a route raises
        # when the server behind it has gone, and wait half a minute for one that hangs.
        for page in opened.pages:
            page.unroute_all(behavior="ignoreErrors")
        opened.unroute_all(behavior="ignoreErrors")
        opened.close()


# Of a module and not of all tests: while it is there, Playwright's event loop runs in the thread of the tests.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium, started once for a module: each visit only makes a new context in it."""
    with browser() as started:
        yield started


@pytest.fixture
def visiting(chromium: Browser) -> Iterator[Visiting]:
    """Open visits; they end with the test."""
    with ExitStack() as stack:
        yield lambda address, **context: stack.enter_context(visited(chromium, address, **context))
