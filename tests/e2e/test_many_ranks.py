"""Several processes are steered as one: what is to be done is done by all at the same safe point, or by none."""

from __future__ import annotations

import json
import os
import random
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from tests.e2e.machine import alive, end, session_of
from tests.e2e.runs import Run, Script
from tests.processes import wait_for

pytestmark = [pytest.mark.ddp, pytest.mark.timeout(600)]

STARTED = 90.0
"""Seconds in which all ranks have imported Lightning and found each other, on a machine with other things to do."""
DONE = 30.0
STEP = "before_optimizer_step"
OVER = {"succeeded", "failed", "cancelled"}


class Ranks:
    """A run of several ranks that is steered."""

    def __init__(self, run: Run, world: int) -> None:
        self.run, self.world = run, world

    def send(self, kind: str, when: dict[str, Any] | None = None, **args: Any) -> str:
        """Send a command; return its id."""
        body = {"kind": kind, "args": args, **({"execution": {"when": when}} if when else {})}
        status, answer, _ = self.run.post("/control/commands", json.dumps(body))
        assert status in {200, 202}, (status, answer)
        return str(json.loads(answer)["id"])

    def record(self, id_: str) -> Any:
        """Return the record of a command."""
        return self.run.shown(f"commands/{id_}/command.json")

    def over(self, id_: str) -> Any:
        """Wait until a command is over; return its record."""
        self.wait_for(lambda: self.record(id_)["status"] in OVER, f"{id_} is over: {self.record(id_)}")
        return self.record(id_)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        try:
            wait_for(condition, what, DONE)
        except AssertionError as error:
            waits = [record for record in self.run.shown("commands/index.json")["commands"] if not record["finished"]]
            error.add_note(f"{self.run.told()}\n{json.dumps(waits)}\n{self.run.rest('meta/ranks/1.json').decode()}")
            raise

    def do(self, kind: str, when: dict[str, Any] | None = None, **args: Any) -> Any:
        """Have a command done; return its record."""
        return self.over(self.send(kind, when, **args))

    def held(self) -> None:
        self.wait_for(lambda: self.run.rest("state/status") == b"held\n", "the run is held")

    def end(self) -> None:
        """Stop the run, and check that it ends well."""
        self.send("stop")
        assert self.run.ended(60) == 0, self.run.told()
        wait_for(lambda: session_of(self.run.pid) == [], "no rank is left")

    def ledgers(self) -> list[list[dict[str, Any]]]:
        """Return what each rank wrote down."""
        files = [self.run.root / f"ledger-{rank}" for rank in range(self.world)]
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.fixture
def start(root: Path) -> Iterator[Callable[..., Ranks]]:
    scripts: list[Script] = []

    def begin(way: str = "plain", world: int = 2, **plan: Any) -> Ranks:
        options = {"torch_debug_enabled": False, "fuse_enabled": False, **plan.pop("midrun", {})}
        script = Script("ranks", {"way": way, "world": world, "midrun": options, **plan}, root)
        scripts.append(script)
        run = script.run
        run.live(mount=False, seconds=STARTED)
        wait_for(lambda: len(run.shown("meta/ranks/index.json")["ranks"]) == world, "all ranks are known", DONE)
        return Ranks(run, world)

    try:
        yield begin
    finally:
        for script in scripts:
            script.clean()


WALKS = [("plain", 2), ("hook", 2), ("accumulate", 2), ("manual", 2), ("plain", 4), ("hook", 4)]


@pytest.mark.parametrize(("way", "world"), WALKS)
def test_after_a_walk_of_commands_and_holds_all_ranks_are_alike_at_every_batch(
    way: str, world: int, start: Callable[..., Ranks], times: Callable[[int], int]
) -> None:
    ranks = start(way, world, val=True)
    draw = random.Random(f"{way} {world}")  # noqa: S311 - a repeatable walk, no secret
    sent: list[str] = []
    for _ in range(times(500)):
        sent += step(ranks, draw)
    for id_ in sent:
        record = ranks.over(id_)
        assert record["status"] in {"succeeded", "cancelled"}, record
        assert "ranks" not in (record["result"] or {}), record
    ranks.end()
    first, *others = ranks.ledgers()
    for rank, other in enumerate(others, 1):
        for mine, theirs in zip(first, other, strict=True):
            assert mine == theirs, f"rank {rank}"
    assert len({line["set"][0][0] for line in first}) > 1
    done = [line for line in log_lines(ranks, 1) if " did " in line]
    assert all(
        [line.partition(" did ")[2] for line in log_lines(ranks, rank) if " did " in line]
        == [line.partition(" did ")[2] for line in done]
        for rank in range(2, world)
    )


