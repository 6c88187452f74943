"""What midrun costs a program before and after training: its import, the start of all services, and their stop.

python -m scripts.bench.life [TIMES]

The import is what is left of `import lightning.pytorch; from midrun import MidrunMixin` when Lightning is there
already. Start and stop are those of fits of the quickstart's model, one after the other in a process: the first one
loads what the others find loaded.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from midrun import MidrunConfig
from midrun.attachment import Attachment
from scripts.bench.overhead import Shown, await_faces, trainer

IMPORT = """
import lightning.pytorch, time
began = time.perf_counter()
from midrun import MidrunMixin
print(time.perf_counter() - began)
"""


class Timed(Attachment):
    """Notes how long it takes to begin and to end."""

    def __init__(self, config: MidrunConfig, given: tuple[str, ...] = ()) -> None:
        super().__init__(config, given)
        self.took: dict[str, float] = {}

    def setup(self, module: L.LightningModule, stage: str) -> None:
        """Start the run."""
        began = time.perf_counter()
        super().setup(module, stage)
        self.took["start"] = time.perf_counter() - began

    def teardown(self, module: L.LightningModule, stage: str) -> None:
        """Stop it."""
        began = time.perf_counter()
        super().teardown(module, stage)
        self.took["stop"] = time.perf_counter() - began


def fitted(folder: Path) -> dict[str, float]:
    """Return how long the start and the stop of a fit took, in seconds."""
    model: Any = Shown(folder / "procfs", enabled=True, ready=await_faces)
    timed = vars(model)["_midrun"] = Timed(model.midrun.config)
    trainer(folder).fit(model, DataLoader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=32))
    return timed.took


def main() -> None:
    """Measure, and print a table in Markdown."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    imports = [float(subprocess.check_output([sys.executable, "-c", IMPORT])) for _ in range(times)]
    with tempfile.TemporaryDirectory(prefix="midrun-bench-") as folder:
        first, *later = [fitted(Path(folder)) for _ in range(times)]
    rows = [("import midrun, beyond Lightning", imports)]
    for what in ("start", "stop"):
        rows.append((f"{what} of all services, the first", [first[what]]))
        rows.append((f"{what} of all services, later", [fit[what] for fit in later]))
    print("| | median | most |\n|---|---|---|")
    for what, took in rows:
        print(f"| {what} | {statistics.median(took) * 1e3:,.0f} ms | {max(took) * 1e3:,.0f} ms |")


if __name__ == "__main__":
    main()
