"""The trainers that the tests start: whole programs, each with a plan that says what is to happen in it.

The fork server runs them by name, and this file is a script too: `python trainers.py PROGRAM PLAN`, the plan in JSON.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from midrun import MidrunMixin

BATCH = 8
LONGEST_WAIT = 60.0
"""Seconds after which a trainer that waits for its test gives up: no test leaves one behind."""

Plan = dict[str, Any]
"""What is to happen. Each program says which members it knows; these are common to all:

root
    The folder for everything.
midrun
    Options of the mixin.
steps
    Training steps, 20 unless told.
step_s
    Seconds that a training step sleeps.
wait_at
    Number of the training step (from 0) that waits until the test makes the file `go`; it makes `waiting` first.
raise_at
    Number of the training step that raises RuntimeError, or SystemExit with the code in `exit`.
fail_at
    Number of the training step whose backward pass raises RuntimeError, when it has come to the first layer;
    on rank zero, or the one in `fail_rank`.
spoil_at
    Number of the training step whose batch gets a NaN.
workers
    DataLoader workers.
stuck
    Number of the batch that a DataLoader worker never finishes; it makes `stuck` first.
until
    Whether to train until the test makes the file `enough`. Every ten steps it writes down the number in `steps`, and
    at the end in `gap` the longest time between two steps, in seconds.
logger
    Version of a CSVLogger, `v` unless told; None is no logger.
metrics
    More values to log, by name.
touch
    What the third training step does to its own mount: a function of `touches`.
seed
    For everything random.
