"""The dashboard steers the run: what a click does is looked for in the run's own files, never in the page alone."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

from midrun.commands import KINDS
from tests.e2e.dashboard.watching import (
    Watch,
    command,
    done,
    fact,
    held,
    live,
    logged,
    number,
    over,
    pill,
    press,
    spooled,
)
from tests.e2e.runs import Run
from tests.processes import wait_for

pytestmark = pytest.mark.browser


def rate(run: Run) -> float:
    return float(run.shown("state/optimizers.json")["optimizers"][0]["groups"][0]["lr"])


def strength(run: Run) -> float:
    return float(run.shown("model/tunable-hparams.json")["hparams"]["hparams.l2"]["value"])


# ---- buttons


def held_for(page: Page) -> int:
    """Return for how many seconds the page says that the run is held."""
    told = re.compile(r"Held for (\d+) s over REST, before optimizer step")
    expect(page.locator("div.held")).to_contain_text(told)
    found = told.search(page.locator("div.held").inner_text())
    assert found is not None
    return int(found[1])


def test_pause_holds_the_run_and_resume_lets_it_go(watch: Watch) -> None:
    run, visit = watch()
    page = visit.page
    page.get_by_role("button", name="Pause").dblclick()  # a habit, and one press
    record = held(run)
    assert (record["is_pause"], record["status"]) == (True, "active")
    step = run.step()
    expect(pill(page)).to_have_text("held")
    first = held_for(page)
    assert first <= time.time() - record["since"] + 1  # it is rounded
    wait_for(lambda: held_for(page) > first, "it counts")
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
    # What the run takes is fetched a moment after the charts; once it has ended it can't be any more.
    expect(page.get_by_label("Command", exact=True).locator("option", has_text="snapshot")).not_to_have_count(0)
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
    expect(page.get_by_role("alert")).to_contain_text(
        re.compile(r"The run has ended: it was told to stop\..* as of \d")
    )
    expect(pill(page)).to_have_text(re.compile("finished|ended"))
    assert json.loads((run.directory / "run.json").read_text())["session"]["stopped_by"] == "rest"
    assert "stopped by rest at step" in (run.directory / "midrun.log").read_text()
    assert 0 < number(fact(page, "Step")) <= run.last_state()["global_step"]
    expect(page.get_by_role("article", name="train/loss")).to_contain_text(re.compile(r"\d\.\d"))
    page.get_by_role("textbox", name="Learning rate of Adam").fill("0.5")
    command(page, "snapshot")
    for name in ("Pause", "Checkpoint", "Stop…", "Send"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    for button in page.get_by_role("button", name="Set").all():
        expect(button).to_be_disabled()
    assert visit.was_clean(allow_statuses={410}, may_be_cut=True)  # the server may say that the run ends


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
    for form, kind, change, told in (
        (rate_form, "set_learning_rate", (0.01, 5e-4), "Set learning rate: succeeded, lr of Adam 0.01 → 5e-4"),
        (strength_form, "set_hparam", (0.0, 0.25), "Set hparam: succeeded, hparams.l2 0 → 0.25"),
    ):
        done(run, kind)
        [entry] = logged(run, kind)
        assert [(each["old"], each["new"]) for each in entry["changes"]] == [change]
        assert (entry["source"], entry["via"]) == ("rest", "rest")
        expect(form.get_by_role("status")).to_contain_text(told)
    expect(rate_form.locator(".now")).to_have_text("5e-4")
    expect(strength_form.locator(".now")).to_have_text("0.25")
    log = page.get_by_role("list", name="Control log")
    expect(log).to_contain_text(re.compile("set_learning_rate.*over REST"))
    assert visit.was_clean(allow_statuses={422})
    over(run)


# ---- any command, now and later


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
    expect(form.get_by_role("status")).to_contain_text("Set optimizer option: succeeded")
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
    expect(form.get_by_role("status")).to_contain_text("Checkpoint: queued")
    form.get_by_label("Global step").fill(str(never))
    press(form, "Send")
    waiting = wait_for(lambda: queued if len(queued := spooled(run, "queued")) == 2 else None, "both wait")
    ids = {record["execution"]["when"]["global_step"]: record["id"] for record in waiting}
    assert set(ids) == {due, never}
    line = page.get_by_role("list", name="Waiting and running").get_by_role("listitem")
    expect(line.filter(has_text=ids[due])).to_contain_text(f"due at global step {due}")
    press(page, f"Cancel the command {ids[never]}")
    file = run.directory / "spool/done" / f"{ids[never]}.json"
    wait_for(file.exists, "it is over")
    assert json.loads(file.read_text())["status"] == "cancelled"
    expect(page.get_by_role("list", name="Finished").get_by_text(ids[never], exact=True)).to_be_visible()
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


# ---- exceptions and captures


def test_an_exception_of_backward_is_looked_into_and_released(watch: Watch) -> None:
    run, visit = watch("failing", wait_at=5, fail_at=5)
    page = visit.page
    live(page)
    run.go()
    wait_for(lambda: run.shown("holds/index.json")["exception"], "the run is held")
    expect(pill(page)).to_have_text("held")
    expect(page.locator("div.held")).to_contain_text(re.compile(r"Held by an exception for \d+ s, to be inspected"))
    expect(page.get_by_role("button", name=re.compile("Pause|Resume"))).to_have_count(0)
    shown = page.get_by_role("region", name="RuntimeError")
    expect(shown).to_contain_text("backward has failed, as the plan says")
    for kind, says in (("save_current_batch", "Save batch"), ("save_partial_gradients", "Save gradients")):
        shown.get_by_role("button", name=says).click()
        wait_for(lambda kind=kind: logged(run, kind), f"{kind} is done")  # type: ignore[misc]  # a default argument
        expect(shown.get_by_role("link", name=re.compile(r"\.pt$"))).to_be_visible()
    [path] = (run.directory / "artifacts/debug").glob("batch-*.pt")
    batch = torch.load(path, weights_only=True)["batch"]
    assert [tuple(part.shape) for part in batch] == [(8, 8), (8, 1)]
    page.get_by_role("button", name="Release exception…").click()
    dialog = page.get_by_role("dialog", name="Release the exception?")
    expect(dialog).to_have_accessible_description("It is raised again, and the run ends with it.")
    dialog.get_by_role("button", name="Cancel").click()
    assert run.shown("holds/index.json")["exception"] is not None
    page.get_by_role("button", name="Release exception…").click()
    dialog.get_by_role("button", name="Release").click()
    run.at("waiting-finalize")
    assert run.shown("state/exception.json")["message"] == "backward has failed, as the plan says"
    run.go("-finalize")
    assert run.ended() == 1
    assert visit.was_clean(allow_statuses={410}, may_be_cut=True)  # the server may say that the run ends


def test_batches_are_checked_from_the_page(watch: Watch) -> None:
    run, visit = watch(wait_at=3, spoil_at=6, steps=10)
    page = visit.page
    live(page)
    panel = page.get_by_role("region", name="Batches")
    expect(panel).to_contain_text("Batches are not checked for NaN and infinity.")
    panel.get_by_role("button", name="Check, and hold").click()
    wait_for(lambda: [record["kind"] for record in spooled(run)] == ["set_dataloader_finite_check"], "it is taken in")
    run.go()
    record = held(run)
    assert record["source"] == "finite check"
    found = run.shown("state/finite-check.json")
    assert (found["first"]["path"], found["first"]["nan"]) == ("batch.0", 8)
    expect(panel).to_contain_text("and one that has any holds the run")
    expect(panel).to_contain_text("First: batch.0 had 8 NaN of")
    panel.get_by_role("button", name="Stop checking").click()
    wait_for(lambda: not run.shown("state/finite-check.json")["enabled"], "it is off")
    panel.get_by_role("button", name="Save batch").click()
    wait_for(lambda: logged(run, "save_current_batch"), "it is saved")
    press(page, "Resume")
    assert run.ended() == 0
    assert visit.was_clean(allow_statuses={410}, may_be_cut=True)
