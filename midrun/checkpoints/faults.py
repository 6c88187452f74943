"""What is raised where a checkpoint can't be used."""

from __future__ import annotations

from midrun.fs.faults import Conflict


class CheckpointError(Conflict, RuntimeError):
    """A checkpoint can't be used: it is torn, of another model or run, or it failed halfway.

    The message says which, and what can be done.
    """
