"""Tunables: the attributes of a model, declared in `midrun_tunable_hparams`, that may be changed while it trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NoReturn

import torch

from midrun.fs.faults import FieldError, Invalid
from midrun.model import attribute, bounded


def declared(module: object) -> dict[str, Mapping[str, Any]]:
    """Return the paths that a model declares, with their limits."""
    found: Any = getattr(type(module), "midrun_tunable_hparams", ())
    return (
        {path: limits or {} for path, limits in found.items()} if isinstance(found, Mapping) else {p: {} for p in found}
    )


def admitted(module: object, path: str, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return `value` in the type that the attribute at `path` has now. Raises `Invalid`.

    A value must have the type of the present one; an integer is a float too, and a float must be finite.
    """
    paths = declared(module)
    if path not in paths:
        known = f"it declares {', '.join(paths)}" if paths else "it declares none in midrun_tunable_hparams"
        _refuse("name", f"{path!r} is not tunable in this model: {known}", "not_tunable")
    try:
        present = attribute(module, path)
    except Exception as error:  # noqa: BLE001 - a property of the model's is anybody's code
        _refuse("name", f"{path!r} can't be read: {type(error).__name__}: {error}", "missing_attribute")
    new = _as(present, value, path)
    _check_limits(path, new, paths[path])
    return new


def set_tunable(module: object, path: str, value: Any) -> tuple[Any, Any]:  # noqa: ANN401 - any JSON value
    """Set the attribute at `path`, and return its old and its new value, as JSON values. Raises `Invalid`."""
    new = admitted(module, path, value)
    owner_path, _, name = path.rpartition(".")
    owner = attribute(module, owner_path) if owner_path else module
    old = owner[name] if isinstance(owner, Mapping) and name in owner else getattr(owner, name)
    before = _shown(old)
    if isinstance(old, torch.Tensor):
        with torch.no_grad():
            old.fill_(new)
    elif isinstance(owner, dict) and name in owner:
        owner[name] = new
    else:
        setattr(owner, name, new)
    return before, _shown(attribute(module, path))


def _as(present: Any, value: Any, path: str) -> Any:  # noqa: ANN401 - a hyperparameter may be anything
    """Return `value` in the type of the present value."""
    if isinstance(present, torch.Tensor):
        return _as_scalar(present, value, path)
    if not _fits(present, value):
        is_ = f"{path!r} is {_named(present)} ({bounded(present)!r})"
        _refuse("value", f"{is_}, not {_named(value)}: {value!r:.100}", "type")
    if isinstance(present, list | tuple):
        if len(present) != len(value):
            _refuse("value", f"{path!r} has {len(present)} items, not {len(value)}", "length")
        return type(present)(_as(old, new, path) for old, new in zip(present, value, strict=True))
    if isinstance(present, Real) and not isinstance(present, bool):
        if isinstance(value, float) and not math.isfinite(value):
            _refuse("value", f"{path!r} takes a finite number", "finite_number")
        try:
            return type(present)(value)  # type: ignore[call-arg]  # a numpy scalar stays one
        except OverflowError:
            _refuse("value", f"{value!r:.100} is too large for {path!r}", "range")
    return value


def _fits(present: object, value: object) -> bool:
    """Whether a JSON value has the type of the present value."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(present, bool):
        return isinstance(value, bool)
    if isinstance(present, Integral):
        return number and isinstance(value, int)
    if isinstance(present, Real):
        return number
    return isinstance(value, list) if isinstance(present, tuple) else type(value) is type(present)


def _as_scalar(present: torch.Tensor, value: Any, path: str) -> Any:  # noqa: ANN401 - as above
    if type(present) not in (torch.Tensor, torch.nn.Parameter) or present.numel() != 1 or present.is_complex():
        _refuse(
            "name", f"{path!r} is a tensor of shape {tuple(present.shape)}: only a single number can be set", "type"
        )
    like: Any = False if present.dtype is torch.bool else 0.0 if present.is_floating_point() else 0
    return _as(like, value, path)


def _check_limits(path: str, value: Any, limits: Mapping[str, Any]) -> None:  # noqa: ANN401 - as above
    low, high = limits.get("min"), limits.get("max")
    values = value if isinstance(value, list | tuple) else [value]
    for item in values:
        if isinstance(item, Real) and ((low is not None and item < low) or (high is not None and item > high)):
            wanted = (
                f"between {low} and {high}"
                if None not in (low, high)
                else f"at least {low}"
                if high is None
                else f"at most {high}"
            )
            _refuse("value", f"{path!r} must be {wanted}: {item!r}", "range")


def _shown(value: Any) -> Any:  # noqa: ANN401 - as above
    """Return a value as the record shows it; a tensor's number is read, which may wait for its device."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else bounded(value)


def _named(value: object) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"


def _refuse(argument: str, message: str, kind: str) -> NoReturn:
    raise Invalid(message, [FieldError(loc=["body", "args", argument], msg=message, type=kind)])
