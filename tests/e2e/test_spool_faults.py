"""The spool of a live run: what it takes, and what is left of it when processes are killed and disks fail."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from midrun.fs.spool import STATES, Spool
from tests.e2e import spooling
from tests.e2e.conftest import Report, Start
from tests.e2e.machine import is_json, shown
from tests.e2e.runs import REPOSITORY, Run
from tests.processes import output, wait_for

QUIET = {"rest_enabled": False, "fuse_enabled": False}
REST = {"fuse_enabled": False}
STOP = {"kind": "stop"}
KNOWN: dict[str, Any] = {
    "kind": "stop",
    "args": {},
    "execution": {},
    "source": "rest",
    "via": "rest",
    "submitted": 1.0,
    **dict.fromkeys(("started", "finished", "place", "result", "error")),
    "durable": True,
}
"""The members of a record, but for its id and status."""


def tick() -> None:
    """Wait until the clock of the file systems has gone on: what comes in one tick has no certain order."""
    coarse = 5  # CLOCK_REALTIME_COARSE
    before = time.clock_gettime_ns(coarse)
    while time.clock_gettime_ns(coarse) == before:
        time.sleep(0.0005)


def set_hparam(value: float) -> dict[str, Any]:
    return {"kind": "set_hparam", "args": {"name": "hparams.l2", "value": value}}


def snapshot(label: str) -> dict[str, Any]:
    return {"kind": "snapshot", "args": {"label": label}}


def spool_of(run: Run) -> Path:
    return run.directory / "spool"


def drop(spool: Path, name: str, content: object, *, aside: str = ".aside") -> Path:
    """Put a file in as a script does."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (spool / "new" / aside).write_bytes(data)
    return (spool / "new" / aside).rename(spool / "new" / name)


def owned(run: Run) -> Path:
    """Wait until a run looks for files; return its spool."""
    spool, id_ = spool_of(run), f"asked-{run.pid}"
    wait_for((spool / "new").exists, "the spool is there")
    # What is there before the session begins is expired, which is an answer too.
    drop(spool, f"{id_}.json", set_hparam(0.0))
    over(spool, id_)
    return spool


def over(spool: Path, id_: str) -> dict[str, Any]:
    """Wait until a command is over; return its record."""
    path = spool / "done" / f"{id_}.json"
    wait_for(lambda: path.exists() or (spool / f"rejected/{id_}.json").exists(), f"{id_} is over")
    return dict(json.loads(path.read_bytes()))


def reason(spool: Path, stem: str) -> dict[str, Any]:
    """Wait until a file is rejected; return the reason."""
    wait_for(lambda: any((spool / "rejected").glob(f"{stem}*")), f"{stem} is rejected")
    return dict(json.loads((spool / "rejected" / f"{stem}.error.json").read_bytes()))


def names(spool: Path, state: str) -> set[str]:
    return {path.name for path in (spool / state).iterdir()}


def control_log(run: Run) -> list[dict[str, Any]]:
    """Return the lines of the control log, each of which must be whole."""
    return [json.loads(line) for line in (run.directory / "control-log.jsonl").read_bytes().splitlines()]


def finished(run: Run) -> None:
    """Have a run end, and check that it ended well."""
    run.enough()
    assert run.ended() == 0, run.told()


# ---- what is taken in


def is_kept(spool: Path, stem: str, data: bytes) -> bool:
    return data in {path.read_bytes() for path in (spool / "rejected").glob(f"{stem}*")}


