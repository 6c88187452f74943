"""Logged: what each sample has that those before it had not, as numbers.

A metric is logged anew where its value is another one, or its tensor is: Lightning makes a new tensor for each value
and shows it until the next, so that a point at each sample would make a plateau of an epoch's metric that nobody has
logged. A plain float, which is there only where somebody writes to `callback_metrics`, has no such identity: it counts
when its value changes. So does a learning rate, which is always there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, compress, islice
from operator import eq, is_not, ne
from typing import NamedTuple, cast

import torch
from torch import Tensor

from midrun.sample import Rates, Sample, Scalar, number_here
from midrun.series import is_equal
from midrun.targets import path_of

_FEWEST_SAMPLES, _MOST_SAMPLES, _MOST_SCALARS = 8, 4096, 200_000
"""Samples for which there is room, at least and at most, and scalars that may wait where each sample has many."""
_MOST_ABSENT = 5_000
"""Metrics that samples no longer have of which it is known what they were."""
_STEADY_EVERY = 30.0
"""Seconds between two rows of learning rates that stay."""


class Noted:
    """Samples that wait for whoever writes them down: the training thread adds them, and another takes them."""

    def __init__(self, told: Callable[[], object] = lambda: None) -> None:
        self._told = told
        """Called when the first one is lost."""
        self.waiting: deque[Sample] = deque()
        self.room = _MOST_SAMPLES
        """How many may wait. Whoever takes them may be waiting for a disk."""
        self.lost = 0
        """How many there was no room for."""
        self.began = 0
        """Optimizer steps done when training began."""

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        if len(self.waiting) >= self.room:
            self.room = _room_for(sample)
        if len(self.waiting) < self.room:
            self.waiting.append(sample)
        else:
            self.lost += 1
            if self.lost == 1:
                self._told()

    def take(self, *, late: bool = False) -> list[Sample]:
        """Return the samples whose values are on the host, and the `late` ones too; the oldest first."""
        taken = []
        while self.waiting and (late or self.waiting[0].arrived):
            taken.append(self.waiting.popleft())
        if taken:
            self.room = _room_for(taken[-1])
        return taken


def _room_for(sample: Sample) -> int:
    """Return how many samples like this one may wait."""
    return max(_FEWEST_SAMPLES, min(_MOST_SAMPLES, _MOST_SCALARS // (1 + len(sample.metrics))))


class Block(NamedTuple):
    """What was logged, or set, at successive samples, in each of them the same names."""

    names: tuple[str, ...]
    steps: list[int]
    times: list[float]
    """Seconds since 1970."""
    rows: list[list[float]]
    """Of each sample a value for each name."""


class Logged:
    """Tells what is new in samples. One thread uses it, and hands over each sample once, in their order.

    It does so by whole lists, where it can: what this thread does in Python, training can't do meanwhile.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._scalars: list[Scalar] = []
        """The metrics of the last sample. Their memory is held, so that no other tensor can have it."""
        self._absent: dict[str, Scalar] = {}
        """What metrics were that later samples do not have."""
        self._values: dict[str, float] = {}
        """The value that each metric was last logged with."""
        self.rates: dict[str, float] = {}
        """The learning rates of the last sample."""
        self._raw_rates: Rates = ()
        self._told: dict[str, int] = {}
        """The step of the last row of each learning rate."""
        self._last = (0, 0.0)
        """Step and time of the last sample."""
        self._reminded = 0.0
        """The time of the last row of those that have stayed."""

    def new_in(self, samples: Sequence[Sample]) -> list[Block]:
        """Return what is new in samples, of each name in their order.

        Where a learning rate changes, its old value is there as well: it was that until then. Waits for a device that
        still computes one of the values.
        """
        blocks: list[Block] = []
        run = _Run(())
        for sample in samples:
            blocks += self._rates_of(sample)
            self._last = (sample.global_step, sample.time)
            names, scalars = tuple(sample.metrics), [*sample.metrics.values()]
            before = self._scalars if names == self._names else self._before(names)
            self._names, self._scalars = names, scalars
            is_other = [*map(is_not, scalars, before)]
            others = names
            if not all(is_other):
                others = tuple(compress(names, is_other))
                scalars, before = [*compress(scalars, is_other)], [*compress(before, is_other)]
            if not others:
                continue
            if others != run.names:
                blocks += self._blocks_of(run)
                run = _Run(others)
            run.samples.append(sample)
            run.scalars += scalars
            run.before += before
        blocks += self._blocks_of(run)
        if samples:
            blocks += self._changed_in_place(samples[-1])
            # Their memory alone: a metric that was logged with its graph would hold that too.
            self._scalars = [_without_graph(scalar) for scalar in self._scalars]
            self._reminded = self._reminded or samples[0].time
            if self._last[1] - self._reminded >= _STEADY_EVERY:
                blocks += self.steady()
        return blocks

    def _before(self, names: tuple[str, ...]) -> list[Scalar | None]:
        """Return what metrics of other names than those of the last sample were."""
        self._absent.update(zip(self._names, self._scalars, strict=True))
        before = [self._absent.pop(name, None) for name in names]
        for name in [*islice(self._absent, max(0, len(self._absent) - _MOST_ABSENT))]:  # A name may come once only.
            del self._absent[name]
            self._values.pop(name, None)
        return before

    def _blocks_of(self, run: _Run) -> list[Block]:
        """Return what is new of metrics whose objects are others than before."""
        names, width = run.names, len(run.names)
        if not names:
            return []
        numbers = run.numbers()
        rows = [numbers[at : at + width] for at in range(0, len(numbers), width)]
        last: list[float | None] = [self._values.get(name) for name in names]
        if _are_numbers(numbers) and not any(map(eq, numbers, chain(last, numbers))):
            steps, times = [sample.global_step for sample in run.samples], [sample.time for sample in run.samples]
            blocks = [Block(names, steps, times, cast("list[list[float]]", rows))]
            last = rows[-1]
        else:
            blocks, last = _of_each(run, rows, last)
        self._values.update((name, value) for name, value in zip(names, last, strict=True) if value is not None)
        return blocks

    def _changed_in_place(self, sample: Sample) -> list[Block]:
        """Return the metrics whose tensors somebody has changed since they were logged."""
        if sample.copies:
            return []
        numbers = zip(self._names, _read(self._scalars), strict=True)
        changed = {n: v for n, v in numbers if v is not None and not is_equal(v, self._values.get(n, v))}
        self._values.update(changed)
        return [_block(sample, [*changed], [*changed.values()])] if changed else []

    def _rates_of(self, sample: Sample) -> list[Block]:
        if not sample.copies and sample.rates == self._raw_rates:
            return []
        copied = sample.copied()
        rates = {
            path_of(number, group, "lr"): rate
            for number, groups in enumerate(sample.rates)
            for group, scalar in enumerate(groups)
            if (rate := copied.get(("", number, group), number_here(scalar))) is not None
        }
        before, (step, moment) = self.rates, self._last
        changed = {name: rate for name, rate in rates.items() if name not in before or not is_equal(rate, before[name])}
        was = step <= sample.global_step  # Else this is another attempt.
        ended = {name: before[name] for name in changed if was and name in before and self._told[name] != step}
        self.rates, self._raw_rates = rates, sample.rates
        self._told.update(dict.fromkeys(changed, sample.global_step))
        until = Block(tuple(ended), [step], [moment], [[*ended.values()]])
        return [block for block in (until, _block(sample, [*changed], [*changed.values()])) if block.names]

    def forget_rates(self) -> None:
        """Have the next sample's learning rates be new, whatever they were."""
        self.rates, self._raw_rates = {}, ()

    def steady(self) -> list[Block]:
        """Return the learning rates that have stayed what they were, as of the last sample.

        They come now and then: a chart of a rate that stays needs its end, and a run may be killed.
        """
        step, moment = self._last
        steady = {name: rate for name, rate in self.rates.items() if self._told[name] != step}
        self._told.update(dict.fromkeys(steady, step))
        self._reminded = moment
        return [Block(tuple(steady), [step], [moment], [[*steady.values()]])] if steady else []


