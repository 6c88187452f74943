"""What midrun costs a training step: the quickstart's model with and without it, in turns, within one fit.

python -m scripts.bench.overhead [--fits N] [--pairs N] [CASE ...]

The turns change the model's class, and stop and continue the readers: on a machine whose speed changes from second to
second, slower turns can't tell one percent from none. The faces live all the time. *idle* changes every ten
steps and compares the medians of the turns, which nothing rare gets into; with readers a turn is some hundred steps
long, and its mean counts. Where a process has its code and data in memory is chance, and worth up to half a percent:
each case is measured in several processes. The table gives the median of the ratios of neighbouring turns, their
quartiles, and a 95 % interval of the median (bootstrap).
"""

import argparse
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from examples.quickstart import TinyRegressor
from midrun import MidrunConfig
from midrun.attachment import Attachment
from midrun.hooks import HOOKS

WARM_UP = 50
READY_PATIENCE = 20.0


class Shown(TinyRegressor):
    """The quickstart's model with options, which waits at its start until what is to look at it does."""

    def __init__(self, mountpoint: Path, *, enabled: bool, ready: Callable[[Any], None]) -> None:
        super().__init__()
        config = MidrunConfig(midrun_enabled=enabled, fuse_mountpoint=str(mountpoint), rest_port=18090)
        vars(self)["_midrun"] = Attachment(config)  # what the quickstart's model would have made of these options
        self.ready = ready

    def on_train_start(self) -> None:
        """Wait until all that is to look at the run does."""
        super().on_train_start()
        self.ready(self)


class Reader:
    """A process that reads at a steady rate, and can be stopped for a while."""

    def __init__(self, kind: str, rate: float, what: str) -> None:
        command = [sys.executable, "-m", "scripts.bench.readers", kind, str(rate), what]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def go(self, *, on: bool) -> None:
        """Let it read, or stop it."""
        self._process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Browser(Reader):
    """A browser that has the dashboard open in live mode, and can be cut off for a while."""

    def __init__(self, _: str, rate: float, what: str) -> None:
        command = [sys.executable, "-m", "scripts.bench.page", what]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._hear()

    def go(self, *, on: bool) -> None:
        """Let it ask, or cut it off."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"on\n" if on else b"off\n")
        self._process.stdin.flush()
        self._hear()

    def close(self) -> None:
        """Close it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the browser has ended"


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

    @property
    def turn(self) -> int:
        """Steps of a turn: with a page, so many that each has several of its polls."""
        if any(kind == "page" for kind, *_ in self.readers):
            return 3000
        return 400 if self.readers else 10


STEP = "{procfs}/state/global-step"
CASES = {
    "idle": Case(),
    "GET /run at 1 Hz": Case((("get", 1, "{url}/run"),)),
    "10 cat a second": Case((("cat", 10, STEP),)),
    "GET at 1 Hz and 10 cat a second": Case((("get", 1, "{url}/run"), ("cat", 10, STEP))),
    "the dashboard in live mode": Case((("page", 1, "{url}/"),)),
    "100 reads a second": Case((("open", 100, STEP),)),
    "1000 reads a second": Case((("open", 1000, STEP),)),
    "1000 reads a second of a plain pyfuse3 file": Case((("open", 1000, "{procfs}/hello"),), enabled=False),
}


