"""Kinds of commands: how they are declared, and what of theirs an option of the run refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from midrun.commands import KINDS, by_name
from midrun.commands.optimizer import ResetMomentum
from midrun.commands.standstill import Continue
from midrun.fs.faults import Refused


def test_every_kind_has_documentation_of_its_own() -> None:
    assert all(kind.doc for kind in KINDS.values())


def test_a_kind_does_not_inherit_what_another_one_says_of_itself() -> None:
    class Undocumented(Continue):
        name = "undocumented"

    assert Undocumented().doc == ""


def test_two_kinds_of_one_name_are_an_error_where_they_are_declared() -> None:
    class Again(Continue):
        """Let it go."""

    with pytest.raises(ValueError, match="Continue and Again are both named 'continue'"):
        by_name([Continue(), Again()])


@pytest.mark.parametrize("name", ["set_learning_rate", "set_optimizer_option"])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"optimizer": 0}, "`optimizer`: leave it out"),
        ({"group": 1}, "`group`: leave it out"),
        ({"optimizer": 0, "group": 1}, "`optimizer` and `group`: leave them out"),
    ],
)
def test_what_the_run_does_not_allow_of_a_kind_is_named(name: str, given: dict[str, int], named: str) -> None:
    kind = KINDS[name]
    args = {"value": 0.1} if name == "set_learning_rate" else {"option": "weight_decay", "value": 0.1}
    kind.admit(_run(), kind.Arguments(**args))
    with pytest.raises(Refused, match=f"optimizer_surgery_enabled=False: {name} is not allowed with {named}$"):
        kind.admit(_run(), kind.Arguments(**args, **given))


def test_a_kind_that_the_run_does_not_allow_at_all_is_named() -> None:
    with pytest.raises(Refused, match="reset_momentum is not allowed in this run"):
        ResetMomentum().admit(_run(), ResetMomentum.Arguments())


def _run() -> Any:
    """Return what a kind looks at of a run that allows no surgery."""
    config = SimpleNamespace(optimizer_surgery_enabled=False)
    return cast("Any", SimpleNamespace(config=config, ranks=[{"world_size": 1}]))
