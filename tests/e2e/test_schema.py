"""The REST API of a run that trains does what its own document says, whatever it is sent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import Report, Start
from tests.e2e.runs import Run
from tests.processes import wait_for

HOOKS = """
import schemathesis

# A stop would end what is being tried.
@schemathesis.hook
def filter_body(context, body):
    return not (isinstance(body, dict) and body.get("kind") == "stop")
"""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
"""What holds of any run. That what is valid is also taken depends on the run: there may be nothing to continue."""


def trains_on(run: Run) -> None:
    """Wait until it has made more steps; let go of every hold that was asked for, and of which one may yet begin."""
    first = run.mark("steps")

    def has_trained() -> bool:
        if run.shown("holds/index.json")["active"] is not None:
            run.post("/control/continue")
        return bool(run.mark("steps") >= first + 20)

    wait_for(has_trained, "20 more steps", every=0.1)


def test_a_run_that_is_sent_anything_at_all_does_as_documented_and_trains_on(
    start: Start, root: Path, report: Report, times: Callable[[int], int]
) -> None:
    run = start(until=True, step_s=0.002, midrun={"fuse_enabled": False}).live(mount=False)
    (root / "hooks.py").write_text(HOOKS)
    examples = times(100)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run"),
            *("--exclude-operation-id", "post_control_stop"),
            # What these two take depends on the node; for each node there is a path of its own.
            *("--exclude-operation-id", "post_files_path"),
            *("--exclude-operation-id", "post_control_name"),
            # The other phases are thousands of cases, whatever number is asked for.
            *("--phases", "fuzzing" if examples < 100 else "examples,coverage,fuzzing,stateful"),
            *("--checks", ",".join(CHECKS)),
            *("--max-examples", str(examples)),
            *("--seed", "1"),
            *("--generation-database", "none"),
            f"http://127.0.0.1:{run.port}/openapi.json",
        ],
        cwd=root,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
    found = re.search(r"([\d,]+) generated", ran.stdout)
    assert found is not None, ran.stdout
    report("cases", int(found[1].replace(",", "")))
    trains_on(run)
    services = run.shown("state/services.json")["services"]
    assert {service["state"] for service in services.values()} <= {"running", "off"}, services
    # As every bug of midrun's own is told.
    assert "please report it" not in run.log, run.log
    run.enough()
    wait_for(lambda: not run.alive, "it ends")
    assert run.ended() == 0, run.told()
    assert run.left() == []
