"""Nested values: what is in a batch, whatever it is made of, each part by its path.

A path is the name of the whole and the steps that lead to the part: `batch.images.0`. Containers are mappings, lists,
tuples, dataclasses and any object with attributes; what they hold is looked at and nothing of it is called, as far as
Python lets one look without calling.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import islice
from numbers import Integral, Number, Real
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from midrun.fs.tracebacks import message, plain
from midrun.scalar import is_here, is_real_scalar

MOST_PARTS = 10_000
"""Parts of one value that are looked at."""
DEEPEST = 24
"""Steps to a part."""
_MOST_BITS = 256
"""Bits of the longest integer that is shown."""
LONGEST_TEXT = 1000
"""Characters of a text that are shown."""
_ITEMS, _ITEMS_EACH, _LEVELS, _TEXT = 5000, 500, 12, 10_000
"""What `bounded` shows: items in all and of one container, levels, and characters of a text."""

_LAYOUTS = {torch.strided: "dense", torch.sparse_coo: "sparse", torch.sparse_csr: "compressed sparse"}

T = TypeVar("T")


class Unreadable:
    """Stands for what can't be looked at.

    Parameters
    ----------
    why
        What was wrong.
    """

    def __init__(self, why: str) -> None:
        self.why = why


_PLAIN = (
    *(str, bytes, bytearray, Number, type(None), BaseException, os.PathLike, Enum, Unreadable),
    *(type, FunctionType, BuiltinFunctionType, MethodType, partial),
    *(torch.Tensor, np.ndarray, np.generic, torch.nn.Module, torch.optim.Optimizer),
)
"""What is met as a whole; modules and optimizers are looked at by others."""


class Part(NamedTuple):
    """A part of a value; the first is the whole."""

    path: str
    value: Any


def parts(value: Any, path: str) -> Iterator[Part]:  # noqa: ANN401 - a batch may be anything
    """Iterate over a value and all that it holds, a container before its contents. What holds itself is not entered.

    What can't be looked at, or is too much, is an `Unreadable`.
    """
    found = _parts(value, path, frozenset(), 0)
    yield from islice(found, MOST_PARTS)
    if next(found, None) is not None:
        yield Part(f"{path}.…", Unreadable(f"only the first {MOST_PARTS:,} parts are looked at"))


def all_parts(arguments: Mapping[str, Any]) -> Iterator[Part]:
    """Iterate over all parts of several values, each under its name."""
    for name, value in arguments.items():
        yield from parts(value, name)


def described(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each part of the values is, by its path."""
    return {part.path: description_of(part.value) for part in all_parts(arguments)}


