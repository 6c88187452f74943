"""The models that the tests train, how they are trained, and how a live run is read."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from midrun import MidrunMixin
from midrun.fs.later import Later
from midrun.fs.tree import Dir, Leaf, Link
from midrun.fs.verbs import Tree
from midrun.root import Root
from midrun.run import Run
from midrun.sample import Sample

QUIET: dict[str, Any] = {"rest_enabled": False, "fuse_enabled": False}
"""Options of a run without faces, which starts no process."""


class Bare(L.LightningModule):
    """A line fitted to noise, without midrun. It logs the loss of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.125)


class BareStaged(Bare):
    """The same with all four stages."""

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.log("val/loss", self.loss(batch))

    def test_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.log("test/loss", self.loss(batch))

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return self.net(batch[0])


class Watched(MidrunMixin, Bare):
    """The line with midrun, whose options it takes; no faces unless they are asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**QUIET, **options})


class Staged(MidrunMixin, BareStaged):
    """The line with midrun and all four stages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**QUIET, **options})


def batches(count: int = 4, size: int = 4) -> DataLoader[tuple[Tensor, ...]]:
    """Return a loader of `count` batches, always the same."""
    generator = torch.Generator().manual_seed(7)
    rows = count * size
    data = TensorDataset(torch.randn(rows, 3, generator=generator), torch.randn(rows, 1, generator=generator))
    return DataLoader(data, batch_size=size)


def trainer(root: Path, **options: Any) -> L.Trainer:
    """Return a Trainer that runs one quiet epoch on the CPU and writes only below `root`."""
    quiet: dict[str, Any] = {
        "default_root_dir": root,
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(**{**quiet, **options})


def run_of(model: L.LightningModule) -> Run:
    """Return the live run of a model."""
    assert isinstance(model, MidrunMixin)
    run = model.midrun.run
    assert run is not None
    return run


def sample_of(model: L.LightningModule) -> Sample:
    """Return the last sample of a model's live run."""
    return run_of(model).sample


def runs(model: L.LightningModule) -> bool:
    """Say whether a model has a live run."""
    assert isinstance(model, MidrunMixin)
    return model.midrun.run is not None


def read(model: L.LightningModule, path: str) -> str:
    """Return the text of a file of the model's live run, without the newline at its end."""
    tree = Tree(Root(run_of(model)))
    value = tree.read(path)
    if isinstance(value, Later):
        value = settled(value)
    return value.decode().removesuffix("\n")


def document(model: L.LightningModule, path: str) -> dict[str, Any]:
    """Return the content of a `.json` file of the model's live run."""
    content = json.loads(read(model, path))
    assert isinstance(content, dict)
    return content


def settled(later: Later) -> Any:
    """Wait for a value that is not there yet, and return it."""
    come = threading.Event()
    later.add_done_callback(lambda _: come.set())
    assert come.wait(10), "the value did not come"
    return later.result()


def walk(directory: Dir, path: str = "") -> Iterator[tuple[str, Dir | Leaf | Link]]:
    """Iterate over the paths and nodes below a directory."""
    for name, node in directory:
        below = f"{path}/{name}" if path else name
        yield below, node
        if isinstance(node, Dir):
            yield from walk(node, below)


def record(directory: Path | str, name: str = "run.json") -> dict[str, Any]:
    """Return a record of a run directory."""
    content = json.loads((Path(directory) / name).read_text())
    assert isinstance(content, dict)
    return content


def threads() -> list[str]:
    """Return the names of midrun's threads, sorted."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("midrun"))


def descriptors() -> int:
    """Return how many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def children() -> int:
    """Return how many processes this one has started that are not gone."""
    found = 0
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # that thread has ended
            found += len(path.read_text().split())
    return found


@contextmanager
def left_as_it_was() -> Iterator[None]:
    """Check that midrun leaves no thread, process or open file behind."""
    gc.collect()
    before = threads(), descriptors(), children()
    yield
    deadline = time.monotonic() + 5  # A busy machine may let a thread come to its end later than who waits for it.
    while (left := _left_behind(*before)) and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    assert not left, left


def _left_behind(names: list[str], files: int, processes: int) -> list[str]:
    """Return what there is more than before."""
    more = {"files": descriptors() - files, "processes": children() - processes}
    threads_left = (Counter(threads()) - Counter(names)).elements()
    return [*threads_left, *(f"{count} {what}" for what, count in more.items() if count > 0)]


def only_directory(root: Path) -> Path:
    """Return the one run directory below a Trainer's root."""
    (directory,) = (root / "midrun").iterdir()
    return directory