def test_dropped_files_are_commands_and_what_is_none_is_rejected_with_the_reason(start: Start) -> None:
    run = start(until=True, step_s=0.001, midrun=QUIET)
    spool = owned(run)
    new = spool / "new"
    bad: dict[str, tuple[bytes, str]] = {
        "typo.json": (b'{"kind": "stopp"}', "kind"),
        "args.json": (b'{"kind": "set_hparam", "args": {"name": "hparams.l2", "value": 7}}', "between"),
        "field.json": (b'{"kind": "set_learning_rate", "args": {"value": "0.1"}}', "value"),
        "list.json": (b"[1]", "object"),
        "extra.json": (b'{"kind": "stop", "why": 1}', "why"),
        "twice.json": (b'{"kind": "stop", "kind": "stop"}', "more than once"),
        "otherid.json": (b'{"kind": "stop", "id": "another"}', "otherid"),
        "-dash.json": (b'{"kind": "stop"}', "no id"),
        "large.json": (b" " * (1 << 20) + b'{"kind": "stop"}', "at most 1048576"),
        "release.json": (b'{"kind": "release", "args": {"id": "nothing"}}', "nothing"),
        "x" * 250 + ".json": (b'{"kind": "stop"}', "no id"),
    }
    slow: dict[str, tuple[bytes, str]] = {
        "half.json": (b'{"kind": "st', "JSON"),
        "noext": (b'{"kind": "stop"}', "named <id>.json"),
        "binary.json": (b"\xff\xfe\0", "JSON"),
        "empty.json": (b"", "kind"),
        "deep.json": (b"[" * 100_000, "JSON"),
    }
    for name, (data, _) in {**bad, **slow}.items():
        drop(spool, name, data)
    odd = ("fifo.json", "directory.json", "link.json")
    os.mkfifo(new / odd[0])
    (new / odd[1]).mkdir()
    (new / odd[2]).symlink_to(spool / "lock")
    (new / os.fsdecode(b"\xff.json")).write_bytes(b'{"kind": "stop"}')
    for name in ("a.json.tmp", ".dot.json"):
        (new / name).write_text(json.dumps(STOP))
    with (new / "piece.json").open("wb", buffering=0) as piece:
        for byte in json.dumps(set_hparam(0.25)).encode():
            piece.write(bytes([byte]))
    assert over(spool, "piece")["status"] == "succeeded"
    for name, (data, word) in {**bad, **slow}.items():
        stem = name.removesuffix(".json")[:200]
        detail = reason(spool, stem)["detail"]
        assert word.lower() in json.dumps(detail).lower(), (name, detail)
        # The reason comes first, and the file a moment later.
        wait_for(partial(is_kept, spool, stem, data), f"{name} is put aside")
    for name in odd:
        assert "no regular file" in str(reason(spool, name.removesuffix(".json"))["detail"])
    assert "no id" in str(reason(spool, os.fsdecode(b"\xff"))["detail"])
    assert reason(spool, "field")["detail"][0]["loc"] == ["body", "args", "value"]
    assert names(spool, "new") == {"a.json.tmp", ".dot.json"}
    drop(spool, "piece.json", STOP)
    assert "is used" in str(reason(spool, "piece")["detail"])
    finished(run)
    assert "Traceback" not in run.log, run.told()
    assert names(spool, "queued") | names(spool, "executing") == set()
    assert run.last_state()["services"]["spool"]["state"] == "running"


def dropped_at_once(run: Run, count: int) -> list[str]:
    """Put so many files in, in no order of their names; return their ids in the order in which they came."""
    spool = spool_of(run)
    ids = [f"n{number * 7919 % count}" for number in range(count)]
    (spool / "aside").mkdir()
    for number, id_ in enumerate(ids):
        (spool / "aside" / id_).write_text(json.dumps(set_hparam(number / count)))
    for id_ in ids:
        tick()
        (spool / "aside" / id_).rename(spool / "new" / f"{id_}.json")
    return ids


def test_many_files_at_once_are_done_in_the_order_in_which_they_came(start: Start, times: Callable[[int], int]) -> None:
    run = start(until=True, wait_at=5, midrun=QUIET)
    run.at()
    wait_for((run.directory / "run.json").exists, "the run can be found, and so takes files")
    spool, count = spool_of(run), times(900)
    ids = dropped_at_once(run, count)
    wait_for(lambda: not names(spool, "new"), "all are taken in")
    run.go()
    wait_for(lambda: not names(spool, "queued") | names(spool, "executing"), "all are done")
    finished(run)
    assert names(spool, "rejected") == set()
    lines = [line for line in control_log(run) if line["id"] in set(ids)]
    assert [line["id"] for line in lines] == ids
    assert [line["args"]["value"] for line in lines] == [number / count for number in range(count)]


def test_files_for_which_there_is_no_place_yet_wait_in_new(start: Start) -> None:
    run = start(until=True, wait_at=5, midrun=QUIET)
    run.at()
    wait_for((run.directory / "run.json").exists, "the run can be found, and so takes files")
    spool = spool_of(run)
    for number in range(1010):
        drop(spool, f"n{number}.json", set_hparam(0.5))
    wait_for(lambda: len(names(spool, "queued")) >= 1000, "as many as may wait are taken in")
    wait_for(lambda: len(names(spool, "new")) <= 10, "the others have been looked at")
    run.go()
    assert over(spool, "n1009")["status"] == "succeeded"


