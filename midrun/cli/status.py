"""Status: how a run stands, and which there are, from their files; where the run's own server answers, from that."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from typing import Any

from midrun.cli import output
from midrun.cli.output import clock, one_line, pairs, shown, span, to_stderr, to_stdout
from midrun.cli.runs import Run, document, restored
from midrun.fs.render import render
from midrun.records import LAST_STATE

_ANSWER = 1.0
"""Seconds for an answer of the run's server."""
_ANSWERS = 1.5
"""Seconds for all of them."""
_WIDTH = 16
"""Columns for a row's name."""
_LINE = 88
"""Columns for what stands behind a row's name."""
_PROGRESS = (("epoch", "epoch", "max_epochs"), ("step", "global_step", "max_steps"), ("batch", "batch", "batches"))
_FRESH = {"state": "/run", "metrics": "/metrics", "optimizers": "/optimizers", "services": "/files/state/services.json"}


# ---- one run


def status(run: Run, *, as_json: bool) -> int:
    """Show how a run stands."""
    found = gathered(run)
    if as_json:
        to_stdout(render("status.json", found).decode().rstrip("\n"))
    else:
        to_stdout("\n".join(_lines(run, found)))
    return 0


def gathered(run: Run) -> dict[str, Any]:
    """Return all that is known of how a run stands."""
    fresh = asked(run) if run.is_live else None
    commands = records(run, "queued") + records(run, "executing")
    hold = _hold(run) if run.is_live else None
    state = {k: v for k, v in run.last.items() if k not in {"metrics", "learning_rates", "services", "written"}}
    if fresh is not None:
        state = {**state, **fresh["state"]}
    elif run.is_live and run.last and not run.last.get("exception") and (hold or run.last.get("status") == "held"):
        # It may have been held, or let go, since that was written.
        state["status"] = "running" if hold is None else "held"
    metrics, rates, services = (run.last.get(key) for key in ("metrics", "learning_rates", "services"))
    if fresh is not None:
        metrics, services = fresh["metrics"].get("metrics"), fresh["services"].get("services")
        optimizers = fresh["optimizers"].get("optimizers") or []
        rates = [[group.get("lr") for group in optimizer.get("groups", ())] for optimizer in optimizers]
    return {
        **_identity(run),
        "shown_from": "rest" if fresh is not None else LAST_STATE if run.last else None,
        "age_s": 0.0 if fresh is not None else run.age,
        "state": state,
        "metrics": metrics or {},
        "learning_rates": rates or [],
        "hold": hold,
        "commands": commands,
        "services": services or {},
    }


def _identity(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.record.get("run_id"),
        "life": run.life,
        "why": run.why,
        "directory": run.directory,
        "session": run.session,
        **{key: run.record.get(key) for key in ("rest_url", "fuse_mountpoint", "artifact_dir")},
    }


def records(run: Run, state: str) -> list[dict[str, Any]]:
    """Return the records in a directory of a run's spool, the oldest first."""
    found = []
    with suppress(OSError):
        for path in (run.path / "spool" / state).iterdir():
            if path.suffix == ".json" and not path.name.startswith("."):
                with suppress(OSError):
                    record = document(path)
                    found += [restored(record)] if record else []
    return sorted(found, key=lambda record: record.get("submitted") or record.get("since") or 0.0)


def _hold(run: Run) -> dict[str, Any] | None:
    """Return the hold that is active: the newest of this session, for a killed one's is still said to be active."""
    started = run.session.get("started") or 0.0
    active = [hold for hold in records(run, "holds") if hold.get("status") == "active"]
    return next((hold for hold in reversed(active) if (hold.get("since") or 0.0) >= started), None)


