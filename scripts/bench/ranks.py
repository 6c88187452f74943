"""What midrun costs a step of two ranks with nothing to do, beside the naive way: a broadcast at each safe point.

python -m scripts.bench.ranks [--fits N] [--pairs N]

The quickstart's model trains with strategy="ddp" on two processes, in turns of twenty steps within one fit: plain, and
in the first table with midrun, in the second with a blocking broadcast of eight bytes through a gloo group of its own
before each optimizer step. The ratio of neighbouring turns' medians, and the microseconds that it makes of a step.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset

from scripts.bench.overhead import Shown, interval, is_seen, wait_for, without_midrun

TURN, WARM_UP = 20, 100
"""Steps of a turn, and before the first that counts."""


def naive(plain: type) -> type:
    """Return the plain model with a broadcast before each optimizer step."""

    def on_before_optimizer_step(self: Any, optimizer: object) -> None:  # noqa: ANN401 - a model
        distributed.broadcast(self.word, src=0, group=self.own_group)

    return type("Naive", (plain,), {"on_before_optimizer_step": on_before_optimizer_step})


class Turns:
    """A loader that changes the model's class at every turn, on all ranks at the same batch."""

    def __init__(self, loader: DataLoader[Any], model: Any, seen: type) -> None:  # noqa: ANN401 - a model
        self.loader, self.model = loader, model
        self.classes = (without_midrun(), seen)
        self.times: list[float] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.loader):
            if number % TURN == 0:
                last = number >= len(self) - TURN
                self.model.__class__ = Shown if last else self.classes[is_seen(number // TURN)]
            self.times.append(time.perf_counter())
            yield batch

    def turns(self) -> list[tuple[bool, float]]:
        """Return of each turn whether it was with what is measured, and the median step."""
        took = [after - before for before, after in pairwise(self.times)]
        return [
            (is_seen(number), statistics.median(took[number * TURN + 1 : (number + 1) * TURN]))
            for number in range(WARM_UP // TURN, len(took) // TURN - 1)
        ]


def fit(way: str, pairs: int, folder: Path) -> None:
    """Train in two ranks; the first writes down the turns."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def ready(model: Any) -> None:  # noqa: ANN401 - Shown, which takes this function
        model.word, model.own_group = torch.zeros(1, dtype=torch.int64), distributed.new_group(backend="gloo")
        if model.midrun.run is not None:
            run = model.midrun.run
            wait_for(lambda: run.roll.is_complete and run.services["rest"].state == "running")
        distributed.barrier()

    count = 2 * 32 * TURN * (2 * pairs + 2 + WARM_UP // TURN)
    data = TensorDataset(torch.randn(count, 8), torch.randn(count, 1))
    model = Shown(folder / "procfs", enabled=way == "midrun", ready=ready)
    turns = Turns(DataLoader(data, batch_size=32), model, Shown if way == "midrun" else naive(without_midrun()))
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        logger=False,
        default_root_dir=str(folder),
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_train_batches=count // 64,
    )
    trainer.fit(model, turns)
    if trainer.is_global_zero:
        (folder / "turns.json").write_text(json.dumps(turns.turns()))


def measured(way: str, fits: int, pairs: int) -> tuple[list[float], list[float], float]:
    """Return the ratios and differences of neighbouring turns, and the median step without."""
    ratios, more, plain = [], [], []
    for _ in range(fits):
        folder = Path(tempfile.mkdtemp(prefix="midrun-bench-"))
        try:
            command = [sys.executable, "-m", "scripts.bench.ranks", "--fit", way, str(folder), "--pairs", str(pairs)]
            quiet = subprocess.DEVNULL
            subprocess.run(command, check=True, stdout=quiet, stderr=quiet, env={**os.environ, "PYTHONPATH": "."})
            turns = json.loads((folder / "turns.json").read_text())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        plain += [took for seen, took in turns if not seen]
        for (seen_before, before), (seen_after, after) in pairwise(turns):
            if seen_before != seen_after:
                here, there = (after, before) if seen_after else (before, after)
                ratios.append(here / there)
                more.append(here - there)
    return ratios, more, statistics.median(plain)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--fits", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=40)
    arguments = parser.parse_args()
    if arguments.fit is not None:
        fit(arguments.fit[0], arguments.pairs, Path(arguments.fit[1]))
        return
    print("| two ranks, at each safe point | ratio | 95 % of the median | more | step without |\n|---|---|---|---|---|")
    for way, name in (("midrun", "midrun, nothing due"), ("naive", "a blocking broadcast of 8 bytes")):
        ratios, more, plain = measured(way, arguments.fits, arguments.pairs)
        low, high = interval(ratios)
        print(
            f"| {name} | {statistics.median(ratios):.3f} | {low:.3f} to {high:.3f} |"
            f" {statistics.median(more) * 1e6:.0f} µs | {plain * 1e6:,.0f} µs |",
            flush=True,
        )


if __name__ == "__main__":
    main()
