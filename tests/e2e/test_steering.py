"""A command gives the same result and the same error, whichever way it comes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from midrun.commands import KINDS
from tests.e2e.conftest import Report, Start
from tests.e2e.runs import REPOSITORY, Run
from tests.e2e.ways import WAYS, Outcome, outcome_of
from tests.processes import wait_for

pytestmark = pytest.mark.mount

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("set_learning_rate", {"value": 5e-4}),
    ("set_learning_rate", {"value": 1}),
    ("set_learning_rate", {"value": 0.25, "optimizer": 0, "group": 0}),
    ("reset_momentum", {}),
    ("reset_momentum", {"optimizer": 0}),
    ("set_optimizer_option", {"option": "weight_decay", "value": 0.5}),
    ("set_optimizer_option", {"option": "betas", "value": [0.8, 0.9]}),
    ("set_gradient_clip", {"value": 0.5, "algorithm": "value"}),
    ("set_gradient_clip", {"value": None}),
    ("set_hparam", {"name": "hparams.l2", "value": 0.5}),
    ("set_hparam", {"name": "hparams.l2", "value": 1}),
    ("checkpoint", {"label": "ünïcode / label"}),
    ("checkpoint", {}),
    ("snapshot", {}),
    ("hold", {"reason": "to look"}),
    ("pause", {}),
    ("continue", {}),
]
"""Requests that are done."""
UNDONE: list[tuple[str, dict[str, Any], str]] = [
    ("set_learning_rate", {"value": 0.1, "optimizer": 7}, "0 to 0"),
    ("set_learning_rate", {"value": 0.1, "group": 3}, "group 3"),
    ("reset_momentum", {"optimizer": 1}, "optimizer 1"),
    ("set_optimizer_option", {"option": "warmth", "value": 1}, "warmth"),
    ("set_optimizer_option", {"option": "lr", "value": 0.5}, "set_learning_rate"),
    ("set_optimizer_option", {"option": "betas", "value": [0.9, 2.0]}, "beta"),
]
"""Requests that are taken in and fail, with a part of the reason."""
BAD: list[tuple[str, Any]] = [
    ("set_learning_rate", {}),
    ("set_learning_rate", {"value": "0.1"}),
    ("set_learning_rate", {"value": True}),
    ("set_learning_rate", {"value": -1}),
    ("set_learning_rate", {"value": None}),
    ("set_learning_rate", {"value": 0.1, "group": 0.0}),
    ("set_learning_rate", {"value": 0.1, "groups": 0}),
    ("set_learning_rate", {"value": 0.1, "optimizer": -1}),
    ("set_learning_rate", [1]),
    ("set_hparam", {"name": "hparams.l2", "value": 1.5}),
    ("set_hparam", {"name": "hparams.l2", "value": "0.5"}),
    ("set_hparam", {"name": "hparams.l2", "value": True}),
    ("set_hparam", {"name": "hparams.l3", "value": 0.5}),
    ("set_hparam", {"name": "hparams.l2"}),
    ("checkpoint", {"label": 7}),
    ("checkpoint", {"label": ""}),
    ("checkpoint", {"path": "/etc/passwd"}),
    ("snapshot", {"label": ["a"]}),
    ("set_gradient_clip", {}),
    ("set_gradient_clip", {"value": -0.5}),
    ("set_gradient_clip", {"value": 1.0, "algorithm": "wish"}),
    ("hold", {"reason": 5}),
    ("stop", {"now": True}),
    ("continue", {"all": True}),
    ("release", {"id": "nobody"}),
    ("cancel", {"id": "nobody"}),
    ("release", {}),
]
"""Requests that are refused."""


@pytest.fixture(scope="module")
def held(forge: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that is held: commands that run while held are done at once, and nothing else changes."""
    from tests.e2e.runs import drop, new_root

    root = new_root()
    run: Run = forge.start("fit", {"until": True, "step_s": 0.01}, root)
    try:
        hold(run.live())
        yield run
        run.post("/control/continue")
        run.enough()
        assert run.ended() == 0, run.told()
        assert run.left() == []
    finally:
        run.clean()
        drop(root)


def hold(run: Run) -> str:
    """Hold a run, and return the hold's id."""
    run.post("/control/pause")
    active = wait_for(lambda: run.shown("holds/index.json")["active"], "the run is held")
    return str(active["id"])


