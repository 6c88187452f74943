"""The payload: what a shell hook is told of its callback.

Every part of the callback's arguments is described by its path. A heavy hook finds the tensors in files beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from midrun.fs import names
from midrun.fs.tracebacks import message
from midrun.nested import LONGEST_TEXT, all_parts, description_of, insist_on_numbers

MOST_BYTES = 1 << 30
"""Bytes of tensors that are saved for one callback."""

_WIDER = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64} | {
    dtype: torch.float32 for name in dir(torch) if name.startswith("float8_") for dtype in [getattr(torch, name)]
}
"""What numpy has no type for, and the type that holds every one of its values."""


def save_parts(arguments: Mapping[str, Any], directory: Path) -> dict[str, dict[str, Any]]:
    """Return what each part of the arguments is, by its path, and save the tensors as `.npy` files. Raises OSError."""
    found: dict[str, dict[str, Any]] = {}
    left = MOST_BYTES
    for part in all_parts(arguments):
        found[part.path] = description = description_of(part.value)
        if "shape" not in description:
            continue
        path = directory / names.escape(f"{part.path}.npy")
        try:
            array = array_of(part.value, left)
            np.save(path, array, allow_pickle=False)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - a tensor may be of any library's kind, on any device
            description["left_out"] = message(error)[:LONGEST_TEXT]
            continue
        left -= array.nbytes
        description |= {"file": str(path), "stored_as": str(array.dtype)}
    return found


def array_of(value: torch.Tensor | np.ndarray, most: int) -> np.ndarray:
    """Return a tensor as an array with the same values.

    What numpy has no type for is held by the next type that it has: bfloat16 and the 8-bit floats by float32. Raises
    TypeError for what no array can hold, and ValueError for what has more than `most` bytes.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("an array of Python objects has no plain form")
    else:
        insist_on_numbers(value, torch.strided)
    if value.nbytes > most:
        raise ValueError(
            f"it has {value.nbytes} bytes, and {most} are left of the {MOST_BYTES} that are saved for one callback"
        )
    if isinstance(value, np.ndarray):
        return value
    dense = value.detach().resolve_conj().resolve_neg()
    return dense.to("cpu", _WIDER.get(value.dtype, value.dtype)).numpy()