def step(ranks: Ranks, draw: random.Random) -> list[str]:
    """Do something at random; return the ids of the commands."""
    when = draw.choice([None, None, None, {"safe_point": "train_batch_end"}, {"safe_point": "train_epoch_end"}])
    now = ranks.run.shown("state/index.json")["global_step"]
    if draw.random() < 0.2:
        when = {"global_step": now + draw.randint(1, 60)}
    choices: list[Callable[[], list[str]]] = [
        lambda: [ranks.send("set_learning_rate", when, value=draw.choice([1e-3, 2e-3, 5e-3, 1e-2]))],
        lambda: [ranks.send("set_hparam", when, name="hparams.l2", value=draw.random() / 100)],
        lambda: [ranks.send("set_optimizer_option", when, option="weight_decay", value=draw.random() / 100)],
        lambda: [ranks.send("set_optimizer_option", when, option="momentum", value=draw.random() / 2)],
        lambda: [ranks.send("reset_momentum", when)],
        lambda: [ranks.send("checkpoint")],
        lambda: [ranks.send("set_dataloader_finite_check", enabled=draw.random() < 0.5)],
        lambda: [ranks.send("snapshot")],
        lambda: held(ranks, draw),
        lambda: [ranks.over(ranks.send("set_learning_rate", value=draw.choice([3e-3, 4e-3])))["id"]],
    ]
    return draw.choice(choices)()


def held(ranks: Ranks, draw: random.Random) -> list[str]:
    """Hold the run, change something, and let it go."""
    hold = ranks.send(draw.choice(["hold", "pause"]))
    ranks.held()
    ids = [hold]
    if draw.random() < 0.7:
        ids.append(ranks.do("set_learning_rate", value=draw.choice([6e-3, 7e-3]))["id"])
    if draw.random() < 0.3:
        ids.append(ranks.do("checkpoint")["id"])
    ranks.send("continue")
    ranks.over(hold)
    return ids


def log_lines(ranks: Ranks, rank: int) -> list[str]:
    """Return the log of a later rank."""
    path = ranks.run.directory / f"midrun-rank-{rank}.log"
    return path.read_text().splitlines() if path.exists() else []


def test_a_command_that_one_rank_refuses_is_done_by_none_and_the_rank_is_named(start: Callable[..., Ranks]) -> None:
    ranks = start(odd=1)
    record = ranks.do("set_optimizer_option", option="nesterov", value=False)
    assert record["status"] == "failed"
    assert record["error"]["message"].startswith("rank 1: there is no option 'nesterov'")
    assert record["error"]["message"].endswith("done on rank 0")
    record = ranks.do("set_learning_rate", value=0.5)
    assert record["status"] == "succeeded"
    ranks.end()
    first, other = ranks.ledgers()
    assert [line["set"][0][0] for line in first] == [line["set"][0][0] for line in other]


def test_a_hold_stops_every_rank(start: Callable[..., Ranks]) -> None:
    ranks = start()
    ranks.send("hold", reason="to look")
    ranks.held()
    lengths = [len(ledger) for ledger in ranks.ledgers()]
    assert len({*lengths}) == 1
    record = ranks.do("set_hparam", name="hparams.l2", value=0.125)
    assert record["place"]["safe_point"] == "before_optimizer_step"
    assert [len(ledger) for ledger in ranks.ledgers()] == lengths
    ranks.send("continue")
    wait_for(lambda: len(ranks.ledgers()[1]) > lengths[1] + 5, "training goes on")
    ranks.end()


def test_what_is_asked_for_a_step_is_done_at_that_step_on_every_rank(start: Callable[..., Ranks]) -> None:
    ranks = start()
    at = ranks.run.step() + 100
    record = ranks.over(ranks.send("set_learning_rate", {"global_step": at, "safe_point": STEP}, value=0.5))
    assert record["place"]["global_step"] == at
    ranks.end()
    for ledger in ranks.ledgers():
        assert next(line["step"] for line in ledger if line["set"][0][0] == 0.5) == at + 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_hold_is_left_by_sigterm_on_any_rank(rank: int, start: Callable[..., Ranks]) -> None:
    ranks = start()
    ranks.send("hold")
    ranks.held()
    pid = ranks.run.shown(f"meta/ranks/{rank}.json")["pid"]
    os.kill(pid, signal.SIGTERM)
    why = "SIGTERM" if rank == 0 else "SIGTERM on rank 1"
    ranks.run.ended(60)
    assert f"released by {why} after" in ranks.run.log
    assert ranks.run.record()["session"]["outcome"] == "interrupted"
    wait_for(lambda: session_of(ranks.run.pid) == [], "no rank is left")


