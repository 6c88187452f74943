"""Finding runs from files alone: which are live, ended or gone, and never a look into a mount."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midrun.cli import runs
from midrun.cli.output import Trouble
from midrun.fs import mounts
from tests.midrun.commandline import complaint, made_up, midrun, put


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listed() -> dict[str, str]:
    return {run.directory: run.life for run in runs.below(".")[0]}


def dead() -> int:
    """Return the number of a process that has just ended."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


@pytest.mark.parametrize(
    ("session", "life"),
    [
        ({}, "live"),
        ({"ended": 1.0, "outcome": "finished"}, "ended"),
        ({"pid": None}, "gone"),
        # This process is another: the number is used anew.
        ({"born": 1}, "gone"),
        # Somebody has set the clock.
        ({"started": time.time() + 1e6}, "live"),
        ({"started": 1.0}, "live"),
        # On another machine what counts is the age of last-state.json.
        ({"boot_id": "another", "host": "node17"}, "live"),
    ],
)
def test_a_run_is_live_or_ended_or_gone(session: dict[str, Any], life: str, tmp_path: Path) -> None:
    made_up(tmp_path / "run", session=session)
    assert listed() == {"run": life}


def test_status_says_who_stopped_a_run(tmp_path: Path) -> None:
    made_up(tmp_path / "run", session={"ended": 1.0, "outcome": "finished", "stopped_by": "lunch bot"})
    assert midrun("status", "run")[1].startswith("run  ended: finished, stopped by lunch bot\n")


def test_a_run_whose_process_was_killed_is_gone(tmp_path: Path) -> None:
    made_up(tmp_path / "run", session={"pid": dead()})
    assert listed() == {"run": "gone"}
    assert "was killed" in midrun("status", "run")[1]


def test_a_killed_process_that_nobody_has_waited_for_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        made_up(tmp_path / "run", session={"pid": zombie.pid})
        assert listed() == {"run": "gone"}


def test_a_run_on_another_host_that_has_long_been_silent_is_gone(tmp_path: Path) -> None:
    made_up(tmp_path / "run", session={"boot_id": "another", "host": "node17"}, written=time.time() - 200)
    assert listed() == {"run": "gone"}
    assert "node17 has not written last-state.json for 3 min 20 s" in midrun("status", "run")[1]


def test_a_run_in_another_container_is_known_by_its_lock(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run", session={"pid": dead()})
    # A process that holds the lock and says so.
    program = "import fcntl, sys; f = open('run/spool/lock', 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert listed() == {"run": "live"}
        # To ask does not take it.
        lock = os.open(run / "spool/lock", os.O_RDWR)
        with pytest.raises(OSError, match="unavailable"):
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.communicate(b"\n")
        assert listed() == {"run": "gone"}
        os.close(lock)


def test_runs_are_found_below_but_not_in_what_is_no_place_for_them(tmp_path: Path) -> None:
    for place in ("a/b/run", "run2", ".hidden/run", "procfs/run", "run2/spool/run", "run2/artifacts/run", "run2/inner"):
        made_up(tmp_path / place)
    made_up(tmp_path.joinpath(*"123456789"))  # too deep
    (tmp_path / "link").symlink_to("run2")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/run.json").write_text('{"format": "of something else"}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/run.json").write_text('{"form')
    assert set(listed()) == {"a/b/run", "run2", "run2/inner"}


def test_the_search_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"x{number}").mkdir()
    monkeypatch.setattr(runs, "MOST", 10)
    assert runs.below(".") == ([], " (in the 10 directories nearest to it)")


