"""Tunables: the attributes of a model, declared in `midrun_tunable_hparams`, that may be changed while it trains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from numbers import Integral, Real
from typing import Any, NoReturn, TypedDict, cast

import numpy as np
import torch

from midrun.fs.faults import invalid
from midrun.fs.tracebacks import last_line, message
from midrun.nested import bounded
from midrun.scalar import holds, is_real_scalar


class Tunable(TypedDict, total=False):
    """An attribute that may be changed while the run is live."""

    value: Any
    type: str
    min: float
    max: float
    label: str
    error: str


class Tunables(TypedDict):
    """The attributes that the model declares in `midrun_tunable_hparams`."""

    hparams: dict[str, Tunable]


def declared(module: object) -> dict[str, Mapping[str, Any]]:
    """Return the paths that a model declares, with their limits."""
    found: Any = getattr(type(module), "midrun_tunable_hparams", ())
    return (
        {path: limits or {} for path, limits in found.items()} if isinstance(found, Mapping) else {p: {} for p in found}
    )


def tunables(module: object) -> Tunables:
    """Return what a model declares, as it is now. A declared path that can't be read has an `error` instead."""
    return Tunables(hparams={path: _tunable(module, path, limits) for path, limits in declared(module).items()})


def _tunable(module: object, path: str, limits: Mapping[str, Any]) -> Tunable:
    tunable = cast("Tunable", {key: limits[key] for key in ("min", "max", "label") if key in limits})
    try:
        value = attribute(module, path)
    except (AttributeError, KeyError) as error:
        tunable["error"] = f"the model has no {path!r}: {message(error)}"
    except Exception as error:  # noqa: BLE001 - a property of the model's is anybody's code
        tunable["error"] = f"{path!r} can't be read: {last_line(error)}"
    else:
        tunable["value"], tunable["type"] = shown(value, waits=False), type(value).__name__
    return tunable


def shown(value: Any, *, waits: bool) -> Any:  # noqa: ANN401 - a hyperparameter may be anything
    """Return a value as it is shown. A tensor's number is read; if it `waits`, also from a device."""
    is_number = isinstance(value, torch.Tensor) and is_real_scalar(value)
    return value.item() if is_number and (waits or value.device.type == "cpu") else bounded(value)


def attribute(owner: object, path: str) -> Any:  # noqa: ANN401 - an attribute may hold anything
    """Return the attribute of `owner` at a dotted path. Raises AttributeError or KeyError when it is not there."""
    value = owner
    for name in path.split("."):
        value = value[name] if isinstance(value, Mapping) and name in value else getattr(value, name)
    return value


