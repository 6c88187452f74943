"""The pipeline's timing: where the time of a training batch goes.

Lightning tells its profiler when each part of a batch begins and ends, whatever the strategy and the kind of
optimization. For a batch that is timed, that is listened to; a batch that is not timed pays nothing for it. Of fast
batches only some are timed, drawn at random, so that timing takes no more than about a thousandth of training.

Times are those of the host. On a device that computes by itself a phase ends when its work is handed over; where the
host waits for the device is where it needs a result, as in `loss.item()`. Who asks for it has the device's own times in
their place: an event goes along with the work at each beginning and end, and is read once the device has come by it.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
from lightning.pytorch.profilers import PassThroughProfiler

from midrun.device import DeviceClock
from midrun.fs.faults import Refused
from midrun.fs.tree import Dir, file
from midrun.hooks import quick_parts

if TYPE_CHECKING:
    from midrun.run import Run

DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, HOOKS, MIDRUN, OTHER = PHASES = (
    "waiting for data",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "callbacks and hooks",
    "midrun",
    "everything else",
)

_SHARE = 0.0012
"""Of training that timing may take."""
_COST, _COST_ON_DEVICE = 1.4e-6, 8e-6
"""Seconds that one beginning or end costs, about; the second where the device's times are taken."""
_COST_OF_BATCH = 20e-6
"""Seconds that a timed batch costs besides, about."""
_MOST_UNREAD = 32
"""Batches that a device may be behind; the times of more are let go."""
_MOST_SKIPPED = 1000
"""Batches between two that are timed, at most on average."""
_NOTABLE = 0.2
"""The share of the time from which on a phase that is no computing is worth a word."""

_STRATEGY = {
    "batch_to_device": TRANSFER,
    "training_step": FORWARD,
    "pre_backward": BACKWARD,
    "backward": BACKWARD,
    "post_backward": BACKWARD,
    "optimizer_step": OPTIMIZER,
}
_MODULE = {
    "on_before_batch_transfer": TRANSFER,
    "transfer_batch_to_device": TRANSFER,
    "on_after_batch_transfer": TRANSFER,
    "optimizer_step": OPTIMIZER,
    "optimizer_zero_grad": OPTIMIZER,
    "configure_gradient_clipping": OPTIMIZER,
    "lr_scheduler_step": OPTIMIZER,
}


class PhaseRecord(TypedDict):
    """One phase of the batches in the window."""

    share: float
    """Of all their time, from 0 to 1."""
    median_s: float
    p95_s: float


class PipelineRecord(TypedDict):
    """Where the time of training batches goes."""

    enabled: bool
    window: int
    """The newest timed batches that this is about, at most."""
    batches: int
    """How many there are."""
    clock: Literal["host", "device"]
    """Whose times these are."""
    one_in: float
    """One batch in so many is timed."""
    median_s: float
    """Of a whole batch."""
    p95_s: float
    verdict: str
    phases: dict[str, PhaseRecord]


def phase_of(action: str) -> str | None:
    """Return the phase that an action of Lightning's belongs to; None for that of the action around it."""
    what, _, rest = action.partition("]")
    hook = rest.rpartition(".")[2]
    if action.endswith("_dataloader_next"):
        return DATA
    if what == "[Strategy":
        return _STRATEGY.get(hook)
    if what == "[Callback":
        return HOOKS
    if what in {"[LightningModule", "[LightningDataModule"}:
        return _MODULE.get(hook, HOOKS if hook.startswith("on_") else None)
    return {"optimizer_step": OPTIMIZER, "run_training_batch": OTHER}.get(action)