"""


class Numbers(Dataset[tuple[Tensor, Tensor]]):
    """Made-up numbers; one batch of them can be made to never come."""

    def __init__(self, plan: Plan, count: int) -> None:
        self._plan = plan
        generator = torch.Generator().manual_seed(7)
        self._inputs = torch.randn(count, 8, generator=generator)
        self._targets = self._inputs.sum(1, keepdim=True)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self._plan.get("stuck", -1) * BATCH and torch.utils.data.get_worker_info() is not None:
            _mark(self._plan, "stuck", str(os.getpid()))
            # As a read from a dead network file system: it neither ends nor notices that its parent has gone.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            _await_file(Path(self._plan["root"], "unstick"))
        inputs = self._inputs[index]
        if index == self._plan.get("spoil_at", -1) * BATCH:
            inputs = torch.full_like(inputs, float("nan"))
        return inputs, self._targets[index]


class Model(MidrunMixin, L.LightningModule):
    """A small regressor, with dropout so that chance has a part in it."""

    midrun_tunable_hparams = {"hparams.l2": {"min": 0.0, "max": 1.0}}

    def __init__(self, plan: Plan, l2: float = 0.0) -> None:
        super().__init__(**plan.get("midrun", {}))
        self.save_hyperparameters("l2")
        self.plan = plan
        self.step = 0
        self.gap = self.before = 0.0
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        plan, step = self.plan, self.step
        self.step += 1
        if step == plan.get("wait_at"):
            wait(plan)
        if step == plan.get("raise_at"):
            raise SystemExit(plan["exit"]) if "exit" in plan else RuntimeError("the plan says so")
        if step == 2 and "touch" in plan:
            from tests.e2e import touches

            touches.timed(self)
        if plan.get("until"):
            self._train_until_enough()
        if plan.get("step_s"):
            time.sleep(plan["step_s"])
        loss = self._loss(batch)
        if step == plan.get("fail_at") and self.global_rank == plan.get("fail_rank", 0):
            next(self.net.parameters()).register_hook(_fail)  # type: ignore[no-untyped-call]  # torch's own
        self.log("train/loss", loss)
        for name, value in plan.get("metrics", {}).items():
            self.log(name, float(value))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._note_stage()
        self.log("val/loss", self._loss(batch))

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._note_stage()
        self.log("test/loss", self._loss(batch))

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        self._note_stage()
        return self.net(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def _loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def _train_until_enough(self) -> None:
        now = time.monotonic()
        if self.step > 5:
            self.gap = max(self.gap, now - self.before)
        self.before = now
        if self.step % 10 == 0:
            _mark(self.plan, "steps", str(self.step))
            if Path(self.plan["root"], "enough").exists():
                _mark(self.plan, "gap", json.dumps(self.gap))
                self.trainer.should_stop = True

    def _note_stage(self) -> None:
        """Wait once in each stage of evaluation, if the plan says so."""
        stage = str(self.trainer.state.stage.value) if self.trainer.state.stage else ""
        if stage in self.plan.get("wait_in", ()):
            self.plan["wait_in"].remove(stage)
            wait(self.plan, stage)


# ---- programs


def fit(plan: Plan, *, model: Model | None = None, callbacks: list[L.Callback] | None = None) -> L.Trainer:
    """Train once."""
    trainer = _trainer(plan, callbacks)
    trainer.fit(model or Model(plan), _loader(plan), _loader(plan) if plan.get("val") else None)
    return trainer


def fits(plan: Plan) -> None:
    """Train one model `count` times, one after the other; notes each one's address, and threads and files after it.

    Every other time the faces come to serve; the others are over before.
    """

    class Address(L.Callback):
        url: str | None = None
        waits = False

        def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            self.url = model.midrun.url
            deadline = time.monotonic() + 20
            while self.waits and not _serves(model):
                if time.monotonic() > deadline:
                    raise TimeoutError("the faces do not serve")
                time.sleep(0.01)

    model, address = Model(plan), Address()
    noted = []
    for number in range(plan["count"]):
        model.step, address.waits = 0, number % 2 == 1
        fit(plan, model=model, callbacks=[address])
        gc.collect()  # a run's last descriptors are closed with its last reference
        noted.append(
            {
                "url": address.url,
                "threads": _fewest_threads(),
                "files": _count("/proc/self/fd"),
            }
        )
    _mark(plan, "noted", json.dumps(noted))


def broken_setup(plan: Plan) -> None:
    """Train, but a callback's setup raises after the model's has begun."""

    class Broken(L.Callback):
        def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            raise RuntimeError("the plan says so")

    fit(plan, callbacks=[Broken()])


def failing(plan: Plan) -> None:
    """Train until something raises; the logger then takes its time to put away what it has."""

    class Slow(L.Callback):
        def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            logger = trainer.logger
            assert logger is not None
            finalize = logger.finalize

            def slow(status: str) -> None:
                wait(plan, "finalize")
                finalize(status)

            logger.finalize = slow  # type: ignore[method-assign]  # on this one alone

    fit(plan, callbacks=[Slow()])


def stages(plan: Plan) -> None:
    """Train, validate, test and predict with one Trainer."""
    model = Model(plan)
    trainer = fit(plan, model=model)
    trainer.validate(model, _loader(plan), verbose=False)
    trainer.test(model, _loader(plan), verbose=False)
    trainer.predict(model, _loader(plan))


def nested(plan: Plan) -> None:
    """Train a model that trains another in the middle."""

    class Inner(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
            if trainer.global_step == 3:
                fit({**plan, **plan["inner"]})

    fit(plan, callbacks=[Inner()])


def threads(plan: Plan) -> None:
    """Train two models at once, in two threads."""
    both = [threading.Thread(target=fit, args=({**plan, **other},)) for other in plan["both"]]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()


def hashed(plan: Plan) -> None:
    """Train, and write down what came of it: hashes of weights, optimizer state and logged values."""

    class Logged(L.Callback):
        values: list[dict[str, str]] = []

        def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
            self.values.append({name: float(value).hex() for name, value in trainer.callback_metrics.items()})

    logged = Logged()
    trainer = fit(plan, callbacks=[logged])
    model = trainer.lightning_module
    result = {
        "weights": _digest(model.state_dict()),
        "optimizer": _digest(trainer.optimizers[0].state_dict()),
        "logged": _digest(logged.values),
        "steps": trainer.global_step,
        "random": torch.rand(1).item(),
    }
    _mark(plan, "result", json.dumps(result))


def distributed(plan: Plan) -> None:
    """Train in two processes; each notes the run directory."""

    class Noting(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Any, number: int) -> None:
            if number == plan.get("wait_at"):
                _mark(plan, f"run-dir-{trainer.global_rank}", str(module.midrun.run_dir))
                _mark(plan, f"waiting-{trainer.global_rank}")

    trainer = _trainer(plan, [Noting()], strategy="ddp", devices=2)
    trainer.fit(Model(plan), _loader(plan))


def copied(plan: Plan) -> None:
    """Train in two processes that are copies of this one."""
    _trainer(plan, [], strategy=plan["strategy"], devices=2).fit(Model(plan), _loader(plan))


def ranks(plan: Plan) -> None:
    """Train in `world` processes, each at its own pace, until they are stopped; each writes down what every batch left.

    `way` is how: `plain` DDP; `hook`, with a communication hook that never waits and does not communicate, over the
    same data on each rank, so that nothing of torch's keeps the ranks together; `accumulate`, with four batches to a
    step; `manual`, with two optimizers that the model steps by itself.
    """
    way, rank = plan["way"], int(os.environ.get("LOCAL_RANK", "0"))
    plan = {"until": False, "steps": -1, "workers": 0, **plan}
    model = Steered(plan) if way == "manual" else Ranked(plan)
    same = {"use_distributed_sampler": False} if way == "hook" else {}
    strategy = DDPStrategy(ddp_comm_hook=_unsent if way == "hook" else None)
    trainer = _trainer(
        plan,
        [Ledger(plan, rank)],
        strategy=strategy,
        devices=plan["world"],
        accumulate_grad_batches=4 if way == "accumulate" else 1,
        **same,
    )
    loader = _loader({**plan, "batches": plan["uneven"][rank]} if "uneven" in plan else plan)
    trainer.fit(model, loader, _loader(plan) if plan.get("val") else None)


def resumed(plan: Plan) -> None:
    """Train a case of `resuming`, and write down what was seen of it, and where a checkpoint could be: `record-<rank>`.

    `checkpoint` is what to go on from; `spot` where to write one, to `write`, and then to be killed. `ranks` says how
    many processes train.
    """
    from tests import resuming

    rank = os.environ.get("LOCAL_RANK", "0")
    spot, write = plan.get("spot"), plan.get("write")
    several = {"devices": plan["ranks"], "strategy": "ddp"} if "ranks" in plan else {}

    def save(here: resuming.Spot) -> Path | None:
        return Path(write) if write and list(here) == spot else None

    fit = resuming.train(
        resuming.CASES[plan["case"]],
        Path(plan["root"]),
        save,
        checkpoint=Path(plan["checkpoint"]) if "checkpoint" in plan else None,
        seed=plan.get("seed", 0),
        saved=lambda: os.kill(os.getpid(), signal.SIGKILL),
        **several,
    )
    spots = [[*spot, *rows] for spot, rows in fit.model.spots.items()]
    Path(plan["root"], f"record-{rank}").write_text(json.dumps([fit.model.seen, fit.rows, spots]))


def saving(plan: Plan) -> None:
    """Go on with the run in `here`, if it is there, and write a checkpoint at each batch, until it is killed.

    With the second it makes the file `saving`.
    """
    import midrun

    here = Path(plan["here"])
    is_there = (here / "run.json").exists()

    class Saving(Model):
        def on_train_batch_end(self, *args: Any) -> None:
            super().on_train_batch_end(*args)
            self.midrun.save_checkpoint({"position": self.global_step})
            if self.step == 2:
                _mark(self.plan, "saving")

    options = {**plan["midrun"], **({"resume": str(here)} if is_there else {})}
    checkpoint = midrun.checkpoint(here) if is_there else None
    trainer = _trainer({**plan, "steps": -1, "logger": plan["version"]}, [])
    trainer.fit(Saving({**plan, "midrun": options}), _loader(plan), ckpt_path=checkpoint)


class Ranked(Model):
    """A model without chance, whose every rank takes its own time."""

    def __init__(self, plan: Plan, l2: float = 0.0) -> None:
        super().__init__(plan, l2)
        self.net[2] = nn.Identity()
        self.pace = random.Random(int(os.environ.get("LOCAL_RANK", "0")))  # noqa: S311 - no secret

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.dawdle()
        loss = super().training_step(batch, batch_idx)
        penalty = sum(parameter.square().sum() for parameter in self.net.parameters())
        return loss + float(self.hparams["l2"]) * penalty

    def on_after_backward(self) -> None:
        self.dawdle()

    def dawdle(self) -> None:
        time.sleep(self.pace.random() * 0.003)

    def configure_optimizers(self) -> Any:
        if "odd" not in self.plan:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.5)
        # An option that one rank's optimizer lacks.
        kind = torch.optim.Adam if self.plan["odd"] == self.global_rank else torch.optim.SGD
        return kind(self.parameters(), lr=0.01)


class Steered(Ranked):
    """A model that steps two optimizers by itself."""

    def __init__(self, plan: Plan, l2: float = 0.0) -> None:
        super().__init__(plan, l2)
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        optimizers: Any = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            self.dawdle()
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[at].parameters(), lr=0.01, momentum=0.5) for at in (0, 3)]


class Ledger(L.Callback):
    """Writes down what each batch has left of weights and of what can be set."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.path = Path(plan["root"], f"ledger-{rank}")

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        momenta = [optimizer.state_dict()["state"] for optimizer in trainer.optimizers]
        line = {
            "step": trainer.global_step,
            "batch": batch_idx,
            "set": [[group["lr"], group.get("momentum"), group["weight_decay"]] for group in groups],
            "l2": module.hparams["l2"],
            "clip": trainer.gradient_clip_val,
            "weights": _digest([module.state_dict(), momenta])[:16],
        }
        with self.path.open("a") as file:
            file.write(f"{json.dumps(line)}\n")


