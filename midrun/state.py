"""`state/`: where the run is now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from midrun.checkpoints.resume import ResumeRecord
from midrun.checkpoints.rewinds import RewindsRecord
from midrun.control_log import ControlLogRecord
from midrun.ending import ExceptionRecord
from midrun.finite import FiniteRecord
from midrun.fs.later import Later
from midrun.fs.schema import schema_of
from midrun.fs.tree import Dir, Leaf, file
from midrun.hold import HoldRecord
from midrun.memory import CudaFiles, HostMemory, host
from midrun.pipeline import PipelineFiles
from midrun.services import ServiceRecord

if TYPE_CHECKING:
    import torch

    from midrun.run import Run
    from midrun.sample import Sample


class Summary(TypedDict):
    """The run at one glance."""

    run_id: str
    status: str
    stage: str | None
    epoch: int
    global_step: int
    batch: int | None
    max_epochs: int | None
    max_steps: int | None
    batches: int | None
    started: float
    """When this session began. Seconds since 1970."""
    sampled: float
    """When the sample was taken. Seconds since 1970."""
    progress: float | None
    """From 0 to 1, towards the end that is nearest."""
    steps_per_second: float | None
    """Over the last half minute of training; holds do not count."""
    seconds_left: float | None
    """Of training, at the pace of the last ten minutes."""
    exception: ExceptionRecord | None
    notices: list[str]
    """What somebody should know: a script that training waits for, one that fails, batches that were not finite."""


class Metrics(TypedDict):
    """The metrics at the last safe point, and where that was."""

    global_step: int
    epoch: int
    batch: int | None
    metrics: dict[str, float]


class Group(TypedDict):
    """One parameter group: the learning rate of the last safe point, the other options as they are now."""

    lr: float | None
    parameters: int
    options: dict[str, Any]


class OptimizerRecord(TypedDict):
    """One optimizer."""

    name: str
    groups: list[Group]


class Optimizers(TypedDict):
    """The optimizers, and where the loop was at the last safe point."""

    global_step: int
    optimizers: list[OptimizerRecord]


class Services(TypedDict):
    """The services of the run."""

    services: dict[str, ServiceRecord]


class State(Dir):
    """Where the run is now: the values of the last safe point."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.metrics = MetricFiles(run)
        self.pipeline = PipelineFiles(run)
        self.cuda = CudaFiles(run.cuda)

    @file("index.json")
    def index(self) -> Summary:
        """The run at one glance."""
        return self.summary_of(self._run.sample)

    def summary_of(self, sample: Sample) -> Summary:
        """Return the run at one glance, as of this sample."""
        run, limits = self._run, self._run.loop.limits
        return Summary(
            run_id=run.run_id,
            status=self.status,
            stage=self.stage,
            epoch=sample.epoch,
            global_step=sample.global_step,
            batch=sample.batch,
            max_epochs=limits.max_epochs,
            max_steps=limits.max_steps,
            batches=limits.batches,
            started=run.session["started"],
            sampled=sample.time,
            progress=run.pace.progress,
            steps_per_second=run.pace.steps_per_second,
            seconds_left=run.pace.seconds_left,
            exception=run.exception,
            notices=[*run.shell_hooks.notices, *run.finite_check.notices, *run.roll.notices, *run.torch_debug.notices],
        )

    @file("status")
    def status(self) -> str:
        """`initializing`, `running`, `held`, `finished`, `interrupted` or `failed`."""
        return self._run.status

    @file("stage")
    def stage(self) -> str | None:
        """`sanity_check`, `train`, `validate`, `test` or `predict`; empty between them."""
        return self._run.stage

    @file("epoch")
    def epoch(self) -> int:
        """Epochs completed, which is the number of the present one, counted from 0; as `trainer.current_epoch`."""
        return self._run.sample.epoch

    @file("global-step")
    def global_step(self) -> int:
        """Optimizer steps completed. With several optimizers each of their steps counts."""
        return self._run.sample.global_step

    @file("batch")
    def batch(self) -> int | None:
        """Index of the batch in its epoch, counted from 0; empty before the first."""
        return self._run.sample.batch

    @file("progress", cached=False)
    def progress(self) -> float | None:
        """How far training is, from 0 to 1, towards the end that is nearest; empty where no end is known."""
        return self._run.pace.progress

    @file("steps-per-second", cached=False)
    def steps_per_second(self) -> float | None:
        """Optimizer steps in a second, over the last half minute of training; holds do not count."""
        return self._run.pace.steps_per_second

    @file("seconds-left", cached=False)
    def seconds_left(self) -> float | None:
        """Seconds of training until `max_steps` or `max_epochs`, at the pace of ten minutes; empty without either."""
        return self._run.pace.seconds_left

    @file("optimizers.json")
    def optimizers(self) -> Optimizers | Later:
        """Each optimizer with its parameter groups and learning rates."""
        optimizers = self._run.loop.optimizers
        return self._run.values.shown(
            lambda sample, values: Optimizers(
                global_step=sample.global_step,
                optimizers=[
                    _optimizer(optimizer, values.rates[number] if number < len(values.rates) else [])
                    for number, optimizer in enumerate(optimizers)
                ],
            )
        )

    @file("services.json")
    def services(self) -> Services:
        """What midrun offers in this run, whether each works, and if not, why."""
        return Services(services={name: service.record for name, service in self._run.services.items()})

    @file("memory.json", slow=True)
    def memory(self) -> HostMemory:
        """What the training process and those below it hold of the host: memory, open files, threads."""
        return host()

    @file("hold.json", cached=False)
    def hold(self) -> HoldRecord | dict[str, Any]:
        """The hold that is active; `{}` while there is none."""
        active = self._run.holds.active
        return {} if active is None else active.record()

    @file("resume.json", cached=False)
    def resume(self) -> ResumeRecord | dict[str, Any]:
        """The checkpoint that this session has gone on from, and whether exactly; `{}` where there is none."""
        return self._run.resume.record or {}

    @file("rewinds.json", cached=False)
    def rewinds(self) -> RewindsRecord:
        """Where the run has gone back to an earlier step, the oldest first."""
        return self._run.rewinds.record

    @file("finite-check.json", cached=False)
    def finite_check(self) -> FiniteRecord:
        """Whether batches are checked for NaN and infinity, and what was found."""
        return self._run.finite_check.record

    @file("control-log.json", cached=False)
    def control_log(self) -> ControlLogRecord:
        """What was done to the run, by whom and when: the newest lines of `control-log.jsonl`."""
        return self._run.queue.control_log.log

    @file("exception.json")
    def exception(self) -> ExceptionRecord | dict[str, Any]:
        """The exception that ended the run, or holds it, with its traceback; `{}` while there is none."""
        return self._run.exception or {}


