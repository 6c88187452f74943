"""The options of a run, as keyword arguments to `super().__init__()` of a model."""

from __future__ import annotations

import os
import types
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from midrun.fs.guesses import meant


@dataclass(frozen=True, kw_only=True)
class MidrunConfig:
    """What midrun does in a run. Every member is an option of `MidrunMixin`, given by keyword.

    An unknown option is a TypeError, a value of the wrong type too; a value out of range is a ValueError. Those of
    PyTorch's debug server and of the timing of the pipeline are checked, and have no effect in this version.

    Parameters
    ----------
    midrun_enabled
        Master switch. False starts nothing and costs nothing.
    rest_enabled
        Serve the REST API and its pages.
    rest_host
        Address that the REST API listens on. It has no authentication: anybody who reaches the address steers the run.
        Leave it on the loopback address unless the network is yours.
    rest_port
        First port to try; 0 takes any free port.
    rest_port_search
        How many ports to try, one after the other, beginning with `rest_port`.
    rest_allowed_hosts
        Further names that a request's Host header may carry, for example a reverse proxy's.
    fuse_enabled
        Mount the run as files. It needs FUSE (`/dev/fuse`, `fusermount3`) and `pip install 'midrun[fuse]'`.
    fuse_mountpoint
        Where to mount; None is `procfs` in the run directory. It is made if it is missing, and must be empty.
    fuse_control
        Let files of the mount be written to steer the run. False mounts everything read-only.
    resume
        The directory of an earlier run, open and not live, that this one goes on with: it keeps its files there and has
        its id. None is a directory of its own.
    artifact_dir
        Where checkpoints, snapshots and debug captures go; None is `artifacts` in the run directory.
    checkpoint_keep_last
        How many of the checkpoints that midrun has written are kept, the newest; None keeps all.
    checkpoint_keep_every
        Keep each checkpoint whose number, counted from the run's first, is a multiple of this, besides the newest.
    torch_debug_enabled
        Start PyTorch's `torch.distributed.debug` server in a distributed run. It listens on
        all interfaces.
    torch_debug_port
        First port to try for it.
    torch_debug_port_search
        How many ports to try for it when REST does not run beside it.
    paired_port_search_attempts
        How many offsets, multiples of 100, to try for REST and the debug server as a pair.
    hooks_enabled
        Run the shell hooks that are executable.
    hooks_source_dir
        Directory with a set of hooks to copy into the run directory at start.
    hooks_timeout_s
        Seconds after which a running hook is ended; None waits for it.
    hooks_rank_policy
        Which ranks run hooks: "rank_zero" or "all". A later rank writes what they print to `midrun-rank-<n>.log`.
    pipeline_pressure_enabled
        Measure how long each phase of a batch takes, for `state/pipeline/summary.json`.
    pipeline_pressure_window
        How many of the newest timed batches that looks back over.
    break_on_backward_exception
        Hold the run when `backward()` raises, so that the batch can be inspected, until `release_exception`.
    dataloader_finite_check_enabled
        Check each batch for NaN and infinity. Slow.
    optimizer_surgery_enabled
        Allow momentum to be reset, and learning rates and other options to be set per optimizer or group.
    inspection_strict
        Raise at start, instead of a warning, when a service does not start. Only then does the start wait
        until all are ready.
    """

    midrun_enabled: bool = True
    rest_enabled: bool = True
    rest_host: str = "127.0.0.1"
    rest_port: int = 8090
    rest_port_search: int = 100
    rest_allowed_hosts: Sequence[str] = ()
    fuse_enabled: bool = True
    fuse_mountpoint: str | os.PathLike[str] | None = None
    fuse_control: bool = True
    resume: str | os.PathLike[str] | None = None
    artifact_dir: str | os.PathLike[str] | None = None
    checkpoint_keep_last: int | None = None
    checkpoint_keep_every: int | None = None
    torch_debug_enabled: bool = True
    torch_debug_port: int = 25999
    torch_debug_port_search: int = 100
    paired_port_search_attempts: int = 100
    hooks_enabled: bool = True
    hooks_source_dir: str | os.PathLike[str] | None = None
    hooks_timeout_s: float | None = None
    hooks_rank_policy: Literal["rank_zero", "all"] = "rank_zero"
    pipeline_pressure_enabled: bool = True
    pipeline_pressure_window: int = 256
    break_on_backward_exception: bool = True
    dataloader_finite_check_enabled: bool = False
    optimizer_surgery_enabled: bool = True
    inspection_strict: bool = False

    def __post_init__(self) -> None:
        for name, annotation in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if not _matches(value, annotation):
                _refuse_type(name, value, annotation)
        for name in ("rest_port", "torch_debug_port"):
            self._check_range(name, 0, 65535)
        for name in (
            "rest_port_search",
            "torch_debug_port_search",
            "paired_port_search_attempts",
            "pipeline_pressure_window",
        ):
            self._check_range(name, 1, None)
        for name in ("checkpoint_keep_last", "checkpoint_keep_every"):
            if getattr(self, name) is not None:
                self._check_range(name, 1, None)
        if self.checkpoint_keep_every is not None and self.checkpoint_keep_last is None:
            raise ValueError(
                "midrun option 'checkpoint_keep_every' is for what 'checkpoint_keep_last' would remove: give that too, "
                "or leave it out to keep all"
            )
        if self.hooks_timeout_s is not None and not self.hooks_timeout_s > 0:
            raise ValueError(
                f"midrun option 'hooks_timeout_s' must be above 0, or None to wait: {self.hooks_timeout_s!r}"
            )

    def _check_range(self, name: str, low: int, high: int | None) -> None:
        value = getattr(self, name)
        if value < low or (high is not None and value > high):
            wanted = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ValueError(f"midrun option {name!r} must be {wanted}: {value!r}")


OPTIONS = tuple(f.name for f in fields(MidrunConfig))
"""The names of all options."""


def unknown_option(owner: str, name: str) -> TypeError:
    """Return the error for a keyword argument that nobody takes."""
    return TypeError(f"{owner}: unknown midrun option {name!r}: {meant(name, OPTIONS)}")


def _matches(value: object, annotation: Any) -> bool:  # noqa: ANN401 - an annotation has no type of its own
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(_matches(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if isinstance(origin, type) and issubclass(origin, Sequence):
        # A string is a sequence of strings too, and never what was meant.
        return isinstance(value, list | tuple) and all(_matches(item, arguments[0]) for item in value)
    if origin is not None:
        return isinstance(value, origin)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _refuse_type(name: str, value: object, annotation: Any) -> None:  # noqa: ANN401 - as above
    wanted = _spelled(annotation)
    if get_origin(annotation) is Literal and isinstance(value, str):
        raise ValueError(f"midrun option {name!r} must be {wanted}: {value!r}")
    raise TypeError(f"midrun option {name!r} must be {wanted}, not {type(value).__name__}: {value!r}")


def _spelled(annotation: Any) -> str:  # noqa: ANN401 - as above
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_spelled(argument) for argument in arguments))
    if origin is Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list of {_spelled(arguments[0])}"
    if annotation is type(None):
        return "None"
    return "a path" if origin is not None else str(annotation.__name__)
