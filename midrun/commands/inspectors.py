"""Views of the model, made by torchinfo, torchview, torchviz and torchlens from one forward pass."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from midrun.command import STEP, Command
from midrun.commands.artifacts import Labelled
from midrun.commands.kind import Kind
from midrun.inspectors import DEPTH, TORCHINFO, TORCHLENS, TORCHVIEW, TORCHVIZ
from midrun.inspectors.views import Inspector
from midrun.store import write_text
from midrun.tasks import Steps

if TYPE_CHECKING:
    from midrun.run import Run


class Leveled(Labelled):
    """What a file is to be called, and how much it shows."""

    depth: int = Field(default=DEPTH, ge=1, le=50, description="Levels of modules that are shown.")


class _Capture(Kind):
    """A kind that writes a view of the model into `artifacts/debug/`."""

    Arguments = Labelled
    bare = "label"
    points = (STEP, "train_batch_end")
    """Where the watch begins; the pass that is shown is the next one."""
    inspector: ClassVar[Inspector]

    def do(self, run: Run, args: Labelled, command: Command) -> dict[str, Any] | Steps:
        """Begin to watch, and write the view at the next optimizer step."""
        return self._steps(run, args, command)

    def _steps(self, run: Run, args: Labelled, command: Command) -> Steps:
        text = yield from run.inspection.steps(self.inspector, getattr(args, "depth", DEPTH))
        return self._write(run, args, command, text)

    def _write(self, run: Run, args: Labelled, command: Command, text: str) -> dict[str, Any]:
        word, suffix = self.inspector.name, self.inspector.suffix
        write = partial(write_text, text)
        result = run.store.write("debug", write, command, args.label, word=word, suffix=suffix)
        run.inspection.last[word] = result["artifact"]
        return result


class TorchinfoCapture(_Capture):
    """Write a table of the modules with the sizes of what goes through them, at the next optimizer step.

    It is made by torchinfo, from a forward pass in eval mode on the batch that is in flight then.
    """

    name = "torchinfo_capture"
    Arguments = Leveled
    inspector = TORCHINFO


class TorchviewCapture(_Capture):
    """Draw the modules and what flows between them, as a graph in DOT, at the next optimizer step.

    It is made by torchview, from a forward pass in eval mode on the batch that is in flight then.
    """

    name = "torchview_capture"
    Arguments = Leveled
    inspector = TORCHVIEW


class TorchvizCapture(_Capture):
    """Draw the autograd graph, in DOT, at the next optimizer step; in an exception hold, that of the failed loss.

    It is made by torchviz, from a forward pass in eval mode on the batch that is in flight then, and of a failed loss
    without one.
    """

    name = "torchviz_capture"
    inspector = TORCHVIZ
    in_exception_hold = True

    def do(self, run: Run, args: Labelled, command: Command) -> dict[str, Any] | Steps:
        """Draw the failed loss, or begin to watch."""
        if run.holds.exception is None:
            return self._steps(run, args, command)
        return self._write(run, args, command, run.inspection.failed_loss(self.inspector))


class TorchlensCapture(_Capture):
    """List every operation of a forward pass, with what goes in and comes out, at the next optimizer step.

    It is made by torchlens, from a pass in eval mode on the batch that is in flight then.
    """

    name = "torchlens_capture"
    inspector = TORCHLENS
