"""The dashboard steers the run: what a click does is looked for in the run's own files, never in the page alone."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, Response, expect

from midrun.commands import KINDS
from tests import browsing
from tests.browsing import Visit, Visiting
from tests.e2e.conftest import Start
from tests.e2e.machine import on_this_machine, wait_for
from tests.e2e.runs import WEB, Run

pytestmark = pytest.mark.browser
chromium, visiting = browsing.chromium, browsing.visiting

Watch = Callable[..., tuple[Run, Visit]]


@pytest.fixture
def watch(start: Start, visiting: Visiting) -> Watch:
    """Start a trainer and open its dashboard."""

    def watch(program: str = "fit", **plan: Any) -> tuple[Run, Visit]:
        plan = {"until": "wait_at" not in plan, "step_s": 0.01, **plan}
        run = start(program, **plan, midrun={"fuse_enabled": False, **plan.pop("midrun", {})})
        if "wait_at" in plan:
            run.at()
        return run, look(visiting, run)

    return watch


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
    record: dict[str, Any] = json.loads((run.directory / "spool/holds" / f"{active['id']}.json").read_text())
    return record


def rate(run: Run) -> float:
    return float(run.shown("state/optimizers.json")["optimizers"][0]["groups"][0]["lr"])


def strength(run: Run) -> float:
    return float(run.shown("model/tunable-hparams.json")["hparams"]["hparams.l2"]["value"])


# ---- buttons


def test_pause_holds_the_run_and_resume_lets_it_go(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    press(page, "Pause")
    record = held(run)
    assert (record["is_pause"], record["status"]) == (True, "active")
    step = run.step()
    expect(pill(page)).to_have_text("held")
    for seconds in ("[01]", "[2-9]"):  # it counts
        told = re.compile(rf"Held for {seconds} s by rest \(at before_optimizer_step\)")
        expect(page.locator("div.held")).to_contain_text(told)
    assert run.step() == step
    assert [entry["event"] for entry in logged(run, "pause")] == ["held"]
    press(page, "Resume")
    wait_for(lambda: run.step() > step, "training goes on")
    assert run.shown("holds/index.json")["active"] is None
    done(run, "pause")
    done(run, "continue")
    expect(pill(page)).to_have_text("running")
    expect(page.get_by_role("button", name="Pause")).to_be_enabled()
    assert visit.was_clean()
    over(run)


def test_a_pause_that_has_not_come_to_hold_is_cancelled_by_the_same_button(watch: Watch) -> None:
    run, visit = watch(wait_at=5, steps=8)
    page = visit.page
    press(page, "Pause")
    [record] = wait_for(lambda: spooled(run, "queued"), "the pause waits")
    expect(page.get_by_text("A hold is pending")).to_be_visible()
    press(page, "Cancel pause")
    cancelled = done(run, "pause", "cancelled")
    assert cancelled["id"] == record["id"]
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_enabled()
    expect(page.get_by_text("A hold is pending")).to_be_hidden()
    assert visit.was_clean()
    run.go()
    assert run.ended() == 0, run.told()
    assert json.loads((run.directory / "spool/holds" / f"{record['id']}.json").read_text())["status"] == "cancelled"
    assert "held" not in [entry["event"] for entry in logged(run, "pause")]


def test_a_checkpoint_can_be_loaded_and_its_link_gives_the_very_bytes_of_the_file(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    press(page, "Checkpoint")
    written = Path(done(run, "checkpoint")["result"]["artifact"]["path"])
    assert written.parent == run.directory / "artifacts/checkpoints"
    assert torch.load(written, weights_only=False)["state_dict"].keys() == {
        f"net.{layer}.{what}" for layer in (0, 3) for what in ("weight", "bias")
    }
    with page.expect_download() as download:
        page.get_by_role("list", name="Artifacts").get_by_role("link", name=written.name).click()
    assert download.value.suggested_filename == written.name
    assert download.value.path().read_bytes() == written.read_bytes()
    assert visit.was_clean()
    over(run)


def test_stop_asks_first_and_then_ends_training_and_the_page_keeps_the_last_values(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    live(page)
    question = page.get_by_role("dialog")
    for key in ("Enter", "Escape"):  # Enter presses Cancel, which has the focus
        press(page, "Stop…")
        expect(question).to_contain_text("Stop training?")
        expect(question.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press(key)
        expect(question).to_be_hidden()
        expect(page.get_by_role("button", name="Stop…")).to_be_focused()
    run.passes(30)
    assert spooled(run) == []
    assert not [url for url in visit.asked if "/control/" in url]
    press(page, "Stop…")
    press(question, "Stop")
    assert run.ended() == 0, run.told()
    done(run, "stop")
    # Whether the page saw the last moment is chance.
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"The run (has ended|does not answer).* as of \d"))
    expect(pill(page)).to_have_text(re.compile("finished|gone|no answer"))
    assert 0 < number(fact(page, "Step")) <= run.last_state()["global_step"]
    expect(page.get_by_role("article", name="train/loss")).to_contain_text(re.compile(r"\d\.\d"))
    page.get_by_role("textbox", name="Learning rate of Adam").fill("0.5")
    command(page, "snapshot")
    for name in ("Pause", "Checkpoint", "Stop…", "Send"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    for button in page.get_by_role("button", name="Set").all():
        expect(button).to_be_disabled()
    assert visit.was_clean(allow_statuses={503}, may_be_cut=True)  # the server may say that the run ends


# ---- values


def test_a_learning_rate_and_a_tunable_are_set_and_a_wrong_value_changes_nothing(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    before = rate(run), strength(run)
    rate_form = page.locator("form", has=page.get_by_role("textbox", name="Learning rate of Adam"))
    strength_form = page.locator("form", has=page.get_by_role("textbox", name="hparams.l2"))
    for form, wrong, why in (
        (rate_form, "-1", "greater than or equal to 0"),
        (rate_form, "fast", "valid number"),
        (strength_form, "1.5", "between 0.0 and 1.0"),
        (strength_form, "none", "of type float"),
    ):
        form.get_by_role("textbox").fill(wrong)
        press(form, "Set")
        expect(form.get_by_role("status")).to_contain_text(why)
        expect(form.get_by_role("textbox")).to_have_value(wrong)
    run.passes(20)
    assert (rate(run), strength(run)) == before
    assert spooled(run) == []
    for form, right in ((rate_form, "5e-4"), (strength_form, ".25")):
        form.get_by_role("textbox").fill(right)
        form.get_by_role("textbox").press("Enter")
        expect(form.get_by_role("textbox")).to_have_value("")
    wait_for(lambda: (rate(run), strength(run)) == (5e-4, 0.25), "both are set")
    for form, kind, change in (
        (rate_form, "set_learning_rate", (0.01, 5e-4)),
        (strength_form, "set_hparam", (0.0, 0.25)),
    ):
        done(run, kind)
        [entry] = logged(run, kind)
        assert [(each["old"], each["new"]) for each in entry["changes"]] == [change]
        assert (entry["source"], entry["via"]) == ("rest", "rest")
        expect(form.get_by_role("status")).to_contain_text(f"{kind}: done")
    expect(rate_form.locator(".now")).to_have_text("5e-4")
    expect(strength_form.locator(".now")).to_have_text("0.25")
    log = page.get_by_role("list", name="Control log")
    expect(log).to_contain_text(re.compile("set_learning_rate.*by rest"))
    assert visit.was_clean(allow_statuses={422})
    over(run)


# ---- any command, now and later


def command(page: Page, kind: str) -> Locator:
    """Choose a kind of command, and return its form."""
    page.get_by_label("Command", exact=True).select_option(kind)
    return page.get_by_role("form", name=kind)


def later(form: Locator, global_step: int) -> None:
    form.get_by_text("Later:").click()
    form.get_by_label("Global step").fill(str(global_step))


def test_every_kind_that_the_run_takes_is_offered_and_can_be_sent(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    expect(page.get_by_label("Command", exact=True).locator("option")).to_have_count(1 + len(KINDS))
    offered = page.get_by_label("Command", exact=True).locator("option").all_inner_texts()[1:]
    post = json.loads(run.get("/openapi.json")[1])["paths"]["/commands"]["post"]
    assert sorted(offered) == sorted(KINDS)
    taken = post["requestBody"]["content"]["application/json"]["schema"]["discriminator"]["mapping"]
    assert sorted(offered) == sorted(taken)

    form = command(page, "set_optimizer_option")
    press(form, "Send")
    expect(form.locator("small.wrong")).to_have_text(["Field required", "Field required"])
    form.get_by_label("Option").fill("betas")
    form.get_by_label("Value").fill("[0.5, 0.75]")
    press(form, "Send")
    assert done(run, "set_optimizer_option")["args"]["value"] == [0.5, 0.75]
    options = run.shown("state/optimizers.json")["optimizers"][0]["groups"][0]["options"]
    assert options["betas"] == [0.5, 0.75]
    expect(form.get_by_role("status")).to_contain_text("set_optimizer_option: done")
    expect(form.locator("small.wrong")).to_have_count(0)

    form = command(page, "snapshot")
    form.get_by_label("Label").fill("from the page")
    press(form, "Send")
    artifact = done(run, "snapshot")["result"]["artifact"]
    assert artifact["label"] == "from the page"
    assert list((run.directory / "artifacts/snapshots").glob(f"{artifact['id']}*"))
    assert visit.was_clean(allow_statuses={422})
    over(run)


def test_a_checkpoint_for_later_waits_in_the_queue_and_one_can_be_taken_back(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    press(page, "Pause")
    held(run)
    due, never = run.step() + 20, 10**9
    form = command(page, "checkpoint")
    later(form, due)
    press(form, "Send")
    expect(form.get_by_role("status")).to_contain_text("checkpoint: queued")
    form.get_by_label("Global step").fill(str(never))
    press(form, "Send")
    waiting = wait_for(lambda: queued if len(queued := spooled(run, "queued")) == 2 else None, "both wait")
    ids = {record["execution"]["when"]["global_step"]: record["id"] for record in waiting}
    assert set(ids) == {due, never}
    line = page.get_by_role("list", name="Waiting and running").get_by_role("listitem")
    expect(line.filter(has_text=ids[due])).to_contain_text(f"due at global_step {due}")
    press(page, f"Cancel the command {ids[never]}")
    file = run.directory / "spool/done" / f"{ids[never]}.json"
    wait_for(file.exists, "it is over")
    assert json.loads(file.read_text())["status"] == "cancelled"
    expect(page.get_by_role("list", name="Done").get_by_text(ids[never], exact=True)).to_be_visible()
    press(page, "Resume")
    file = run.directory / "spool/done" / f"{ids[due]}.json"
    wait_for(file.exists, "it is done")
    record = json.loads(file.read_text())
    assert record["status"] == "succeeded"
    assert record["result"]["artifact"]["global_step"] >= due
    [written] = (run.directory / "artifacts/checkpoints").glob("*.ckpt")
    assert torch.load(written, weights_only=False)["global_step"] >= due
    assert visit.was_clean()
    over(run)


def test_holds_are_let_go_and_taken_back_where_they_are_listed(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    form = command(page, "hold")
    form.get_by_label("Reason").fill("for later")
    later(form, 10**9)
    press(form, "Send")
    [pending] = wait_for(lambda: spooled(run, "queued"), "a hold waits")
    form = command(page, "snapshot")  # another form, so that what was typed is gone
    form = command(page, "hold")
    expect(form.get_by_label("Reason")).to_have_value("")
    form.get_by_label("Reason").fill("to look")
    press(form, "Send")
    active = held(run)
    assert active["reason"] == "to look"
    holds = page.get_by_role("list", name="Holds")
    expect(holds.get_by_role("listitem")).to_have_text(
        [re.compile("holding.*to look"), re.compile("pending.*for later")]
    )
    press(holds, f"Cancel the hold {pending['id']}")
    file = run.directory / "spool/holds" / f"{pending['id']}.json"
    wait_for(lambda: json.loads(file.read_text())["status"] == "cancelled", "it is taken back")
    assert run.shown("holds/index.json")["active"]["id"] == active["id"]
    press(holds, f"Release the hold {active['id']}")
    wait_for(lambda: run.shown("holds/index.json")["active"] is None, "it is let go")
    file = run.directory / "spool/done" / f"{active['id']}.json"
    wait_for(file.exists, "it is over")
    assert json.loads(file.read_text())["result"]["released_by"] == "rest"
    expect(holds).to_be_hidden()
    assert visit.was_clean()
    over(run)


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


def number(text: str) -> int:
    return int(text.replace(",", ""))


def fact(page: Page, name: str) -> str:
    return page.locator(".facts div", has=page.get_by_text(name, exact=True)).locator("dd").inner_text()


# ---- live mode


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


def test_live_mode_asks_each_second_for_what_has_changed_but_not_while_nobody_can_see_it(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    live(page)
    polled(page, 1)
    starts = [response.request.timing["startTime"] / 1000 for response in polled(page, 4)]
    gaps = sorted(after - before for before, after in pairwise(starts))
    assert 0.9 < gaps[1] < on_this_machine(1.5), gaps  # a chart may want one in between

    hide(page, hidden=True)
    polled(page, 1)  # the one that was due already
    asked = len(visit.asked)
    page.wait_for_timeout(2500)  # a time in which nothing happens
    assert visit.asked[asked:] == []
    with page.expect_response(is_poll, timeout=500):
        hide(page, hidden=False)
    polled(page, 1)

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
    shown = page.get_by_role("region", name="builtins.RuntimeError")
    expect(shown).to_contain_text("the plan says so")
    expect(shown).to_contain_text("At step 5, epoch 0")
    shown.get_by_text("Traceback", exact=True).click()
    expect(shown.get_by_role("region", name="Traceback")).to_contain_text("training_step")
    expect(pill(page)).to_have_text(run.shown("state/index.json")["status"])
    run.go("-finalize")
    assert run.ended() == 1
    expect(page.locator("main")).to_contain_text("The run has ended: failed")
    expect(shown).to_contain_text("the plan says so")
    assert visit.was_clean(allow_statuses={503}, may_be_cut=True)  # the server may say that the run ends


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
    assert visit.was_clean(allow_statuses={503}, may_be_cut=True)
    run.enough()
    assert run.ended() == 0, run.told()