class _Run:
    """Successive samples in which the same metrics have other objects than before."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.samples: list[Sample] = []
        self.scalars: list[Scalar] = []
        """Those objects, sample by sample."""
        self.before: list[Scalar | None] = []
        """What each of them was at the sample before."""

    def numbers(self) -> list[float | None]:
        """Return their values; None for what is no real number that is here."""
        if any(sample.copies for sample in self.samples):
            return [
                copied.get((name, -1, -1), number_here(sample.metrics[name]))
                for sample in self.samples
                for copied in (sample.copied(),)
                for name in self.names
            ]
        # One name has tensors of one kind: what holds of the first of each holds of all.
        return _read(self.scalars, self.scalars[: len(self.names)])


def _are_numbers(numbers: list[float | None]) -> bool:
    """Whether there is neither None nor NaN, which is not itself."""
    return None not in numbers and not any(map(ne, numbers, numbers))


def _of_each(
    run: _Run, rows: list[list[float | None]], last: list[float | None]
) -> tuple[list[Block], list[float | None]]:
    """Return what is new in rows of which some may have nothing new, and the last value of each name."""
    block, blocks, width = Block(run.names, [], [], []), [], len(run.names)
    for place, (sample, row) in enumerate(zip(run.samples, rows, strict=True)):
        if _are_numbers(row) and not any(map(eq, row, last)):
            last = [*row]
        else:
            at = slice(place * width, (place + 1) * width)
            is_new = [*map(_is_new, row, last, run.scalars[at], run.before[at])]
            last = [then if value is None else value for value, then in zip(row, last, strict=True)]
            if not all(is_new):
                blocks += [block, _block(sample, [*compress(run.names, is_new)], [*compress(row, is_new)])]
                block = Block(run.names, [], [], [])
                continue
        block.steps.append(sample.global_step)
        block.times.append(sample.time)
        block.rows.append(cast("list[float]", row))
    return [one for one in (*blocks, block) if one.rows and one.names], last


def _block(sample: Sample, names: Sequence[str], row: Sequence[float | None]) -> Block:
    return Block(tuple(names), [sample.global_step], [sample.time], [cast("list[float]", row)])


def _is_new(number: float | None, last: float | None, scalar: Scalar, before: Scalar | None) -> bool:
    """Whether a metric was logged anew with this number, its object being another one than before."""
    if number is None or last is None or not is_equal(number, last):
        return number is not None
    # Lightning hands out one value as several tensors, which share its memory.
    return isinstance(scalar, Tensor) and not (isinstance(before, Tensor) and scalar.data_ptr() == before.data_ptr())


def _without_graph(scalar: Scalar) -> Scalar:
    return scalar.detach() if isinstance(scalar, Tensor) and scalar.requires_grad else scalar


def _read(scalars: Sequence[Scalar], kinds: Sequence[Scalar] | None = None) -> list[float | None]:
    """Return scalars as numbers; None for what is no real number that is here.

    Tensors are read all at once where they are of one type: torch does that while training goes on.

    Parameters
    ----------
    kinds
        Scalars among them that show which types there are: all, where nothing is said.
    """
    kinds = scalars if kinds is None else kinds
    plain = all(type(scalar) is Tensor and scalar.is_cpu and scalar.is_floating_point() for scalar in kinds)
    if plain and len({scalar.dtype for scalar in kinds if isinstance(scalar, Tensor)}) == 1:
        with torch.no_grad(), suppress(RuntimeError, TypeError):  # They differ, after all.
            together = torch.stack(cast("list[Tensor]", list(scalars)))
            if together.numel() == len(scalars):
                return cast("list[float | None]", together.double().reshape(-1).tolist())
    return [number_here(scalar) for scalar in scalars]
