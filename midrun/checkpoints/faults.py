"""What is raised where a checkpoint can't be used."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint can't be used: it is torn, of another model, or of another version of midrun; or it failed halfway.

    The message says which, and what can be done.
    """