def reset(run: Run) -> None:
    """Give what commands change a value that none of them gives, so that each changes something."""
    if run.shown("holds/index.json")["active"] is None:
        hold(run)
    for kind, args in (
        ("set_learning_rate", {"value": 0.125}),
        ("set_optimizer_option", {"option": "weight_decay", "value": 0.0625}),
        ("set_optimizer_option", {"option": "betas", "value": [0.5, 0.5]}),
        ("set_gradient_clip", {"value": 3.0, "algorithm": "norm"}),
        ("set_hparam", {"name": "hparams.l2", "value": 0.03125}),
    ):
        status, body, _ = run.post("/commands", json.dumps({"kind": kind, "args": args}))
        assert status == 200, body
        record = outcome_of(run, json.loads(body)["id"]).record
        assert record is not None
        assert record["status"] == "succeeded", record


def by_each_way(run: Run, kind: str, args: Any) -> dict[str, Outcome]:
    found = {}
    for name, way in WAYS.items():
        reset(run)
        found[name] = way(run, kind, args)
    return found


def without_place(record: dict[str, Any] | None) -> dict[str, Any]:
    """Return a record without where it was done: a run that goes on is elsewhere each time."""
    assert record is not None
    result = {key: value for key, value in (record["result"] or {}).items() if key != "active_hold_id"}
    return {**record, "place": None, "result": result}


@pytest.mark.parametrize(("kind", "args"), GOOD, ids=lambda value: str(value)[:60])
def test_a_command_gives_the_same_result_by_each_way(held: Run, kind: str, args: dict[str, Any]) -> None:
    outcomes = by_each_way(held, kind, args)
    first = outcomes["REST"]
    assert first.record is not None
    assert first.record["status"] == "succeeded", first
    for name, outcome in outcomes.items():
        assert without_place(outcome.record) == without_place(first.record), name


@pytest.mark.parametrize(("kind", "args", "reason"), UNDONE, ids=lambda value: str(value)[:60])
def test_a_command_fails_with_the_same_error_by_each_way(
    held: Run, kind: str, args: dict[str, Any], reason: str
) -> None:
    outcomes = by_each_way(held, kind, args)
    for name, outcome in outcomes.items():
        record = without_place(outcome.record)
        assert record["status"] == "failed", (name, record)
        assert record == without_place(outcomes["REST"].record), name
        assert reason in record["error"]["message"].lower(), record


@pytest.mark.parametrize(("kind", "args"), BAD, ids=lambda value: str(value)[:60])
def test_a_bad_request_is_refused_with_the_same_errors_by_each_way(held: Run, kind: str, args: Any) -> None:
    outcomes = by_each_way(held, kind, args)
    for name, outcome in outcomes.items():
        assert outcome.detail, (name, outcome)
        if isinstance(outcome.detail, str):
            assert outcome.detail == outcomes["REST"].detail, name
            continue
        # A control file of a kind takes the arguments alone.
        here = [((loc[0], *[step for step in loc[1:] if step != "args"]), *rest) for loc, *rest in outcome.errors]
        there = [
            ((loc[0], *[step for step in loc[1:] if step != "args"]), *rest) for loc, *rest in outcomes["REST"].errors
        ]
        if isinstance(args, dict):
            assert here == there, name
        assert all(message and type_ for _, message, type_ in here), name


WHENS: list[Any] = [
    {},
    None,
    "now",
    5,
    {"safe_point": "soon"},
    {"safe_point": None},
    {"epoch": -1},
    {"epoch": 7.0},
    {"epoch": "5"},
    {"epoch": True},
    {"epoch": 1, "global_step": 1},
    {"global_step": 1e3},
    {"global_step": None},
    {"step": 3},
    {"safe_point": "fit_end", "after": 3},
    ["train_batch_end"],
]


@pytest.mark.parametrize("when", WHENS, ids=json.dumps)
def test_any_other_when_is_refused_with_status_422(held: Run, when: Any) -> None:
    document = {"kind": "checkpoint", "execution": {"when": when}}
    status, body, _ = held.post("/commands", json.dumps(document))
    assert status == 422, body
    for error in json.loads(body)["detail"]:
        assert error["loc"][:3] == ["body", "execution", "when"], error


KINDS_AND_MORE = st.sampled_from([*KINDS, "dance", "", "Stop", "set_learning_rate ", "__class__", "ünïcode"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["value", "optimizer", "group", "name", "label", "id", "option", "reason", "algorithm", "x"])
ARGS = st.dictionaries(NAMES, JSON | st.sampled_from(["hparams.l2", "nobody"]), max_size=4) | JSON
REQUESTS = st.fixed_dictionaries(
    {"kind": KINDS_AND_MORE | JSON, "args": ARGS},
    optional={
        "execution": JSON | st.fixed_dictionaries({"when": st.sampled_from(WHENS) | JSON}),
        "id": JSON | st.sampled_from(["../x", ".hidden", "a" * 200]),
        "source": JSON,
        "session": JSON,
        "more": JSON,
    },
)
ANYTHING = st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode())