def _unsent(_: object, bucket: Any) -> Any:
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


# ---- what a program is made of


def _fail(_: Tensor) -> None:
    raise RuntimeError("backward has failed, as the plan says")


def wait(plan: Plan, name: str = "") -> None:
    """Tell the test that this place is reached, and wait for it to say go."""
    _mark(plan, f"waiting-{name}" if name else "waiting")
    _await_file(Path(plan["root"], f"go-{name}" if name else "go"))


def _trainer(plan: Plan, callbacks: list[L.Callback] | None, **more: Any) -> L.Trainer:
    if "seed" in plan:
        L.seed_everything(plan["seed"])
    version = plan.get("logger", "v")
    return L.Trainer(
        accelerator="cpu",
        max_steps=-1 if plan.get("until") else plan.get("steps", 20),
        max_epochs=-1,
        logger=False if version is None else CSVLogger(plan["root"], "logs", version),
        default_root_dir=plan["root"],
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=5,
        num_sanity_val_steps=0,
        limit_val_batches=4,
        **more,
    )


def _loader(plan: Plan) -> DataLoader[tuple[Tensor, Tensor]]:
    data = Numbers(plan, count=plan.get("batches", 64) * BATCH)
    return DataLoader(data, BATCH, shuffle="seed" in plan, num_workers=plan.get("workers", 0))


