"""The finite check: whether the batches of a run hold NaN or infinity, and where."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import torch

from midrun.commands.standstill import Hold
from midrun.fs.faults import Fault
from midrun.fs.tracebacks import last_line, message
from midrun.mailbox import Mailbox
from midrun.nested import Part, Unreadable, parts

if TYPE_CHECKING:
    from midrun.commands.kind import Here
    from midrun.fs.later import Later
    from midrun.run import Run

_SUFFIX = "_batch_start"
"""The callbacks at which a batch comes."""
POINTS = frozenset({*Hold.points, "train_batch_end"})
"""Where the hold may stand: gradients of several batches may be gathered for one optimizer step."""
SOURCE = "finite check"
"""Who asks for it."""
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
    """When it was found. Seconds since 1970."""


class FiniteRecord(TypedDict):
    """What the check of each batch for NaN and infinity has found."""

    enabled: bool
    hold: bool
    """Whether the run is held at a batch that is not finite."""
    batches: int
    """How many were checked."""
    not_finite: int
    """How many of those were not."""
    unread: int
    """How many had something that could not be looked at."""
    first: Finding | None
    last: Finding | None


class FiniteCheck:
    """The check of one run's batches. The training thread does it; any may read what it has found.

    Parameters
    ----------
    here
        The run, or one of its later ranks.
    hold
        Called with the reason to hold the run.
    """

    def __init__(self, here: Here, hold: Callable[[str], object]) -> None:
        self._here, self._hold = here, hold
        self._caller = here.loop.caller(self._call)
        self.record = FiniteRecord(enabled=False, hold=False, batches=0, not_finite=0, unread=0, first=None, last=None)
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
        """What somebody who looks at the run should know."""
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
            text = f"a batch could not be checked for NaN and infinity: {last_line(error)}"
            self._here.log.alert(text, "finite check")

    def _check(self, batch: Any, number: int | None) -> None:  # noqa: ANN401 - a batch may be anything
        looked, record = look_at(batch), self.record
        unread = looked.unread is not None
        self.record = record = {**record, "batches": record["batches"] + 1, "unread": record["unread"] + unread}
        if looked.unread is not None:
            path, why = looked.unread.path, looked.unread.value.why
            self._here.log.alert(f"{path} can't be checked for NaN and infinity: {why}", "unread")
        if looked.bad is None:
            return
        finding = self._finding(looked.bad, number)
        first = record["first"] or finding
        self.record = record = {**record, "not_finite": record["not_finite"] + 1, "first": first, "last": finding}
        said = _said(finding)
        if not self._here.log.alert(f"{said}; further ones are counted in state/finite-check.json", "not finite"):
            self._here.log.note(said)
        if record["hold"]:
            self._hold(said)

    def _finding(self, found: Part, number: int | None) -> Finding:
        loop = self._here.loop
        nan, infinite, numbers = _counts(found.value)
        return Finding(
            path=found.path,
            nan=nan,
            infinite=infinite,
            numbers=numbers,
            stage=loop.stage,
            global_step=loop.step,
            epoch=loop.epoch,
            batch=number,
            time=time.time(),
        )


def hold_at_once(run: Run, reason: str) -> None:
    """Ask for a hold, and wait until it is taken in: it stands at this batch, or where all ranks meet next."""
    taken: Mailbox[None] = Mailbox()
    later = run.queue.hold(reason, POINTS, SOURCE)
    later.add_done_callback(lambda _: taken.put(None))
    try:
        taken.get(timeout=_PATIENCE)
    except Empty:
        run.log.note("the hold comes later: the disk is slow")
    else:
        tell_refusal(run, later)


def tell_refusal(run: Run, later: Later) -> None:
    """Say why a hold that was asked for is not taken in, once that is known."""
    try:
        later.result()
    except Fault as fault:
        run.log.alert(f"the run is not held: {fault.message}", "no hold")


class Looked(NamedTuple):
    """What a look at a batch has found."""

    bad: Part | None
    """The first part that has NaN or infinity."""
    unread: Part | None
    """The first part that could not be looked at, an `Unreadable` in its place."""


def look_at(batch: Any) -> Looked:  # noqa: ANN401 - a batch may be anything
    """Look for NaN and infinity in a batch. It waits for each device once."""
    flags: list[tuple[Part, torch.Tensor]] = []
    unread: Part | None = None
    for part in parts(batch, "batch"):
        flag = _flag(part.value)
        if isinstance(flag, Unreadable):
            unread = unread or Part(part.path, flag)
        elif flag is not None:
            flags.append((part, flag))
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for _, flag in flags:
        by_device.setdefault(flag.device, []).append(flag)
    told = {device: iter(torch.stack(there).tolist()) for device, there in by_device.items()}
    finite = [next(told[flag.device]) for _, flag in flags]
    bad = next((part for (part, _), is_finite in zip(flags, finite, strict=True) if not is_finite), None)
    return Looked(bad, unread)


def _flag(value: Any) -> torch.Tensor | Unreadable | None:  # noqa: ANN401 - as above
    """Return whether all numbers of a part are finite, once the device has it; None for what has none."""
    try:
        if isinstance(value, Unreadable):
            return value
        if isinstance(value, float | np.floating | np.complexfloating):
            return None if np.isfinite(value) else torch.tensor(False)
        if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
            return torch.tensor(bool(np.isfinite(value).all()))
        if isinstance(value, torch.Tensor) and _has_fractions(value):
            return _numbers(value).isfinite().all()
    except Exception as error:  # noqa: BLE001 - of any library, on any device, and without memory for it maybe
        return Unreadable(message(error))
    return None


def _counts(value: Any) -> tuple[int, int, int]:  # noqa: ANN401 - as above
    """Return how many numbers of a part are NaN, how many are infinite, and how many there are."""
    if isinstance(value, torch.Tensor):
        numbers = _numbers(value)
        return int(numbers.isnan().sum()), int(numbers.isinf().sum()), numbers.numel()
    return int(np.isnan(value).sum()), int(np.isinf(value).sum()), int(np.size(value))


def _has_fractions(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and (tensor.is_floating_point() or tensor.is_complex())


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
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
