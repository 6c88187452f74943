"""Changing how the optimizers step: learning rates, momentum, other options, gradient clipping."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from midrun.command import POINTS
from midrun.commands.kind import Arguments, Here, Shared
from midrun.fs.faults import Refused
from midrun.momentum import reset_momentum
from midrun.optimizer_options import set_optimizer_option
from midrun.rates import set_learning_rate

_Number = Annotated[int, Field(ge=0)]
_Optimizer = Annotated[_Number | None, Field(description="Which optimizer, counted from 0; all without it.")]
_Group = Annotated[_Number | None, Field(description="Which parameter group, counted from 0; all without it.")]


class Rate(Arguments):
    """A learning rate, and where."""

    value: float = Field(ge=0, allow_inf_nan=False, description="The learning rate.")
    optimizer: _Optimizer = None
    group: _Number | None = Field(
        default=None,
        description="Which parameter group, counted from 0. "
        "Without it the first gets the value, and the others keep their proportion to it.",
    )


class Which(Arguments):
    """Which optimizer."""

    optimizer: _Optimizer = None


class Option(Arguments):
    """An optimizer's option, and where."""

    option: str = Field(min_length=1, max_length=100, description="The option, such as weight_decay.")
    value: bool | int | float | str | list[float] | None = Field(
        description="Its new value, of the type of the present one."
    )
    optimizer: _Optimizer = None
    group: _Group = None


class Clip(Arguments):
    """How gradients are clipped."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        description="The largest norm, or the largest value; null clips nothing."
    )
    algorithm: Literal["norm", "value"] | None = Field(default=None, description="As it is now without it.")


class _OfOptimizers(Shared):
    """A kind that needs optimizers."""

    points = POINTS
    while_held = True

    def admit_here(self, here: Here, args: Any) -> None:  # noqa: ANN401 - the kind's own arguments
        """Refuse what the options don't allow."""
        surgery = None if here.config.optimizer_surgery_enabled else self.surgery(args)
        if surgery is not None:
            raise Refused(f"optimizer_surgery_enabled=False: {self.name} is not allowed {surgery}")

    def surgery(self, args: Any) -> str | None:  # noqa: ANN401 - the kind's own arguments
        """Return what of it `optimizer_surgery_enabled` guards, in the words that say what is not allowed, or None."""
        del args
        return None


class _OfOneOptimizer(_OfOptimizers):
    """A kind that may be about one optimizer or group, which is surgery, or about all of them, which is none."""

    def surgery(self, args: Rate | Option) -> str | None:
        """Name the arguments that make it surgery."""
        given = [f"`{name}`" for name in ("optimizer", "group") if getattr(args, name) is not None]
        return f"with {' and '.join(given)}: leave {'them' if given[1:] else 'it'} out" if given else None


class SetLearningRate(_OfOneOptimizer):
    """Set the learning rate, so that it lasts: a scheduler goes on from it, in proportion.

    Without `group`, the first group of each optimizer gets the value, and the others keep their proportion to it.
    """

    name = "set_learning_rate"
    Arguments = Rate
    bare = "value"

    def do_here(self, here: Here, args: Rate) -> dict[str, Any]:
        """Set it, and whatever a scheduler would set it from."""
        report = set_learning_rate(
            here.loop.optimizers, here.loop.schedulers, args.value, optimizer=args.optimizer, group=args.group
        )
        return {**report}


class ResetMomentum(_OfOptimizers):
    """Set the optimizers' momentum to zero; second moments and step counts stay."""

    name = "reset_momentum"
    confirm = "Reset momentum? What the optimizers have gathered is lost, and nothing brings it back."
    Arguments = Which
    bare = "optimizer"

    def surgery(self, args: Which) -> str:
        """All of it."""
        del args
        return "in this run"

    def do_here(self, here: Here, args: Which) -> dict[str, Any]:
        """Zero the buffers in place."""
        return {**reset_momentum(here.loop.optimizers, optimizer=args.optimizer)}


class SetOptimizerOption(_OfOneOptimizer):
    """Set another option of the optimizers, such as weight_decay, momentum or betas."""

    name = "set_optimizer_option"
    Arguments = Option

    def do_here(self, here: Here, args: Option) -> dict[str, Any]:
        """Set it, once a trial has shown that the optimizer goes on with it."""
        report = set_optimizer_option(
            here.loop.optimizers,
            here.loop.schedulers,
            args.option,
            args.value,
            optimizer=args.optimizer,
            group=args.group,
        )
        return {**report}


class SetGradientClip(_OfOptimizers):
    """Set how Lightning clips gradients before each optimizer step."""

    name = "set_gradient_clip"
    lasts = True
    Arguments = Clip
    bare = "value"

    def admit_here(self, here: Here, args: Clip) -> None:
        """Refuse where Lightning does not clip, or would break when it did."""
        super().admit_here(here, args)
        reason = here.loop.refuses_clip(args.value)
        if reason is not None:
            raise Refused(reason)

    def do_here(self, here: Here, args: Clip) -> dict[str, Any]:
        """Set it on the Trainer, which looks at each step."""
        self.admit_here(here, args)
        return {"changes": here.loop.set_gradient_clip(args.value, args.algorithm)}
