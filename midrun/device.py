"""Device: what it is still computing and how long it takes for that, told without a wait for it.

At a safe point the training thread queues one copy of the scalars to pinned memory behind the work that the device has
yet to do, and an event behind the copy. Only whoever reads the values waits for the event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch


class Event(Protocol):
    """What tells that a copy has arrived: a `torch.cuda.Event`, or one of another device."""

    def query(self) -> bool:
        """Whether all work before the event is done; never waits."""

    def synchronize(self) -> None:
        """Wait until all work before the event is done."""


def _recorded(device: torch.device) -> Event:
    """Return an event behind all work that the device's current stream has been given."""
    module = torch.get_device_module(device)
    event: Event = module.Event()
    event.record(module.current_stream(device))  # type: ignore[attr-defined]  # every device's Event has it
    return event


class Moment(Event, Protocol):
    """An event that knows when it came: a `torch.cuda.Event` with `enable_timing`, or one of another device."""

    def elapsed_time(self, later: Any, /) -> float:  # noqa: ANN401 - another moment of the same kind
        """Return the milliseconds from this one to a later one of its kind; both have come."""


def _timed(device: torch.device) -> Moment:
    """Return a moment behind all work that the device's current stream has been given."""
    module = torch.get_device_module(device)
    moment: Moment = module.Event(enable_timing=True)
    moment.record(module.current_stream(device))  # type: ignore[attr-defined]  # every device's Event has it
    return moment


class DeviceClock:
    """How long a device takes for what it is given between two marks, by its own clock; it is never waited for.

    Parameters
    ----------
    device
        The device, not the CPU.
    moment
        Returns a moment behind the work given to a device so far.
    """

    def __init__(self, device: torch.device, moment: Callable[[torch.device], Moment] = _timed) -> None:
        self._device, self._moment = device, moment
        self._moments = [moment(device)]
        self._phases: list[str] = []

    def mark(self, phase: str) -> None:
        """Count what was given since the last mark as a phase's."""
        self._moments.append(self._moment(self._device))
        self._phases.append(phase)

    @property
    def has_come(self) -> bool:
        """Whether the device has come by every mark, so that `spent` can be told."""
        return self._moments[-1].query()

    def spent(self) -> dict[str, float]:
        """Return the seconds of each phase."""
        spent: dict[str, float] = {}
        for phase, (start, end) in zip(self._phases, pairwise(self._moments), strict=True):
            spent[phase] = spent.get(phase, 0.0) + start.elapsed_time(end) / 1000
        return spent


class HostCopy:
    """Scalars of one device on their way to the host.

    Parameters
    ----------
    scalars
        Tensors of one element each, real, on one device that is not the CPU.
    record
        Returns an event behind the work given to a device so far.
    """

    def __init__(
        self, scalars: Sequence[torch.Tensor], record: Callable[[torch.device], Event] = _recorded, *, pin: bool = True
    ) -> None:
        device = scalars[0].device
        with torch.no_grad():
            # One kernel and one copy for all, whatever their number. float32 holds every metric: Lightning itself
            # keeps them in float32 or float64, and a float64 among them makes the stack float64.
            widest = torch.float64 if any(s.dtype == torch.float64 for s in scalars) else torch.float32
            stacked = torch.stack([s.detach().reshape(()).to(widest) for s in scalars])
            self._host = torch.empty(stacked.shape, dtype=widest, pin_memory=pin)
            self._host.copy_(stacked, non_blocking=True)
        self._event = record(device)
        self._values: list[float] | None = None

    @property
    def arrived(self) -> bool:
        """Whether `values` would not wait."""
        return self._event.query()

    def values(self) -> list[float]:
        """Return the scalars as floats, in their order; waits for the device if it must."""
        if self._values is None:  # Several look at one sample: the history twice, for rates and metrics.
            self._event.synchronize()
            self._values = [float(value) for value in self._host.tolist()]
        return self._values