def description_of(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a callback's argument may be anything
    """Return what a value is; of a tensor on a device, whose numbers would have to be waited for, only its form."""
    found: dict[str, Any] = {"type": type(value).__name__}
    try:
        return found | _form(value)
    except Exception as error:  # noqa: BLE001 - a value of the user's is anybody's code
        return found | {"message": message(error)[:LONGEST_TEXT]}


def _form(value: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    match value:
        case torch.Tensor():
            form = {"shape": list(value.shape), "dtype": dtype_of(value), "device": str(value.device)}
            return form | ({"value": value.item()} if is_real_scalar(value) and value.device.type == "cpu" else {})
        case np.ndarray():
            return {"shape": list(value.shape), "dtype": str(value.dtype)}
        case int() if value.bit_length() > _MOST_BITS:
            return {"message": f"a number of {value.bit_length():,} bits"}
        case None | bool() | int() | float():
            return {"value": value}
        case np.number():
            number = value.item()
            return {"value": number} if isinstance(number, int | float) else {"message": str(value)}
        case str():
            return {"value": plain(value)[:LONGEST_TEXT]}
        case BaseException():
            return {"message": message(value)[:LONGEST_TEXT]}
        case Unreadable():
            return {"message": value.why[:LONGEST_TEXT]}
        case Mapping() | Sequence() if is_container(value):
            return {"length": len(value)}
    return {}


def insist_on_numbers(tensor: torch.Tensor, *layouts: torch.layout) -> None:
    """Raise TypeError for a tensor that has no numbers of its own here, or has them in another layout."""
    if not is_here(tensor):
        raise TypeError(f"it is a {type(tensor).__name__}, whose numbers may be spread over devices or ranks")
    if tensor.is_meta:
        raise TypeError("it is on the meta device, and has no numbers")
    if tensor.layout not in layouts or tensor.is_quantized or tensor.is_nested:
        own = _LAYOUTS.get(tensor.layout, str(tensor.layout))
        what = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else own
        kept = " and ".join(_LAYOUTS[layout] for layout in layouts)
        raise TypeError(f"it is {what}, and only {kept} tensors have a plain form")


def dtype_of(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's type, as in `bfloat16`."""
    return str(tensor.dtype).removeprefix("torch.")


def is_container(value: object) -> bool:
    """Whether a value is looked into."""
    try:
        if isinstance(value, _PLAIN):
            return False
        return isinstance(value, Mapping | Sequence) or hasattr(value, "__dict__") or hasattr(value, "__slots__")
    except Exception:  # noqa: BLE001 - a container of the user's is anybody's code
        return False


def word_of(step: object) -> str:
    """Return a step of a path as text."""
    try:
        return plain(str(step))
    except Exception:  # noqa: BLE001 - a key is anybody's code, too
        return f"<{type(step).__name__}>"


def _parts(value: Any, path: str, above: frozenset[int], depth: int) -> Iterator[Part]:  # noqa: ANN401 - as above
    yield Part(path, value)
    if id(value) in above or not is_container(value):
        return
    try:
        held = contents(value)
        why = f"it is {DEEPEST} steps down" if depth >= DEEPEST and held else ""
    except Exception as error:  # noqa: BLE001 - a container of the user's is anybody's code
        why = message(error)
    if why:
        yield Part(f"{path}.…", Unreadable(why))
        return
    for step, part in held:
        yield from _parts(part, f"{path}.{word_of(step)}", above | {id(value)}, depth + 1)


def contents(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - as above
    """Return what a container holds, each with its key, its number or its name: a step of its path.

    An attribute that can't be had is an `Unreadable`. Whatever else the container raises is raised.
    """
    if isinstance(value, Mapping):
        return list(islice(value.items(), MOST_PARTS))
    if isinstance(value, Sequence):
        names = getattr(value, "_fields", None)
        steps: Iterable[str] = names if isinstance(names, tuple) else map(str, range(len(value)))
        return list(islice(zip(steps, value, strict=False), MOST_PARTS))
    if dataclasses.is_dataclass(value):
        return [(field.name, _attribute(value, field.name)) for field in dataclasses.fields(value)]
    kept = {name: held for name, held in getattr(value, "__dict__", {}).items() if not str(name).startswith("__")}
    slots = [name for name in _slots(value) if not name.startswith("__") and hasattr(value, name)]
    return [*((name, _attribute(value, name)) for name in slots), *kept.items()]


def _attribute(value: object, name: str) -> Any:  # noqa: ANN401 - as above
    try:
        return getattr(value, name)
    except Exception as error:  # noqa: BLE001 - a property, say
        return Unreadable(message(error))


def _slots(value: object) -> list[str]:
    named = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    return [name for names in named for name in ([names] if isinstance(names, str) else names)]


def bounded(value: Any) -> Any:  # noqa: ANN401 - a hyperparameter may be anything
    """Return a value in JSON's types, cut to what a person reads.

    That is 500 items of a list or mapping, 5,000 in all, 12 levels, and 10,000 characters of a text.
    Whatever a user keeps in a hyperparameter, a list of all file names or a structure that contains itself, to show it
    costs milliseconds.
    """
    return _cut(value, [_ITEMS], 0)


def _cut(value: Any, left: list[int], depth: int) -> Any:  # noqa: ANN401 - as above
    """Return what `bounded` does; `left` holds the number of items that may still be shown."""
    left[0] -= 1
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, torch.Tensor):
        # Its numbers may be on a device, or spread over ranks.
        return f"Tensor(shape={tuple(value.shape)}, dtype={value.dtype}, device={value.device})"
    if depth < _LEVELS and isinstance(value, Mapping):
        shown = {str(key)[:_TEXT]: _cut(item, left, depth + 1) for key, item in _some(value.items(), left)}
        return shown if len(shown) >= len(value) else {**shown, "…": f"{len(value):,} items"}
    if depth < _LEVELS and isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        listed = [_cut(item, left, depth + 1) for item in _some(value, left)]
        return listed if len(listed) >= len(value) else [*listed, f"… {len(value):,} items"]
    if depth < _LEVELS and isinstance(value, set | frozenset):
        return _cut(sorted(islice(value, _ITEMS_EACH), key=repr), left, depth)
    text = value if isinstance(value, str) else "…" if isinstance(value, Mapping | Sequence) else str(value)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}… {len(text):,} characters"


def _some(items: Iterable[T], left: list[int]) -> Iterator[T]:
    """Iterate over items as long as there are any `left` to show."""
    for item in islice(items, _ITEMS_EACH):
        if left[0] <= 0:
            return
        yield item
