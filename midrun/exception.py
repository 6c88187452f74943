"""Exceptions: how one is shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypedDict

from midrun.fs.faults import message, trace

if TYPE_CHECKING:
    from midrun.sample import Sample


class ExceptionRecord(TypedDict):
    """The exception that ends the loop, or holds it, and where the loop was."""

    type: str
    message: str
    traceback: str
    global_step: int
    epoch: int
    batch: int | None
    time: float
    """When it was raised. Seconds since 1970."""


def exception_record(exception: BaseException, sample: Sample) -> ExceptionRecord:
    """Return the record of an exception that comes now, after this sample."""
    kind = type(exception)
    return ExceptionRecord(
        # As Python itself names it.
        type=kind.__qualname__
        if kind.__module__ in {"builtins", "__main__"}
        else f"{kind.__module__}.{kind.__qualname__}",
        message=message(exception),
        traceback=f"{trace(exception)}\n",
        global_step=sample.global_step,
        epoch=sample.epoch,
        batch=sample.batch,
        time=time.time(),
    )
