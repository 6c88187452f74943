"""Lightning's packages: it comes as `lightning` and as `pytorch_lightning`."""

from __future__ import annotations

PACKAGES = ("lightning", "pytorch_lightning")


def is_lightnings(module: object) -> bool:
    """Whether a module of this name is one of Lightning's own."""
    return str(module).partition(".")[0] in PACKAGES
