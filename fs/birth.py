"""Birth: how a process becomes a face.

The trainer starts it with the trainer's interpreter and module path, in a session of its own. Here it drops what it has
inherited from the trainer, and ceases to be its child: a program that waits for all its children would wait for
its faces too. Where the trainer is the first process of a container the kernel makes it their parent all the same.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from typing import Any

UNWANTED = signal.SIGUSR2
"""Ends a face that does not listen for quit yet."""
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from midrun.fs.birth import main; main(sys.argv[2])"
"""The program of a face's interpreter: its arguments are a module path and what `main` takes, both in JSON."""
_NICENESS = 5
"""What is added to the trainer's: training goes first."""


@dataclass(frozen=True)
class Handed:
    """What the trainer hands to a face process, as JSON on its command line."""

    module: str
    """The face's module; it has `async def serve(face)`."""
    trainer_pid: int
    wire: int
    """Descriptor of the face's end of the wire."""
    page: int
    """Descriptor of the shared page."""
    slot: int
    """The face's slot of the page."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the face's module says that it needs."""
    life: int | None = None
    """A descriptor that is open for as long as the face lives; with one, the face is no child of the trainer's."""


def main(handed: str) -> None:
    """Run the face that `handed`, a JSON object with the members of `Handed`, describes, until it must end."""
    _drop_what_is_inherited()
    config = Handed(**json.loads(handed))
    try:
        trainer_pidfd = os.pidfd_open(config.trainer_pid)
    except ProcessLookupError:
        return
    if os.getppid() != config.trainer_pid:
        return  # The trainer ended before it could be watched; the number may be another process's by now.
    if config.life is not None:
        os.set_inheritable(config.life, False)
        if os.fork():
            os._exit(0)
    from midrun.fs.face import live  # noqa: PLC0415 - it takes a while: by now this is no child of the trainer

    live(config, trainer_pidfd)


def _drop_what_is_inherited() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        # These come to whole groups, sessions and jobs. The trainer decides what they mean and says quit.
        signal.signal(number, signal.SIG_IGN)
    for number in (UNWANTED, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.nice(_NICENESS)