class Turns:
    """A loader that changes the model's class at every turn, and notes when each batch was asked for.

    Parameters
    ----------
    loader
        The batches.
    model
        The model that trains on them.
    case
        What is measured.
    readers
        Those that are stopped in the plain turns; they may be added later.
    """

    def __init__(self, loader: DataLoader[Any], model: Shown, case: Case, readers: list[Reader]) -> None:
        self.loader, self.model, self.case, self.readers = loader, model, case, readers
        self.classes = (without_midrun(), type(model) if case.enabled else without_midrun())
        self.times: list[float] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        turn = self.case.turn
        for number, batch in enumerate(self.loader):
            if number % turn == 0:
                # The last turn sees the end of the fit, which is midrun's.
                last = number >= len(self) - turn
                self.model.__class__ = Shown if last else self.classes[is_seen(number // turn)]
                for reader in self.readers:
                    reader.go(on=is_seen(number // turn))
            self.times.append(time.perf_counter())
            yield batch
        for reader in self.readers:  # before there is nothing to read
            reader.close()

    def ratios(self) -> tuple[list[float], float]:
        """Return the ratio of each pair of turns, and the median step time of the plain ones."""
        turn, average = self.case.turn, statistics.mean if self.case.readers else statistics.median
        took = [after - before for before, after in pairwise(self.times)]
        first = -(-WARM_UP // turn)
        turns = [
            (is_seen(number), average(took[number * turn + 1 : (number + 1) * turn]))
            for number in range(first, len(took) // turn - 1)
        ]
        ratios = [
            after / before if after_seen else before / after
            for (before_seen, before), (after_seen, after) in pairwise(turns)
            if before_seen != after_seen
        ]
        return ratios, statistics.median(took for seen, took in turns if not seen)


def is_seen(turn: int) -> bool:
    """Whether the model has midrun: plain, midrun, midrun, plain, so that a drift in speed favours neither."""
    return (turn + 1) // 2 % 2 == 1


def without_midrun() -> type:
    """Return the quickstart's model as it would be without the mixin."""
    own = {
        name: value for name, value in vars(TinyRegressor).items() if name not in {*HOOKS, "__dict__", "__weakref__"}
    }
    return type("Plain", (L.LightningModule,), own)


def measure(case: Case, pairs: int, folder: Path) -> tuple[list[float], float]:
    """Return the ratios of some pairs of turns within one fit, and the median step time without midrun."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    procfs = folder / "procfs"
    readers: list[Reader] = []
    with ExitStack() as beside:

        def ready(model: Any) -> None:  # noqa: ANN401 - Shown, which takes this function
            if case.enabled:
                await_faces(model)
            else:
                beside.enter_context(hello(procfs))
            for kind, rate, what in case.readers:
                made = Browser if kind == "page" else Reader
                readers.append(made(kind, rate, what.format(procfs=procfs, url=model.midrun.url)))
                beside.callback(readers[-1].close)

        count = 32 * case.turn * (2 * pairs + 2 + WARM_UP // case.turn)
        dataset = TensorDataset(torch.randn(count, 8), torch.randn(count, 1))
        model = Shown(procfs, enabled=case.enabled, ready=ready)
        turns = Turns(DataLoader(dataset, batch_size=32), model, case, readers)
        trainer(folder).fit(model, turns)
        return turns.ratios()


def trainer(folder: Path) -> L.Trainer:
    """Return a Trainer that does nothing besides."""
    return L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        default_root_dir=str(folder),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def await_faces(model: Any) -> None:  # noqa: ANN401 - Shown, which takes this function
    """Wait until both faces of a model's run serve."""
    services = model.midrun.run.services
    wait_for(lambda: all(services[name].state == "running" for name in ("rest", "fuse")))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + READY_PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run was not ready within {READY_PATIENCE:g} s")
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
    parser.add_argument("--fits", type=int, default=5, help="processes for each case")
    parser.add_argument("--pairs", type=int, default=10, help="of turns in each; idle has 15 times as many")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}; the cases are {', '.join(CASES)}")
    folder = Path(tempfile.mkdtemp(prefix="midrun-bench-"))
    print("| beside training | ratio | quartiles | 95 % of the median | step without midrun |\n|---|---|---|---|---|")
    try:
        for name in arguments.cases or CASES:
            case = CASES[name]
            pairs = arguments.pairs * (1 if case.readers else 15)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
                fits = [pool.submit(measure, case, pairs, folder).result() for _ in range(arguments.fits)]
            ratios = [ratio for found, _ in fits for ratio in found]
            plain = statistics.median(plain for _, plain in fits)
            low, _, high = statistics.quantiles(ratios, n=4)
            least, most = interval(ratios)
            print(
                f"| {name} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} | {least:.3f} to {most:.3f} |"
                f" {plain * 1e6:,.0f} µs |",
                flush=True,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