class Pipeline:
    """The timing of a run's batches. All but `record` is the training thread's."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._is_on = run.config.pipeline_pressure_enabled
        self._timed: deque[dict[str, float]] = deque(maxlen=run.config.pipeline_pressure_window)
        self._phases: dict[str, str | None] = {MIDRUN: MIDRUN}
        self._stack = [OTHER]
        self._spent: dict[str, float] = {}
        self._last = 0.0
        self._uses_device = False
        self._clock: DeviceClock | None = None
        """The device's, while a batch is timed by it."""
        self._unread: deque[DeviceClock] = deque(maxlen=_MOST_UNREAD)
        """Those of batches that the device had not done yet."""
        self._told = 0
        """Beginnings and ends in the batch that is timed."""
        self._profiler: Any = None
        """The profiler that is listened to, while a batch is timed."""
        self._stride = 1.0
        self._draw = random.Random()  # noqa: S311 - no secret; and not the one whose numbers training draws

    # ---- the training thread

    def turn(self) -> int:
        """End the timing of a batch, or begin one, at a batch's end; return how many batches later to call it again."""
        if self._profiler is not None:
            self._end()
            # Drawn, so that what happens every so many batches is met as often as it happens.
            skipped = self._draw.randint(0, round(2 * (self._stride - 1)))
            if skipped:
                return skipped
        self._begin()
        return 1

    def set(self, *, device: bool) -> bool:
        """Have the device's times taken from now on, or the host's, and forget the others; return what it was.

        Raises Refused where there is no device that has times of its own, and where timing is off.
        """
        if not self._is_on:
            raise Refused(_OFF)
        where = self._run.loop.strategy.root_device
        if device and not _has_clock(where):
            raise Refused(f"the model trains on {where.type!r}, which has no times but the host's")
        before = self._uses_device
        if device != before:
            self.spoil()
            self._uses_device = device
            self._timed.clear()
            self._unread.clear()
            self._run.turns.time_next_batch()
        return before

    def spoil(self) -> None:
        """Forget the batch that is timed: there was something in it that is no part of one, such as a hold."""
        if self._profiler is not None:
            self._ignore()

    @contextmanager
    def within(self) -> Iterator[None]:
        """Count the block as midrun's."""
        if self._profiler is None:
            yield
            return
        self._start(MIDRUN)
        try:
            yield
        finally:
            if self._profiler is not None:  # Else it was spoilt meanwhile.
                self._stop(MIDRUN)

    def _begin(self) -> None:
        profiler = self._profiler = self._run.loop.profiler
        self._stack, self._spent, self._told = [OTHER], dict.fromkeys(PHASES, 0.0), 0
        start, stop = profiler.start, profiler.stop
        if type(profiler) is PassThroughProfiler:
            vars(profiler).update(start=self._start, stop=self._stop)
        else:
            vars(profiler).update(start=_both(self._start, start), stop=_both(self._stop, stop))
        self._clock = DeviceClock(self._run.loop.strategy.root_device) if self._uses_device else None
        self._last = time.perf_counter()

    def _end(self) -> None:
        self._spend()
        total, clock = sum(self._spent.values()), self._clock
        self._ignore()
        if clock is None:
            self._timed.append(self._spent)
        else:
            self._unread.append(clock)
        while self._unread and self._unread[0].has_come:
            self._timed.append({**dict.fromkeys(PHASES, 0.0), **self._unread.popleft().spent()})
        cost = _COST_OF_BATCH + self._told * (_COST if clock is None else _COST_ON_DEVICE)
        self._stride = min(_MOST_SKIPPED, max(1.0, cost / (_SHARE * total)))

    def _ignore(self) -> None:
        for name in ("start", "stop"):
            vars(self._profiler).pop(name, None)
        self._profiler = self._clock = None

    def _spend(self) -> None:
        now = time.perf_counter()
        self._spent[self._stack[-1]] += now - self._last
        self._last = now
        self._told += 1
        if self._clock is not None:
            self._clock.mark(self._stack[-1])

    def _start(self, action: str) -> None:
        self._spend()
        if action not in self._phases:
            self._phases[action] = self._phase(action)
        self._stack.append(self._phases[action] or self._stack[-1])

    def _stop(self, action: str) -> None:
        self._spend()
        if len(self._stack) > 1:  # Else it has begun before the timing.
            self._stack.pop()

    def _phase(self, action: str) -> str | None:
        hook = action.rpartition(".")[2]
        with suppress(Exception):  # The model's class is anybody's code, and this is called in the midst of training.
            if action.startswith("[LightningModule]") and hook in quick_parts(self._run.loop.module, self._run.turns):
                return MIDRUN  # The model does nothing there.
        return phase_of(action)

    # ---- any thread

    @property
    def record(self) -> PipelineRecord:
        """Where the time of the batches in the window went."""
        timed = list(self._timed)
        totals = [sum(batch.values()) for batch in timed]
        spent = {phase: [batch[phase] for batch in timed] for phase in PHASES}
        whole = sum(totals) or 1.0
        shares = {phase: sum(times) / whole for phase, times in spent.items()}
        return PipelineRecord(
            enabled=self._is_on,
            window=self._timed.maxlen or 0,
            batches=len(timed),
            clock="device" if self._uses_device else "host",
            one_in=round(self._stride, 1),
            median_s=_quantile(totals, 0.5),
            p95_s=_quantile(totals, 0.95),
            verdict=self._verdict(shares) if timed else self._excuse(),
            phases={
                phase: PhaseRecord(share=shares[phase], median_s=_quantile(times, 0.5), p95_s=_quantile(times, 0.95))
                for phase, times in spent.items()
                if timed
            },
        )

    @staticmethod
    def _verdict(shares: dict[str, float]) -> str:
        computing = sum(shares[phase] for phase in (FORWARD, BACKWARD, OPTIMIZER))
        idle = {phase: shares[phase] for phase in (DATA, TRANSFER, HOOKS, MIDRUN, OTHER) if shares[phase] >= _NOTABLE}
        told = sorted([*idle.items(), ("computing", computing)], key=lambda item: -item[1])
        first, *others = [f"{phase} {share:.0%}".replace("%", " %") for phase, share in told]
        return ", ".join([f"{first} of the time", *others])

    def _excuse(self) -> str:
        return "no batch has been timed yet" if self._is_on else _OFF


_OFF = "timing is off: pipeline_pressure_enabled=False"


def _has_clock(device: torch.device) -> bool:
    """Whether a device tells when it has done what."""
    if device.type in ("cpu", "meta"):
        return False
    module = torch.get_device_module(device)
    return hasattr(module, "Event") and hasattr(module, "current_stream")


def _both(first: Callable[[str], object], second: Callable[[str], object]) -> Callable[[str], None]:
    def call(action: str) -> None:
        first(action)
        second(action)

    return call


def _quantile(times: list[float], share: float) -> float:
    """Return a quantile of times, by the nearest rank; 0 of none."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))] if times else 0.0


class PipelineFiles(Dir):
    """Where the time of training batches goes."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("summary.json")
    def summary(self) -> PipelineRecord:
        """The share, median and 95 % quantile of each phase of the newest timed batches, and what to make of them.

        A batch in which the run was held, or that a validation or the end of an epoch has interrupted, is left out.
        """
        return self._run.pipeline.record
