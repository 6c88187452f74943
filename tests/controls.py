"""Control files of trees that tests declare: midrun's own come from its kinds of commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from midrun.fs.form import Form
from midrun.fs.tree import Control, Dir

if TYPE_CHECKING:
    from pydantic import BaseModel

D = TypeVar("D", bound=Dir)


def control(
    name: str, arguments: type[BaseModel], *, bare: str | None = None
) -> Callable[[Callable[[D, Any], object]], Control]:
    """Declare the method below as the control file `name`, which takes `arguments`, or `bare` alone."""

    def declare(store: Callable[[D, Any], object]) -> Control:
        form = Form(name, inspect.getdoc(store) or "", arguments, bare)
        gives = get_type_hints(store).get("return", Any)
        return Control(form, lambda owner, given, _: store(owner, given), gives=gives)

    return declare
