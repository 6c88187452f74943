"""What midrun costs a training step: the quickstart's model with and without it, in turns, in one process.

python -m scripts.bench.overhead [--pairs N] [--steps N] [CASE ...]

A pair is one block of steps without midrun and one with it, next to each other in time, in either order. A block's
figure is its mean step time, its first steps left out. The table gives the median of the pairs' ratios with their
quartiles, and a 95 % interval of the median (bootstrap).

*idle* takes turns within one fit, every ten steps, by giving the model another class: on a machine whose speed changes
from second to second nothing slower tells one percent from none. Its faces live all the time, and nobody reads.
"""

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from examples.quickstart import TinyRegressor
from midrun import MidrunConfig
from midrun.attachment import Attachment
from midrun.hooks import HOOKS

WARM_UP = 50
TURN = 10
READY_PATIENCE = 20.0


class Shown(TinyRegressor):
    """The quickstart's model with options, which waits at its start until what is to look at it does."""

    def __init__(self, mountpoint: Path, port: int, *, enabled: bool, ready: Callable[[Any], None]) -> None:
        super().__init__()
        config = MidrunConfig(midrun_enabled=enabled, fuse_mountpoint=str(mountpoint), rest_port=port)
        vars(self)["_midrun"] = Attachment(config)  # what the quickstart's model would have made of these options
        self.ready = ready

    def on_train_start(self) -> None:
        """Wait until all that is to look at the run does."""
        super().on_train_start()
        self.ready(self)


class Timed(Shown):
    """One that notes when each of its steps begins."""

    def __init__(self, mountpoint: Path, port: int, *, enabled: bool, ready: Callable[[Any], None]) -> None:
        super().__init__(mountpoint, port, enabled=enabled, ready=ready)
        self.begun: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Note the time and train."""
        self.begun.append(time.perf_counter())
        return super().training_step(batch, batch_idx)


@contextmanager
def reader(kind: str, rate: float, what: str) -> Iterator[None]:
    """Run a reader beside the block."""
    command = [sys.executable, "-m", "scripts.bench.readers", kind, str(rate), what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def hello(mountpoint: Path) -> Iterator[None]:
    """Run a plain pyfuse3 file system beside the block."""
    mountpoint.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "scripts.bench.hello", str(mountpoint)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


@dataclass(frozen=True)
class Case:
    """What looks at a run: processes that are started once it shows itself."""

    readers: tuple[tuple[str, float, str], ...] = ()
    enabled: bool = True
    """False: a plain pyfuse3 file is read instead, beside training without midrun."""


STEP = "{procfs}/state/global-step"
CASES = {
    "idle": Case(),
    "GET /run at 1 Hz": Case((("get", 1, "{url}/run"),)),
    "10 cat a second": Case((("cat", 10, STEP),)),
    "GET at 1 Hz and 10 cat a second": Case((("get", 1, "{url}/run"), ("cat", 10, STEP))),
    "100 reads a second": Case((("open", 100, STEP),)),
    "1000 reads a second": Case((("open", 1000, STEP),)),
    "1000 reads a second of a plain pyfuse3 file": Case((("open", 1000, "{procfs}/hello"),), enabled=False),
}


class Turns:
    """A loader that gives the model the other class every `TURN` batches, and notes when each batch was asked for.

    Parameters
    ----------
    loader
        The batches.
    model
        The model that trains on them.
    """

    def __init__(self, loader: DataLoader[Any], model: Shown) -> None:
        self.loader, self.model = loader, model
        self.classes = (_without_midrun(), type(model))
        self.times: list[float] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.loader):
            if number % TURN == 0:
                # In the order plain, midrun, midrun, plain: a drift of the machine's speed favours neither. The last
                # turn is midrun's, which must see the end of the fit.
                last = number >= len(self) - TURN
                self.model.__class__ = self.classes[1 if last else (number // TURN + 1) // 2 % 2]
            self.times.append(time.perf_counter())
            yield batch

    def ratios(self) -> tuple[list[float], float]:
        """Return the ratio of each pair of turns, and the median step time of the plain ones."""
        took = [after - before for before, after in pairwise(self.times)]
        turns = [statistics.median(took[at + 1 : at + TURN]) for at in range(WARM_UP, len(took) - TURN, TURN)]
        first = WARM_UP // TURN
        plain = {at: (first + at + 1) // 2 % 2 == 0 for at in range(len(turns))}
        ratios = [
            turns[at + 1] / turns[at] if plain[at] else turns[at] / turns[at + 1]
            for at in range(len(turns) - 1)
            if plain[at] != plain[at + 1]
        ]
        return ratios, statistics.median(turn for at, turn in enumerate(turns) if plain[at])


def _without_midrun() -> type:
    """Return the quickstart's model as it would be without the mixin."""
    own = {
        name: value for name, value in vars(TinyRegressor).items() if name not in {*HOOKS, "__dict__", "__weakref__"}
    }
    return type("Plain", (L.LightningModule,), own)