def ends(document: dict[str, Any]) -> bool:
    """Whether a request would end what the tests need: it is refused before it gets here."""
    return document.get("kind") in ["stop", "continue", "release"]


@given(st.one_of(REQUESTS.filter(lambda request: not ends(request)).map(lambda r: json.dumps(r).encode()), ANYTHING))
@settings(
    max_examples=300,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the run is the module's
)
def test_no_request_is_a_mistake_of_midruns_own(held: Run, body: bytes) -> None:
    status, answer, _ = held.post("/commands", body, {"Content-Type": "application/json"})
    assert status in {200, 404, 409, 422}, (status, answer)
    if status == 422:
        detail = json.loads(answer)["detail"]
        assert all({"loc", "msg", "type"} <= error.keys() and error["msg"] for error in detail), detail


def test_no_dropped_file_is_lost_and_each_that_is_refused_says_which_field_and_why(held: Run) -> None:
    spool = held.directory / "spool"
    bodies: list[bytes] = []

    @given(REQUESTS.filter(lambda request: not ends(request)).map(lambda request: json.dumps(request).encode()))
    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    def drop(body: bytes) -> None:
        bodies.append(body)
        name = f"bad-{len(bodies)}"
        (spool / "new" / f".{name}").write_bytes(body)
        (spool / "new" / f".{name}").rename(spool / "new" / f"{name}.json")

    drop()
    wait_for(lambda: not [path for path in (spool / "new").iterdir() if path.name.startswith("bad-")], "all are seen")
    refused = 0
    for number, body in enumerate(bodies, 1):
        name = f"bad-{number}"
        kept = spool / "rejected" / f"{name}.json"
        if not kept.exists():
            assert any((spool / state / f"{name}.json").exists() for state in ("queued", "executing", "done")), body
            continue
        refused += 1
        assert kept.read_bytes() == body
        detail = json.loads((spool / "rejected" / f"{name}.error.json").read_text())["detail"]
        assert detail
        if isinstance(detail, list):
            assert all(error["loc"] and error["msg"] and error["type"] for error in detail), detail
    assert refused > 100


def test_a_command_is_executed_at_the_next_safe_point(
    start: Start, report: Report, times: Callable[[int], int]
) -> None:
    """From the POST, or the moment a file is there, to its result: figures for a run with steps of 20 ms."""
    run = start(until=True, step_s=0.02).live()
    spool = run.directory / "spool"
    posted, dropped = [], []
    for number in range(times(200)):
        began = time.monotonic()
        status, body, _ = run.post("/commands", json.dumps({"kind": "set_learning_rate", "args": {"value": 0.01}}))
        assert status == 200, body
        id_ = json.loads(body)["id"]
        wait_for(lambda id_=id_: run.rest(f"commands/{id_}/status") == b"succeeded\n", "it is done", every=0.002)  # type: ignore[misc]
        posted.append(time.monotonic() - began)
        (spool / "new" / f".d{number}").write_text('{"kind": "set_learning_rate", "args": {"value": 0.02}}')
        began = time.monotonic()
        (spool / "new" / f".d{number}").rename(spool / "new" / f"d{number}.json")
        wait_for((spool / "done" / f"d{number}.json").exists, "it is done", every=0.002)
        dropped.append(time.monotonic() - began)
    run.enough()
    assert run.ended() == 0, run.told()
    for what, seconds in (("POST", posted), ("a dropped file", dropped)):
        report(f"seconds from {what} to its result, median", sorted(seconds)[len(seconds) // 2])
        report(f"seconds from {what} to its result, 95 %", sorted(seconds)[int(len(seconds) * 0.95)])


def rate_of(run: Run) -> float:
    return float(run.shown("state/optimizers.json")["optimizers"][0]["groups"][0]["lr"])


def test_the_example_script_lowers_the_learning_rate_of_a_run_on_a_plateau(start: Start) -> None:
    run = start(until=True, step_s=0.005, metrics={"flat/loss": 1.0}).live()
    wait_for(lambda: run.get("/files/state/metrics/flat%252Floss")[0] == 200, "there is a metric")
    script = subprocess.Popen(
        [REPOSITORY / "examples/lower_on_plateau.sh", run.directory, "flat/loss", "3"],
        env={**os.environ, "EVERY": "0.02"},
        stderr=subprocess.PIPE,
    )
    try:
        wait_for(lambda: rate_of(run) <= 0.0025, "the learning rate is a quarter of what it was, or less")
        entries = run.shown("state/control-log.json")["entries"]
        assert {(entry["kind"], entry["source"], entry["via"]) for entry in entries} == {
            ("set_learning_rate", "script", "spool")
        }
    finally:
        run.enough()
        assert run.ended() == 0, run.told()
        script.communicate(timeout=20)  # It ends where there is nothing to read any more.
    assert run.left() == []
