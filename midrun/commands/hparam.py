"""Changing what the model declares as tunable."""

from __future__ import annotations

from typing import Any

from pydantic import Field, JsonValue

from midrun.command import Change
from midrun.commands.kind import Arguments, Here, Shared
from midrun.tunables import admitted, is_set, set_tunable


class Value(Arguments):
    """A tunable hyperparameter, and its value."""

    name: str = Field(min_length=1, max_length=500, description="A path that the model declares, such as hparams.l2.")
    value: JsonValue = Field(description="Its new value, of the type of the present one.")


class SetHparam(Shared):
    """Set a hyperparameter that the model declares in `midrun_tunable_hparams`."""

    name = "set_hparam"
    Arguments = Value
    while_held = True

    def admit_here(self, here: Here, args: Value) -> None:
        """Refuse a path that is not declared, and a value of another type or out of its limits."""
        admitted(here.loop.module, args.name, args.value)

    def do_here(self, here: Here, args: Value) -> dict[str, Any]:
        """Set it."""
        module = here.loop.module
        is_new = not is_set(module, args.name, args.value)
        old, new = set_tunable(module, args.name, args.value)
        return {"changes": [Change(what=args.name, old=old, new=new)] if is_new else []}