def test_many_files_at_once_do_not_stop_training(start: Start, report: Report) -> None:
    run = start(until=True, midrun=QUIET)
    spool = owned(run)
    for number in range(500):
        (spool / f"aside-{number}").write_text(json.dumps(set_hparam(0.5)))
    for number in range(500):
        (spool / f"aside-{number}").rename(spool / "new" / f"n{number}.json")
    wait_for(lambda: not any(names(spool, state) for state in ("new", "queued", "executing")), "all are done")
    finished(run)
    report("longest time between two steps", run.mark("gap"))
    steps = {over(spool, f"n{number}")["place"]["global_step"] for number in range(500)}
    assert len(steps) > 5, "training went on in between"


def test_used_ids_are_refused_in_the_next_session_too(start: Start, root: Path) -> None:
    place = root / "same"
    first = start(until=True, midrun=QUIET, in_=place)
    spool = owned(first)
    drop(spool, "once.json", set_hparam(0.5))
    over(spool, "once")
    finished(first)
    (place / "enough").unlink()
    (spool / "done/once.json").unlink()
    (spool / "ids").write_text("once\nolder\n")
    second = start(until=True, midrun=QUIET, in_=place)
    owned(second)
    for id_ in ("once", "older"):
        drop(spool, f"{id_}.json", set_hparam(0.5))
        assert "is used" in str(reason(spool, id_)["detail"])
    finished(second)
    assert [line["id"] for line in control_log(second)].count("once") == 1


def test_a_file_from_before_the_session_is_expired_unless_it_waits_for_the_next(start: Start, root: Path) -> None:
    place = root / "same"
    first = start(until=True, midrun=QUIET, in_=place)
    spool = owned(first)
    finished(first)
    (place / "enough").unlink()
    drop(spool, "late.json", STOP)
    drop(spool, "next.json", {**set_hparam(0.5), "session": "next"})
    second = start(until=True, midrun=QUIET, in_=place)
    assert over(spool, "next")["status"] == "succeeded"
    late = over(spool, "late")
    assert (late["status"], late["error"]["type"]) == ("expired", "expired")
    finished(second)


def test_torn_and_foreign_files_stop_no_run(start: Start, root: Path) -> None:
    place = root / "same"
    spool = place / "logs/v/spool"
    for state in STATES:
        folder = spool / state
        folder.mkdir(parents=True)
        (folder / f"was-{state}.json").write_text(json.dumps({"id": f"was-{state}", "status": "queued", **KNOWN}))
        (folder / "torn.json").write_text('{"id": "torn", ')
        (folder / "deep.json").write_text("[" * 100_000)
        (folder / "directory.json").mkdir()
        (folder / "dangling.json").symlink_to("nowhere")
        os.mkfifo(folder / "fifo.json")
    (spool / "ids").write_bytes(b"\xff\xfe\0")
    (spool.parent / "control-log.jsonl").write_bytes(b"[" * 100_000 + b'\n{"revision": 7}\n{"id": "to')
    run = start(until=True, midrun=REST, in_=place).live(mount=False)
    owned(run)
    assert run.service("spool") == ("running", None)
    assert over(spool, "was-queued")["status"] == "expired"
    executing = over(spool, "was-executing")
    assert (executing["status"], executing["error"]["type"]) == ("failed", "interrupted")
    assert "outcome unknown" in executing["error"]["message"]
    assert len(names(spool, "rejected")) == 3 * 2 * 5
    finished(run)
    assert [line["revision"] for line in control_log_after(run)] == [7, 8, 9]
    run.assert_content()


def control_log_after(run: Run) -> list[dict[str, Any]]:
    """Return the lines of the control log after the first."""
    return [json.loads(line) for line in (run.directory / "control-log.jsonl").read_bytes().splitlines()[1:]]


