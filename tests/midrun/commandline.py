"""The command line as a user starts it, and run directories that are made up for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from midrun import records

PLACES = ("new", "queued", "executing", "done", "rejected", "holds")


def midrun(*words: str | Path, cwd: Path | None = None, text: str = "", seconds: float = 30) -> tuple[int, str, str]:
    """Run `midrun`; return its exit code and what it printed to standard output and standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "midrun", *map(str, words)],
        cwd=cwd,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def complaint(*words: str | Path, code: int, cwd: Path | None = None, text: str = "") -> str:
    """Run `midrun`, which must end with this exit code, and print only one line, to standard error: return that."""
    ended, out, err = midrun(*words, cwd=cwd, text=text)
    assert (ended, out, err.count("\n")) == (code, "", 1), (ended, out, err)
    return err


def made_up(directory: Path, *, session: dict[str, Any] | None = None, **last: Any) -> Path:
    """Make a run directory: of a run that is live in this process, unless told otherwise."""
    for place in PLACES:
        (directory / "spool" / place).mkdir(parents=True)
    now = time.time()
    here = {**records.new_session(now), "host": "here"}
    record = {
        "format": "midrun.run/1",
        "run_id": directory.name,
        "artifact_dir": str(directory / "artifacts"),
        "fuse_mountpoint": None,
        "rest_url": None,
        "session": {**here, **(session or {})},
    }
    (directory / "run.json").write_text(json.dumps(record))
    state = {"status": "running", "stage": "train", "epoch": 1, "global_step": 7, "batch": 3, "written": now, **last}
    (directory / "last-state.json").write_text(json.dumps(state))
    return directory


def put(directory: Path, state: str, name: str, **members: Any) -> None:
    """Put a document into a directory of a run's spool."""
    (directory / "spool" / state / f"{name}.json").write_text(json.dumps({"id": name, **members}))