def admitted(module: object, path: str, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return `value` in the type that the attribute at `path` has now. Raises `Invalid`.

    A value must have the type of the present one; an integer is a float too, and a float must be finite.
    """
    paths = declared(module)
    if path not in paths:
        known = f"it declares {', '.join(paths)}" if paths else "it declares none in midrun_tunable_hparams"
        _refuse("name", f"{path!r} is not tunable in this model: {known}", "not_tunable")
    owner, name = _holder(module, path)
    kept = getattr(type(owner), name, None)
    if isinstance(kept, property) and kept.fset is None:
        _refuse("name", f"{path!r} is a property without a setter: it can only be read", "read_only")
    new = _as(_read(module, path), value, path)
    _check_limits(path, new, paths[path])
    return new


def set_tunable(module: object, path: str, value: Any) -> tuple[Any, Any]:  # noqa: ANN401 - any JSON value
    """Set the attribute at `path`, and return its old and its new value, as JSON values. Raises `Invalid`."""
    new = admitted(module, path, value)
    owner, name = _holder(module, path)
    old = _read(module, path)
    before = shown(old, waits=True)
    try:
        if isinstance(old, torch.Tensor):
            # By `data`, as a step done by hand may be between its forward and its backward pass, and autograd would
            # end the run over a tensor that was changed meanwhile.
            old.data.fill_(new)
        elif isinstance(owner, MutableMapping) and name in owner:
            owner[name] = new
        else:
            setattr(owner, name, new)
    except Exception as error:  # noqa: BLE001 - a setter of the model's is anybody's code
        _refuse("value", f"{path!r} can't be set: {last_line(error)}", "value_error")
    return before, shown(_read(module, path), waits=True)


def is_set(module: object, path: str, value: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Whether the attribute at `path` has this value already. Raises `Invalid`."""
    new, old = admitted(module, path, value), _read(module, path)
    try:
        return bool((old.item() if isinstance(old, torch.Tensor) else old) == new)
    except Exception:  # noqa: BLE001 - a value of the model's is anybody's code
        return False


def _holder(module: object, path: str) -> tuple[Any, str]:
    """Return what has the attribute at `path`, and the attribute's name."""
    above, _, name = path.rpartition(".")
    return (_read(module, above) if above else module), name


def _read(module: object, path: str) -> Any:  # noqa: ANN401 - a hyperparameter may be anything
    try:
        return attribute(module, path)
    except Exception as error:  # noqa: BLE001 - a property of the model's is anybody's code
        _refuse("name", f"{path!r} can't be read: {last_line(error)}", "missing_attribute")


def _as(present: Any, value: Any, path: str) -> Any:  # noqa: ANN401 - a hyperparameter may be anything
    """Return `value` in the type of the present value, and so for each item."""
    if isinstance(present, torch.Tensor):
        return _as_scalar(present, value, path)
    if not _fits(present, value):
        _refuse(
            "value", f"{path!r} is {_named(present)}{_quoted(present)}, not {_named(value)}: {value!r:.100}", "type"
        )
    if isinstance(present, dict):
        if present.keys() != value.keys():
            members, given = ", ".join(map(str, present)), ", ".join(value) or "none"
            _refuse("value", f"{path!r} has the members {members}, not {given}: give exactly these", "keys")
        return {key: _as(old, value[key], path) for key, old in present.items()}
    if isinstance(present, list | tuple):
        if len(present) != len(value):
            _refuse("value", f"{path!r} has {len(present)} items, not {len(value)}", "length")
        items = [_as(old, new, path) for old, new in zip(present, value, strict=True)]
        return type(present)(*items) if hasattr(present, "_fields") else type(present)(items)
    return _as_number(present, value, path) if isinstance(present, Real | np.bool_) else value


def _as_number(present: Any, value: Any, path: str) -> Any:  # noqa: ANN401 - as above
    """Return a number in the type of the present one: a numpy scalar stays one, a boolean too."""
    if isinstance(value, float) and not math.isfinite(value):
        _refuse("value", f"{path!r} takes a finite number, not {value!r}", "finite_number")
    try:
        with np.errstate(over="ignore"):
            new = type(present)(value)
    except (OverflowError, ValueError, TypeError) as error:
        _refuse("value", f"{path!r} can't be {value!r:.100}: {message(error)}", "range")
    if isinstance(new, float | np.floating) and not math.isfinite(new):
        _refuse("value", f"{value!r:.100} does not fit {path!r}, which is {_named(present)}", "range")
    return new


def _fits(present: object, value: object) -> bool:
    """Whether a JSON value has the type of the present value."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(present, bool | np.bool_):
        return isinstance(value, bool)
    if isinstance(present, Integral):
        return number and isinstance(value, int)
    if isinstance(present, Real):
        return number
    return isinstance(value, list) if isinstance(present, tuple) else type(value) is type(present)


def _as_scalar(present: torch.Tensor, value: Any, path: str) -> Any:  # noqa: ANN401 - as above
    if not is_real_scalar(present):
        _refuse(
            "name", f"{path!r} is a tensor of shape {tuple(present.shape)}: only a single number can be set", "type"
        )
    like: Any = False if present.dtype is torch.bool else 0.0 if present.is_floating_point() else 0
    new = _as(like, value, path)
    if not holds(present.dtype, new):
        _refuse("value", f"{value!r:.100} does not fit {path!r}, which is of {present.dtype}", "range")
    return new


def _check_limits(path: str, value: Any, limits: Mapping[str, Any]) -> None:  # noqa: ANN401 - as above
    low, high = limits.get("min"), limits.get("max")
    for number in _numbers(value):
        if (low is not None and number < low) or (high is not None and number > high):
            wanted = (
                f"between {low} and {high}"
                if None not in (low, high)
                else f"at least {low}"
                if high is None
                else f"at most {high}"
            )
            _refuse("value", f"{path!r} must be {wanted}: {number!r}", "range")


def _numbers(value: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
    """Iterate over the numbers in a value."""
    if isinstance(value, Real) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


def _quoted(value: object) -> str:
    """Return a value in brackets, for a message; its text is anybody's code, and may fail."""
    try:
        return f" ({bounded(value)!r:.200})"
    except Exception:  # noqa: BLE001 - as said
        return ""


def _named(value: object) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"


def _refuse(argument: str, text: str, kind: str) -> NoReturn:
    raise invalid(argument, text, kind)
