"""Hooks: midrun's part of each Lightning hook.

A model's hook runs the model's own part first, then the part from here, which never raises: see `mixin`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midrun.attachment import Attachment
    from midrun.run import Run

SAFE_POINTS = {"on_before_optimizer_step": "begin_step", "on_train_batch_end": "end_batch"}
"""Hooks at which what a batch has logged is shown."""

PARTS = {
    "on_train_epoch_start": "begin_epoch",
    **SAFE_POINTS,
    "on_validation_start": "set_aside",
    "on_validation_end": "take_up",
    "on_validation_batch_end": "end_batch",
    "on_test_batch_end": "end_batch",
    "on_predict_batch_end": "end_batch",
    "on_fit_start": "turn",
    "on_fit_end": "turn",
    "on_train_start": "turn",
    "on_train_end": "turn",
    "on_train_epoch_end": "turn",
    "on_validation_epoch_end": "turn",
    "on_test_start": "turn",
    "on_test_end": "turn",
    "on_predict_start": "turn",
    "on_predict_end": "turn",
}
"""What a live run does at each hook: a method of `Run`, called with the hook's arguments."""

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

    def part(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a hook's own
        attachment = module._midrun  # noqa: SLF001 - the mixin's own
        quick = attachment.quick
        if name not in quick:
            return _do(name, behind[type(module)], attachment, module, args, kwargs)
        try:
            quick[name](*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as below
            attachment.broke(name, error)
        return None

    vars(part)["behind"] = behind
    return part


def _do(
    name: str,
    behind: Callable[..., Any] | None,
    attachment: Attachment,
    module: Any,  # noqa: ANN401 - a model
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # noqa: ANN401 - a hook's own
    """Call what is behind midrun's part of a hook, and then the part."""
    result = None if behind is None else behind(module, *args, **kwargs)
    if attachment.under_way:
        attachment.reached.add(name)
    try:
        if name in LIFE:
            getattr(attachment, name)(module, *args, **kwargs)
        elif attachment.run is not None:
            getattr(attachment.run, PARTS[name])(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in midrun, training goes on
        attachment.broke(name, error)
    return result


def quick_parts(cls: type, run: Run) -> dict[str, Callable[..., None]]:
    """Return the methods of `run` that a batch's hooks may call directly, for hooks that the model does not override.

    A batch's hooks find the processor's cache cold; the way through `_do` would cost a small model's step a thousandth
    for each hook.
    """
    ways = {name: getattr(getattr(cls, name), "behind", None) for name in SAFE_POINTS}
    return {
        name: getattr(run, PARTS[name]) for name, behind in ways.items() if behind is not None and behind[cls] is None
    }
