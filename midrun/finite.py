"""The finite check: whether the batches of a run hold NaN or infinity, and where."""

from __future__ import annotations

import math
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch

from midrun.command import Command
from midrun.commands.standstill import Hold, Reason
from midrun.fs.faults import Fault
from midrun.nested import Part, parts

if TYPE_CHECKING:
    from midrun.run import Run

_SUFFIX = "_batch_start"
"""The callbacks at which a batch comes."""
_POINTS = frozenset({*Hold.points, "train_batch_end"})
"""Where the hold may stand: gradients of several batches may be gathered for one optimizer step."""
_PATIENCE = 5.0
"""Seconds in which a hold that is asked for is taken in, so that it stands at the batch it is about."""


class Finding(TypedDict):
    """The first part of a batch that is not finite, and where the run was."""

    path: str
    """As in `batch.images.0`."""
    nan: int
    infinite: int
    numbers: int
    """All that the part has."""
    stage: str | None
    global_step: int
    epoch: int
    batch: int | None
    time: float


class FiniteRecord(TypedDict):
    """What the check of each batch for NaN and infinity has found."""

    enabled: bool
    hold: bool
    """Whether the run is held at a batch that is not finite."""
    batches: int
    """How many were checked."""
    not_finite: int
    """How many of those were not."""
    first: Finding | None
    last: Finding | None


class FiniteCheck:
    """The check of one run's batches. The training thread does it; any may read what it has found.

    Parameters
    ----------
    run
        The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._caller = run.loop.caller(self._call)
        self.record = FiniteRecord(enabled=False, hold=False, batches=0, not_finite=0, first=None, last=None)
        """What has been found, replaced whole."""

    def set(self, *, enabled: bool, hold: bool) -> tuple[str, str]:
        """Check from the next batch on, or no more; return how it was and how it is: `off`, `on` or `hold`."""
        old = _mode(self.record)
        self.record = {**self.record, "enabled": enabled, "hold": enabled and hold}
        if enabled:
            self._caller.attach()
        else:
            self._caller.detach()
        return old, _mode(self.record)

    def stop(self) -> None:
        """Give the loop back as it was."""
        self._caller.detach()

    @property
    def notices(self) -> list[str]:
        """What somebody should know who looks at the run."""
        bad, first = self.record["not_finite"], self.record["first"]
        return (
            [] if first is None else [f"{bad:,} of {self.record['batches']:,} batches were not finite: {_said(first)}"]
        )

    def _call(self, name: str, arguments: dict[str, Any]) -> None:
        if not name.endswith(_SUFFIX):
            return
        try:
            self._check(arguments["batch"], arguments.get("batch_idx"))
        except Exception as error:  # noqa: BLE001 - a batch is anybody's code, and training goes on
            text = f"a batch could not be checked for NaN and infinity: {type(error).__name__}: {error}"
            self._run.log.alert(text, "finite check")

    def _check(self, batch: Any, number: int | None) -> None:  # noqa: ANN401 - a batch may be anything
        found, record = first_not_finite(batch), self.record
        self.record = record = {**record, "batches": record["batches"] + 1}
        if found is None:
            return
        finding = self._finding(found, number)
        first = record["first"] or finding
        self.record = record = {**record, "not_finite": record["not_finite"] + 1, "first": first, "last": finding}
        said = _said(finding)
        if not self._run.log.alert(f"{said}; further ones are counted in state/finite-check.json", "not finite"):
            self._run.log.note(said)
        if record["hold"]:
            self._hold(said)

    def _finding(self, found: Part, number: int | None) -> Finding:
        loop, values = self._run.loop, _numbers(found.value)
        return Finding(
            path=found.path,
            nan=int(values.isnan().sum()),
            infinite=int(values.isinf().sum()),
            numbers=values.numel(),
            stage=loop.stage,
            global_step=loop.step,
            epoch=loop.epoch,
            batch=number,
            time=time.time(),
        )

    def _hold(self, reason: str) -> None:
        """Ask for a hold, and wait until it is taken in: in training it stands at this batch."""
        taken: SimpleQueue[None] = SimpleQueue()
        hold = Command(Hold(), Reason(reason=reason), source="finite check")
        hold.points = _POINTS
        later = self._run.queue.submit(hold)
        later.tell(lambda: taken.put(None))
        try:
            taken.get(timeout=_PATIENCE)
            later.result()
        except Empty:
            self._run.log.note("the hold comes later: the disk is slow")
        except Fault as fault:
            self._run.log.alert(f"the run is not held: {fault.message}", "no hold")


def first_not_finite(batch: Any) -> Part | None:  # noqa: ANN401 - a batch may be anything
    """Return the first part of a batch that has NaN or infinity, or None. It waits for each device once."""
    flags = [(part, flag) for part in parts(batch, "batch") if (flag := _flag(part.value)) is not None]
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for _, flag in flags:
        by_device.setdefault(flag.device, []).append(flag)
    told = {device: iter(torch.stack(there).tolist()) for device, there in by_device.items()}
    finite = [next(told[flag.device]) for _, flag in flags]
    return next((part for (part, _), is_finite in zip(flags, finite, strict=True) if not is_finite), None)


def _flag(value: Any) -> torch.Tensor | None:  # noqa: ANN401 - as above
    """Return whether all numbers of a part are finite, once the device has it; None for what has none."""
    if isinstance(value, float | np.floating):
        return None if math.isfinite(value) else torch.tensor(False)
    if not isinstance(value, torch.Tensor | np.ndarray):
        return None
    try:
        return _numbers(value).isfinite().all()
    except (TypeError, RuntimeError):
        return None  # It has no numbers, or none that can be looked at here.


def _numbers(value: Any) -> torch.Tensor:  # noqa: ANN401 - as above
    """Return the numbers of a part. Raises TypeError for what has none."""
    if isinstance(value, float | np.floating):
        return torch.tensor(float(value))
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fc":
            raise TypeError
        value = torch.from_numpy(np.ascontiguousarray(value))
    tensor: torch.Tensor = value.detach()
    if tensor.is_meta or not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError
    if tensor.layout is torch.sparse_coo:
        return tensor._values()  # noqa: SLF001 - without the sum of what is there twice, which `values` insists on
    if tensor.layout is not torch.strided:
        return tensor.values()
    return tensor if tensor.element_size() > 1 else tensor.float()


def _mode(record: FiniteRecord) -> str:
    return "hold" if record["hold"] else "on" if record["enabled"] else "off"


def _said(finding: Finding) -> str:
    where = f"{finding['stage']}, epoch {finding['epoch']}, batch {finding['batch']}"
    counts = [(finding["nan"], "NaN"), (finding["infinite"], "infinite")]
    bad = " and ".join(f"{count:,} {word}" for count, word in counts if count)
    return f"{finding['path']} has {bad} of {finding['numbers']:,} numbers ({where}, step {finding['global_step']})"
