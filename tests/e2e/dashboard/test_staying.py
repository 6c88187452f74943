"""What stays in the dashboard: what somebody types, live mode, and the page itself when its run is gone."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Start
from tests.e2e.dashboard.watching import (
    Watch,
    command,
    fact,
    held,
    live,
    logged,
    number,
    over,
    pill,
    polled,
    press,
    spooled,
)
from tests.e2e.runs import WEB
from tests.processes import wait_for

pytestmark = pytest.mark.browser


# ---- what stays as it is


def test_no_refresh_touches_what_somebody_types(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    form = command(page, "set_optimizer_option")
    form.get_by_text("Later:").click()
    fields = {
        page.get_by_role("textbox", name="Learning rate of Adam"): "0.12",
        page.get_by_role("textbox", name="hparams.l2"): "0.5",
        form.get_by_label("Option"): "weight_decay",
        form.get_by_label("Global step"): "1000",
        page.get_by_role("searchbox", name="Search metrics"): "loss",
    }
    for field, text in fields.items():
        field.fill(text)
    press(page, "Refresh")
    live(page)
    for field, text in fields.items():
        field.focus()
        field.press("ArrowLeft")
        step = number(fact(page, "Step"))
        polled(page, 1)
        wait_for(lambda step=step: number(fact(page, "Step")) > step, "the page shows what is new")  # type: ignore[misc]
        expect(field).to_be_focused()
        assert field.evaluate("element => element.selectionStart") == len(text) - 1
        field.press("x")
        assert field.input_value() == f"{text[:-1]}x{text[-1]}"
    form.get_by_label("Safe point").select_option("train_batch_end")
    polled(page, 1)
    expect(form.get_by_label("Safe point")).to_have_value("train_batch_end")
    expect(page.get_by_label("Command", exact=True)).to_have_value("set_optimizer_option")
    for field, text in fields.items():
        expect(field).to_have_value(f"{text[:-1]}x{text[-1]}")
    assert spooled(run) == []
    assert visit.was_clean()
    over(run)


# With the answer to a poll the page sets its timer for the next one, before it does anything else.
NOTING = """
    window.polls = { asked: 0, taken: 0 };
    const ask = window.fetch;
    window.fetch = async (route, options) => {
        if (!`${route}`.startsWith("poll?")) return ask(route, options);
        polls.asked++;
        const response = await ask(route, options);
        response.json = async () => {
            const read = await Response.prototype.json.call(response);
            polls.taken++;
            return read;
        };
        return response;
    };
