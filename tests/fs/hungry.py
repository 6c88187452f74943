"""A trainer whose main loop hardly ever lets go of the GIL: short Python and tiny system calls.

python -m tests.fs.hungry WIRE PAGE SLEEPS INTERVAL SYSCALLS

It prints a line when its loop begins, and answers over the socket WIRE until the face says that it is done. When SLEEPS
is 1, it makes way for waiting faces at its safe points, as the page PAGE tells. INTERVAL is the interpreter's switch
interval in seconds.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

from midrun.fs.answers import Answers
from midrun.fs.page import Page
from midrun.fs.verbs import Tree
from tests.fs.sample import Sample


def main(wire: int, page_fd: int, *, sleeps: bool, interval: float, syscalls: bool) -> None:
    """Spin until the face is done."""
    # On one core, a thread that wakes up finds the GIL taken again already.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cores[os.getpid() % len(cores)]])
    sys.setswitchinterval(interval)
    done = False

    def hear(notice: str, detail: dict[str, Any]) -> None:
        nonlocal done
        done = notice == "done"

    page = Page(page_fd)
    root = Sample()
    answers = Answers(Tree(root), page)
    answers.connect(socket.socket(fileno=wire), hear)
    answers.start()
    asks, later, null = page.asks, root.later, os.open("/dev/null", os.O_WRONLY)
    end = time.monotonic() + 30
    print("spinning", flush=True)  # noqa: T201 - the test waits for it
    while not done and time.monotonic() < end:
        for _ in range(15_000):
            pass
        if syscalls:
            os.write(null, b".")
        if not later.empty():
            later.get().set_result("made")
        if sleeps and asks[0] != asks[1]:
            time.sleep(0.0002)
    sys.setswitchinterval(0.005)
    answers.stop()


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        sleeps=sys.argv[3] == "1",
        interval=float(sys.argv[4]),
        syscalls=sys.argv[5] == "1",
    )
