"""Hooks: midrun's part of each Lightning hook.

A model's hook runs the model's own part first, then the part from here, which never raises: see `mixin`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midrun.run import Run


def _begin_batch(run: Run, batch: object, batch_idx: int) -> None:
    run.batch = batch_idx


def _end_evaluated_batch(run: Run, outputs: object, batch: object, batch_idx: int, dataloader_idx: int = 0) -> None:
    run.batch = batch_idx
    run.safe_point()


def _safe_point(run: Run, *_: object) -> None:
    run.safe_point()


def _turn(run: Run) -> None:
    run.turn(run.batch if run.loop.stage == "train" else None)


SAFE_POINTS = {"on_before_optimizer_step": _safe_point, "on_train_batch_end": _safe_point}
"""Hooks at which what a batch has logged is shown."""

PARTS: dict[str, Callable[..., None]] = {
    "on_train_epoch_start": lambda run: run.turn(None),
    "on_train_batch_start": _begin_batch,
    **SAFE_POINTS,
    "on_validation_start": lambda run: run.set_aside(),
    "on_validation_end": lambda run: run.take_up(),
    "on_validation_batch_end": _end_evaluated_batch,
    "on_test_batch_end": _end_evaluated_batch,
    "on_predict_batch_end": _end_evaluated_batch,
    "on_fit_start": _turn,
    "on_fit_end": _turn,
    "on_train_start": _turn,
    "on_train_end": _turn,
    "on_train_epoch_end": _turn,
    "on_validation_epoch_end": _turn,
    "on_test_start": _turn,
    "on_test_end": _turn,
    "on_predict_start": _turn,
    "on_predict_end": _turn,
}
"""What a live run does at each hook: called with the run and the hook's arguments."""

LIFE = ("configure_callbacks", "setup", "teardown")
"""Hooks at which a run begins and ends: what midrun does there are methods of `Attachment`, called with the model."""

HOOKS = (*LIFE, *PARTS)
"""The Lightning hooks that midrun has a part in."""


def part_of(name: str) -> Callable[..., None]:
    """Return midrun's part of the hook `name`: called with the model and the hook's arguments, it never raises.

    The one exception is `setup` with `inspection_strict=True`.
    """
    live = PARTS.get(name)

    def part(module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - a hook's own
        attachment = module._midrun  # noqa: SLF001 - the mixin's own
        try:
            if live is None:
                getattr(attachment, name)(module, *args, **kwargs)
            elif (run := attachment.run) is not None:
                live(run, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in midrun, training goes on
            attachment.broke(name, error)

    return part