class Bench:
    """Trains in blocks, in one temporary folder."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.folder = Path(tempfile.mkdtemp(prefix="midrun-bench-"))
        generator = torch.Generator().manual_seed(0)
        count = 32 * (steps + WARM_UP)
        dataset = TensorDataset(torch.randn(count, 8, generator=generator), torch.randn(count, 1, generator=generator))
        self.data = DataLoader(dataset, batch_size=32)

    def block(self, case: Case | None) -> float:
        """Train one block and return its mean step time in seconds; None trains it plainly."""
        procfs = self.folder / "procfs"
        with ExitStack() as beside:

            def ready(model: Any) -> None:  # noqa: ANN401 - Shown, which takes this function
                if case is None:
                    return
                if not case.enabled:
                    beside.enter_context(hello(procfs))
                else:
                    _await_faces(model)
                for kind, rate, what in case.readers:
                    beside.enter_context(reader(kind, rate, what.format(procfs=procfs, url=model.midrun.url)))

            enabled = case is not None and case.enabled
            model = Timed(procfs, 18090, enabled=enabled, ready=ready)
            self.trainer().fit(model, self.data)
        begun = model.begun[WARM_UP:]
        return (begun[-1] - begun[0]) / (len(begun) - 1)

    def turns(self, count: int) -> tuple[list[float], float]:
        """Return the ratios of `count` pairs of turns within one fit, and the median step time without midrun."""
        steps = WARM_UP + 2 * TURN * count
        dataset = TensorDataset(torch.randn(32 * steps, 8), torch.randn(32 * steps, 1))
        model = Shown(self.folder / "procfs", 18090, enabled=True, ready=_await_faces)
        turns = Turns(DataLoader(dataset, batch_size=32), model)
        self.trainer().fit(model, turns)
        return turns.ratios()

    def trainer(self) -> L.Trainer:
        """Return a Trainer that does nothing besides."""
        return L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            default_root_dir=str(self.folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    def pairs(self, case: Case, count: int) -> tuple[list[float], float]:
        """Return the ratios of `count` pairs, and the median step time without midrun."""
        ratios, plain_times = [], []
        for number in range(count):
            if number % 2:
                plain, seen = self.block(None), self.block(case)
            else:
                seen, plain = self.block(case), self.block(None)
            ratios.append(seen / plain)
            plain_times.append(plain)
        return ratios, statistics.median(plain_times)


def _await_faces(model: Any) -> None:  # noqa: ANN401 - Shown, which takes this function
    services = model.midrun.run.services
    wait_for(lambda: all(services[name].state == "running" for name in ("rest", "fuse")))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + READY_PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            message = f"the run was not ready within {READY_PATIENCE:g} s"
            raise TimeoutError(message)
        time.sleep(0.01)


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return a 95 % interval of the median by bootstrap."""
    draw = random.Random(0)  # noqa: S311 - a repeatable draw, no secret
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    """Measure the named cases, or all, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bench = Bench(arguments.steps)
    try:
        bench.block(None)
        print(
            "| beside training | ratio | quartiles | 95 % of the median | step without midrun |\n|---|---|---|---|---|"
        )
        for name in arguments.cases or CASES:
            if name == "idle":
                ratios, plain = bench.turns(20 * arguments.pairs)
            else:
                ratios, plain = bench.pairs(CASES[name], arguments.pairs)
            low, _, high = statistics.quantiles(ratios, n=4)
            least, most = interval(ratios)
            print(
                f"| {name} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} | {least:.3f} to {most:.3f} |"
                f" {plain * 1e6:,.0f} µs |",
                flush=True,
            )
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
