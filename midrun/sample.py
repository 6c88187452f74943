"""Samples: what a run looked like at its last safe point.

One is made at each safe point, by the training thread, or before an optimizer step by whoever looks. Nobody changes it
afterwards. It holds references, so making one costs microseconds: turning them into floats is the reader's work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import NamedTuple, TypeVar

import torch

from midrun.device import HostCopy
from midrun.fs.faults import Fault
from midrun.fs.later import Later
from midrun.fs.tracebacks import last_line
from midrun.scalar import is_real_scalar

T = TypeVar("T")

Scalar = torch.Tensor | float
"""A number as it was logged or set; a tensor may still be on its way through a device."""
Rates = Sequence[Sequence[Scalar | None]]
"""The learning rates, per optimizer and parameter group; None where a group has none."""


ScalarPlace = tuple[str, int, int]
"""Where in a sample a scalar is: a metric's name with -1 and -1, or "" and the numbers of an optimizer and a group."""


class Sample(NamedTuple):
    """What a run looked like at one safe point."""

    global_step: int
    epoch: int
    batch: int | None
    """Index of the batch in its epoch; None before the first."""
    time: float
    """When it was taken. Seconds since 1970."""
    metrics: Mapping[str, Scalar]
    rates: Rates
    copies: tuple[tuple[list[ScalarPlace], HostCopy], ...] = ()
    """For each device, the places of its scalars and their copy."""

    @property
    def arrived(self) -> bool:
        """Whether every value is on the host, so that `values` would not wait."""
        return all(copy.arrived for _, copy in self.copies)

    def shows(self, name: str) -> bool:
        """Whether the metric of this name is there and is a real scalar; nothing is read for it."""
        value = self.metrics.get(name)
        return value is not None and (not isinstance(value, torch.Tensor) or is_real_scalar(value))

    def copied(self) -> dict[ScalarPlace, float]:
        """Return the values that come from a device; waits for one that still computes them."""
        copied: dict[ScalarPlace, float] = {}
        for places, copy in self.copies:
            copied.update(zip(places, copy.values(), strict=True))
        return copied

    def values(self) -> Values:
        """Return every value as a float; waits for a device that still computes one."""
        copied = self.copied()

        def number(place: ScalarPlace, scalar: Scalar | None) -> float | None:
            return copied[place] if place in copied else number_here(scalar)

        metrics = {name: number((name, -1, -1), scalar) for name, scalar in self.metrics.items()}
        rates = [
            [number(("", optimizer, group), rate) for group, rate in enumerate(groups)]
            for optimizer, groups in enumerate(self.rates)
        ]
        return Values(
            {name: value for name, value in metrics.items() if value is not None},
            [[math.nan if rate is None else rate for rate in groups] for groups in rates],
        )


class Values(NamedTuple):
    """The values of a sample, as floats."""

    metrics: dict[str, float]
    rates: list[list[float]]


NOTHING = Sample(0, 0, None, 0.0, {}, ())
"""The sample of a run that has reached no safe point."""


class Reading:
    """The last sample's values, for whoever shows them: read once, and waited for where a device computes them.

    Parameters
    ----------
    last
        Returns the last sample.
    aside
        Hands a task to a thread that may wait.
    """

    def __init__(self, last: Callable[[], Sample], aside: Callable[[Callable[[], object]], object]) -> None:
        self._last, self._aside = last, aside
        self._read: tuple[Sample, Values] | None = None

    def shown(self, show: Callable[[Sample, Values], T]) -> T | Later:
        """Return what `show` makes of the last sample and its values, or what comes of it later."""
        sample = self._last()
        if sample.arrived:
            return show(sample, self._values(sample))
        later = Later()

        def wait() -> None:
            try:
                later.set_result(show(sample, self._values(sample)))
            except Exception as error:  # noqa: BLE001 - whoever waits must be told, whatever became of the device
                later.set_exception(Fault(f"the values could not be read: {last_line(error)}"))

        self._aside(wait)
        return later

    def _values(self, sample: Sample) -> Values:
        read = self._read
        if read is None or read[0] is not sample:
            read = self._read = (sample, sample.values())
        return read[1]


def copies_of(metrics: Mapping[str, Scalar], rates: Rates) -> tuple[tuple[list[ScalarPlace], HostCopy], ...]:
    """Start one copy to the host for each device that holds scalars, and return them as `Sample.copies`."""
    by_device: dict[torch.device, list[tuple[ScalarPlace, torch.Tensor]]] = {}
    for place, scalar in _placed(metrics, rates):
        if isinstance(scalar, torch.Tensor) and scalar.device.type != "cpu" and is_real_scalar(scalar):
            by_device.setdefault(scalar.device, []).append((place, scalar))
    copies = []
    for placed in by_device.values():
        # A device with no memory left, say, takes its own values from the sample and nothing else.
        with suppress(RuntimeError):
            copies.append(([place for place, _ in placed], HostCopy([scalar for _, scalar in placed])))
    return tuple(copies)


def _placed(metrics: Mapping[str, Scalar], rates: Rates) -> Iterable[tuple[ScalarPlace, Scalar | None]]:
    """Iterate over the scalars with their places."""
    yield from (((name, -1, -1), scalar) for name, scalar in metrics.items())
    for optimizer, groups in enumerate(rates):
        yield from ((("", optimizer, group), rate) for group, rate in enumerate(groups))


def number_here(scalar: object) -> float | None:
    """Return a scalar that is on the host as a float; None for what is no real number, whoever put it there."""
    if isinstance(scalar, torch.Tensor):
        # A tensor on a device is in the copies, unless the copy could not be made: it is never waited for here.
        return float(scalar.item()) if scalar.device.type == "cpu" and is_real_scalar(scalar) else None
    try:
        return float(scalar) if isinstance(scalar, Real) else None
    except (ArithmeticError, TypeError, ValueError):  # An integer beyond what a float holds, say.
        return None