"""
"""Counts the polls of a page, and the answers that it has taken."""


def polls(page: Page) -> int:
    """Return how often a page has polled, as soon as it has taken all answers."""
    asked: int = wait_for(
        lambda: page.evaluate("polls.asked === polls.taken && polls.asked"), "all polls have their answers"
    )
    return asked


def test_live_mode_asks_each_second_for_what_has_changed_but_not_while_nobody_can_see_it(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    page.clock.install()
    page.add_init_script(NOTING)
    page.reload()
    live(page)
    expect(page.get_by_role("article", name="train/loss")).to_contain_text(re.compile(r"\d\.\d"))
    polled(page, 2)
    page.clock.pause_at(time.time() + 10)
    for _ in range(4):
        asked = polls(page)
        page.clock.run_for(999)
        assert polls(page) == asked
        page.clock.run_for(1)
        assert polls(page) == asked + 1

    hide(page, hidden=True)
    page.clock.run_for(1000)  # the one that was due already
    assert polls(page) == asked + 2
    sent = len(visit.asked)
    page.clock.run_for(14_999)
    assert polls(page) == asked + 2
    assert visit.asked[sent:] == []
    hide(page, hidden=False)
    assert polls(page) == asked + 3
    page.clock.run_for(1000)
    assert polls(page) == asked + 4
    page.clock.resume()

    press(page, "Pause")
    held(run)
    expect(pill(page)).to_have_text("held")
    for response in polled(page, 3)[1:]:
        assert len(response.body()) < 400, response.body()
        assert response.json()["nodes"] == {}
    press(page, "Resume")
    assert visit.was_clean()
    over(run)


def hide(page: Page, *, hidden: bool) -> None:
    """Do as Chromium does when somebody looks at another tab, and when they come back."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            Object.defineProperty(document, "visibilityState",
                { value: hidden ? "hidden" : "visible", configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


# ---- ends, gaps and others


def test_an_exception_that_ends_training_is_shown_with_its_traceback(watch: Watch) -> None:
    run, visit = watch("failing", wait_at=5, raise_at=5)
    page = visit.page
    live(page)
    run.go()
    run.at("waiting-finalize")
    assert run.shown("state/exception.json")["message"] == "the plan says so"
    shown = page.get_by_role("region", name="RuntimeError")
    expect(shown).to_contain_text("the plan says so")
    expect(shown).to_contain_text("At step 5, epoch 0")
    shown.get_by_text("Traceback", exact=True).click()
    expect(shown.get_by_role("region", name="Traceback")).to_contain_text("training_step")
    expect(pill(page)).to_have_text(run.shown("state/index.json")["status"])
    run.go("-finalize")
    assert run.ended() == 1
    expect(page.locator("main")).to_contain_text("The run has ended: failed")
    expect(shown).to_contain_text("the plan says so")
    assert visit.was_clean(allow_statuses={410}, may_be_cut=True)  # the server may say that the run ends


def test_a_page_shows_nothing_of_another_run_under_its_address_and_does_not_steer_it(
    watch: Watch, start: Start
) -> None:
    many = [f"many/{number}" for number in range(25)]  # too many to be open from the start
    first, visit = watch(metrics=dict.fromkeys(many, 1.0))
    name = first.shown("state/index.json")["run_id"]
    page, other = visit.page, visit.context.new_page()
    for each in (page, other):
        each.clock.install()
        each.goto(f"{visit.address}/")
        expect(pill(each)).to_have_text("running")
        expect(each.get_by_text("many 25")).to_be_visible()
        each.clock.pause_at(time.time() + 1)  # neither asks before it is told to
    first.enough()
    assert first.ended() == 0, first.told()
    second = start(
        until=True,
        midrun={"fuse_enabled": False, "rest_port": first.first_port},
        metrics={"second/loss": 7.0, **dict.fromkeys(many, 7.0)},
    ).live(mount=False)
    assert second.port == first.first_port
    for each in (page, other):
        each.clock.resume()
    press(page, "Checkpoint")
    alert = page.get_by_role("alert")
    expect(page.get_by_label("Run", exact=True)).to_contain_text("nothing was done")
    expect(alert).to_contain_text("Another run answers under this address now")
    expect(pill(page)).to_have_text("another run")
    step = fact(page, "Step")
    press(page, "Refresh")
    polled(page, 1)
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.locator("main")).not_to_contain_text("second")
    assert fact(page, "Step") == step
    for button in ("Pause", "Checkpoint", "Stop…"):
        expect(page.get_by_role("button", name=button, exact=True)).to_be_disabled()

    other.get_by_text("many 25").click()
    expect(other.get_by_role("article", name="many/0")).to_contain_text("1")
    expect(other.get_by_role("alert")).to_contain_text("Another run answers under this address now")
    expect(other.locator("main")).not_to_contain_text("second")
    expect(other.get_by_role("img", name=re.compile("the last 7"))).to_have_count(0)

    status, body, _ = second.post("/files/control/stop", headers={"Midrun-Run-Id": name})
    assert status == 409, body
    second.passes(20)
    assert spooled(second) == []
    assert not logged(second, "checkpoint")
    alert.get_by_role("link", name="Show the new one").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(second.shown("state/index.json")["run_id"])
    assert visit.was_clean(allow_statuses={409}, may_be_cut=True)
    over(second)


def test_a_page_goes_on_by_itself_when_its_server_was_killed_and_when_the_way_was_cut(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    live(page)
    polled(page, 1)
    killed = run.face(WEB)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: run.face(WEB) not in {None, killed}, "there is a new face")
    # New connections wait for the new face, so that the page may have missed nothing.
    step = int(wait_for(run.answers, "the new face serves") and run.step())
    wait_for(lambda: (polled(page, 1), number(fact(page, "Step")))[1] > step, "the page shows what is new")
    expect(pill(page)).to_have_text("running")

    visit.context.set_offline(True)
    expect(page.get_by_role("alert")).to_contain_text("The run does not answer")
    expect(page.get_by_role("button", name="Pause")).to_be_disabled()
    assert number(fact(page, "Step")) > step  # what is known stays
    visit.context.set_offline(False)
    expect(pill(page)).to_have_text("running")
    expect(page.get_by_text("The run does not answer")).to_be_hidden()
    press(page, "Pause")
    held(run)
    press(page, "Resume")
    assert visit.was_clean(allow_statuses={410}, may_be_cut=True)
    run.enough()
    assert run.ended() == 0, run.told()
