"""Hooks: midrun's part of each Lightning hook.

A model's hook runs the model's own part first, then the part from here, which never raises: see `mixin`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midrun.run import Run


def _begin_step(run: Run, optimizer: object) -> None:
    run.begin_step()


def _end_batch(run: Run, outputs: object, batch: object, batch_idx: int, dataloader_idx: int = 0) -> None:
    run.safe_point(batch_idx)


def _turn(run: Run) -> None:
    run.turn(run.sample.batch if run.loop.stage == "train" else None)


SAFE_POINTS: dict[str, Callable[..., None]] = {
    "on_before_optimizer_step": _begin_step,
    "on_train_batch_end": _end_batch,
}
"""Hooks at which what a batch has logged is shown."""

PARTS: dict[str, Callable[..., None]] = {
    "on_train_epoch_start": lambda run: run.turn(None),
    **SAFE_POINTS,
    "on_validation_start": lambda run: run.set_aside(),
    "on_validation_end": lambda run: run.take_up(),
    "on_validation_batch_end": _end_batch,
    "on_test_batch_end": _end_batch,
    "on_predict_batch_end": _end_batch,
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

NOTHING: Mapping[type, None] = defaultdict(lambda: None)
"""Behind a part that stands alone."""


def part_of(name: str, behind: Mapping[type, Callable[..., Any] | None] = NOTHING) -> Callable[..., Any]:
    """Return midrun's part of the hook `name`: called with the model and the hook's arguments, it never raises.

    The one exception is `setup` with `inspection_strict=True`. For a class of model that has something `behind` the
    part, that is called first, and its result is returned.
    """
    live = PARTS.get(name)

    # One function for all that comes with each batch: nothing of it is in the processor's cache by then, and each call
    # of a further one costs a small model's step a thousandth.
    def part(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a hook's own
        own = behind[type(module)]
        result = None if own is None else own(module, *args, **kwargs)
        attachment = module._midrun  # noqa: SLF001 - the mixin's own
        if attachment.under_way:
            attachment.reached.add(name)
        try:
            if live is None:
                getattr(attachment, name)(module, *args, **kwargs)
            elif (run := attachment.run) is not None:
                live(run, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in midrun, training goes on
            attachment.broke(name, error)
        return result

    return part