def test_a_second_run_in_the_directory_says_who_has_the_spool_and_takes_it_over(start: Start, root: Path) -> None:
    place = root / "same"
    first = start(until=True, midrun=QUIET, in_=place)
    spool = owned(first)
    other = root / "other"
    other.mkdir()
    (other / "logs").symlink_to(place / "logs")
    second = start(until=True, midrun=REST, in_=other).live(mount=False)
    state, why = second.service("spool")
    assert (state, f"process {first.pid} has it" in str(why)) == ("failed", True)
    drop(spool, "whose.json", snapshot("whose"))
    assert over(spool, "whose")["status"] == "succeeded"
    status, body, _ = post(second, "by-rest", set_hparam(0.5))
    assert (status, json.loads(body)["durable"]) == (200, False)
    # Whoever finds a run by the directory finds the one that would take what is sent to it.
    assert first.record()["session"]["pid"] == first.pid
    first.signal(signal.SIGKILL)
    assert first.ended() == -signal.SIGKILL
    wait_for(lambda: second.service("spool") == ("running", None), "the other run has it")
    wait_for(lambda: second.record()["session"]["pid"] == second.pid, "it is the one that is found")
    drop(spool, "mine.json", set_hparam(0.5))
    assert over(spool, "mine")["status"] == "succeeded"
    finished(second)


def post(run: Run, id_: str, command: dict[str, Any]) -> tuple[int, bytes, Any]:
    return run.post("/commands", json.dumps({**command, "id": id_}), {"Content-Type": "application/json"})


# ---- kill -9


