"""The bundle: what a checkpoint of a midrun model has under `midrun`: tensors and plain values, and nothing else.

`torch.load(weights_only=True)` reads it. One rank's part is under `rank`; where there are several ranks each has its
own, under `ranks`, and the format is the second.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import midrun
from midrun.checkpoints.faults import CheckpointError
from midrun.fs.tracebacks import last_line

if TYPE_CHECKING:
    from midrun.ranks import Ranks

KEY = "midrun"
"""Where in a checkpoint it is."""
OF_ONE, OF_MANY = "midrun.checkpoint/1", "midrun.checkpoint/2"
"""The formats: of one rank, and of several."""

_PATIENCE = 60.0
"""Seconds for which rank zero waits for what the others have."""
_PAUSE = 0.002
_MOST_TOLD = 64 << 20
"""Bytes of gradients and buffers that a later rank tells, at most."""


def bundle(own: dict[str, Any], world: int, ranks: Ranks | None, shared: dict[str, Any]) -> dict[str, Any]:
    """Return the bundle of a checkpoint; on a later rank it is incomplete, and nobody writes it.

    Parameters
    ----------
    own
        What this rank needs.
    world
        How many ranks there are.
    ranks
        Who they are; None where nobody trains any more.
    shared
        What is the same on all ranks.
    """
    made = {"format": OF_ONE if world == 1 else OF_MANY, "version": midrun.__version__, "world_size": world, **shared}
    if world == 1:
        return {**made, "rank": own}
    return {**made, "ranks": [None] * world if ranks is None else _gathered(own, ranks)}


def _gathered(own: dict[str, Any], ranks: Ranks) -> list[dict[str, Any] | None]:
    """Return what each rank has told; None for one that has told nothing."""
    rank, number = ranks.own["rank"], ranks.next_bundle()
    found: list[dict[str, Any] | None] = [None] * ranks.own["world_size"]
    found[rank] = own
    with suppress(ConnectionError, RuntimeError):  # The others, or rank zero, can't be told anything.
        if rank:
            # It may have been told of the run by nobody yet, so soon after the beginning.
            ranks.meet(_PATIENCE)
            file = io.BytesIO()
            torch.save(_small(own), file)
            ranks.channel.put(f"bundle/{number}/{rank}", base64.b64encode(file.getvalue()).decode())
            return found
        deadline = time.monotonic() + _PATIENCE
        for other in ranks.others:
            key = f"bundle/{number}/{other}"
            while (told := ranks.channel.get(key)) is None and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            ranks.channel.forget(key)
            if told is not None:
                part = torch.load(io.BytesIO(base64.b64decode(told)), weights_only=True)
                # Where one of them has failed to write a checkpoint, they number them differently.
                found[other] = part if part["at"] == own["at"] else None
    return found


def _small(own: dict[str, Any]) -> dict[str, Any]:
    """Return what a rank tells rank zero, without what is too much for the store that all ranks share."""
    large = {name: own[name] for name in ("gradients", "buffers") if name in own}
    size = sum(tensor.numel() * tensor.element_size() for part in large.values() for tensor in part.values())
    if size <= _MOST_TOLD:
        return own
    small = {name: value for name, value in own.items() if name not in large}
    return {**small, "untold": [*own["untold"], *(f"the {name} of a later rank" for name in large)]}


def read(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the bundle of a checkpoint, or None where there is none. Raises CheckpointError where it is no bundle."""
    found = checkpoint.get(KEY)
    if found is None:
        return None
    told = found.get("format") if isinstance(found, dict) else None
    if told not in (OF_ONE, OF_MANY):
        raise CheckpointError(
            f"what midrun has in the checkpoint has the format {told!r}, not {OF_ONE!r} or {OF_MANY!r}: it was "
            "written by another version of midrun, or its key 'midrun' is somebody else's"
        )
    return dict(found)


def about(path: Path) -> dict[str, Any] | None:
    """Return what a checkpoint's bundle says of it, without its tensors; None where there is none to be read."""
    try:
        found = torch.load(path, map_location="meta", mmap=True, weights_only=True).get(KEY)
        names = ("label", "command", "control_revision", "global_step", "epoch", "time")
        return {name: found[name] for name in names}
    except Exception:  # noqa: BLE001 - whatever lies there
        return None


def part_of(found: dict[str, Any], rank: int, world_size: int) -> tuple[dict[str, Any] | None, str | None]:
    """Return what one rank has in a bundle, or None and why it has nothing there."""
    if found["world_size"] != world_size:
        wrote = f"{found['world_size']} rank{'s' if found['world_size'] > 1 else ''}"
        return None, f"the checkpoint was written by {wrote}, and there are {world_size} now"
    if world_size == 1:
        return found["rank"], None
    # All go on in one way, or all in the other: else they would not come to the same collective operations.
    missing = [number for number, part in enumerate(found["ranks"]) if part is None]
    if missing:
        return None, f"rank {', '.join(map(str, missing))} had told nothing when the checkpoint was written"
    return found["ranks"][rank], None


def of_another_model(checkpoint: Mapping[str, Any], module: torch.nn.Module) -> str | None:
    """Return in what the weights of a checkpoint are not those of a model, or None."""
    try:
        theirs, ours = checkpoint["state_dict"], module.state_dict()
    except Exception as error:  # noqa: BLE001 - a model's own state_dict is anybody's code
        return f"it has no weights ({last_line(error)})"
    lacks, has = [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]
    if lacks or has:
        parts = (("it lacks", lacks), ("the model lacks", has))
        return "; ".join(f"{word} {', '.join(names[:5])}" for word, names in parts if names)
    for name, tensor in ours.items():
        shape = getattr(theirs[name], "shape", None)
        # torch takes one number in either shape.
        is_one = shape is not None and shape.numel() == 1 and isinstance(tensor, torch.Tensor) and tensor.numel() == 1
        if (
            isinstance(tensor, torch.Tensor)
            and shape != tensor.shape
            and not is_one
            and not torch.nn.parameter.is_lazy(tensor)
        ):
            return f"{name} has the shape {tuple(shape or ())}, and in the model {tuple(tensor.shape)}"
    return None
