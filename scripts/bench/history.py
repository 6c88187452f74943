"""What a history costs a thread for each step that is noted, and how long a curve of many points takes.

python -m scripts.bench.history

Noting is measured without a fit around it, a quarter of a second's samples at once, as the history's thread takes them;
in a fit it finds the cache cold, and `scripts.bench.threads` has that. A curve is read as the web face does.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from midrun.fs.curves import curve_of
from midrun.fs.segments import Segment
from midrun.history import History
from midrun.log import RunLog
from midrun.logged import Noted
from midrun.sample import Sample
from midrun.services import Service

LOOKS, STEPS = 40, 175
"""Looks, and steps between two of them: of 1.43 ms each."""
COLUMNS = 10
LENGTHS = (10_000, 1_000_000, 10_000_000)
BLOCK = 1000
POINTS = 2000
"""Points of a curve that are asked for, as the dashboard does."""


class Stacks:
    """Measures how long torch takes to read scalars, which it does without the interpreter's lock."""

    def __init__(self) -> None:
        self.spent = 0.0

    def __call__(self, scalars: list[torch.Tensor]) -> torch.Tensor:
        """Do what `torch.stack` does."""
        began = time.perf_counter()
        stacked = _STACK(scalars)
        self.spent += time.perf_counter() - began
        return stacked


_STACK: Callable[[list[torch.Tensor]], torch.Tensor] = torch.stack


def noting(metrics: int) -> tuple[float, float]:
    """Return the microseconds for a step that logs so many metrics, and those in which training goes on."""
    with tempfile.TemporaryDirectory() as directory:
        log = RunLog(Path(directory) / "midrun.log", lambda _: None, lambda _: None)
        history = History(Noted(), Path(directory), lambda: "fit", Service("history", log))
        spent, stacked = [], []
        torch.stack = stacks = Stacks()  # type: ignore[assignment]
        for look in range(LOOKS):
            samples, stacks.spent = list(_samples(look * STEPS, metrics)), 0.0
            began = time.perf_counter()
            history.note(samples)
            history._flush()  # noqa: SLF001 - as its thread does
            spent.append((time.perf_counter() - began) / STEPS)
            stacked.append(stacks.spent / STEPS)
        torch.stack = _STACK  # type: ignore[assignment]
        return statistics.median(spent) * 1e6, statistics.median(stacked) * 1e6


def _samples(first: int, metrics: int) -> Iterator[Sample]:
    for step in range(first, first + STEPS):
        logged = {f"metric{number}": torch.tensor(step / (number + 1)) for number in range(metrics)}
        yield Sample(step, 0, step, step * 0.00143, logged, [[0.1]])


def written(parent: Path, length: int) -> None:
    """Write so many rows."""
    segment = Segment(parent, "fit", 0.0, 0)
    names = tuple(f"metric{number}" for number in range(COLUMNS))
    for first in range(0, length, BLOCK):
        steps = range(first, first + BLOCK)
        rows = [[step % (97 + number) / 100 for number in range(COLUMNS)] for step in steps]
        segment.append(names, steps, [step * 0.00143 for step in steps], rows)
        segment.flush()


def drawn(parent: Path, first: int, last: int) -> float:
    """Return the milliseconds that a curve takes, in the page cache."""
    spent = []
    for _ in range(7):
        began = time.perf_counter()
        curve_of(parent, "metric3", first=first, last=last, points=POINTS)
        spent.append(time.perf_counter() - began)
    return statistics.median(spent) * 1e3


def main() -> None:
    """Print the tables."""
    print("| metrics a step | to note a step | of it in torch, while training goes on |\n|---|---|---|")
    for metrics in (1, 10, 100):
        spent, stacked = noting(metrics)
        print(f"| {metrics} | {spent:.1f} µs | {stacked:.1f} µs |", flush=True)
    print("\n| points, ten metrics beside each other | a curve of all | of the middle tenth | of 1,000 steps |")
    print("|---|---|---|---|")
    for length in LENGTHS:
        with tempfile.TemporaryDirectory() as directory:
            written(Path(directory), length)
            ranges = ((0, length), (length * 9 // 20, length * 11 // 20), (length // 2, length // 2 + 999))
            told = " | ".join(f"{drawn(Path(directory), *each):.1f} ms" for each in ranges)
            print(f"| {length:,} | {told} |", flush=True)


if __name__ == "__main__":
    main()
