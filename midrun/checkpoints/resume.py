"""Resume: what a model's own hooks of saving and loading do with the bundle, on every rank."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from midrun.checkpoints import bundle
from midrun.checkpoints.faults import CheckpointError
from midrun.checkpoints.position import Position
from midrun.checkpoints.restart import Restart
from midrun.fs.tracebacks import message
from midrun.lightnings import is_empty
from midrun.log import tell
from midrun.tunables import set_tunable, tunables

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from midrun.ranks import Ranks


class ResumeRecord(TypedDict):
    """The checkpoint that a session has gone on from."""

    checkpoint: str | None
    """Its path."""
    global_step: int
    epoch: int
    where: str
    """The Lightning hook in which it was written, or in words where else."""
    run_id: str | None
    """Of the run that wrote it; null where midrun did not see it written."""
    exact: bool | None
    """Whether training goes on as if it had never stopped; null until it goes on."""
    reasons: list[str]
    """Why it may not, one for each."""
    time: float
    """When it was loaded. Seconds since 1970."""


class Resume:
    """What a model's checkpoints have of midrun, from fit to fit.

    Parameters
    ----------
    at_step
        Called with what is to be done at the next optimizer step, before anything else is.
    """

    def __init__(self, at_step: Callable[[Callable[[], None]], None]) -> None:
        self.at_step = at_step
        self.doubts: list[str] = []
        self.position: Position | None = None
        """Where the present fit is, or the last one was."""
        self.ranks: Ranks | None = None
        self.extra: Any = None
        """What the user gave with the checkpoint that was loaded last; None where that was nothing."""
        self.giving: Any = None
        """What the user gives with the checkpoint that is written now."""
        self.record: ResumeRecord | None = None
        """What the present session has gone on from."""
        self._say: Callable[[str], None] = _say_nothing
        self._restart: Restart | None = None

    def begin(self, position: Position, ranks: Ranks, say: Callable[[str], None]) -> None:
        """Begin a fit, or another stage; `say` is called with what somebody should know of where it goes on."""
        self.position, self.ranks, self.record, self._say = position, ranks, None, say

    def end(self) -> None:
        """End it: there is nobody any more to gather anything from. Where it was stays known."""
        self.forget()
        self.ranks = None
        if self.position is not None:
            self.position.end()

    # ---- writing

    def save(self, module: LightningModule, checkpoint: dict[str, Any], shared: dict[str, Any]) -> None:
        """Put the bundle into a checkpoint. Later ranks do it too, at the same time, as they make the checkpoint."""
        position = self.position or Position(module.trainer, module)
        checkpoint[bundle.KEY] = bundle.bundle(
            position.told(),
            self.ranks,
            {
                "time": time.time(),
                "global_step": int(checkpoint["global_step"]),
                "epoch": int(checkpoint["epoch"]),
                "tunables": {
                    path: told["value"] for path, told in tunables(module)["hparams"].items() if "value" in told
                },
                "extra": self.giving,
                **shared,
            },
        )

    # ---- loading

    def load(self, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take what a checkpoint has of midrun. Raises CheckpointError where it can't be this model's."""
        found = bundle.read(checkpoint)
        if _takes_weights_as_they_are(module) and (why := bundle.of_another_model(checkpoint, module)) is not None:
            raise CheckpointError(f"the checkpoint is of another model: {why}. Nothing was loaded")
        trainer = module._trainer  # noqa: SLF001 - `module.trainer` raises where there is none
        self.extra = None if found is None else found["extra"]
        for path, value in ({} if found is None else found["tunables"]).items():
            try:
                set_tunable(module, path, value)
            except Exception as error:  # noqa: BLE001 - a setter of the model's is anybody's code
                tell(logging.WARNING, f"{path!r} of the checkpoint is not set: {message(error)}")
        if trainer is not None and trainer.state.fn == "fit":
            self._resume(trainer, module, checkpoint, found)

    def _resume(
        self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any], found: dict[str, Any] | None
    ) -> None:
        self.forget()
        path = trainer.ckpt_path
        self.record = record = ResumeRecord(
            checkpoint=None if path is None else str(path),
            global_step=int(checkpoint.get("global_step", 0)),
            epoch=int(checkpoint.get("epoch", 0)),
            where="",
            run_id=None if found is None else found.get("run_id"),
            exact=None,
            reasons=[],
            time=time.time(),
        )
        if found is None:
            record["reasons"].append(
                "midrun did not see it written, so training goes on as Lightning has it, with the loader from its "
                "beginning"
            )
            self.arrive()
            return
        part, why = bundle.part_of(found, trainer.global_rank, trainer.world_size)
        if part is None or self.position is None:
            record["reasons"].append(why or "midrun does not run")
            self.arrive()
            return
        record["where"] = part["where"]
        ours = module.state_dict()
        precise = {
            name: tensor
            for name, tensor in checkpoint["state_dict"].items()
            if name in ours and getattr(ours[name], "dtype", None) != getattr(tensor, "dtype", None)
        }
        self.doubts = record["reasons"]
        self._restart = Restart(trainer, module, self.position, part, precise, self)
        if not self._restart.arm():
            self.arrive()

    def arrive(self) -> None:
        """Say where training goes on."""
        record = self.record
        if record is None:
            return
        record["exact"] = not record["reasons"]
        where = f"training goes on from step {record['global_step']:,}, epoch {record['epoch']}"
        self._say(f"{where}, as if it had never stopped" if record["exact"] else f"{where}; {_joined(record)}")

    def forget(self) -> None:
        """Leave Lightning's loops alone."""
        restart, self._restart = self._restart, None
        if restart is not None:
            restart.disarm()


def _say_nothing(_: str) -> None:
    """Have nobody to say it to."""


def _joined(record: ResumeRecord) -> str:
    return f"it may differ from what it would have been: {'; '.join(record['reasons'])}"


def _takes_weights_as_they_are(module: LightningModule) -> bool:
    """Whether nobody changes the weights between the file and the model."""
    hook = getattr(type(module), "on_load_checkpoint", None)
    behind = getattr(hook, "behind", None)
    return (
        behind is not None
        and is_empty(behind(module), ".core.hooks", ".core.saving", ".core.module")
        and bool(module.strict_loading)
        and not any(part._load_state_dict_pre_hooks for part in module.modules())  # noqa: SLF001 - torch shows them nowhere
    )
