"""A program that uses a spool in every way, for whoever wants to kill it in the middle.

For each directory that it reads it forks a child, which stands still until it is told to go on, and prints its process
id, and its end as `waitpid` tells it. The child notes in the file `said` beside the spool what it has been told is on
the disk, and in `done` what it has done in between.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from midrun.fs import spool as module
from midrun.fs.spool import Spool

KEPT = 2
"""Records that are kept in this spool."""


def record(id_: str, status: str) -> dict[str, Any]:
    """Return a record that is longer than one write of a buffer."""
    return {"id": id_, "kind": "stop", "args": {"text": "x" * 20_000}, "status": status}


def use(root: Path) -> None:
    """Take two files in and reject one, do one of the two and cancel the other; then have old records forgotten."""

    def note(file: str) -> Callable[[str], None]:
        fd = os.open(root / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return lambda text: print_(fd, text)

    said, done = note("said"), note("done")
    module.MOST_RECORDS = KEPT
    spool = Spool(root / "spool", notes=("holds",))
    spool.open()
    for drop in spool.drops():
        if drop.data == b"no":
            spool.reject(drop, {"detail": "it says no"})
        else:
            spool.put("queued", record(drop.id, "queued"))
            spool.take(drop)
        said(f"in {drop.id}")
    spool.put("executing", record("first", "executing"))
    said("begun first")
    done("first")
    spool.put("done", record("first", "succeeded"))
    said("over first")
    spool.put("done", record("second", "cancelled"))
    said("over second")
    spool.note("holds", "second", record("second", "cancelled"))
    for id_ in ("third", "fourth"):
        spool.put("done", record(id_, "succeeded"))
        said(f"over {id_}")
    spool.close()


def print_(fd: int, text: str) -> None:
    """Write a line, past every buffer."""
    os.write(fd, f"{text}\n".encode())


def main() -> None:
    """Serve until standard input ends."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            use(Path(line.strip()))
            os._exit(0)
        os.waitpid(pid, os.WUNTRACED)
        print_(1, str(pid))
        print_(1, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


if __name__ == "__main__":
    main()