def _mark(plan: Plan, name: str, text: str = "") -> None:
    """Make a file for the test, whole at once."""
    path = Path(plan["root"], name)
    aside = path.with_name(f".{name}.{threading.get_ident()}")
    aside.write_text(text)
    aside.rename(path)


def _serves(model: Model) -> bool:
    run = model.midrun.run
    return run is not None and all(run.services[name].state == "running" for name in ("rest", "fuse"))


def _fewest_threads() -> int:
    """Return the number of this process's threads; one that has been joined needs a moment to vanish."""
    deadline = time.monotonic() + 0.5
    while (count := _count("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.005)
    return count


def _count(folder: str) -> int:
    return len(list(Path(folder).iterdir()))


def _await_file(path: Path) -> None:
    deadline = time.monotonic() + LONGEST_WAIT
    while not path.exists():
        if time.monotonic() > deadline:
            message = f"the test did not make {path.name} in {LONGEST_WAIT:g} s"
            raise TimeoutError(message)
        time.sleep(0.005)


def _digest(value: Any) -> str:
    """Return a hash of all numbers in a nested value, bit for bit."""
    found = hashlib.sha256()

    def take(item: Any) -> None:
        if isinstance(item, Tensor):
            found.update(item.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(item, dict):
            for key, inner in item.items():
                found.update(str(key).encode())
                take(inner)
        elif isinstance(item, list | tuple):
            for inner in item:
                take(inner)
        else:
            found.update(repr(item).encode())

    take(value)
    return found.hexdigest()


def main(program: str, plan: Plan) -> None:
    """Run a program of this module."""
    run: Callable[[Plan], object] = globals()[program]
    run(plan)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], json.loads(sys.argv[2]))
