"""Resume: what a model's own hooks of saving and loading do with the bundle, on every rank."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypedDict

from midrun.checkpoints import bundle
from midrun.checkpoints.faults import CheckpointError
from midrun.checkpoints.position import BATCH_END, Position
from midrun.checkpoints.restart import Restart
from midrun.checkpoints.rewinds import Cause, Rewind, RewindRecord
from midrun.checkpoints.shelf import Shelf, reach_of, shelf_of
from midrun.fs.tracebacks import message, trace
from midrun.lightnings import is_empty
from midrun.log import tell
from midrun.tunables import set_tunable, tunables

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from midrun.checkpoints.back import Read
    from midrun.loop import Loop
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
    run_dir: str | None
    """Its directory."""
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
        """Where the present fit is; None between two."""
        self.listeners: list[Callable[[Rewind], object]] = []
        """Called when the run has gone back."""
        self._loop: Loop | None = None
        self.ranks: Ranks | None = None
        self.extra: Any = None
        """What the user gave with the checkpoint that was loaded last; None where that was nothing."""
        self.control: dict[str, dict[str, Any]] = {}
        """What was set last by kinds of commands that last, by their names: their arguments."""
        self._about: dict[str, Any] = dict(_NOTHING)
        """What the checkpoint that is written now has besides."""
        self._read: Read | None = None
        """The checkpoint that is to be gone back to."""
        self._is_going_back = False
        self._note: Callable[[RewindRecord], None] | None = None
        self._reached = 0
        """How far the run had come whose checkpoint was loaded."""
        self.record: ResumeRecord | None = None
        """What the present session has gone on from."""
        self._tell: Callable[[ResumeRecord], None] = _tell_nobody
        self._restart: Restart | None = None

    def begin(
        self,
        loop: Loop,
        ranks: Ranks,
        tell: Callable[[ResumeRecord], None],
        note: Callable[[RewindRecord], None] | None,
    ) -> None:
        """Begin a fit, or another stage.

        Parameters
        ----------
        loop, ranks
            What runs, and who.
        tell
            Called when it goes on from a checkpoint, and is where that was written.
        note
            Called, on rank zero, where the run has gone back.
        """
        self._loop, self.position, self.ranks = loop, loop.position, ranks
        self.record, self._tell, self._note = None, tell, note
        self.control = {}

    def end(self) -> None:
        """End it, and keep nothing of it alive."""
        self.forget()
        position, self.position = self.position, None
        self.ranks = self._loop = self._read = self._note = None
        self._tell = _tell_nobody
        if position is not None:
            position.end()

    # ---- writing

    def save(self, module: LightningModule, checkpoint: dict[str, Any], shared: dict[str, Any]) -> None:
        """Put the bundle into a checkpoint. Later ranks do it too, at the same time, as they make the checkpoint."""
        position = self.position or Position(module.trainer, module)
        checkpoint[bundle.KEY] = bundle.bundle(
            position.told(),
            int(module.trainer.world_size),
            self.ranks,
            {
                "time": time.time(),
                "global_step": int(checkpoint["global_step"]),
                "epoch": int(checkpoint["epoch"]),
                "tunables": {
                    path: told["value"] for path, told in tunables(module)["hparams"].items() if "value" in told
                },
                "control": dict(self.control),
                "run_dir": None if self.ranks is None else self.ranks.directory,
                **self._about,
                **shared,
            },
        )

    @contextmanager
    def writing(self, **about: Any) -> Iterator[None]:  # noqa: ANN401 - what a user gives
        """Have the checkpoint that is written meanwhile have something besides: `extra`, `label`, `command`."""
        self._about = {**_NOTHING, **about}
        try:
            yield
        finally:
            self._about = dict(_NOTHING)

    # ---- loading

    def load(self, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take what a checkpoint has of midrun. Raises CheckpointError where it can't be this model's."""
        found = bundle.read(checkpoint)
        trainer = module._trainer  # noqa: SLF001 - `module.trainer` raises where there is none
        is_fitting = trainer is not None and trainer.state.fn == "fit"
        if (
            is_fitting
            and _takes_weights_as_they_are(module)
            and (why := bundle.of_another_model(checkpoint, module)) is not None
        ):
            raise CheckpointError(f"the checkpoint is of another model: {why}. Nothing was loaded")
        self.extra = None if found is None else found["extra"]
        for path, value in ({} if found is None else found["tunables"]).items():
            try:
                set_tunable(module, path, value)
            except Exception as error:  # noqa: BLE001 - a setter of the model's is anybody's code
                tell(logging.WARNING, f"{path!r} of the checkpoint is not set: {message(error)}")
        if trainer is not None and is_fitting and not self._is_going_back and not _is_tuners(trainer.ckpt_path):
            self._resume(trainer, module, checkpoint, found)

    def _resume(
        self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any], found: dict[str, Any] | None
    ) -> None:
        self.forget()
        path = trainer.ckpt_path
        self._reached = 0 if path is None else reach_of(str(path))
        self.record = record = ResumeRecord(
            checkpoint=None if path is None else str(path),
            global_step=int(checkpoint.get("global_step", 0)),
            epoch=int(checkpoint.get("epoch", 0)),
            where="",
            run_id=None if found is None else found["run_id"],
            run_dir=None if found is None else found["run_dir"],
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
        self.control = dict(found["control"])
        self._clip_again()
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
        self._tell(record)
        if record["checkpoint"] is not None:
            self._rewound(record["global_step"], self._reached, "resume", record["checkpoint"])
            if self._note is not None and (shelf := shelf_of(record["checkpoint"])) is not None:
                shelf.used(record["checkpoint"])

    # ---- going back

    def find(self, which: str, directory: Path) -> str:
        """Return the path of the checkpoint that is meant. Raises CheckpointError where there is none."""
        path = Shelf(directory).resolve(which)
        if path is None:
            raise CheckpointError(f"there is no checkpoint to go back to in {str(directory)!r}")
        return path

    def read(self, which: str, directory: Path) -> None:
        """Read a checkpoint that is to be gone back to. Raises CheckpointError; nothing is changed."""
        self._read = None
        if self._loop is None or self.position is None:
            raise CheckpointError("there is no training to go back in")
        if (spot := self.position.spot()).where != BATCH_END:
            raise CheckpointError(f"a run goes back at the end of a batch, in on_train_batch_end, not {spot.where!r}")
        self._read = self._loop.read_checkpoint(self.find(which, directory))

    def go_back(self) -> RewindRecord:
        """Be what was read. Raises CheckpointError where that fails halfway; then nobody can train on."""
        loop, read, self._read = self._loop, self._read, None
        if loop is None or read is None:
            raise CheckpointError("no checkpoint was read")
        reached, self._is_going_back = loop.step, True
        try:
            loop.go_back(read)
        finally:
            self._is_going_back = False
        if self._note is not None and (shelf := shelf_of(read.path)) is not None:
            shelf.used(read.path)
        return self._rewound(loop.step, reached, "load_checkpoint", read.path)

    def load_together(self, which: str, directory: Path) -> None:
        """Go back on all ranks, each of which calls it, or on none. Raises CheckpointError on all, or on none."""
        loop, ranks = self._loop, self.ranks
        if loop is None or ranks is None:
            raise CheckpointError("there is no training to go back in")

        def together(word: str, act: Callable[[], object]) -> str | None:
            """Return why it has failed, on whatever rank."""
            why = None
            try:
                act()
            except Exception as error:  # noqa: BLE001 - raised, once it is known how the others have fared
                why = message(error)
            told = ranks.exchange(word, why, lambda: loop.told_to_end_by)
            failed = {rank: text for rank, text in sorted(told.items()) if text is not None}
            if not failed:
                return None
            several = ranks.own["world_size"] > 1
            return "; ".join(f"rank {rank}: {text}" if several else text for rank, text in failed.items())

        if (why := together("read", lambda: self.read(which, directory))) is not None:
            self._read = None
            raise CheckpointError(f"{why}. Nothing was changed")
        if (why := together("applied", self.go_back)) is not None:
            loop.break_off(why)
            loop.check_whole()

    def _rewound(self, to_step: int, reached: int, cause: Cause, checkpoint: str) -> RewindRecord:
        """Note that the run has gone back, if it has, and tell whoever listens on this rank."""
        record = RewindRecord(to_step=to_step, reached=reached, cause=cause, checkpoint=checkpoint, time=time.time())
        if to_step >= reached:
            return record
        if self._note is not None:
            self._note(record)
        for listener in self.listeners:
            try:
                listener(Rewind(to_step, reached, cause))
            except Exception as error:  # noqa: BLE001 - a user's code
                tell(logging.WARNING, f"a callback of on_rewind failed:\n{trace(error)}")
        return record

    def _clip_again(self) -> None:
        """Clip gradients as a command had it: from the first step on, and on every rank alike."""
        clip = self.control.get("set_gradient_clip")
        if clip is not None and self._loop is not None and self._loop.refuses_clip(clip["value"]) is None:
            self._loop.set_gradient_clip(clip["value"], clip["algorithm"])

    def forget(self) -> None:
        """Leave Lightning's loops alone."""
        restart, self._restart = self._restart, None
        if restart is not None:
            restart.disarm()


_NOTHING: dict[str, Any] = {"extra": None, "label": None, "command": None, "control_revision": 0}
"""What a checkpoint has besides, unless it is told."""


def _is_tuners(path: Any) -> bool:  # noqa: ANN401 - as Lightning has it
    """Whether a checkpoint is one that Lightning's Tuner has made for itself, and goes back to after its trials."""
    return path is not None and PurePath(str(path)).name.startswith((".lr_find_", ".scale_batch_size_"))


def _tell_nobody(_: ResumeRecord) -> None:
    """Be what is told where nobody listens."""


def described(record: ResumeRecord) -> str:
    """Return in words where training goes on."""
    where = f"training goes on from step {record['global_step']:,}, epoch {record['epoch']}"
    if record["exact"]:
        return f"{where}, as if it had never stopped"
    return f"{where}; it may differ from what it would have been: {'; '.join(record['reasons'])}"


def _takes_weights_as_they_are(module: LightningModule) -> bool:
    """Whether nobody changes the weights between the file and the model."""
    hook = getattr(type(module), "on_load_checkpoint", None)
    behind = getattr(hook, "behind", None)
    return (
        behind is not None
        and is_empty(behind(module), ".core.hooks", ".core.saving", ".core.module")
        and bool(module.strict_loading)
        and not any(map(_loads_in_its_own_way, module.modules()))
    )


def _loads_in_its_own_way(part: Any) -> bool:  # noqa: ANN401 - a module
    """Whether a module takes weights otherwise than torch's and Lightning's own do."""
    if part._load_state_dict_pre_hooks or part._load_state_dict_post_hooks:  # noqa: SLF001 - torch shows them nowhere
        return True
    ways = (getattr(type(part), name) for name in ("load_state_dict", "_load_from_state_dict"))
    return any(not way.__module__.startswith(("torch.nn.", "torchmetrics.")) for way in ways)
