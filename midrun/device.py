"""Device values: scalars that a device is still computing, copied to the host without a wait for it.

At a safe point the training thread queues one copy to pinned memory behind the work that the device has yet to do, and
an event behind the copy. Only whoever reads the values waits for the event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

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

    @property
    def arrived(self) -> bool:
        """Whether `values` would not wait."""
        return self._event.query()

    def values(self) -> list[float]:
        """Return the scalars as floats, in their order; waits for the device if it must."""
        self._event.synchronize()
        return [float(value) for value in self._host.tolist()]
