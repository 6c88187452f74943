"""The ways in which a command reaches a run, and what each tells of it: the same, whichever it is."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.e2e.runs import Run
from tests.processes import sh, wait_for

_numbers = itertools.count()
_VOLATILE = {"id", "source", "via", "submitted", "started", "finished", "artifact", "held_s", "released", "released_by"}
"""What is another one each time, or says which way it was."""


@dataclass
class Outcome:
    """What became of a request."""

    record: dict[str, Any] | None = None
    """The command, once it is over, without what differs each time."""
    detail: Any = None
    """Why it was refused: a text, or the list of errors."""

    @property
    def errors(self) -> list[tuple[tuple[Any, ...], str, str]]:
        """The errors, each with where it is in a request."""
        assert isinstance(self.detail, list), self.detail
        return [(tuple(one["loc"]), one["msg"], one["type"]) for one in self.detail]


def outcome_of(run: Run, id_: str) -> Outcome:
    """Return what became of a command that was taken in."""

    def over() -> dict[str, Any] | None:
        record: dict[str, Any] = run.shown(f"commands/{id_}/command.json")
        return record if record["status"] not in {"queued", "executing"} else None

    return Outcome(record=_steady(wait_for(over, f"{id_} is over")))


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if key not in _VOLATILE}
    return value


def by_rest(run: Run, kind: str, args: Any) -> Outcome:
    return _posted(run, "/commands", {"kind": kind, "args": args})


def by_route(run: Run, kind: str, args: Any) -> Outcome:
    return _posted(run, f"/control/{kind}", args)


def _posted(run: Run, path: str, document: Any) -> Outcome:
    status, body, _ = run.post(path, json.dumps(document), {"Content-Type": "application/json"})
    answer = json.loads(body)
    if status == 200:
        return outcome_of(run, answer["id"])
    assert status in {404, 409, 422}, (status, body)
    return Outcome(detail=answer["detail"])


def by_mount(run: Run, kind: str, args: Any) -> Outcome:
    return _written(run, "control/commands", json.dumps({"kind": kind, "args": args}))


def by_file(run: Run, kind: str, args: Any) -> Outcome:
    return _written(run, f"control/{kind}", json.dumps(args))


def _written(run: Run, path: str, text: str) -> Outcome:
    before = {record["id"] for record in run.shown("commands/index.json")["commands"]}
    done = sh("dd", f"of={run.procfs / path}", "status=none", text=f"{text}\n")
    if done.returncode == 0:
        new = [record for record in run.shown("commands/index.json")["commands"] if record["id"] not in before]
        assert len(new) == 1, new
        return outcome_of(run, new[0]["id"])
    newest = run.shown("control/errors.json")["errors"][0]
    assert newest["path"] == path
    assert newest["via"] == "fuse"
    return Outcome(detail=newest["errors"] or newest["message"])


def by_spool(run: Run, kind: str, args: Any) -> Outcome:
    id_ = f"way-{os.getpid()}-{next(_numbers)}"
    spool = run.directory / "spool"
    (spool / "new" / f".{id_}").write_text(json.dumps({"kind": kind, "args": args}))
    (spool / "new" / f".{id_}").rename(spool / "new" / f"{id_}.json")
    done, refused = spool / "done" / f"{id_}.json", spool / "rejected" / f"{id_}.error.json"
    wait_for(lambda: done.exists() or refused.exists(), f"{id_} is done or rejected")
    if refused.exists():
        wait_for((spool / "rejected" / f"{id_}.json").exists, f"{id_} lies beside its reason")
        return Outcome(detail=json.loads(refused.read_text())["detail"])
    return Outcome(record=_steady(json.loads(done.read_text())))


def by_command_line(run: Run, kind: str, args: Any) -> Outcome:
    request = json.dumps({"kind": kind, "args": args})
    done = sh(sys.executable, "-m", "midrun", "send", run.directory, request, "--wait", "--json")
    if done.returncode == 2:
        assert done.stderr.count("\n") == 1, done.stderr
        assert "Traceback" not in done.stderr
        newest = max((run.directory / "spool/rejected").glob("*.error.json"), key=lambda path: path.stat().st_mtime_ns)
        detail = json.loads(newest.read_text())["detail"]
        for message in [detail] if isinstance(detail, str) else [one["msg"] for one in detail]:
            assert message in done.stderr
        return Outcome(detail=detail)
    return Outcome(record=_steady(json.loads(done.stdout)))


WAYS: Mapping[str, Callable[[Run, str, Any], Outcome]] = {
    "REST": by_rest,
    "the route of the kind": by_route,
    "a write to control/commands": by_mount,
    "a write to control/<kind>": by_file,
    "a dropped file": by_spool,
    "the command line": by_command_line,
}
