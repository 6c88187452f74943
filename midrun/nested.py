"""Nested values: what is in a batch, whatever it is made of, each part by its path.

A path is the name of the whole and the steps that lead to the part: `batch.images.0`. Containers are mappings, lists,
tuples, dataclasses and any object with attributes; what they hold is looked at and nothing of it is called, as far as
Python lets one look without calling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch

from midrun.sample import is_here, is_real_scalar

MOST_PARTS = 10_000
"""Parts of one value that are looked at."""
DEEPEST = 24
"""Steps to a part."""
LONGEST_TEXT = 1000
"""Characters of a text that are shown."""

_LAYOUTS = {torch.strided: "dense", torch.sparse_coo: "sparse", torch.sparse_csr: "compressed sparse"}

_PLAIN = (
    *(str, bytes, bytearray, Number, type(None), type, BaseException),
    *(torch.Tensor, np.ndarray, torch.nn.Module, torch.optim.Optimizer),
)
"""What is met as a whole; modules and optimizers are looked at by others."""


class Part(NamedTuple):
    """A part of a value; the first is the whole."""

    path: str
    value: Any


def parts(value: Any, path: str) -> Iterator[Part]:  # noqa: ANN401 - a batch may be anything
    """Iterate over a value and all that it holds, a container before its contents. What holds itself is not entered."""
    return islice(_parts(value, path, frozenset(), 0), MOST_PARTS)


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
    match value:
        case torch.Tensor():
            found |= {"shape": list(value.shape), "dtype": dtype_of(value)}
            found["device"] = str(value.device)
            if is_real_scalar(value) and value.device.type == "cpu":
                found["value"] = value.item()
        case np.ndarray():
            found |= {"shape": list(value.shape), "dtype": str(value.dtype)}
        case None | bool() | int() | float() | np.number():
            found["value"] = value
        case str():
            found["value"] = value[:LONGEST_TEXT]
        case BaseException():
            found["message"] = str(value)[:LONGEST_TEXT]
        case Mapping() | Sequence() if is_container(value):
            found["length"] = len(value)
    return found


def insist_on_numbers(tensor: torch.Tensor, *layouts: torch.layout) -> None:
    """Raise TypeError for a tensor that has no numbers of its own here, or has them in another layout."""
    if not is_here(tensor):
        raise TypeError(f"a {type(tensor).__name__} may be spread over devices or ranks")
    if tensor.is_meta:
        raise TypeError("it is on the meta device, and has no numbers")
    if tensor.layout not in layouts or tensor.is_quantized or tensor.is_nested:
        raise TypeError(f"only {' and '.join(_LAYOUTS[layout] for layout in layouts)} tensors have a plain form")


def dtype_of(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's type, as in `bfloat16`."""
    return str(tensor.dtype).removeprefix("torch.")


def is_container(value: object) -> bool:
    """Whether a value is looked into."""
    try:
        if isinstance(value, _PLAIN) or callable(value):
            return False
        return isinstance(value, Mapping | Sequence) or hasattr(value, "__dict__") or hasattr(value, "__slots__")
    except Exception:  # noqa: BLE001 - a container of the user's is anybody's code
        return False


def _parts(value: Any, path: str, above: frozenset[int], depth: int) -> Iterator[Part]:  # noqa: ANN401 - as above
    yield Part(path, value)
    if depth >= DEEPEST or id(value) in above or not is_container(value):
        return
    above = above | {id(value)}
    try:
        held_ones = contents(value)
    except Exception:  # noqa: BLE001 - a container of the user's is anybody's code
        return
    for step, held in held_ones:
        yield from _parts(held, f"{path}.{step}", above, depth + 1)


def contents(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - as above
    """Return what a container holds, each with its key, its number or its name: a step of its path.

    Whatever the container raises is raised.
    """
    if isinstance(value, Mapping):
        return list(islice(value.items(), MOST_PARTS))
    if isinstance(value, Sequence):
        names = getattr(value, "_fields", None)
        steps: Iterable[str] = names if isinstance(names, tuple) else map(str, range(len(value)))
        return list(islice(zip(steps, value, strict=False), MOST_PARTS))
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    held = {name: getattr(value, name) for name in _slots(value) if hasattr(value, name)} | _vars_of(value)
    return list(held.items())


def _slots(value: object) -> list[str]:
    named = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    return [name for names in named for name in ([names] if isinstance(names, str) else names) if name[:1] != "_"]


def _vars_of(value: object) -> dict[str, Any]:
    """Return the attributes that an object keeps, those of its own affair left out."""
    return {name: held for name, held in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
