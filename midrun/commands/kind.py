"""Kinds: what a kind of command is declared by.

A kind is one class, beside nothing else: its name, its arguments, where it may run and what it does. Every face has it
from there: a file to write to, a route, a form, a word on the command line, a row in the documentation.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midrun.command import EVALUATION, POINTS, Command, SafePoint
from midrun.tasks import Steps

if TYPE_CHECKING:
    from pathlib import Path

    from midrun.checkpoints.resume import Resume
    from midrun.config import MidrunConfig
    from midrun.finite import FiniteCheck
    from midrun.log import RunLog
    from midrun.loop import Loop
    from midrun.run import Run

Label = Annotated[str, Field(min_length=1, max_length=100)]


class Arguments(BaseModel):
    """The arguments of a kind: each is named and of its own type, 7.0 is no integer, and an unknown one is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def absent() -> Any:  # noqa: ANN401 - it stands for any value that was not given
    """Return what stands for a value that was not given: null is none that can be given."""
    return None


class When(Arguments):
    """When a command is due: at a safe point, from an epoch or step on, or both."""

    safe_point: SafePoint = Field(default_factory=absent, description="Only at this safe point.")
    epoch: int = Field(default_factory=absent, ge=0, description="Not before this epoch, counted from 0.")
    global_step: int = Field(default_factory=absent, ge=0, description="Not before so many optimizer steps.")

    @model_validator(mode="after")
    def _is_one(self) -> When:
        if not self.model_fields_set:
            raise ValueError("give safe_point, epoch or global_step, or leave `when` out")
        if {"epoch", "global_step"} <= self.model_fields_set:
            raise ValueError("give epoch or global_step, not both")
        return self


class Execution(Arguments):
    """How a command is to be run."""

    when: When = Field(
        default_factory=When.model_construct, description="Without it: at the next safe point that the kind allows."
    )


class Kind:
    """A kind of command. Its docstring is its documentation on every face."""

    name: ClassVar[str]
    Arguments: ClassVar[type[Arguments]] = Arguments
    bare: ClassVar[str | None] = None
    """The argument that a bare value is for, as a shell writes it."""
    points: ClassVar[tuple[str, ...]] = (*POINTS, EVALUATION)
    """Where it runs without a `when`: at the first of these that comes."""
    while_held: ClassVar[bool] = False
    """Whether it runs while a hold is active."""
    in_exception_hold: ClassVar[bool] = False
    """Whether it runs while an exception is held, also where it does not in another hold."""
    on_every_rank: ClassVar[bool] = False
    """Whether it waits until all ranks stand at the same safe point.

    So do the `Shared` kinds, which each of them does, and the holds, which rank zero does while the others stand."""
    ignores_limit: ClassVar[bool] = False
    """Whether there is a place for it however many commands wait."""
    confirm: ClassVar[str | None] = None
    """What a person is asked before a click sends what can't be taken back.

    A question that begins with what is done, as in "Stop training?", and then what comes of it."""
    lasts: ClassVar[bool] = False
    """Whether what it has set last is in no checkpoint of Lightning's, and is set again where one is gone on from."""
    at_once: ClassVar[bool] = False
    """Whether it is done when it is taken in, without waiting for a safe point."""

    @property
    def doc(self) -> str:
        """What it does; a docstring that it inherits says what another kind does."""
        return inspect.cleandoc(type(self).__doc__ or "")

    def admit(self, run: Run, args: Any) -> None:  # noqa: ANN401 - the kind's own arguments
        """Raise a `Fault` when arguments that are no mistake in themselves can't be done in this run."""

    def do(self, run: Run, args: Any, command: Command) -> dict[str, Any] | Steps:  # noqa: ANN401 - as above
        """Do it, and return the result, or, where it takes more than one safe point, a task: see `tasks`.

        Anything that it raises makes the command fail, and training goes on.
        """
        raise NotImplementedError


class Here(Protocol):
    """What a kind may use on every rank: `Run` on rank zero, `follower._Here` on the others."""

    config: MidrunConfig
    loop: Loop
    log: RunLog
    finite_check: FiniteCheck
    resume: Resume
    directory: Path


class Shared(Kind):
    """A kind that each rank does, at the same safe point, once each has admitted it."""

    on_every_rank = True
    breaks: ClassVar[bool] = False
    """Whether no rank can train on once it has failed on one of them halfway."""

    def admit_here(self, here: Here, args: Any) -> None:  # noqa: ANN401 - the kind's own arguments
        """Raise a `Fault` when this rank can't do it."""

    def prepare_here(self, here: Here, args: Any) -> None:  # noqa: ANN401 - as above
        """Do, in the training thread, what may fail and changes nothing: each rank does it before any does the rest."""

    def do_here(self, here: Here, args: Any) -> dict[str, Any] | None:  # noqa: ANN401 - as above
        """Do it on this rank, and return the result, or None where that is rank zero's alone."""
        raise NotImplementedError

    def admit(self, run: Run, args: Any) -> None:  # noqa: ANN401 - as above
        """Raise a `Fault` when rank zero can't do it."""
        self.admit_here(run, args)

    def do(self, run: Run, args: Any, command: Command) -> dict[str, Any]:  # noqa: ANN401 - as above
        """Do it on rank zero."""
        return self.do_here(run, args) or {}
