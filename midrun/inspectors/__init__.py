"""Inspectors: views of the model by tools that people know, from one forward pass on the batch in flight.

A pass is watched as training makes it (`calls`), made again so that nothing is left of it (`quiet`), and shown
(`views`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict

from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from midrun.command import STEP
from midrun.fs.faults import Conflict, Fault, Refused
from midrun.fs.later import Later
from midrun.fs.tracebacks import last_line
from midrun.fs.tree import Dir, Link, file
from midrun.inspectors.calls import Call, Watch
from midrun.inspectors.quiet import quiet
from midrun.inspectors.views import Inspector, autograd, autograd_graph, graph, operations, summary
from midrun.store import Written

if TYPE_CHECKING:
    from midrun.run import Run

TORCHINFO = Inspector("torchinfo", "inspectors", "txt", summary)
TORCHVIEW = Inspector("torchview", "graphs", "dot", graph)
TORCHVIZ = Inspector("torchviz", "graphs", "dot", autograd, gradients=True)
TORCHLENS = Inspector("torchlens", "inspectors", "txt", operations)
INSPECTORS = (TORCHINFO, TORCHVIEW, TORCHVIZ, TORCHLENS)

DEPTH = 3
"""Levels of modules that a view shows, where nothing else is said."""
_MOST_SECONDS = 1.0
"""After which no other view is begun in the same batch."""
_SHARDING = {"FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"}


class InspectorRecord(TypedDict):
    """One inspector."""

    installed: bool
    extra: str
    """What to install where it is not: `midrun[<extra>]`."""
    last: Written | None
    """What its last command has written."""


class Inspectors(TypedDict):
    """The inspectors, by the names of their packages."""

    refused: str | None
    """Why none can be used in this run."""
    inspectors: dict[str, InspectorRecord]


class Inspection:
    """What makes views of the model. All but `view` and the records are the training thread's."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._watch = Watch(run.loop.module, lambda: run.loop.training_batch)
        self._users = 0
        self._drawn: tuple[int | None, float] = (None, 0.0)
        """The batch in which something was drawn last, and for how many seconds in all."""
        self.is_drawing = False
        """Whether a forward pass is repeated just now, and perhaps all that torch does is watched."""
        self.last: dict[str, Written] = {}
        """What commands have written last, by inspector."""

    # ---- the training thread

    def steps(self, inspector: Inspector, depth: int = DEPTH) -> Generator[str, None, str]:
        """Make a view at the next optimizer step whose whole batch is watched; a task, see `tasks`.

        Raises Refused where the strategy, the model or the environment do not allow it.
        """
        if (why := self.refused) is not None:
            raise Refused(why)
        with self._watch.paused():
            package = inspector.load()
        with self._watching():
            yield STEP
            while not self._watch.is_whole or self._has_drawn_enough:
                yield STEP
            calls = self._watch.calls
        if not calls:
            raise Refused(
                "training_step has called none of the model's modules that have parameters, so that there is no forward"
                " pass to repeat: where it is compiled whole, compile the networks in it instead"
            )
        return self._draw(inspector, package, calls, depth)

    def failed_loss(self, inspector: Inspector) -> str:
        """Return the graph of the loss of which the backward pass has failed. Raises Conflict when there is none."""
        package, loss = inspector.load(), self._run.loop.flight.loss
        if loss is None or loss.grad_fn is None:
            raise Conflict("the exception has left no loss that has a graph")
        with _told(inspector):
            return autograd_graph(package, self._run.loop.module, loss)

    def _draw(self, inspector: Inspector, package: Any, calls: Sequence[Call], depth: int) -> str:  # noqa: ANN401 - a module
        began = time.monotonic()
        self.is_drawing = True
        try:
            with self._watch.paused(), _told(inspector), quiet(self._run.loop, gradients=inspector.gradients):
                return inspector.draw(package, self._run.loop.module, calls, depth)
        finally:
            self.is_drawing = False
            batch, spent = self._drawn
            here = self._run.loop.training_batch
            self._drawn = here, time.monotonic() - began + (spent if batch == here else 0.0)

    @property
    def _has_drawn_enough(self) -> bool:
        """Whether so much has been drawn in this batch that the rest is for the next ones: training goes on."""
        batch, spent = self._drawn
        return batch == self._run.loop.training_batch and spent > _MOST_SECONDS

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Watch the model's calls for as long as one of those who want that is in the block."""
        self._users += 1
        if self._users == 1:
            self._watch.start()
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                self._watch.stop()

    # ---- any thread

    @property
    def refused(self) -> str | None:
        """Why a forward pass of rank zero alone is out of the question; None where it is not."""
        strategy = type(self._run.loop.strategy)
        sharding = next((kind.__name__ for kind in strategy.__mro__ if kind.__name__ in _SHARDING), None)
        if sharding is not None:
            return f"{sharding} shards the parameters: a forward pass on rank 0 alone would wait for the other ranks"
        for name, parameter in self._run.loop.module.named_parameters():
            if is_traceable_wrapper_subclass(parameter):
                kind = type(parameter.data).__name__
                return f"{name} is a {kind}: a forward pass on rank 0 alone might wait for the other ranks"
        return None

    def view(self, inspector: Inspector) -> Later:
        """Return what a live file shows. Raises a `Fault` where nothing can come of it."""
        if (why := self.refused) is not None:
            raise Refused(why)
        return self._run.live.made(inspector.name, lambda: self.steps(inspector))

    @property
    def record(self) -> Inspectors:
        """The inspectors."""
        return Inspectors(
            refused=self.refused,
            inspectors={
                each.name: InspectorRecord(installed=each.is_installed, extra=each.extra, last=self.last.get(each.name))
                for each in INSPECTORS
            },
        )


@contextmanager
def _told(inspector: Inspector) -> Iterator[None]:
    """Have whatever an inspector raises say what it comes from, and nothing of what its code should do otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # With -W error they would keep it from its work.
        try:
            yield
        except Fault:
            raise
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise RuntimeError(f"{inspector.name} made no view of the model: {last_line(cause)}") from error


class InspectorFiles(Dir):
    """What the inspectors' commands have captured last: links to the files in `artifacts/debug/`."""

    placeholder = "<inspector>.<ending>"

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("index.json", slow=True)
    def index(self) -> Inspectors:
        """Which inspectors there are, whether each is installed, and what it has captured last."""
        return self._run.inspection.record

    def members(self) -> list[str]:
        """Return the names of the links."""
        return [f"{each.name}.{each.suffix}" for each in INSPECTORS if each.name in self._run.inspection.last]

    def member(self, name: str) -> Link | None:
        """Return the link to what one inspector has captured last."""
        if name not in self.members():
            return None
        last = self._run.inspection.last[name.partition(".")[0]]
        return Link(lambda: last["path"], "What an inspector has captured last.")
