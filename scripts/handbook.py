"""Writes docs/tree.md, every path of a run's tree, and the table of kinds in docs/commands.md, from the code.

With --check it writes nothing, and ends with exit code 1 when a page is not what it would write.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

import lightning.pytorch as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from examples.quickstart import TinyRegressor
from midrun.command import POINTS
from midrun.commands import KINDS
from midrun.commands.kind import Kind
from midrun.fs.handbook import handbook
from midrun.root import Root

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tree.md"
COMMANDS = PAGE.with_name("commands.md")
BEGIN, END = "<!-- kinds -->\n", "<!-- end of kinds -->\n"
HEAD = """\
# The tree

Every path of `procfs/`, and of `/files/` by REST: the same tree, the same bytes. This page is made by `scripts/tree`
from the declarations in the code.

A plain file holds one value and a newline; a value that does not exist is an empty file. A file named `*.json` holds
one JSON object. JSON has no word for NaN and infinity: such a number is `null`, and the object's member `_nonfinite`
says what it was, as a map from JSON pointer to `"NaN"`, `"Infinity"` or `"-Infinity"`.

The values under `state/` are those of the last safe point: before each optimizer step, at the end of each batch of any
stage, and where an epoch or a stage begins or ends. `ls -l` shows a file's real size, and as its time the moment when
somebody first saw its value.

In the names of files that come and go, such as those of metrics, `/`, `%` and control characters are percent-encoded,
as are the names `.`, `..` and `index.json`: the metric `train/loss` is the file `state/metrics/train%2Floss`. A name
that would be longer than 255 bytes is cut and ends in `%~` and a hash. The `index.json` beside them has plain names.

"""


class Described(TinyRegressor):
    """The quickstart's model, which writes down its own tree, with a hold in it, while it trains."""

    page = ""

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Describe the tree once there is a metric in it, and a series of one."""
        super().on_train_batch_end(outputs, batch, batch_idx)  # type: ignore[arg-type]  # passed on as it came
        run = self.midrun.run
        assert run is not None
        done = threading.Event()
        later = run.tree.write("control/commands", b'{"kind": "hold", "execution": {"when": {"epoch": 9}}}')
        later.add_done_callback(lambda _: done.set())
        assert done.wait(10)
        deadline = time.monotonic() + 10
        while not run.history.names:
            assert time.monotonic() < deadline, "the history has a series"
            time.sleep(0.01)
        type(self).page = HEAD + handbook(Root(run))


def page() -> str:
    """Train for one batch and return the page."""
    data = DataLoader(TensorDataset(torch.randn(4, 8), torch.randn(4, 1)), batch_size=4)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_steps=1,
            accelerator="cpu",
            logger=False,
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Described(), data)
    return Described.page


def commands() -> str:
    """Return docs/commands.md with the table of kinds as it is in the code."""
    before, _, rest = COMMANDS.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    rows = [
        "| kind | arguments | without `when` | held | what it does |",
        "|---|---|---|---|---|",
        *map(_row, KINDS.values()),
    ]
    return "".join([before, BEGIN, *(f"{row}\n" for row in rows), END, after])


def _row(kind: Kind) -> str:
    given = []
    for name, field in kind.Arguments.model_fields.items():
        bare = " (bare value)" if name == kind.bare else ""
        given.append(f"`{name}`{'' if field.is_required() else '?'}{bare}")
    any_point = {Kind.points: "any", POINTS: "any of training"}
    when = "" if kind.at_once else any_point.get(kind.points) or ", ".join(f"`{point}`" for point in kind.points)
    if kind.at_once:
        held = "at once"
    elif kind.while_held:
        held = "yes"
    else:
        held = "by an exception alone" if kind.in_exception_hold else "no"
    return f"| `{kind.name}` | {', '.join(given) or 'none'} | {when} | {held} | {' '.join(kind.doc.split())} |"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    for path, text in ((PAGE, page()), (COMMANDS, commands())):
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path} is not what the code declares: run scripts/tree")
