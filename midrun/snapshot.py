"""Snapshots: the runtime state of one moment, as JSON and tensors."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

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
        torch.save(random_states(), file)


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


def random_states() -> dict[str, Any]:
    """Return the states of the random number generators, as tensors and plain values."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002 - what user code draws from
    version, internal, gauss_next = random.getstate()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": {
            "kind": str(kind),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(gauss),
        },
        "python": {"version": version, "internal": torch.tensor(internal, dtype=torch.int64), "gauss_next": gauss_next},
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states