class MetricFiles(Dir):
    """The metrics at the last safe point: one file each, and all together in `index.json`.

    The names are those of `trainer.callback_metrics`. In file names `/`, `%` and control characters are
    percent-encoded: `train/loss` is `train%2Floss`. A metric that is no real scalar is not shown.
    """

    one_value = True

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("index.json")
    def index(self) -> Metrics | Later:
        """Every metric by its unescaped name, as a float."""
        return self._run.values.shown(
            lambda sample, values: Metrics(
                global_step=sample.global_step, epoch=sample.epoch, batch=sample.batch, metrics=values.metrics
            )
        )

    def members(self) -> Iterable[str]:
        """Return the names of the metrics."""
        sample = self._run.sample
        return [name for name in sample.metrics if sample.shows(name)]

    def member(self, name: str) -> Leaf | None:
        """Return the file of one metric."""
        if not self._run.sample.shows(name):
            return None
        return Leaf(
            lambda: self._run.values.shown(lambda _, values: values.metrics.get(name)),
            doc="One metric at the last safe point, as a float.",
            schema=lambda: schema_of(float),
        )


def _optimizer(optimizer: torch.optim.Optimizer, rates: list[float]) -> OptimizerRecord:
    """Return one optimizer. The options are read while training goes on; each is replaced whole, if at all."""
    groups = [
        Group(
            lr=rates[number] if number < len(rates) else None,
            parameters=len(group["params"]),
            options={
                key: value for key, value in list(group.items()) if key not in {"params", "lr"} and _is_plain(value)
            },
        )
        for number, group in enumerate(list(optimizer.param_groups))
    ]
    return OptimizerRecord(name=type(optimizer).__name__, groups=groups)


def _is_plain(value: object) -> bool:
    """Whether an option can be shown without a wait for a device."""
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
