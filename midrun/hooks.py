"""Hooks: midrun's part of each Lightning hook.

A model's hook runs the model's own part first, then the part from here, which never raises: see `mixin`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from midrun.checkpoints.faults import CheckpointError
from midrun.lightnings import is_empty

if TYPE_CHECKING:
    from midrun.attachment import Attachment


class Halt(StopIteration):
    """Ends `trainer.validate`, `test` or `predict` at the end of a batch, as the end of their data does."""


SAFE_POINTS = {"on_before_optimizer_step": "begin_step", "on_train_batch_end": "end_batch"}
"""Hooks at which what a batch has logged is shown."""

PARTS = {
    "on_train_epoch_start": "begin_epoch",
    **SAFE_POINTS,
    "on_validation_start": "enter_validation",
    "on_validation_end": "leave_validation",
    "on_validation_batch_end": "end_evaluation_batch",
    "on_test_batch_end": "end_evaluation_batch",
    "on_predict_batch_end": "end_evaluation_batch",
    "on_fit_start": "begin_fit",
    "on_fit_end": "end_fit",
    "on_train_start": "begin_training",
    "on_train_end": "turn",
    "on_train_epoch_end": "end_epoch",
    "on_validation_epoch_end": "end_validation",
    "on_test_start": "turn",
    "on_test_end": "turn",
    "on_predict_start": "turn",
    "on_predict_end": "turn",
}
"""What a live run does at each hook: a method of its turns, called with the hook's arguments."""

LIFE = ("configure_callbacks", "setup", "teardown", "on_save_checkpoint", "on_load_checkpoint")
"""Hooks at which a run begins and ends, and checkpoints: methods of `Attachment`, called with the model."""

HOOKS = (*LIFE, *PARTS)
"""The Lightning hooks that midrun has a part in."""

Behind = Callable[[Any], Callable[..., Any] | None]
"""Returns what `super()` finds behind midrun's part of a hook, for a model."""


def part_of(name: str, behind: Behind | None = None) -> Callable[..., Any]:
    """Return midrun's part of the hook `name`: called with the model and the hook's arguments, it never raises.

    The exceptions are `setup` with `inspection_strict=True`, the `Halt` of a stage that is stopped, and the
    `CheckpointError` of a model that can't be trained on. What is `behind` the part is called first, and its result is
    returned.
    """

    def part(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a hook's own
        attachment = module._midrun  # noqa: SLF001 - the mixin's own
        quick = attachment.quick
        way = quick.get(name)
        if way is None or type(module) is not attachment.quick_class:
            return _do(name, behind, attachment, module, args, kwargs)
        try:
            way(*args, **kwargs)
        except (Halt, CheckpointError):
            raise
        except Exception as error:  # noqa: BLE001 - as below
            attachment.broke(name, error)
        return None

    vars(part).update(behind=behind, is_midruns=True)
    return part


def _do(
    name: str,
    behind: Behind | None,
    attachment: Attachment,
    module: Any,  # noqa: ANN401 - a model
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # noqa: ANN401 - a hook's own
    """Call what is behind midrun's part of a hook, and then the part."""
    own = None if behind is None else behind(module)
    result = None if own is None else own(*args, **kwargs)
    if attachment.under_way:
        attachment.reached.add(name)
    try:
        if name in LIFE:
            getattr(attachment, name)(module, *args, **kwargs)
        elif attachment.turns is not None:
            if name == "on_train_epoch_start":
                attachment.quicken(module)
            getattr(attachment.turns, PARTS[name])(*args, **kwargs)
    except (Halt, CheckpointError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in midrun, training goes on
        attachment.broke(name, error)
    return result


def is_reached(module: Any, name: str) -> bool:  # noqa: ANN401 - a model
    """Whether midrun's part of the hook `name` runs, whatever the model's own hook does."""
    return name not in vars(module) and getattr(getattr(type(module), name, None), "is_midruns", False)


def quick_parts(module: Any, turns: object) -> dict[str, Callable[..., None]]:  # noqa: ANN401 - a model
    """Return the methods of `turns` that a batch's hooks may call directly: where the model has nothing of its own.

    A batch's hooks find the processor's cache cold; the way through `_do` would cost a small model's step a thousandth
    for each hook.
    """
    ways = {name: getattr(getattr(type(module), name), "behind", None) for name in SAFE_POINTS}
    return {
        name: getattr(turns, PARTS[name])
        for name, behind in ways.items()
        if behind is not None and is_empty(behind(module), ".core.hooks")
    }
