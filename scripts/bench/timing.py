"""What the timing of batches takes of each batch of the quickstart's model, on the average of a fit.

python -m scripts.bench.timing

Some batches are timed and most are not, so a ratio of step times can't show it: what the timing's own code takes is
added up where Lightning calls it. That counts the stopwatch too, and not what a timed batch is slower by for other
reasons, such as the processor's cache.
"""

import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from midrun.pipeline import Pipeline
from scripts.bench.overhead import Shown, trainer

STEPS, FITS = 6000, 5


class Stopwatch:
    """Adds up what the timing takes."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.calls = 0

    def of(self, name: str) -> Any:  # noqa: ANN401 - a method of whatever arguments
        """Return a method of the timing that is measured."""
        measured = getattr(Pipeline, name)

        def call(*arguments: Any) -> Any:  # noqa: ANN401 - the method's own
            began = time.perf_counter()
            try:
                return measured(*arguments)
            finally:
                self.spent += time.perf_counter() - began
                self.calls += 1

        return call


def _keeping(pipelines: list[Pipeline]) -> Callable[[Any], None]:
    return lambda model: pipelines.append(model.midrun.run.pipeline)


def main() -> None:
    """Print a table in Markdown."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="midrun-bench-"))
    watch = Stopwatch()
    found: list[tuple[float, float, float]] = []
    for name in ("turn", "_start", "_stop"):
        setattr(Pipeline, name, watch.of(name))
    try:
        for _ in range(FITS):
            watch.spent, watch.calls = 0.0, 0
            data = TensorDataset(torch.randn(32 * STEPS, 8), torch.randn(32 * STEPS, 1))
            pipelines: list[Pipeline] = []
            model = Shown(folder / "procfs", enabled=True, ready=_keeping(pipelines))
            trainer(folder).fit(model, DataLoader(data, batch_size=32))
            found.append((watch.spent / STEPS * 1e6, watch.calls / STEPS, pipelines[0].record["one_in"]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    spent, calls, one_in = map(statistics.median, zip(*found, strict=True))
    print("| one batch is timed in | calls a batch | the timing takes of a batch |\n|---|---|---|")
    print(f"| {one_in:.0f} | {calls:.2f} | {spent:.2f} µs |")


if __name__ == "__main__":
    main()
