"""Records as a run lists them, and a run in which somebody who means harm has named everything."""

from __future__ import annotations

from typing import Any

from tests.web.board import HOSTILE, Board, csv

TEXT = "\n".join(HOSTILE)


def record(number: int, **more: Any) -> dict[str, Any]:
    """Return a command as it is listed."""
    return {
        "id": f"c{number}",
        "kind": "pause",
        "args": {},
        "execution": {},
        "status": "queued",
        "source": "test",
        "via": "rest",
        "submitted": 1_700_000_000.0,
        "started": None,
        "finished": None,
        "place": None,
        "result": None,
        "error": None,
        **more,
    }


def hold(**more: Any) -> dict[str, Any]:
    """Return a hold as it is listed."""
    return {
        "id": "h1",
        "status": "active",
        "reason": None,
        "is_pause": True,
        "source": "test",
        "place": None,
        "since": 1_700_000_000.0,
        "ended": None,
        "released_by": None,
        "joined_ids": [],
        **more,
    }


def script(**more: Any) -> dict[str, Any]:
    """Return a shell hook as it is listed."""
    return {
        "enabled": True,
        "runs": 3,
        "failures": 0,
        "failures_in_a_row": 0,
        "is_failing": False,
        "seconds": 0.0125,
        "trouble": None,
        **more,
    }


def hooks(**scripts: dict[str, Any]) -> dict[str, Any]:
    """Return a list of shell hooks."""
    return {"directory": "/data/run/hooks", "scripts": scripts}


def exception(text: str) -> dict[str, Any]:
    return {
        "type": text,
        "message": text,
        "traceback": text,
        "global_step": 3,
        "epoch": 0,
        "batch": None,
        "time": 1_700_000_000.0,
    }


def finding(path: str, **more: Any) -> dict[str, Any]:
    """Return what the check of batches has found."""
    found = {"path": path, "nan": 1, "infinite": 2, "numbers": 3000, "stage": "train", "global_step": 7}
    return {**found, "epoch": 0, "batch": 7, "time": 1_700_000_000.0, **more}


def harm(board: Board) -> None:
    """Give everything on a board a hostile name or text."""
    board.run_id, board.label = HOSTILE[0], HOSTILE[3]
    board.directory += "/<img src=x onerror=alert(9)>"
    board.metrics = {name: float(at) for at, name in enumerate(HOSTILE)}
    board.points = {name: csv([at, at + 0.5], start=10 * at) for at, name in enumerate(HOSTILE)}
    board.tunables = {
        name: {"value": name, "type": name, "label": label, "min": 0, "max": 1e300}
        for name, label in zip(HOSTILE, reversed(HOSTILE), strict=True)
    }
    board.exception = exception(TEXT)
    board.checked = {"enabled": True, "hold": True, "batches": 1 << 50, "not_finite": 2, "unread": 1}
    board.checked |= {"first": finding(TEXT, stage=TEXT), "last": finding(HOSTILE[0], time=0.0)}
    board.services = {name: {"state": "failed", "reason": TEXT, "since": 0.0} for name in HOSTILE}
    board.written = [{"path": f"debug/{name}", "size": 1 << 50, "modified": 0.0} for name in HOSTILE]
    board.written += [{"path": name, "size": 0, "modified": 0.0} for name in [*HOSTILE, "\udcff.ckpt"]]
    change = {"what": HOSTILE[0], "old": HOSTILE[1], "new": HOSTILE[2]}
    place = {"safe_point": HOSTILE[3], "global_step": 1, "epoch": 0, "batch": 0}
    board.given = [
        record(0, kind=HOSTILE[0], args=dict.fromkeys(HOSTILE, TEXT), execution={"when": dict.fromkeys(HOSTILE, TEXT)}),
        record(1, source=TEXT, status="succeeded", place=place, result={"changes": [change], "notes": HOSTILE}),
        record(2, status="failed", error={"type": HOSTILE[0], "message": TEXT}),
        record(3, status=HOSTILE[0], result={"artifact": {"id": TEXT}, "will_be_overwritten_by": HOSTILE}),
    ]
    board.log = [
        {
            "revision": at,
            "time": 0.0,
            "event": name,
            "kind": name,
            "source": name,
            "place": place,
            "changes": [change],
            "error": {"type": name, "message": name},
        }
        for at, name in enumerate(HOSTILE)
    ]
    active, due = hold(reason=TEXT, source=TEXT, place=place), hold(id="h2", status="pending", reason=TEXT, source=TEXT)
    board.holding = {
        "active": active,
        "exception": exception(TEXT),
        "pending": [due],
        "waiting": [],
        "stopped": False,
    }
    board.furnish(
        phases={"verdict": TEXT, "phases": {name: {"share": 1 / len(HOSTILE)} for name in HOSTILE}},
        memory=dict.fromkeys(HOSTILE, TEXT),
        hooks={"directory": TEXT, "scripts": dict.fromkeys(HOSTILE, script(trouble=TEXT))},
        host=HOSTILE[0],
    )
    board.summary = TEXT
    board.graph = graph_of_harm()


QUOTE = '\\"'


def graph_of_harm() -> str:
    """Return a graph whose labels, fonts, links and pictures are what a person who means harm would make them."""
    quoted = [name.replace("\\", "\\\\").replace('"', '\\"').replace("\0", "") for name in HOSTILE]
    nodes = [f'n{at} [label="{name}" URL="{name}" tooltip="{name}"]' for at, name in enumerate(quoted)]
    fonts = [name.replace(QUOTE, "") for name in quoted]
    edges = [f'n{at} -> n{at + 1} [label="{n}" fontname="{fonts[at]}"]' for at, n in enumerate(quoted[:-1])]
    styles = ['stylesheet="http://127.0.0.1:9/x"', 'URL="javascript:alert(7)"', 'fontname="<script>alert(8)</script>"']
    return "digraph {\n" + "\n".join([*styles, 'n0 [image="/x.png"]', *nodes, *edges]) + "\n}"
