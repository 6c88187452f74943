"""`model/`: what is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from midrun.fs.later import Later
from midrun.fs.tree import Dir, file
from midrun.inspectors import TORCHINFO, TORCHVIEW, InspectorFiles
from midrun.nested import bounded
from midrun.tunables import Tunables, tunables

if TYPE_CHECKING:
    from midrun.run import Run

_DEPTH = 3
"""Levels of submodules in the summary."""


class Model(Dir):
    """What is trained."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.inspectors = InspectorFiles(run)

    @file("class")
    def class_name(self) -> str:
        """The model's class, with its module."""
        kind = type(self._run.loop.module)
        return f"{kind.__module__}.{kind.__qualname__}"

    @file("hparams.json", slow=True)
    def hparams(self) -> dict[str, Any]:
        """The hyperparameters that the model saved, as they are now. What JSON lacks is text; what is large is cut."""
        return cast("dict[str, Any]", bounded(dict(getattr(self._run.loop.module, "hparams", {}))))

    @file("tunable-hparams.json", slow=True)
    def tunable_hparams(self) -> Tunables:
        """The attributes that the model declares as tunable, with their values and limits."""
        return tunables(self._run.loop.module)

    @file("summary.txt", slow=True)
    def summary(self) -> str:
        """The model's modules, three levels deep, with their classes and the numbers of their parameters."""
        return summary(self._run.loop.module)

    @file("summary-live.txt", live=True)
    def summary_live(self) -> str | Later:
        """The modules with the sizes of what goes through them, by torchinfo: made at the next optimizer step."""
        return self._run.inspection.view(TORCHINFO)

    @file("graph.dot", live=True)
    def graph(self) -> str | Later:
        """The modules and what flows between them, in DOT, by torchview: made at the next optimizer step."""
        return self._run.inspection.view(TORCHVIEW)

    @file("lightning-profiler-summary.txt", live=True)
    def profiler_summary(self) -> str | Later:
        """What Lightning's profiler has found: asked at the next optimizer step, and at once where none is set.

        To ask the pytorch profiler ends its profile, and a new one begins.
        """
        return self._run.profilers.summary()


def summary(module: nn.Module) -> str:
    """Return a table of the submodules of `module`, with a total.

    A parameter that several submodules share counts once in the total. One that a lazy module has yet to make
    counts nothing, and the table says so.
    """
    rows = [("module", "class", "parameters", "trainable")]
    for name, part in module.named_modules(remove_duplicate=False):
        if name and name.count(".") < _DEPTH:
            total, trainable, lazy = _counts(part)
            rows.append((name, type(part).__name__, f"{total:,}{' + lazy' if lazy else ''}", f"{trainable:,}"))
    total, trainable, lazy = _counts(module)
    rows.append(("total", type(module).__name__, f"{total:,}{' + lazy' if lazy else ''}", f"{trainable:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
    ]
    size = sum(p.numel() * p.element_size() for p in module.parameters() if not _is_lazy(p))
    buffers = sum(b.numel() for b in module.buffers() if not _is_lazy(b))
    return "\n".join([*lines, "", f"parameters take {size / 1e6:,.3f} MB; {buffers:,} numbers in buffers"])


def _counts(module: nn.Module) -> tuple[int, int, bool]:
    """Return how many numbers the parameters hold, how many are trained, and whether some are yet to be made."""
    total = trainable = 0
    lazy = False
    for parameter in module.parameters():
        if _is_lazy(parameter):
            lazy = True
            continue
        total += parameter.numel()
        trainable += parameter.numel() if parameter.requires_grad else 0
    return total, trainable, lazy


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a lazy module has yet to make this parameter or buffer."""
    return bool(is_lazy(tensor))
