"""A trainer that is to be killed: `python -m tests.fs.doomed CLEANED`.

It starts a face and prints its process id once the face serves. A forked child holds copies of the sockets.
"""

from __future__ import annotations

import os
import signal
import sys

from midrun.fs.page import Page
from tests.fs.launch import launch
from tests.fs.sample import Sample, answering, wait_until

if __name__ == "__main__":
    heard: list[str] = []
    page = Page()
    with answering(Sample(), page) as answers:
        face = launch(answers, page, lambda name, _: heard.append(name), do="poll", cleaned=sys.argv[1])
        wait_until(lambda: heard)
        (wire,) = answers._wires  # a copy that no hook closes
        copy = os.dup(wire.socket.fileno())
        child = os.fork()
        if child == 0:
            signal.pause()
        print(child, face.pid, flush=True)  # noqa: T201 - it talks to the test
        signal.pause()