def _lines(run: Run, found: dict[str, Any]) -> list[str]:
    rows = [
        ("directory", one_line(run.directory)),
        *_process(run),
        ("progress", _progress(found["state"])),
        ("pace", _pace(found["state"]) if run.is_live else ""),
        *_metrics(found["metrics"]),
        ("learning rates", "; ".join(", ".join(map(shown, rates)) for rates in found["learning_rates"])),
        ("exception", _exception(found["state"].get("exception"))),
        ("held", _held(found["hold"]) if found["hold"] else _caught(run, found["state"])),
        *(("notice", one_line(str(notice))) for notice in found["state"].get("notices") or () if run.is_live),
        *_waiting(run, found),
        *_failed(run, found["services"]),
        ("shown", _age(run) if found["shown_from"] != "rest" else ""),
    ]
    first = f"{one_line(str(run.record.get('run_id')))}  {run.life}: {_how_it_is(run, found['state'])}"
    return [first, *(f"  {name:<{_WIDTH}}{text}" for name, text in rows if text)]


def _how_it_is(run: Run, state: dict[str, Any]) -> str:
    if not run.is_live or state.get("status") is None:
        return run.why
    stage = f" ({state['stage']})" if state.get("stage") else ""
    return one_line(f"{state['status']}{stage}")


def _process(run: Run) -> list[tuple[str, str]]:
    session, url = run.session, run.record.get("rest_url")
    started, ended = session.get("started"), session.get("ended")
    began = f", since {clock(started)} ({span(time.time() - started)})" if started and run.is_live else ""
    rows = [("process", f"{session.get('pid')} on {one_line(str(session.get('host')))}{began}")]
    if started and not run.is_live:
        until = f" to {clock(ended)} ({span(ended - started)})" if ended else ""
        rows.append(("trained", f"from {clock(started)}{until}"))
    if url and run.is_live:
        rows.append(("url", one_line(str(url))))
    return rows


def _progress(state: dict[str, Any]) -> str:
    # Epochs and steps are those that are done; a batch is under way, and the first is the first.
    counts = {**state, "batch": state["batch"] + 1} if isinstance(state.get("batch"), int) else state
    parts = [
        f"{word} {counts[name]}{f' of {state[limit]}' if state.get(limit) is not None else ''}"
        for word, name, limit in _PROGRESS
        if state.get(name) is not None
    ]
    return ", ".join(parts) or "not known"