def test_a_mount_is_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_up(tmp_path / "run")
    for mounted in (run / "procfs", tmp_path / "mnt"):
        made_up(mounted)
    (tmp_path / "link").symlink_to("mnt")
    mount = mounts.TableLine(1, "0:1", str(tmp_path / "mnt"), mounts.KIND, "midrun:1")
    monkeypatch.setattr(mounts, "table", lambda: [mount])
    touched: list[str] = []

    def noted(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def looks(path: Any) -> Any:
            touched.append(str(path))
            return look(path)

        return looks

    monkeypatch.setattr(os, "scandir", noted(os.scandir))
    monkeypatch.setattr(runs, "document", noted(runs.document))
    assert listed() == {"run": "live"}
    for inside in ("mnt", "mnt/state", "link", "link/state"):
        with pytest.raises(Trouble, match="inside the mount"):
            runs.named(inside)
        with pytest.raises(Trouble, match="inside the mount"):
            runs.below(inside)
    assert runs.named("run/procfs").directory == "run"
    assert touched
    assert [path for path in touched if "procfs" in path or "mnt" in path or "link" in path] == []


def test_the_one_live_run_need_not_be_named(tmp_path: Path) -> None:
    run = made_up(tmp_path / "logs/run")
    made_up(tmp_path / "logs/old", session={"ended": 1.0, "outcome": "finished"})
    assert midrun("status")[1].splitlines()[:2] == ["run  live: running (train)", "  directory       logs/run"]
    assert midrun("status", cwd=run)[1].splitlines()[1] == "  directory       ."


def test_several_live_runs_are_listed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made_up(tmp_path / name)
    made_up(tmp_path / "old", session={"ended": 1.0, "outcome": "finished"})
    code, out, err = midrun("pause")
    assert (code, out) == (2, "")
    *rows, advice = err.splitlines()
    assert [row.split()[-2] for row in rows] == ["one", "two"]
    assert advice == f"midrun: 2 live runs below {tmp_path}: name the run's directory"
    assert list(tmp_path.glob("*/spool/new/*")) == []


def test_runs_that_are_over_are_listed_where_none_is_live(tmp_path: Path) -> None:
    assert "no run below" in complaint("tail", code=2)
    made_up(tmp_path / "old", session={"ended": 1.0, "outcome": "finished"})
    for command in ("tail", "pause", "status"):
        code, out, err = midrun(command)
        assert (code, out) == (1, "")
        assert [line.split()[0] for line in err.splitlines()] == ["ended", "midrun:"]


def test_ls_shows_a_line_for_each_run(tmp_path: Path) -> None:
    made_up(tmp_path / "logs/a", session={"started": time.time() - 5})
    made_up(tmp_path / "logs/b", session={"ended": 1.0, "outcome": "failed"}, global_step=1234)
    code, out, err = midrun("ls", "logs")
    assert (code, err) == (0, "")
    assert [(line.split()[0], *line.split()[1:3], line.split()[-2]) for line in out.splitlines()] == [
        ("live", "step", "7", "logs/a"),
        ("ended", "step", "1234", "logs/b"),
    ]
    found = json.loads(midrun("ls", "logs", "--json")[1])["runs"]
    assert [(run["directory"], run["life"], run["state"]["global_step"]) for run in found] == [
        ("logs/a", "live", 7),
        ("logs/b", "ended", 1234),
    ]


def test_ls_of_nothing_is_no_error(tmp_path: Path) -> None:
    assert midrun("ls") == (0, "", f"midrun: no run is below {tmp_path}\n")
    assert midrun("ls", "--json")[:2] == (0, '{\n  "runs": []\n}\n')
    assert "'nowhere'" in complaint("ls", "nowhere", code=1)


def test_status_shows_what_the_files_say(tmp_path: Path) -> None:
    run = made_up(
        tmp_path / "run",
        written=time.time() - 20,
        max_epochs=9,
        steps_per_second=12.5,
        seconds_left=3700.0,
        metrics={"loss": None, **{f"val/metric-{at}": at / 8 for at in range(12)}},
        _nonfinite={"/metrics/loss": "NaN"},
        learning_rates=[[0.1, 0.01], [1e-5]],
        services={"fuse": {"state": "failed", "reason": "no /dev/fuse"}, "rest": {"state": "off", "reason": "no"}},
    )
    now = time.time()
    hold = {"status": "active", "since": now + 1, "source": "rest", "reason": "look", "place": {"global_step": 8}}
    put(run, "holds", "h1", joined_ids=["h2"], **hold)
    put(run, "holds", "h0", **{**hold, "since": now - 1e6})  # Left over from a session that was killed.
    put(run, "executing", "h1", kind="pause", args={"reason": "look"}, status="executing")
    when = {"when": {"safe_point": "fit_end", "epoch": 3}}
    put(run, "queued", "q1", kind="set_hparam", args={"name": "a", "value": 1}, status="queued", execution=when)
    _, out, _ = midrun("status")
    rows = [re.split("  +", line.strip(), maxsplit=1) for line in out.splitlines()]
    assert rows[0] == ["run", "live: held (train)"]
    told = dict(row for row in rows[1:] if len(row) > 1)  # Others go on with the metrics.
    assert told["progress"] == "epoch 1 of 9, step 7, batch 4"
    assert told["pace"] == "about 1 h 1 min left when it goes on"
    assert told["metrics"].startswith("loss=nan val/metric-0=0 val/metric-1=0.125 ")
    assert "\n                  val/metric-4=0.5 " in out, "many metrics go on below"
    assert max(map(len, out.splitlines())) <= 120
    assert told["learning rates"] == "0.1, 0.01; 1e-05"
    assert told["held"].endswith("by rest at step 8 because look, joined by h2")
    assert told["queued"] == "q1 set_hparam name=a value=1 when safe_point=fit_end epoch=3"
    assert told["failed"] == "fuse: no /dev/fuse"
    assert told["shown"].startswith("as of 2")
    found = json.loads(midrun("status", "--json")[1])
    assert (found["life"], found["hold"]["id"], found["shown_from"]) == ("live", "h1", "last-state.json")
    assert found["_nonfinite"] == {"/metrics/loss": "NaN"}
    assert 20 <= found["age_s"] < 30


def test_status_of_a_run_that_wrote_no_state(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run")
    (run / "last-state.json").unlink()
    code, out, err = midrun("status", run / "run.json")
    assert (code, err) == (0, "")
    assert "there is no last-state.json" in out


def test_a_server_of_another_run_does_not_count(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run")
    # It answers anything with another run's id, as after the port has gone to it.
    program = (
        "import http.server, json\n"
        "class Other(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "        said = {'run_id': 'other', 'trainer_answers': True, 'global_step': 99, 'status': 'held'}\n"
        "        self.wfile.write(json.dumps(said).encode())\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), Other)\n"
        "print(server.server_port, flush=True); server.serve_forever()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        assert other.stdout is not None
        record = json.loads((run / "run.json").read_text())
        record["rest_url"] = f"http://127.0.0.1:{int(other.stdout.readline())}"
        (run / "run.json").write_text(json.dumps(record))
        try:
            found = json.loads(midrun("status", "--json")[1])
        finally:
            other.kill()
    assert (found["shown_from"], found["state"]["global_step"]) == ("last-state.json", 7)


@pytest.mark.parametrize("odd", ["yesterday", [[]], {"a": [1]}])
def test_a_record_that_is_not_understood_hides_no_other_run_and_is_told_in_one_line(odd: Any, tmp_path: Path) -> None:
    made_up(tmp_path / "run")
    made_up(tmp_path / "odd", session={"started": odd, "ended": 1.0})
    code, out, err = midrun("ls")
    assert (code, err) == (0, "")
    assert {line.split()[-2] for line in out.splitlines()} == {"run", "odd"}
    made_up(tmp_path / "strange", metrics=odd, services={"rest": odd}, learning_rates=7)
    assert "not understood" in complaint("status", "strange", code=1)
