"""Snapshots: the runtime state of one moment, as JSON and tensors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from midrun.checkpoints.generators import states
from midrun.fs.render import render
from midrun.memory import resident
from midrun.meta import loaded_versions

if TYPE_CHECKING:
    from midrun.run import Run

FORMAT = "midrun.snapshot/1"


def write_snapshot(run: Run, path: str) -> None:
    """Make a directory with `state.json` and, for `torch.load(weights_only=True)`, `rng.pt`."""
    folder = Path(path)
    folder.mkdir()
    (folder / "state.json").write_bytes(render("state.json", {"format": FORMAT, **state(run)}))
    with (folder / "rng.pt").open("wb") as file:  # Given a path, torch hides what the disk says.
        torch.save(states().plain(), file)


def state(run: Run) -> dict[str, Any]:
    """Return where training is, its metrics and learning rates, the memory in bytes, and versions."""
    sample = run.loop.sample(run.loop.batch)
    values = sample.values()
    return {
        "time": time.time(),
        "run_id": run.run_id,
        "stage": run.stage,
        "global_step": sample.global_step,
        "epoch": sample.epoch,
        "batch": sample.batch,
        "metrics": values.metrics,
        "learning_rates": values.rates,
        "memory": {"resident": resident(), **run.cuda.memory["devices"]},
        "versions": loaded_versions(),
    }