def _pace(state: dict[str, Any]) -> str:
    if _is_caught(state):
        return ""  # It does not go on.
    held = state.get("status") == "held"
    rate, left = state.get("steps_per_second"), state.get("seconds_left")
    parts = [
        f"{rate} steps/s" if rate is not None and not held else "",
        f"about {span(left)} left{' when it goes on' if held else ''}" if left is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _metrics(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the metrics, as many on a line as fit."""
    lines = [""]
    for name, value in metrics.items():
        told = pairs({name: value})
        if lines[-1] and len(lines[-1]) + len(told) >= _LINE:
            lines.append("")
        lines[-1] = f"{lines[-1]} {told}".strip()
    return [("metrics" if at == 0 else "", line) for at, line in enumerate(lines)]


def _exception(exception: dict[str, Any] | None) -> str:
    if not exception:
        return ""
    told = f": {exception['message']}" if exception.get("message") else ""
    return one_line(f"{exception.get('type')} at {output.place(exception)}{told}")


def _waiting(run: Run, found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the commands that are not over: of a run that is no more, those that its next session has to explain."""
    held_by = (found["hold"] or {}).get("id")
    return [
        (
            one_line(str(record.get("status"))) if run.is_live else "left",
            f"{one_line(str(record.get('id')))} {_asks(record)}",
        )
        for record in found["commands"]
        if record.get("id") != held_by
    ]


def _failed(run: Run, services: dict[str, Any]) -> list[tuple[str, str]]:
    failed = [(name, service) for name, service in services.items() if service.get("state") == "failed"]
    return [("failed", one_line(f"{name}: {service.get('reason')}")) for name, service in failed if run.is_live]


def _age(run: Run) -> str:
    return "nothing: there is no last-state.json" if run.age is None else f"as of {span(run.age)} ago"


def _held(hold: dict[str, Any]) -> str:
    since = hold.get("since")
    parts = [f"since {clock(since)} ({span(time.time() - since)})" if since else "", f"by {hold.get('source')}"]
    parts.append(f"at {output.place(hold.get('place'))}")
    if hold.get("reason"):
        parts.append(f"because {shown(hold['reason'])}")
    if hold.get("joined_ids"):
        parts[-1] += ","
        parts.append(f"joined by {', '.join(map(str, hold['joined_ids']))}")
    return one_line(" ".join(filter(None, parts)))


def _is_caught(state: dict[str, Any]) -> bool:
    return state.get("status") == "held" and bool(state.get("exception"))


def _caught(run: Run, state: dict[str, Any]) -> str:
    """Return how a run stands still that no hold holds, but an exception of its backward pass."""
    if not (run.is_live and _is_caught(state)):
        return ""
    return f"by the exception; to let the run end with it: midrun send {one_line(str(run.directory))} release_exception"


def _asks(record: dict[str, Any]) -> str:
    when = (record.get("execution") or {}).get("when") or {}
    due = f" when {pairs(when)}" if when else ""
    return f"{one_line(str(record.get('kind')))} {pairs(record.get('args') or {})}".rstrip() + due


# ---- what the run's server says


def asked(run: Run) -> dict[str, dict[str, Any]] | None:
    """Return what the run's own server says, or None where it does not answer at once. Any other's does not count."""
    answers: list[dict[str, dict[str, Any]]] = []

    def ask() -> None:
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            answers.append(_answers(run))

    # Apart, since nothing bounds how long it takes to find a host by its name.
    asking = threading.Thread(target=ask, daemon=True)
    if run.record.get("rest_url"):
        asking.start()
        asking.join(_ANSWERS)
    return answers[0] if answers else None


def _answers(run: Run) -> dict[str, dict[str, Any]]:
    """Ask the run's server. Raises what http.client raises, or LookupError where it is not the run's, or is late."""
    # Only here: to import it takes as long as all else.
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415
    from urllib.parse import urlsplit  # noqa: PLC0415

    address = urlsplit(str(run.record["rest_url"]))
    if address.scheme != "http" or address.hostname is None:
        raise LookupError("that is no address of midrun's")

    def get(path: str) -> dict[str, Any]:
        connection = HTTPConnection(str(address.hostname), address.port, timeout=_ANSWER)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            found = json.loads(answer.read())
            if answer.status != 200 or answer.getheader("X-Midrun-Age") is not None:  # noqa: PLR2004 - OK, in HTTP
                raise LookupError(f"{path} is not at hand")
            return restored(found)
        except HTTPException as error:
            raise LookupError(f"{path} is not answered as by midrun") from error
        finally:
            connection.close()

    health = get("/health")
    if health["run_id"] != run.record.get("run_id") or not health["trainer_answers"]:
        raise LookupError("it is another run, or its process is busy")
    return {name: get(path) for name, path in _FRESH.items()}


# ---- many runs


def listed(runs: list[Run], top: str, note: str, *, as_json: bool) -> int:
    """Show which runs there are."""
    if as_json:
        to_stdout(
            render("runs.json", {"runs": [{**_identity(run), "state": run.last, "age_s": run.age} for run in runs]})
            .decode()
            .rstrip("\n")
        )
        return 0
    if runs:
        to_stdout("\n".join(table(runs)))
    if note or not runs:
        to_stderr(f"{'more runs may be' if runs else 'no run is'} below {os.path.abspath(top)}{note}")
    return 0


def table(runs: list[Run]) -> list[str]:
    """Return a line for each run."""
    rows = [_row(run) for run in runs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(run: Run) -> tuple[str, ...]:
    step, started = run.last.get("global_step"), run.session.get("started")
    return (
        run.life,
        "step ?" if step is None else f"step {step}",
        clock(started) if started else "?",
        one_line(run.directory),
        one_line(str(run.record.get("rest_url") or "-")) if run.is_live else "-",
    )
