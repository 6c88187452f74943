"""Panels: the nodes that a run has and lacks, live files and graphs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from midrun.fs.faults import Conflict
from midrun.fs.later import Later
from tests.web.board import Board, Listing, Shelf
from tests.web.dashboard.looking import NOTHING, Opening, open_all, refresh
from tests.web.dashboard.records import finding, hold, hooks, script
from tests.web.sample import wait_until

pytestmark = pytest.mark.browser


def test_panels_of_nodes_that_a_run_lacks_say_so(opening: Opening, tmp_path: Path) -> None:
    visit = opening(Board(str(tmp_path)))
    page = visit.page
    for lacks in ("timing of the pipeline's phases", "view of CUDA memory", "shell hooks", "summary of the model"):
        expect(page.get_by_text(f"This version of midrun has no {lacks}.")).to_be_visible()
    for lacks in ("profiler summary", "live summary of the model"):
        expect(page.get_by_text(f"This version of midrun has no {lacks}.")).to_be_visible()
    expect(page.locator(".on-demand button")).to_have_text(["Draw the model's graph"])
    page.locator("summary", has_text="This run").click()
    expect(page.get_by_text("This version of midrun has no list of versions.")).to_be_visible()
    assert visit.was_clean()


def test_the_memory_of_the_training_process_and_of_those_below_it_is_shown(opening: Opening, tmp_path: Path) -> None:
    board = Board(str(tmp_path))
    board.memory = {
        "resident": 3 << 30,
        "largest": 4 << 30,
        "children": [{"pid": 12, "name": "<b>worker</b>", "resident": 1 << 20}],
        "available": None,
        "limit": 8 << 30,
        "open_files": 71,
        "open_files_limit": 1024,
        "threads": 9,
    }
    page = opening(board).page
    page.locator("summary", has_text=re.compile("^Memory$")).click()
    table = page.get_by_role("table", name="Memory", exact=True)
    table.wait_for()
    rows = table.locator("tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["The training process", "3.0 GiB, 4.0 GiB at most"],
        ["<b>worker</b>, process 12", "1.0 MiB"],
        ["Free on the host", "unknown"],
        ["Limit", "8.0 GiB"],
        ["Open files", "71 of 1,024"],
        ["Threads", "9"],
    ]


def test_a_machine_without_cuda_says_why_there_is_nothing_to_show(opening: Opening, board: Board) -> None:
    board.state.cuda = Shelf(memory_json=lambda: {"available": False, "why": "torch is built without CUDA"})
    page = opening(board).page
    expect(page.get_by_text("There is none to show: torch is built without CUDA.")).to_be_visible()


def test_inspectors_show_what_they_have_captured_and_what_to_install(opening: Opening, board: Board) -> None:
    last = {"id": "torchview-<i>.dot", "time": 1e9}
    board.model.inspectors = Listing(
        lambda: {
            "refused": None,
            "inspectors": {
                "torchinfo": {"installed": True, "extra": "inspectors", "last": None},
                "torchview": {"installed": True, "extra": "graphs", "last": last},
                "torchlens": {"installed": False, "extra": "inspectors", "last": None},
            },
        }
    )
    page = opening(board).page
    rows = page.get_by_role("table", name="Inspectors").locator("tr")
    expect(rows.nth(0)).to_contain_text("no capture yet")
    expect(rows.nth(1)).to_contain_text("torchview-<i>.dot")
    expect(rows.nth(2)).to_contain_text("not installed: pip install 'midrun[inspectors]'")


def test_panels_show_the_nodes_that_a_run_has(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    expect(page.get_by_text("The data is waited for.")).to_be_visible()
    rows = page.get_by_role("table", name="Phases of a batch").locator("tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["Phase", "Share", "Median", "95", "%"],
        ["data", "50.0", "%", "12.5", "ms", "20", "ms"],
        ["forward", "37.5", "%", "10", "ms", "11", "ms"],
        ["<b>backward</b>", "12.5", "%", NOTHING, NOTHING],
    ]
    parts = page.locator(".stack .phase")
    widths = parts.evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().width)")
    assert [width / sum(widths) for width in widths] == pytest.approx([0.5, 0.375, 0.125], abs=0.005)
    colours = "(all) => all.map((each) => getComputedStyle(each).backgroundColor)"
    assert parts.evaluate_all(colours) == page.locator(".key").evaluate_all(colours)
    memory = page.get_by_role("table", name="CUDA memory").locator("tr").all_inner_texts()
    assert [row.split("\t") for row in memory] == [
        ["allocated", "1,024"],
        ["by <i>pool</i> · 0", "1"],
        ["by <i>pool</i> · 1", "2.5"],
        ["by <i>pool</i> · 2", "NaN"],
    ]
    rows = page.get_by_role("table", name="Hooks").locator("tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["Script", "Runs", "Failed", "Last"],
        ["light/notify.sh", "3", "0", "12.5 ms"],
    ]
    page.get_by_role("button", name="Show a live summary").press("Enter")
    expect(page.get_by_role("region", name="model/summary-live.txt")).to_have_text("a summary of <b>it</b>\n")
    assert visit.was_clean()


def test_pace_and_time_left_are_those_of_a_run_that_goes_on(opening: Opening, board: Board) -> None:
    board.pace = {"steps_per_second": 12.5, "seconds_left": 3700.0}
    visit = opening(board)
    page = visit.page
    facts = page.locator(".facts > div")
    expect(facts.filter(has_text="Pace")).to_have_text("Pace12.5 steps/s")
    expect(facts.filter(has_text="Time left")).to_have_text("Time leftabout 1 h 1 min")
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.375")
    expect(page.locator(".progress")).to_contain_text("37.5 %")
    board.pace["steps_per_second"] = 0.125
    refresh(page)
    expect(facts.filter(has_text="Pace")).to_have_text("Pace8 s/step")
    board.status = "held"
    refresh(page)
    expect(facts.filter(has_text="Pace")).to_have_text(f"Pace{NOTHING}")
    expect(facts.filter(has_text="Time left")).to_have_text("Time leftabout 1 h 1 min when it goes on")
    board.status = "finished"
    refresh(page)
    expect(facts.filter(has_text="Time left")).to_have_text(f"Time left{NOTHING}")
    assert visit.was_clean()


def test_how_long_a_run_is_held_is_told_by_its_own_clock(opening: Opening, board: Board) -> None:
    board.holding = {**board.holding, "active": hold(since=time.time() - 630)}
    board.status = "held"
    visit = opening(board, before=lambda page: page.clock.set_fixed_time(time.time() + 5 * 3600))
    expect(visit.page.locator(".run div.held")).to_contain_text(re.compile("Held for 1[0-2] min"))
    assert visit.was_clean()


def test_scripts_that_fail_are_told_beside_their_names(opening: Opening, board: Board) -> None:
    failing = script(runs=9, failures=5, failures_in_a_row=4, is_failing=True, trouble="exit status 3")
    listed = hooks(**{"heavy/a.sh": failing, "light/b.sh": script(enabled=False)})
    board.furnish(phases={}, memory={}, hooks=listed, host="machine")
    visit = opening(board)
    rows = visit.page.get_by_role("table", name="Hooks").locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("heavy/a.sh failed 4 times in a row")
    expect(rows.nth(0).locator(".wrong")).to_have_text("exit status 3")
    expect(rows.nth(1)).to_contain_text("light/b.sh off")
    board.furnish(phases={}, memory={}, hooks=hooks(), host="machine")
    refresh(visit.page)
    expect(visit.page.get_by_text("No script is executable")).to_contain_text("(chmod +x) in /data/run/hooks")
    assert visit.was_clean()


def test_what_was_found_in_batches_is_told(opening: Opening, board: Board) -> None:
    visit = opening(board)
    panel = visit.page.get_by_role("region", name="Batches")
    expect(panel).to_contain_text("Batches are not checked for NaN and infinity.")
    first = finding("batch.image")
    board.checked = {
        "enabled": True,
        "hold": False,
        "batches": 1200,
        "not_finite": 1,
        "unread": 0,
        "first": first,
        "last": first,
    }
    refresh(visit.page)
    expect(panel).to_contain_text("Each batch is checked for NaN and infinity.")
    expect(panel).to_contain_text("Of 1,200 that were checked, 1 had some.")
    found = panel.locator("p.prose")
    expect(found).to_have_text(
        re.compile(r"^First: batch.image had 1 NaN and 2 infinite of 3,000 numbers \(train, epoch 0")
    )
    board.checked |= {"not_finite": 2, "last": finding("batch.mask", time=1_700_000_009.0)}
    refresh(visit.page)
    expect(found).to_have_text([re.compile("^First: batch.image"), re.compile("^Last: batch.mask")])
    assert visit.was_clean()


def test_a_phase_of_an_hundredth_is_drawn_as_such(opening: Opening, board: Board) -> None:
    shares = {"most": {"share": 0.7}, "little": {"share": 0.01}, "none": {"share": 0.0}}
    board.furnish(phases={"phases": shares}, memory={}, hooks=hooks(), host="machine")
    visit = opening(board)
    parts = visit.page.locator(".stack .phase")
    widths = parts.evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().width)")
    assert widths[1] / widths[0] == pytest.approx(1 / 70, rel=0.5)
    assert widths[2] <= 1
    assert visit.was_clean()


def test_live_files_are_made_when_somebody_asks_and_once_each_time(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    open_all(page)
    refresh(page)
    assert board.drawn == 0
    draw = page.get_by_role("button", name="Draw the model's graph")
    draw.click()
    expect(page.get_by_role("img", name="Graph model/graph: 2 nodes, 1 edge")).to_be_visible()
    assert board.drawn == 1
    refresh(page)
    assert board.drawn == 1
    board.graph = Later()
    board.graph.set_exception(Conflict("the run is held at <b>lunch</b>"))
    draw.click()
    expect(page.locator(".on-demand", has=draw).locator("output")).to_have_text("the run is held at <b>lunch</b>")
    expect(draw).to_be_enabled()
    assert board.drawn == 2
    assert visit.was_clean(allow_statuses={409})


def test_the_model_is_drawn_and_its_texts_can_be_kept(opening: Opening, board: Board) -> None:
    board.graph = 'digraph { a -> b [label="naïve ✓"] }'
    visit = opening(board)
    page = visit.page
    page.get_by_role("button", name="Draw the model's graph").press("Enter")
    picture = page.get_by_role("img", name="Graph model/graph: 2 nodes, 1 edge")
    wait_until(lambda: picture.evaluate("(img) => img.naturalWidth") > 0)
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download DOT").click()
    assert downloading.value.suggested_filename == "model-graph.dot"
    assert Path(downloading.value.path()).read_text() == f"{board.graph}\n"
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download SVG").click()
    assert downloading.value.suggested_filename == "model-graph.svg"
    svg = Path(downloading.value.path()).read_text()
    assert svg.startswith("<?xml")
    assert "naïve ✓</text>" in svg
    page.get_by_role("button", name="Full size").click()
    expect(page.get_by_role("button", name="Full size")).to_have_attribute("aria-pressed", "true")
    assert visit.was_clean()


def test_an_artifact_in_dot_is_drawn_from_the_list(opening: Opening, board: Board, tmp_path: Path) -> None:
    (tmp_path / "debug").mkdir()
    (tmp_path / "debug" / "a graph.dot").write_text("digraph { x -> y -> z }")
    board.written = [{"path": f"debug/{name}", "size": 24, "modified": 0.0} for name in ("a graph.dot", "gone.gv")]
    visit = opening(board)
    page = visit.page
    items = page.get_by_role("list", name="Artifacts").get_by_role("listitem")
    items.nth(0).get_by_role("button", name="Draw").click()
    expect(items.nth(0).get_by_role("img")).to_have_attribute("alt", "Graph debug/a graph.dot: 3 nodes, 2 edges")
    items.nth(0).get_by_role("button", name="Close").click()
    expect(items.nth(0).get_by_role("img")).to_have_count(0)
    items.nth(1).get_by_role("button", name="Draw").click()
    expect(items.nth(1).locator(".wrong")).to_contain_text("no such file")
    assert visit.was_clean(allow_statuses={404})


def test_a_graph_that_is_none_says_so_and_the_page_lives(opening: Opening, board: Board) -> None:
    visit = opening(board)
    page = visit.page
    draw = page.get_by_role("button", name="Draw the model's graph")
    for text in ("this is no graph", "", "digraph { a -> ", 'digraph { a [label="x" fontname="\\"<svg>"] }'):
        board.graph = text
        draw.click()
        expect(page.locator(".graph [role=alert]")).to_contain_text("Graphviz: ")
    board.graph = "digraph { good -> again }"
    draw.click()
    expect(page.get_by_role("img", name="Graph model/graph: 2 nodes, 1 edge")).to_be_visible()
    refresh(page)
    assert visit.was_clean()


def rank(number: int, step: int, outcome: str | None = None) -> dict[str, object]:
    told = {"pid": 100 + number, "host": "<b>node</b>", "device": f"cuda:{number}", "time": time.time()}
    return {"rank": number, "global_step": step, "outcome": outcome, **told}


def test_ranks_are_shown_so_that_one_that_lags_is_seen(opening: Opening, tmp_path: Path) -> None:
    board = Board(str(tmp_path))
    ranks = [rank(0, 1200), rank(1, 1100), rank(2, 1199, "failed")]
    board.meta = Shelf(ranks=Listing(lambda: {"ranks": ranks}))
    visit = opening(board)
    visit.page.locator("summary", has_text=re.compile("^Ranks$")).click()
    table = visit.page.get_by_role("table", name="Ranks")
    expect(table.locator("tbody td.number")).to_have_text(["1,200", "1,100", "1,199"])
    expect(table).to_contain_text("102 on <b>node</b>, cuda:2")
    expect(table).to_contain_text("failed")
    del ranks[1:]
    refresh(visit.page)
    expect(visit.page.get_by_text("One process trains.")).to_be_visible()
    assert visit.was_clean()


def kept(step: int, **more: object) -> dict[str, object]:
    told = {"id": f"<b>step={step}</b>.ckpt", "size": 1_500_000, "global_step": step, "time": time.time()}
    return {**told, "steps_to_redo": 100 - step, "is_older_than_control": False, "is_chosen": False, **more}


def test_checkpoints_are_shown_with_what_is_to_redo_and_one_is_gone_back_to_or_chosen(
    opening: Opening, tmp_path: Path
) -> None:
    board = Board(str(tmp_path))
    board.kept = [kept(90), kept(40, is_older_than_control=True)]
    visit = opening(board)
    table = visit.page.get_by_role("table", name="Checkpoints")
    expect(table.locator("tbody td.number")).to_have_text(["90", "10", "40", "60"])
    expect(table.locator("tbody tr").nth(1)).to_contain_text("older than the last change by a command")
    visit.page.get_by_role("button", name="Resume from <b>step=40</b>.ckpt").click()
    wait_until(lambda: board.given)
    board.kept[1]["is_chosen"] = True
    refresh(visit.page)
    expect(visit.page.get_by_role("button", name="Do not resume from <b>step=40</b>.ckpt")).to_have_text("Chosen")
    visit.page.get_by_role("button", name="Go back to <b>step=90</b>.ckpt").click()
    dialog = visit.page.get_by_role("dialog")
    expect(dialog).to_contain_text("What was done since is lost.")
    dialog.get_by_role("button").last.click()
    wait_until(lambda: len(board.given) > 1)
    assert [(one["kind"], one["args"]) for one in board.given] == [
        ("choose_checkpoint", {"checkpoint": "<b>step=40</b>.ckpt"}),
        ("load_checkpoint", {"checkpoint": "<b>step=90</b>.ckpt"}),
    ]
    assert visit.was_clean()


def test_where_the_run_has_gone_back_is_told(opening: Opening, tmp_path: Path) -> None:
    board = Board(str(tmp_path))
    board.rewinds = [
        {"to_step": 64, "reached": 352, "cause": "resume", "checkpoint": "x", "time": time.time() - 60},
        {"to_step": 40, "reached": 90, "cause": "load_checkpoint", "checkpoint": "y", "time": time.time()},
    ]
    visit = opening(board)
    items = visit.page.get_by_role("list", name="Rewinds").get_by_role("listitem")
    expect(items).to_have_count(2)
    expect(items.nth(0)).to_contain_text("Went back to step 40 after reaching 90")
    expect(items.nth(1)).to_contain_text("Resumed from step 64 after reaching 352")
    assert visit.was_clean()
