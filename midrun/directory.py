"""The run directory: where a run keeps its files, and nobody else's.

With a TensorBoardLogger or a CSVLogger as the first logger it is the logger's own version directory. With any other
first logger it is `<save_dir>/midrun/<version>`. Without a logger, or when the logger has no version, it is
`<default_root_dir>/midrun/<run id>`.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from midrun.config import MidrunConfig
from midrun.fs.tracebacks import last_line
from midrun.lightnings import is_lightnings
from midrun.log import tell

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_OWN_DIRECTORY = {"TensorBoardLogger", "CSVLogger"}


def new_run_id() -> str:
    """Return the id of a new run: `run-<time>-<pid>-<random>`."""
    return f"run-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"


def sanitized(version: str) -> str:
    """Return a logger's version as a directory name: letters, digits, `.`, `_`, `-`, and no dot in front."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", version).lstrip(".")


def run_directory(trainer: Trainer, run_id: str) -> str:
    """Return the absolute run directory for what `trainer` runs. Only global rank zero's answer counts.

    It asks the first logger, never `trainer.log_dir`, which is a collective operation. A logger that fails when it is
    asked is as good as none.
    """
    own = None
    if trainer.loggers:
        try:
            own = _of_logger(trainer.loggers[0], trainer)
        except Exception as error:  # noqa: BLE001 - a logger is anybody's code, and training must go on
            tell(logging.WARNING, f"the logger does not say where it keeps the run ({last_line(error)})")
    return own or os.path.join(_root(None, trainer), "midrun", run_id)


def logger_directory(trainer: Trainer) -> str | None:
    """Return the run directory if it is the first logger's own, where the logger looks around before it starts."""
    return _own_directory(trainer.loggers[0]) if trainer.loggers else None


def mountpoint(config: MidrunConfig, directory: str) -> str:
    """Return the absolute path at which the run in this directory is mounted."""
    return os.path.abspath(config.fuse_mountpoint or os.path.join(directory, "procfs"))


def _of_logger(logger: Any, trainer: Trainer) -> str | None:  # noqa: ANN401 - any package's logger
    """Return the run directory that `logger` determines, or None when it has no version."""
    own = _own_directory(logger)
    if own is not None:
        return own
    version = getattr(logger, "version", None)
    name = "" if version is None else sanitized(str(version))
    return os.path.join(_root(getattr(logger, "save_dir", None), trainer), "midrun", name) if name else None


def _own_directory(logger: Any) -> str | None:  # noqa: ANN401 - any package's logger
    directory = getattr(logger, "log_dir", None) if _keeps_own_directory(logger) else None
    return os.path.abspath(str(directory)) if directory and _is_local(directory) else None


def _keeps_own_directory(logger: Any) -> bool:  # noqa: ANN401 - any package's logger
    """Whether `logger` is one of the two kinds, of either of the packages that Lightning comes in, or a subclass."""
    return any(kind.__name__ in _OWN_DIRECTORY and is_lightnings(kind.__module__) for kind in type(logger).__mro__)


def _root(save_dir: object, trainer: Trainer) -> str:
    for candidate in (save_dir, trainer.default_root_dir):
        if candidate and _is_local(str(candidate)):
            return os.path.abspath(str(candidate))
    return os.getcwd()


def _is_local(path: str | os.PathLike[str]) -> bool:
    """Whether a path is on a file system; loggers may keep a bucket's address instead."""
    return "://" not in os.fspath(path)
