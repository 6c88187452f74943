"""Faults: what can go wrong with a node, with the code that each face shows for it.

A fault carries both codes of one mistake, the errno that the mount answers and the HTTP status that REST
answers, so that `cat` and `curl` tell the same story. Nodes raise faults; faces only translate them.
"""

from __future__ import annotations

import errno
from typing import ClassVar, TypedDict


class FieldError(TypedDict):
    """One invalid field of a request: where it is, what is wrong, and the kind of mistake."""

    loc: list[str | int]
    msg: str
    type: str


class Fault(Exception):  # noqa: N818 - a fault is a kind of answer, and its subclasses read as answers: NotFound, Conflict
    """The base of all faults; by itself, a node that broke while it was read.

    Parameters
    ----------
    message
        What was wrong, what was expected and what to do.
    errors
        The list of invalid fields, for `Invalid`.
    """

    errno: ClassVar[int] = errno.EIO
    status: ClassVar[int] = 500

    def __init__(self, message: str, errors: list[FieldError] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.errors = errors

    @property
    def detail(self) -> str | list[FieldError]:
        """The `detail` member of an error body: the list of invalid fields, else the message."""
        return self.message if self.errors is None else self.errors


class NotFound(Fault):
    """No node has this path."""

    errno = errno.ENOENT
    status = 404


class NotADirectory(Fault):
    """A file was used as a directory."""

    errno = errno.ENOTDIR
    status = 404


class IsADirectory(Fault):
    """A directory was read or written as a file."""

    errno = errno.EISDIR
    status = 405


class ReadOnly(Fault):
    """The node has a value but takes none."""

    errno = errno.EROFS
    status = 405


class Invalid(Fault):
    """What was written is not what the node takes; `errors` names each field."""

    errno = errno.EINVAL
    status = 422

    def below(self, *place: str | int) -> Invalid:
        """Return the same with each field below a place of the whole request."""
        errors = [FieldError(loc=[*place, *one["loc"]], msg=one["msg"], type=one["type"]) for one in self.errors or ()]
        return Invalid(self.message, errors or None)


def invalid(argument: str, message: str, kind: str = "value_error") -> Invalid:
    """Return the fault of an argument that is not taken."""
    return Invalid(message, errors=[{"loc": [argument], "msg": message, "type": kind}])


class TooLarge(Fault):
    """What was written is longer than a node takes."""

    errno = errno.EFBIG
    status = 413


class Conflict(Fault):
    """The request is fine, but not in the present state of the run."""

    errno = errno.EBUSY
    status = 409


class Refused(Fault):
    """The run does not do this, in any state."""

    errno = errno.EPERM
    status = 409


class TimedOut(Fault):
    """The run did not answer in time; it may still do what was asked."""

    errno = errno.ETIMEDOUT
    status = 504


class Gone(Fault):
    """The node, or the whole run, has ended."""

    errno = errno.ENODEV
    status = 410


ENDED = "the run has ended"
"""What is said of a run that is gone."""


class Unavailable(Fault):
    """The face has no room for the request now; the same request may do later."""

    errno = errno.EAGAIN
    status = 503


def timed_out(patience: float, path: str | None = None) -> TimedOut:
    """Return the fault of a question, of the node at `path`, that was not answered within `patience` seconds."""
    of = "" if path is None else f"'{path}': "
    return TimedOut(f"{of}the run did not answer within {patience:g} s; it is busy or stopped, try again")


_KINDS: dict[str, type[Fault]] = {
    kind.__name__: kind
    for kind in (
        Fault,
        NotFound,
        NotADirectory,
        IsADirectory,
        ReadOnly,
        Invalid,
        TooLarge,
        Conflict,
        Refused,
        TimedOut,
        Gone,
        Unavailable,
    )
}


class FaultRecord(TypedDict):
    """A fault as it crosses the wire."""

    kind: str
    message: str
    errors: list[FieldError] | None


def dump(fault: Fault) -> FaultRecord:
    """Return the record that `load` turns into an equal fault."""
    # One that is declared elsewhere crosses as the one that it is a kind of.
    kind = next(one.__name__ for one in type(fault).__mro__ if _KINDS.get(one.__name__) is one)
    return {"kind": kind, "message": fault.message, "errors": fault.errors}


def load(record: FaultRecord) -> Fault:
    """Return the fault of a record; a kind that this version does not know is a plain `Fault`."""
    return _KINDS.get(record["kind"], Fault)(record["message"], record["errors"])
