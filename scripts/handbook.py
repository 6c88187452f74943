"""Writes docs/tree.md, every path of a run's tree, from the tree of a real run.

With --check it writes nothing, and ends with exit code 1 when the page is not what it would write.
"""

import sys
import tempfile
from pathlib import Path

import lightning.pytorch as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from examples.quickstart import TinyRegressor
from midrun.fs.handbook import handbook
from midrun.root import Root

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tree.md"
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
    """The quickstart's model, which writes down its own tree while it trains."""

    page = ""

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Describe the tree once there is a metric in it."""
        super().on_train_batch_end(outputs, batch, batch_idx)  # type: ignore[arg-type]  # passed on as it came
        run = self.midrun.run
        assert run is not None
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


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text() == text else f"{PAGE} is not what the code declares: run scripts/tree")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
