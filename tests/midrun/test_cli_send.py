"""Sending to a run that is made up: what lies in the spool, and what is told of what becomes of it."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midrun.cli import main, send
from tests.midrun.commandline import complaint, made_up, midrun, put
from tests.processes import wait_for

OVER = {"status": "succeeded", "place": {"global_step": 7}, "result": None, "error": None}


class Taker:
    """Takes commands as a run does: whatever comes to `new/` goes through `take`."""

    def __init__(self, run: Path, take: Callable[[Path, dict[str, Any]], None]) -> None:
        self.taken: list[dict[str, Any]] = []
        self._run, self._take, self._ends = run, take, threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def end(self) -> None:
        self._ends.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ends.wait(0.01):
            for path in (self._run / "spool/new").glob("[!.]*"):
                asked = {"id": path.stem, **json.loads(path.read_text())}
                self.taken.append(asked)
                self._take(self._run, asked)
                path.unlink(missing_ok=True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return made_up(tmp_path / "run")


@pytest.fixture
def taker(run: Path) -> Iterator[Callable[..., Taker]]:
    takers: list[Taker] = []

    def start(take: Callable[[Path, dict[str, Any]], None]) -> Taker:
        takers.append(Taker(run, take))
        return takers[-1]

    yield start
    for each in takers:
        each.end()


def into(state: str, **members: Any) -> Callable[[Path, dict[str, Any]], None]:
    def take(run: Path, asked: dict[str, Any]) -> None:
        put(run, state, asked["id"], **{"kind": asked["kind"], **members})

    return take


def refused(**reason: Any) -> Callable[[Path, dict[str, Any]], None]:
    def take(run: Path, asked: dict[str, Any]) -> None:
        put(run, "rejected", f"{asked['id']}.error", **reason)
        put(run, "rejected", asked["id"], **asked)

    return take


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["send", "x"], {"kind": "x", "args": {}}),
        (
            ["send", "x", "a=5e-4", "b=text", 'c="7"', "d=[1, 2]"],
            {"args": {"a": 5e-4, "b": "text", "c": "7", "d": [1, 2]}},
        ),
        (
            ["send", "x", "a=", "b=NaN", "c=p=q", "d=true", "e=☃"],
            {"args": {"a": "", "b": "NaN", "c": "p=q", "d": True, "e": "☃"}},
        ),
        (
            ["send", "x", "--at", "fit_end", "a=1", "--step", "5", "b=2"],
            {"args": {"a": 1, "b": 2}, "execution": {"when": {"safe_point": "fit_end", "global_step": 5}}},
        ),
        (["send", "run", "x", "--next"], {"kind": "x", "session": "next"}),
        (["send", "--epoch", "3", "./run", "x"], {"kind": "x", "execution": {"when": {"epoch": 3}}}),
        (["send", '{"kind": "x", "source": "script"}'], {"kind": "x", "source": "script"}),
        (["send", "run", '{"kind": "x", "id": "mine"}'], {"kind": "x", "id": "mine"}),
        (["pause", "--reason", "3"], {"kind": "pause", "args": {"reason": "3"}}),
        (["continue", "run"], {"kind": "continue", "args": {}}),
        (["stop", "--epoch", "9"], {"kind": "stop", "execution": {"when": {"epoch": 9}}}),
    ],
)
def test_what_is_written_is_what_is_asked(
    words: list[str], asked: dict[str, Any], taker: Callable[..., Taker], capsys: pytest.CaptureFixture[str]
) -> None:
    its = taker(into("queued", status="queued"))
    assert main(words) == 0
    [taken] = its.taken
    assert {name: taken[name] for name in asked} == asked
    assert taken["source"] == asked.get("source", "command line")
    assert capsys.readouterr().out == f"{taken['id']}\n"


def test_a_folder_named_like_a_kind_is_no_run(run: Path, taker: Callable[..., Taker]) -> None:
    (run.parent / "checkpoint").mkdir()
    its = taker(into("queued"))
    assert main(["send", "checkpoint"]) == 0
    assert its.taken[0]["kind"] == "checkpoint"


def test_standard_input_may_hold_the_command(taker: Callable[..., Taker]) -> None:
    its = taker(into("done", **OVER))
    code, out, err = midrun("send", "run", "-", "--wait", text='{"kind": "x", "args": {"ü": "☃"}}')
    assert (code, err) == (0, "")
    assert its.taken[0]["args"] == {"ü": "☃"}
    assert out == f"{its.taken[0]['id']} succeeded at step 7\n"


def test_the_file_is_whole_when_it_has_its_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    assert main(["send", "x"]) == 1
    assert list((run / "spool/new").iterdir()) == []


@pytest.mark.parametrize("missing", ["spool", "spool/new", "spool/rejected"])
def test_a_spool_that_is_not_there_is_named(missing: str, run: Path) -> None:
    (run / missing).rename(run / "elsewhere")
    assert missing in complaint("send", "x", code=1)


def test_a_command_that_is_not_taken_is_withdrawn(run: Path) -> None:
    last = {"services": {"spool": {"state": "failed", "reason": "another process has it"}}}
    (run / "last-state.json").write_text(json.dumps(last))
    told = complaint("send", "x", "--timeout", "0.2", "--id", "mine", code=1)
    assert "did not take mine in 0.2 s, and it was withdrawn: another process has it" in told
    assert list((run / "spool/new").iterdir()) == []


def test_what_helps_when_a_command_is_not_taken_is_told(run: Path) -> None:
    told = complaint("send", "x", "--timeout", "0", "--id", "mine", code=1)
    assert "did not take mine in 0 s, and it was withdrawn" in told
    assert told.endswith("its process is stopped, or very busy; send it again when the run goes on\n")


def test_a_command_that_is_taken_while_it_is_withdrawn_is_sent(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def crossing(path: Path, **how: Any) -> None:
        unlink(path, **how)
        put(run, "queued", path.stem, status="queued")

    monkeypatch.setattr(Path, "unlink", crossing)
    assert main(["send", "x", "--timeout", "0", "--id", "mine"]) == 0
    assert capsys.readouterr() == ("mine\n", "")


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ("the run\nis busy", "the run is busy"),
        ([{"loc": ["body", "args", "value"], "msg": "not a number"}], "value=much: not a number"),
        (
            [{"loc": ["body", "args", "name"], "msg": "missing"}, {"loc": ["body", "kind"], "msg": "odd"}],
            "name: missing; kind=x: odd",
        ),
        ([{"loc": ["body", "args", "value", 0], "msg": "odd"}], "value.0: odd"),
        (None, "no reason"),
    ],
)
def test_a_refusal_says_which_field_and_why(detail: object, told: str, taker: Callable[..., Taker], run: Path) -> None:
    put(run, "rejected", "mine.error", detail="of another time")
    taker(refused(detail=detail, status=422))
    assert "midrun: x is refused: " in (line := complaint("send", "x", "value=much", "--wait", code=2))
    assert told in line


@pytest.mark.parametrize(
    ("given", "type_", "told"),
    [
        ("7.0", "int_type", "value=7.0: odd\n"),
        ("yes", "bool_type", "value=yes: odd\n"),
        ("null", "int_type", "value=null: odd\n"),
        ("7", "string_type", """value=7: odd: write value='"7"'\n"""),
    ],
)
def test_a_refusal_quotes_what_was_sent_as_it_was(
    given: str, type_: str, told: str, taker: Callable[..., Taker]
) -> None:
    taker(refused(detail=[{"loc": ["body", "args", "value"], "msg": "odd", "type": type_}], status=422))
    assert complaint("send", "x", f"value={given}", "--wait", code=2).endswith(told)


@pytest.mark.parametrize(
    ("status", "code"), [(404, 2), (405, 2), (413, 2), (422, 2), (409, 1), (410, 1), (503, 1), (504, 1)]
)
def test_a_refusal_of_what_may_be_taken_another_time_is_code_1(
    status: int, code: int, taker: Callable[..., Taker]
) -> None:
    taker(refused(detail="not now", status=status))
    assert complaint("send", "x", code=code) == "midrun: x is refused: not now\n"


def test_a_used_id_is_refused(run: Path) -> None:
    put(run, "done", "mine", status="succeeded")
    assert "'mine' is used" in complaint("send", "x", "--id", "mine", code=2)
    assert "'../up'" in complaint("send", "x", "--id", "../up", code=2)


@pytest.mark.parametrize("session", [{"ended": 1.0, "outcome": "finished"}, {"pid": None}])
def test_a_run_that_is_not_live_gets_only_what_may_wait(session: dict[str, Any], tmp_path: Path) -> None:
    run = made_up(tmp_path / "over", session=session)
    assert "--next" in complaint("pause", run, code=1)
    assert list((run / "spool/new").iterdir()) == []
    code, out, err = midrun("pause", run, "--next")
    assert (code, err) == (0, "")
    asked = json.loads((run / f"spool/new/{out.strip()}.json").read_text())
    assert (asked["kind"], asked["session"]) == ("pause", "next")


@pytest.mark.parametrize("status", ["failed", "expired", "cancelled"])
@pytest.mark.parametrize("waits", [["--wait"], []])
def test_a_command_that_came_to_nothing_is_code_1(status: str, waits: list[str], taker: Callable[..., Taker]) -> None:
    taker(into("done", status=status, error={"type": "Conflict", "message": "it is\ngone"}))
    code, out, err = midrun("send", "x", "--id", "mine", *waits)
    assert (code, err) == (1, f"midrun: x {status}: it is gone\n")
    assert out == (f"mine {status} at no step\n" if waits else "mine\n")


def test_the_outcome_says_what_was_changed(taker: Callable[..., Taker]) -> None:
    changes = [{"what": "optimizers/0/groups/0/lr", "old": 0.01, "new": 5e-4}]
    taker(into("done", **{**OVER, "result": {"changes": changes, "notes": ["and more"], "none": []}}))
    _, out, _ = midrun("send", "x", "--id", "mine", "--wait")
    assert out == 'mine succeeded at step 7\n  optimizers/0/groups/0/lr 0.01 -> 0.0005\n  notes: ["and more"]\n'


def test_a_result_that_is_nought_or_false_is_told(taker: Callable[..., Taker]) -> None:
    result: dict[str, Any] = {"count": 0, "done": False, "loss": 0.0, "no": None, "list": [], "object": {}, "text": ""}
    taker(into("done", **{**OVER, "result": result}))
    _, out, _ = midrun("send", "x", "--id", "mine", "--wait")
    assert out == "mine succeeded at step 7\n  count: 0\n  done: false\n  loss: 0\n"


def test_json_is_the_whole_record(taker: Callable[..., Taker]) -> None:
    taker(into("done", **OVER))
    assert json.loads(midrun("send", "x", "--id", "mine", "--json")[1]) == {"id": "mine", "kind": "x", **OVER}


def test_a_wait_ends_in_time_and_the_command_stays(taker: Callable[..., Taker], run: Path) -> None:
    taker(into("queued", status="queued"))
    assert "mine is queued after 0.5 s" in complaint(
        "send", "x", "--id", "mine", "--wait", "--timeout", "0.5", code=124
    )
    assert (run / "spool/queued/mine.json").exists()


def test_the_wait_for_a_pause_ends_when_the_run_is_held(taker: Callable[..., Taker]) -> None:
    def hold(run: Path, asked: dict[str, Any]) -> None:
        put(run, "executing", asked["id"], kind="pause", status="executing", place=None)
        put(run, "holds", asked["id"], status="active", place={"global_step": 8})

    taker(hold)
    assert midrun("pause", "--wait", "--id", "mine") == (0, "mine holds the run at step 8\n", "")


def test_the_wait_ends_when_the_run_has_died(
    run: Path, taker: Callable[..., Taker], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def die(run: Path, asked: dict[str, Any]) -> None:
        put(run, "executing", asked["id"], kind="x", status="executing")
        record = json.loads((run / "run.json").read_text())
        (run / ".aside").write_text(json.dumps({**record, "session": {**record["session"], "pid": None}}))
        (run / ".aside").rename(run / "run.json")

    monkeypatch.setattr(send, "_LAST_WORDS", 0.1)
    taker(die)
    assert main(["send", "x", "--wait", "--id", "mine"]) == 1
    assert "the run is gone and mine is executing for good" in capsys.readouterr().err


@pytest.mark.parametrize("is_taken", [False, True])
def test_ctrl_c_says_what_becomes_of_the_command(is_taken: bool, run: Path, taker: Callable[..., Taker]) -> None:
    if is_taken:
        taker(into("queued", status="queued"))
    words = [sys.executable, "-m", "midrun", "send", "x", "--id", "mine", "--wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        place = "queued" if is_taken else "new"
        wait_for((run / f"spool/{place}/mine.json").exists, "it is sent")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err == f"midrun: mine {'stays sent: to undo it, send cancel id=mine' if is_taken else 'was withdrawn'}\n"
