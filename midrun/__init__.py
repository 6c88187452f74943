"""See and steer a live PyTorch Lightning run as a tree of files.

Importing this package loads neither torch nor Lightning: the processes that show a run never need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midrun.checkpoints.faults import CheckpointError
    from midrun.checkpoints.shelf import checkpoint
    from midrun.config import MidrunConfig
    from midrun.mixin import MidrunMixin

__version__ = "0.1.0"
__all__ = ["CheckpointError", "MidrunConfig", "MidrunMixin", "__version__", "checkpoint"]

_HOMES = {
    "CheckpointError": "midrun.checkpoints.faults",
    "MidrunConfig": "midrun.config",
    "MidrunMixin": "midrun.mixin",
    "checkpoint": "midrun.checkpoints.shelf",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'midrun' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only for the first use of a name

    return getattr(import_module(_HOMES[name]), name)
