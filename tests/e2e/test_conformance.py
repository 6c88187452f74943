"""One tree, two faces: whatever the mount shows, REST shows with the same bytes."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.conftest import Start
from tests.e2e.runs import Run
from tests.processes import output, sh, wait_for

pytestmark = pytest.mark.mount

METRICS = {
    "plain": 0.5,
    "deep/er/loss": 1.25,
    "../../etc/passwd": 2.0,
    "index.json": 3.0,
    "100%": 4.0,
    "a b\tc": 5.0,
    "größe": 6.0,
    "-n": 7.0,
    "nan": float("nan"),
    "inf": float("-inf"),
    "x" * 250: 8.0,
}
ROUTES = {
    "/run": "state/index.json",
    "/metrics": "state/metrics/index.json",
    "/optimizers": "state/optimizers.json",
    "/artifacts": "artifacts/index.json",
}

LIVE = ("model/summary-live.txt", "model/graph.dot", "model/lightning-profiler-summary.txt")
"""Files that are made at an optimizer step, which does not come while a run stands still."""
MOVING = "state/memory.json"
"""What changes while a run stands still, too."""

# Walks a folder and tells of each entry its kind, and its bytes or its target; the files that are named are not read.
WALK = """
import base64, json, os, stat, sys
os.chdir(sys.argv[1])
found = {}
def walk(folder):
    for entry in os.scandir(folder or "."):
        path = f"{folder}/{entry.name}" if folder else entry.name
        status = os.lstat(path)
        if entry.is_symlink():
            found[path] = ["link", os.readlink(path)]
        elif entry.is_dir():
            assert stat.S_ISDIR(status.st_mode)
            found[path] = ["dir", ""]
            walk(path)
        elif path in sys.argv[2:]:
            assert status.st_size == 0
            found[path] = ["file", ""]
        else:
            with open(path, "rb") as file:
                data = file.read()
            assert len(data) == status.st_size, (path, len(data), status.st_size)
            found[path] = ["file", base64.b64encode(data).decode()]
walk("")
print(json.dumps(found))
"""


@pytest.fixture
def held(start: Start) -> Run:
    """A run that stands still in a training step, so that every value stands still too."""
    run = start(wait_at=7, metrics=METRICS)
    run.at()
    run.live()
    # The history looks a few times a second.
    wait_for(lambda: last_steps(run) == {7}, "the history has the last step")
    return run


def last_steps(run: Run) -> set[int]:
    files = run.shown("history/index.json")["series"].values()
    return {int(run.rest(f"history/{file}").decode().splitlines()[-1].split(",")[0]) for file in files}


def by_mount(run: Run) -> dict[str, Any]:
    return dict(json.loads(output(sys.executable, "-c", WALK, run.procfs, *LIVE)))


def entries_by_rest(run: Run) -> dict[str, dict[str, Any]]:
    found = {}
    waiting = [("", entry) for entry in json.loads(run.get("/files?format=tree")[1])["entries"]]
    while waiting:
        folder, entry = waiting.pop()
        path = f"{folder}{entry['name']}"
        found[path] = entry
        waiting += [(f"{path}/", inner) for inner in entry.get("entries", ())]
    return found


def test_every_node_has_the_same_bytes_through_the_mount_and_through_rest(held: Run) -> None:
    mounted = by_mount(held)
    rest = entries_by_rest(held)
    assert set(mounted) == set(rest)
    kinds = dict.fromkeys(("dir", "file", "link"), 0)
    for path, (kind, content) in mounted.items():
        entry = rest[path]
        assert entry["kind"] == kind, path
        kinds[kind] += 1
        if path in LIVE:
            continue  # The next test has them.
        status, body, headers = held.get(entry["href"])
        assert status == 200, (path, body)
        assert "x-midrun-age" not in headers
        if kind == "link":
            assert content == entry["target"] == json.loads(body)["target"], path
        elif kind == "dir":
            names = {inner["name"] for inner in json.loads(body)["entries"]}
            assert names == {p.removeprefix(f"{path}/") for p in mounted if p.rpartition("/")[0] == path}
        elif path == MOVING:
            assert json.loads(body).keys() == json.loads(base64.b64decode(content)).keys()
        else:
            assert body == base64.b64decode(content), path
            status, body, _ = held.get(f"/files/{quote(path)}")
            assert (status, body) == (200, base64.b64decode(content)), path
            if path.endswith(".json"):
                json.loads(body)
    assert all(kinds.values()), kinds
    for metric in METRICS:
        assert metric in json.loads(held.rest("state/metrics/index.json"))["metrics"]
    held.go()
    assert held.ended() == 0, held.told()
    held.assert_content()


def test_a_live_file_is_made_for_whoever_reads_it_through_either_face(start: Start) -> None:
    run = start(until=True, step_s=0.01)
    run.live()
    for path, words in zip(LIVE, ("Mult-Adds", "digraph", "no Lightning profiler is set"), strict=True):
        mounted, by_rest = run.cat(path), run.rest(path).decode()
        assert words in mounted
        assert mounted == by_rest, path
        assert len(output("ls", "-l", run.procfs / path).split()[4]) == 1, "it is not made for a listing"
    run.enough()
    assert run.ended() == 0, run.told()


def test_a_read_of_a_live_file_fails_after_half_a_minute_in_a_hold(held: Run) -> None:
    began = time.monotonic()
    done = sh("cat", held.procfs / LIVE[1], seconds=45)
    assert "Connection timed out" in done.stderr
    assert 25 < time.monotonic() - began < 40
    held.go()
    assert held.ended() == 0


def test_each_short_route_is_a_file(held: Run) -> None:
    for route, path in ROUTES.items():
        status, body, _ = held.get(route)
        assert status == 200, (route, body)
        assert body == held.cat(path).encode() == held.rest(path)
    held.go()
    assert held.ended() == 0


def test_the_values_are_those_of_the_last_safe_point(held: Run) -> None:
    index = json.loads(held.cat("state/index.json"))
    assert (index["status"], index["stage"], index["global_step"], index["batch"]) == ("running", "train", 7, 6)
    assert held.cat("state/global-step") == "7\n"
    assert held.cat("state/status") == "running\n"
    assert held.cat("state/epoch") == "0\n"
    assert float(held.cat("state/metrics/deep%2Fer%2Floss")) == 1.25
    assert held.cat("state/metrics/nan") == "nan\n"
    assert held.cat("model/class") == "tests.e2e.trainers.Model\n"
    assert json.loads(held.cat("model/hparams.json")) == {"l2": 0.0}
    assert json.loads(held.cat("state/optimizers.json"))["optimizers"][0]["groups"][0]["lr"] == 0.01
    assert held.cat("meta/pid") == f"{held.pid}\n"
    assert held.cat("meta/run-dir") == f"{held.directory}\n"
    assert held.cat("debug/pytorch/status").startswith("off")
    services = json.loads(held.cat("state/services.json"))["services"]
    assert {name: services[name]["state"] for name in ("rest", "fuse")} == {"rest": "running", "fuse": "running"}
    held.go()
    assert held.ended() == 0


def test_what_is_not_there_is_not_there_on_either_face(held: Run) -> None:
    for path in ("nothing", "state/nothing", "state/epoch/below", "state/metrics/nothing"):
        assert held.get(f"/files/{path}")[0] == 404
        assert "No such file" in failing(held, path) or "Not a directory" in failing(held, path)
    held.go()
    assert held.ended() == 0


def failing(run: Run, path: str) -> str:
    done = sh("cat", run.procfs / path)
    assert done.returncode != 0
    return done.stderr