@pytest.mark.parametrize("state", ["training", "held"])
@pytest.mark.parametrize("whom", ["rank 0", "rank 1", "both"])
def test_when_a_rank_is_killed_the_rest_ends_and_nothing_is_left(
    whom: str, state: str, start: Callable[..., Ranks]
) -> None:
    ranks = start(midrun={"fuse_enabled": True})
    pids = [ranks.run.shown(f"meta/ranks/{rank}.json")["pid"] for rank in (0, 1)]
    ranks.do("set_learning_rate", value=0.5)
    if state == "held":
        ranks.send("hold")
        ranks.held()
    for pid in {"rank 0": pids[:1], "rank 1": pids[1:], "both": pids}[whom]:
        end(pid, signal.SIGKILL)
    # Lightning looks every five seconds for a rank that has failed, and then kills the others.
    ranks.run.ended(60)
    wait_for(lambda: not any(map(alive, pids)), "no rank is left", DONE)
    ranks.run.gone()


def test_ranks_with_unlike_numbers_of_batches_do_not_wait_for_each_other_for_long(start: Callable[..., Ranks]) -> None:
    ranks = start("hook", uneven=[64, 40], steps=-1)
    sent = [ranks.do("set_learning_rate", value=value / 100) for value in range(1, 11)]
    assert {record["status"] for record in sent} == {"succeeded"}
    ranks.end()
    assert "did not come" not in ranks.run.log


def test_pytorchs_debug_server_shows_the_stacks_of_all_ranks_beside_rest(start: Callable[..., Ranks]) -> None:
    ranks = start(midrun={"torch_debug_enabled": True})
    run = ranks.run
    wait_for(lambda: run.service("torch-debug")[0] == "running", "the debug server serves", DONE)
    url = run.rest("meta/torch-debug/url").decode().strip()
    assert url == run.rest("debug/pytorch/url").decode().strip()
    offset = run.port - run.first_port
    assert offset % 100 == 0
    assert int(url.rpartition(":")[2]) == 25999 + offset
    with urllib.request.urlopen(f"{url}/stacks", timeout=20) as answer:  # noqa: S310 - this machine's own
        page = answer.read().decode()
    assert "Rank 0" in page
    assert "Rank 1" in page
    assert "torch-debug: it listens on all interfaces" in run.log
    assert any("torch_debug_enabled=False" in notice for notice in run.shown("state/index.json")["notices"])
    ranks.end()
    with pytest.raises(URLError):
        urllib.request.urlopen(f"{url}/stacks", timeout=5)  # noqa: S310 - as above


def test_what_every_rank_must_do_is_refused_while_an_exception_holds_rank_zero_alone(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(fail_at=100, fail_rank=0)
    ranks.wait_for(lambda: ranks.run.shown("holds/index.json")["exception"], "an exception holds the run")
    record = ranks.do("set_learning_rate", value=0.5)
    assert record["status"] == "failed"
    assert record["error"]["message"] == "an exception holds rank zero alone, and this must be done by every rank"
    ranks.send("release_exception")
    assert ranks.run.ended(60) != 0
    wait_for(lambda: session_of(ranks.run.pid) == [], "no rank is left")


@pytest.mark.parametrize("told", [(0,), (0, 1)])
def test_sigterm_ends_what_an_exception_holds_on_rank_zero(told: tuple[int, ...], start: Callable[..., Ranks]) -> None:
    # Lightning's handler would broadcast to the other ranks, and these wait in what the exception has cut short.
    ranks = start(fail_at=100, fail_rank=0)
    ranks.wait_for(lambda: ranks.run.shown("holds/index.json")["exception"], "an exception holds the run")
    pids = [ranks.run.shown(f"meta/ranks/{rank}.json")["pid"] for rank in told]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    assert ranks.run.ended(60) != 0
    assert "the exception is released by SIGTERM" in ranks.run.log
    wait_for(lambda: session_of(ranks.run.pid) == [], "no rank is left")


@pytest.mark.parametrize("way", ["manual", "plain"])
def test_a_checkpoint_that_was_asked_for_before_a_stop_is_written_before_it(
    way: str, start: Callable[..., Ranks]
) -> None:
    ranks = start(way)
    for number in range(3):
        ids = [ranks.send("checkpoint", label=f"before-{number}"), ranks.send("set_learning_rate", value=0.01)]
        places = [ranks.over(id_)["place"]["global_step"] for id_ in ids]
        assert places == sorted(places)
    last = ranks.send("checkpoint", label="last")
    ranks.end()
    record = json.loads((ranks.run.directory / "spool" / "done" / f"{last}.json").read_bytes())
    assert record["status"] == "succeeded"