class Sent:
    """What was sent to the sessions of one run directory, and what each session was told."""

    def __init__(self) -> None:
        self.all: dict[str, dict[str, Any]] = {}
        self.acknowledged: set[str] = set()

    def next(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        """Return the next command: one whose effect can be counted from outside."""
        id_ = f"s{len(self.all)}"
        command = snapshot(id_) if chance.random() < 0.4 else set_hparam(len(self.all) / 100_000)
        self.all[id_] = command
        return id_, command


@pytest.mark.parametrize("way", ["file", "rest"])
def test_killed_at_any_moment_a_run_loses_nothing_and_does_nothing_twice(
    start: Start, root: Path, report: Report, times: Callable[[int], int], way: str
) -> None:
    chance = random.Random(7)  # noqa: S311 - no secret
    place, sent, kills = root / "same", Sent(), 0
    spool = place / "logs/v/spool"
    deadline = time.monotonic() + times(60)
    while time.monotonic() < deadline or kills < 4:
        run = start(until=True, step_s=0.001, in_=place, midrun=QUIET if way == "file" else REST)
        if way == "rest":
            run.live(mount=False)
        elif chance.random() < 0.8:
            owned(run)
        killer = threading.Timer(chance.uniform(0, 0.6), run.signal, [signal.SIGKILL])
        killer.start()
        for _ in range(30):
            id_, command = sent.next(chance)
            if way == "file":
                (spool / "new").mkdir(parents=True, exist_ok=True)
                more = {"session": "next"} if chance.random() < 0.3 else {}
                drop(spool, f"{id_}.json", {**command, **more})
            else:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if post(run, id_, command)[0] == 200:
                        sent.acknowledged.add(id_)
            if not run.alive:
                break
            time.sleep(chance.uniform(0, 0.05))  # the moment is the point
        killer.join()
        assert run.ended() == -signal.SIGKILL, run.told()
        kills += 1
        _assert_nothing_is_torn(run.directory)
        if way == "file":
            sent.acknowledged.update(sent.all.keys() - {name.removesuffix(".json") for name in names(spool, "new")})
    last = start(until=True, in_=place, midrun=QUIET)
    owned(last)
    finished(last)
    _assert_nothing_is_torn(last.directory)
    counts = _assert_each_is_accounted_for(last, sent, every=way == "file")
    report(f"kills while commands came by {way}", kills)
    for what, count in {"sent": len(sent.all), "acknowledged": len(sent.acknowledged), **counts}.items():
        report(what, count)


def _assert_nothing_is_torn(directory: Path) -> None:
    for path in shown(directory, "*.json"):
        if "new" not in path.parts:
            assert is_json(path), (path, path.read_bytes())
    data = (directory / "control-log.jsonl").read_bytes() if (directory / "control-log.jsonl").exists() else b""
    for line in data.splitlines():
        json.loads(line)


def _assert_each_is_accounted_for(run: Run, sent: Sent, *, every: bool) -> dict[str, int]:
    """Check what became of each command, and return how many came to each end."""
    spool = spool_of(run)
    assert [names(spool, state) for state in ("new", "queued", "executing")] == [set(), set(), set()]
    records = {path.stem: json.loads(path.read_bytes()) for path in (spool / "done").iterdir()}
    rejected = {name.partition(".")[0] for name in names(spool, "rejected")}
    forgotten = set((spool / "ids").read_text().split()) if (spool / "ids").exists() else set()
    lines = control_log(run)
    assert [line["revision"] for line in lines] == list(range(1, len(lines) + 1))
    told = Counter(line["id"] for line in lines)
    written = Counter(
        path.name.rpartition("-")[2].partition(".")[0] for path in (run.directory / "artifacts/snapshots").iterdir()
    )
    counts = Counter[str]()
    for id_, command in sent.all.items():
        places = (id_ in records) + (id_ in rejected) + (id_ in forgotten)
        assert places == 1 or (places == 0 and not every and id_ not in sent.acknowledged), (id_, places)
        assert told[id_] <= 1
        if command["kind"] == "snapshot":
            assert written[id_] <= 1, f"{id_} was done twice"
        done = told[id_] + (written[id_] if command["kind"] == "snapshot" else 0)
        if (record := records.get(id_)) is None:
            counts["over, and no longer kept"] += id_ in forgotten
            counts["rejected"] += id_ in rejected
            counts["never taken in"] += places == 0
            continue
        end = str((record["error"] or {}).get("type", record["status"]))
        assert (record["status"], end) in {
            ("succeeded", "succeeded"),
            ("failed", "interrupted"),
            ("expired", "expired"),
        }, record
        counts[end] += 1
        if end == "expired":
            assert done == 0, f"{id_} was done, and is said not to be"
        elif end == "succeeded" and command["kind"] == "snapshot":
            assert written[id_] == 1
        counts["interrupted, and done"] += end == "interrupted" and done > 0
        counts["succeeded, and not in the control log"] += end == "succeeded" and told[id_] == 0
    return dict(counts)


# ---- the crash walk

CHANGING = ("openat", "write", "fsync", "rename", "unlink", "mkdir", "mknodat")
"""System calls at whose beginning a process is killed: between two of them nothing changes on the disk."""


@contextlib.contextmanager
def traced(pid: int, log: Path, *options: str | Path) -> Iterator[None]:
    """Have strace at a process and all its threads, and gone again afterwards."""
    with subprocess.Popen(
        ["strace", "-f", "-p", str(pid), "-o", str(log), *map(str, options)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as tracer:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        while "attached" not in said:
            assert said.startswith("strace: Requested path"), said + tracer.stderr.read()
            said = tracer.stderr.readline()
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate(timeout=10)


def test_killed_at_every_change_that_it_makes_a_spool_is_whole_and_has_lost_nothing(root: Path, report: Report) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.spooling"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as program:

        def killed_at(call: str, number: int) -> tuple[Path, int]:
            place = root / f"{call}-{number}"
            (place / "spool/new").mkdir(parents=True)
            for id_, data in (("first", b"{}"), ("second", b"{}"), ("bad", b"no")):
                drop(place / "spool", f"{id_}.json", data)
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write(f"{place}\n")
            program.stdin.flush()
            pid = int(program.stdout.readline())
            inject = [f"inject={call}:signal=KILL:when={number}"] if call else []
            options = [word for expression in ["trace=" + ",".join(CHANGING), *inject] for word in ("-e", expression)]
            with traced(pid, place / "trace", *options):
                os.kill(pid, signal.SIGCONT)
                return place, int(program.stdout.readline())

        place, code = killed_at("", 0)
        assert code == 0
        _assert_the_spool_is_whole(place)
        calls = Counter(re.findall(r"^\d+ +(\w+)\(", (place / "trace").read_text(), re.MULTILINE))
        assert set(calls) == set(CHANGING)
        points = [(call, number) for call, count in calls.items() for number in range(1, count + 1)]
        for call, number in points:
            place, code = killed_at(call, number)
            assert code == -signal.SIGKILL, (call, number)
            _assert_the_spool_is_whole(place)
        assert program.stdin is not None
        program.stdin.close()
    report("points at which it was killed", len(points))


def _assert_the_spool_is_whole(place: Path) -> None:
    """Check what a killed program has left, as it lies there and as the next session reads it."""
    said = set((place / "said").read_text().splitlines()) if (place / "said").exists() else set()
    directory = place / "spool"
    for path in directory.rglob("*.json"):
        if "new" not in path.parts and not path.name.startswith(".") and path.name != "bad.json":
            json.loads(path.read_bytes())
    rejected = {path.name for path in (directory / "rejected").glob("*")}
    if "bad.json" in rejected:
        assert "bad.error.json" in rejected
    spool = Spool(directory, notes=("holds",))
    spool.open()
    found = {state: {record["id"]: record for record in spool.left(state)} for state in STATES}
    new = {path.name.removesuffix(".json") for path in (directory / "new").iterdir()}
    assert not any(".json." in path.name for path in directory.rglob("*")), "nothing half written stays"
    assert ("bad" in new) != ("bad.json" in rejected)
    assert "bad" in new or "in bad" in said or "bad.error.json" in rejected
    for id_ in ("first", "second", "third", "fourth"):
        states = [state for state in STATES if id_ in found[state]]
        assert len(states) <= 1, (id_, states)
        assert bool(states) <= (id_ in spool.used)
        known = id_ in spool.used
        if id_ in {"first", "second"}:
            assert known or id_ in new, f"{id_} is lost"
        if f"in {id_}" in said or f"over {id_}" in said:
            assert known, f"{id_} was acknowledged"
        if f"over {id_}" in said:
            assert states in ([], ["done"]), states
        if states == ["done"]:
            assert found["done"][id_]["status"] in {"succeeded", "cancelled"}
    if (place / "done").exists() and (place / "done").read_text():
        assert "first" not in found["queued"], "what was done is not said to wait"
    assert len(found["done"]) <= spooling.KEPT + 1
    spool.close()


# ---- disks that fail


def aside(pid: int, path: Path) -> Path:
    """Return where the run writes a file before it has its name."""
    return path.with_name(f".{path.name}.{pid}")


def faults(run: Run, id_: str) -> dict[str, tuple[str, Path]]:
    """Return each thing that is done to the disk for a command: the system call, and the path."""
    spool = spool_of(run)
    found = {}
    for state in STATES:
        file = spool / state / f"{id_}.json"
        for call in ("openat", "write", "fsync", "rename"):
            found[f"{call} {state}"] = (call, aside(run.pid, file))
        found[f"openat directory {state}"] = ("openat", spool / state)
        found[f"fsync directory {state}"] = ("fsync", spool / state)
        if state != "done":
            found[f"unlink {state}"] = ("unlink", file)
    for call in ("openat", "write", "fsync"):
        found[f"{call} control log"] = (call, run.directory / "control-log.jsonl")
    return found


def test_whatever_the_disk_does_not_take_training_and_the_command_go_on(start: Start, report: Report) -> None:
    run = start(until=True, step_s=0.002, midrun=REST).live(mount=False)
    spool = owned(run)
    cases = {f"c{number}": case for number, case in enumerate(faults(run, ""))}
    for number, (id_, case) in enumerate(cases.items()):
        call, path = faults(run, id_)[case]
        code = errno.EIO if number % 2 else errno.ENOSPC
        with failing(run, [path], {call: code}) as hits:
            status, body, _ = post(run, id_, set_hparam(number / 100))
            answer = json.loads(body)
            assert status == 200, (case, answer)
            assert answer["durable"] == ("queued" not in case or call == "unlink"), (case, answer)
            wait_for(hits, f"{case} fails")
            record = _over(run, id_)
            assert record["status"] == "succeeded", (case, record)
        wait_for(lambda code=code: os.strerror(code) in run.log, f"{case} is told")  # type: ignore[misc]  # a default
    _assert_all_is_well_again(run, cases)
    assert names(spool, "rejected") == set()
    report("faults of the disk", len(cases))


def test_a_file_that_the_disk_does_not_let_midrun_take_in_is_taken_later(start: Start, report: Report) -> None:
    run = start(until=True, step_s=0.002, midrun=REST).live(mount=False)
    spool = owned(run)
    # Each call fails once, so for each of these files another one.
    ids = ["openat", "write", "fsync", "rename"]
    codes = dict(zip(ids, [errno.EIO, errno.ENOSPC, errno.EIO, errno.ENOSPC], strict=True))
    with failing(run, [aside(run.pid, spool / f"queued/{id_}.json") for id_ in ids], codes) as hits:
        for number, id_ in enumerate(ids):
            drop(spool, f"{id_}.json", set_hparam(number / 10))
        wait_for(lambda: hits() == len(ids), "each fails")
    with failing(run, [spool / "queued"], {"fsync": errno.EIO}) as hits:
        drop(spool, "directory.json", set_hparam(0.5))
        wait_for(hits, "it fails")
    with failing(run, [spool / "new/stays.json"], {"unlink": errno.EIO}) as hits:
        drop(spool, "stays.json", set_hparam(0.75))
        wait_for(hits, "it fails")
        assert over(spool, "stays")["status"] == "succeeded"
    told = aside(run.pid, spool / "rejected/bad.error.json")
    with failing(run, [told, spool / "new/bad.json"], {"write": errno.ENOSPC, "rename": errno.EIO}) as hits:
        drop(spool, "bad.json", {"kind": "no"})
        wait_for(lambda: hits() == 2, "both fail")
    assert reason(spool, "bad")["status"] == 422
    ids += ["directory", "stays"]
    _assert_all_is_well_again(run, ids)
    assert names(spool, "rejected") == {"bad.json", "bad.error.json"}
    report("faults of the disk, for files", len(ids) + 2)


@contextlib.contextmanager
def failing(run: Run, paths: list[Path], codes: dict[str, int]) -> Iterator[Callable[[], int]]:
    """Have each of some system calls fail once for these paths; gives what counts how many have."""
    log = run.root / "trace"
    log.unlink(missing_ok=True)
    injections = [f"inject={call}:error={errno.errorcode[code]}:when=1" for call, code in codes.items()]
    expressions = [f"trace={','.join(codes)}", *injections]
    where = [word for path in paths for word in ("-P", str(path))]
    with traced(run.pid, log, *where, *(word for expression in expressions for word in ("-e", expression))):
        yield lambda: log.read_text().count("(INJECTED)")


def _assert_all_is_well_again(run: Run, ids: Iterable[str]) -> None:
    """Check, when nothing fails any more, that each command was done once and has its record, and end the run."""
    spool = spool_of(run)
    drop(spool, "after.json", set_hparam(0.5))
    for id_ in (*ids, "after"):
        assert over(spool, id_)["status"] == "succeeded", id_
    wait_for(lambda: not names(spool, "queued") | names(spool, "executing") | names(spool, "new"), "nothing is left")
    assert run.service("spool") == ("running", None)
    finished(run)
    told = Counter(line["id"] for line in control_log(run))
    assert {id_: told[id_] for id_ in (*ids, "after")} == dict.fromkeys((*ids, "after"), 1)


def _over(run: Run, id_: str) -> dict[str, Any]:
    """Wait until a command is over; return it as REST shows it: the disk may know less."""

    def ended() -> dict[str, Any] | None:
        status, body, _ = run.get(f"/commands/{id_}")
        record: dict[str, Any] = json.loads(body) if status == 200 else {"status": "queued"}
        return record if record["status"] not in {"queued", "executing"} else None

    return wait_for(ended, f"{id_} is over")


def test_while_the_disk_fails_the_service_says_so_and_files_wait(start: Start) -> None:
    run = start(until=True, step_s=0.002, midrun=REST).live(mount=False)
    spool = owned(run)
    with traced(run.pid, run.root / "trace", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"):
        drop(spool, "waits.json", set_hparam(0.25))
        drop(spool, "bad.json", {"kind": "no"})
        wait_for(lambda: run.service("spool")[0] == "failed", "the service says so")
        why = run.service("spool")[1] or ""
        assert os.strerror(errno.EIO) in why
        status, body, _ = post(run, "by-rest", set_hparam(0.75))
        assert (status, json.loads(body)["durable"]) == (200, False)
        record = _over(run, "by-rest")
        assert (record["status"], record["durable"]) == ("succeeded", False)
        run.passes(20)
        assert (spool / "new/waits.json").exists()
        assert (spool / "new/bad.json").exists()
        assert run.service("spool")[0] == "failed"
    assert over(spool, "waits")["status"] == "succeeded"
    assert reason(spool, "bad")["status"] == 422
    assert over(spool, "by-rest")["status"] == "succeeded"
    assert run.service("spool") == ("running", None)
    assert why in run.log
    finished(run)
    assert Counter(line["id"] for line in control_log(run))["by-rest"] == 1


def fill(path: Path) -> None:
    """Write until there is no room left."""
    with path.open("wb", buffering=0) as filling:
        try:
            while True:
                filling.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - whatever else is wrong would be of no use


@pytest.mark.mount
def test_a_full_disk_stops_neither_training_nor_commands_and_files_wait_until_there_is_room(
    start: Start, root: Path
) -> None:
    place = root / "full"
    disk = place / "midrun"
    disk.mkdir(parents=True)
    output("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk)
    run = start(until=True, step_s=0.002, logger=None, midrun=REST, in_=place)
    run.find()
    run.live(mount=False)
    spool = owned(run)
    drop(spool, ".waits", set_hparam(0.25))
    fill(disk / "filling")
    (spool / "new/.waits").rename(spool / "new/waits.json")
    wait_for(lambda: run.service("spool")[0] == "failed", "the service says so")
    assert "No space left on device" in (run.service("spool")[1] or "")
    for number in range(5):
        status, body, _ = post(run, f"full-{number}", set_hparam(0.5))
        assert (status, json.loads(body)["durable"]) == (200, False)
        assert _over(run, f"full-{number}")["durable"] is False
    run.passes(20)
    assert (spool / "new/waits.json").exists()
    (disk / "filling").unlink()
    assert over(spool, "waits")["status"] == "succeeded"
    for number in range(5):
        assert over(spool, f"full-{number}")["status"] == "succeeded"
    assert run.service("spool") == ("running", None)
    finished(run)
    assert run.last_state()["services"]["spool"]["state"] == "running"
    assert [line["id"] for line in control_log(run)][-6:-1] == [f"full-{number}" for number in range(5)]
    output("umount", "-l", disk)


def test_a_disk_that_is_full_when_a_run_is_killed_does_not_say_that_what_was_begun_was_not(
    start: Start, root: Path
) -> None:
    place = root / "same"
    run = start(until=True, step_s=0.002, midrun=REST, in_=place).live(mount=False)
    spool = owned(run)
    status, _, _ = post(run, "later", {**set_hparam(0.5), "execution": {"when": {"global_step": run.step() + 300}}})
    assert status == 200
    with traced(
        run.pid,
        run.root / "trace",
        *(word for path in _asides(run, "later") for word in ("-P", path)),
        *("-e", "trace=write", "-e", "inject=write:error=ENOSPC"),
    ):
        record = _over(run, "later")
        assert record["status"] == "succeeded"
        wait_for(lambda: any(line["id"] == "later" for line in control_log(run)), "the control log has it")
        run.signal(signal.SIGKILL)
        assert run.ended() == -signal.SIGKILL
    second = start(until=True, midrun=QUIET, in_=place)
    owned(second)
    assert over(spool, "later")["status"] == "succeeded", "the control log knows it"
    finished(second)


def _asides(run: Run, id_: str) -> list[Path]:
    return [aside(run.pid, spool_of(run) / state / f"{id_}.json") for state in STATES[1:]]


@pytest.mark.mount
def test_a_file_from_before_the_session_is_expired_also_if_the_disk_was_full_when_the_session_began(
    start: Start, root: Path
) -> None:
    place = root / "same"
    spool = place / "logs/v/spool"
    spool.mkdir(parents=True)
    output("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", spool)
    for state in ("new", "queued"):
        (spool / state).mkdir()
    (spool / "queued/left.json").write_text(json.dumps({"id": "left", "status": "queued", **KNOWN}))
    drop(spool, "late.json", set_hparam(0.5))
    fill(spool / "filling")
    run = start(until=True, midrun=REST, in_=place).live(mount=False)
    wait_for(lambda: run.service("spool")[0] == "failed", "the service says so")
    (spool / "filling").unlink()
    assert over(spool, "late")["status"] == "expired"
    assert over(spool, "left")["status"] == "expired"


def test_a_directory_that_can_not_be_looked_into_is_told(start: Start) -> None:
    run = start(until=True, step_s=0.002, midrun=REST).live(mount=False)
    spool = owned(run)
    inject = "inject=getdents64:error=EIO"
    with traced(run.pid, run.root / "trace", "-P", spool / "new", "-e", "trace=getdents64", "-e", inject):
        wait_for(lambda: run.service("spool")[0] == "failed", "the service says so", 3)


@pytest.mark.parametrize("path", ["/files/holds", "/holds/foreign"])
def test_a_record_that_lacks_members_stops_nobody_from_looking(start: Start, root: Path, path: str) -> None:
    spool = root / "same/logs/v/spool"
    (spool / "done").mkdir(parents=True)
    (spool / "done/foreign.json").write_text('{"id": "foreign"}')
    run = start(until=True, midrun=REST, in_=root / "same").live(mount=False)
    owned(run)
    assert run.get(path)[0] in {200, 404}
