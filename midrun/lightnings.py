"""Lightning's packages: it comes as `lightning` and as `pytorch_lightning`."""

from __future__ import annotations

PACKAGES = ("lightning", "pytorch_lightning")


def is_lightnings(module: object) -> bool:
    """Whether a module of this name is one of Lightning's own."""
    return str(module).partition(".")[0] in PACKAGES


def is_empty(hook: object, *modules: str) -> bool:
    """Whether a bound method is Lightning's own, from one of these of its modules, whose hooks all do nothing.

    A module is told by the end of its name, such as ".core.hooks".
    """
    module = str(getattr(getattr(hook, "__func__", None), "__globals__", {}).get("__name__"))
    return is_lightnings(module) and module.endswith(modules)
