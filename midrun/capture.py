"""Captures: what training has in its hands, saved so that `torch.load(weights_only=True)` reads it anywhere.

Tensors are saved as they are, on the CPU, each with its own numbers alone: a slice of a large tensor does not take the
whole along. Of what has no plain form there is a description.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from midrun.command import STEP
from midrun.fs.faults import Conflict
from midrun.fs.render import jsonable, render
from midrun.fs.tracebacks import message
from midrun.nested import (
    DEEPEST,
    MOST_PARTS,
    Unreadable,
    contents,
    described,
    dtype_of,
    insist_on_numbers,
    is_container,
    word_of,
)
from midrun.scalar import is_here

if TYPE_CHECKING:
    from midrun.run import Run

FORMAT = "midrun.capture/1"

_MOST_BITS = 2000
"""Bits of the longest integer that is kept."""
_PLAIN = (str, bytes, bool, int, float, type(None))
"""What is kept as it is, of exactly these types: one that is derived from them is somebody's own."""


class Keeping:
    """Makes of a value what can be saved of it.

    Mappings become dictionaries, tuples stay tuples, other sequences are lists; dataclasses, named tuples and objects
    become dictionaries of what they hold. None stands in the place of what is left out.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        """Why parts have been left out, by their paths."""
        self._parts = 0
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """What was made of each tensor, by its id, with the tensor itself: a batch may hold it twice, or make a new one
        each time, and an id is used again when its owner has gone."""

    def keep(self, value: Any, path: str, above: tuple[int, ...] = ()) -> Any:  # noqa: ANN401 - a batch may be anything
        """Return what can be saved of a value; what can't is in `left_out`."""
        self._parts += 1
        try:
            if not is_container(value):
                return self._whole(value)
            if id(value) in above:
                return self._leave(path, "it holds itself")
            if len(above) >= DEEPEST:
                return self._leave(path, f"it is {DEEPEST} steps down, and has more below it")
            return self._contents(value, path, (*above, id(value)))
        except Exception as error:  # noqa: BLE001 - of any library, on any device, and broken maybe
            return self._leave(path, message(error))

    def _contents(self, value: Any, path: str, above: tuple[int, ...]) -> Any:  # noqa: ANN401 - as above
        held: dict[Any, Any] = {}
        found = contents(value)
        if not (found or isinstance(value, Mapping | Sequence) or is_dataclass(value)):
            return self._leave(path, f"nothing of a {type(value).__qualname__} can be seen")
        for step, part in found:
            if self._parts >= MOST_PARTS:
                self._leave(path, f"only the first {MOST_PARTS:,} parts of all are kept")
                break
            below = f"{path}.{word_of(step)}"
            if isinstance(value, Mapping) and not _is_plain(step):
                self._leave(below, f"its key is a {type(step).__qualname__} that has no plain form")
            else:
                held[step] = self.keep(part, below, above)
        if not isinstance(value, Sequence) or hasattr(value, "_fields"):
            return held
        return tuple(held.values()) if isinstance(value, tuple) else list(held.values())

    def _leave(self, path: str, why: str) -> None:
        self.left_out[path] = why

    def _whole(self, value: Any) -> Any:  # noqa: ANN401 - as above
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
        if isinstance(value, Unreadable):
            raise TypeError(value.why)
        plain = _stand_in(value)
        if not _is_plain(plain):
            raise TypeError(f"a {type(value).__qualname__} like this has no plain form")
        return plain

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        insist_on_numbers(tensor, torch.strided, torch.sparse_coo, torch.sparse_csr)
        if not _is_type_loadable(tensor.dtype):
            raise TypeError(f"torch.load knows no {dtype_of(tensor)} with weights_only=True")
        if id(tensor) not in self._kept:
            self._kept[id(tensor)] = tensor, _copy(tensor.detach().resolve_conj().resolve_neg())
        return self._kept[id(tensor)][1]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU that takes no more memory: what is expanded stays so."""
    if tensor.layout is not torch.strided or 0 not in tensor.stride() or tensor.numel() == 0:
        return tensor.to("cpu", copy=True)
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
    return once.to("cpu", copy=True).expand(tensor.shape)


def _stand_in(value: Any) -> Any:  # noqa: ANN401 - as above
    """Return what stands for a value of a class of its own: a path's text, a member's name, a number."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Enum):
        return value.name
    return value.item() if isinstance(value, np.generic) else value


def _is_plain(value: object) -> bool:
    """Whether a value is kept as it is. Of an empty `bytes` and a very large number `torch.load` makes nothing."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return False
    return type(value) in _PLAIN and value != b""


_loadable: set[torch.dtype] = set()
"""Types that `torch.load(weights_only=True)` is known to read. One that failed once may have had another reason."""


def _is_type_loadable(dtype: torch.dtype) -> bool:
    if dtype not in _loadable:
        saved = io.BytesIO()
        try:
            torch.save(torch.empty(0, dtype=dtype), saved)
            saved.seek(0)
            torch.load(saved, weights_only=True)
        except Exception:  # noqa: BLE001 - whatever it is, such a file would be of no use
            return False
        _loadable.add(dtype)
    return True


def write_batch(run: Run, path: str) -> None:
    """Save the batch that is in flight. Raises Conflict when none is."""
    batch = run.loop.flight.batch
    if batch is None:
        raise Conflict("no batch is in flight here: save it at before_optimizer_step or train_batch_end")
    _save(run, path, "batch", batch, parts=jsonable(described({"batch": batch})))


def write_loss(run: Run, path: str) -> None:
    """Save the loss as Lightning passes it on, and what made it. Raises Conflict where no batch has one now."""
    loss = run.loop.flight.loss
    if loss is None:
        raise Conflict(
            "no loss is in flight here: it is from backward() to the end of the batch, and with manual optimization at"
            " train_batch_end alone, where training_step returns it"
        )
    made_by = None if loss.grad_fn is None else loss.grad_fn.name()
    _save(run, path, "loss", loss, requires_grad=loss.requires_grad, grad_fn=made_by)


def write_gradients(run: Run, path: str) -> None:
    """Save the gradients, by the names of their parameters. Raises Conflict when there are none."""
    parameters = dict(run.loop.module.named_parameters())
    gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    if not gradients:
        raise Conflict("no parameter has a gradient here: they are made by backward()")
    if run.loop.flight.scales and run.points.at not in (STEP, None):
        raise Conflict(
            "between two optimizer steps nothing tells whether a GradScaler has scaled the gradients: save them at"
            " before_optimizer_step"
        )
    scales = run.loop.flight.gradient_scales()
    scaled = {name: scales[id(parameters[name])] for name in gradients if id(parameters[name]) in scales}
    without = [name for name in parameters if name not in gradients]
    _save(run, path, "gradients", gradients, loss_scale=scaled, without=without)


def write_optimizers(run: Run, path: str) -> None:
    """Write a summary of the optimizers, as JSON."""
    names = {id(parameter): name for name, parameter in run.loop.module.named_parameters()}
    summaries = [_optimizer(optimizer, names) for optimizer in run.loop.optimizers]
    document = {**_where(run), "optimizers": summaries}
    Path(path).write_bytes(render("optimizers.json", document))


def _where(run: Run) -> dict[str, Any]:
    loop, place = run.loop, run.points.place(None)
    return {
        "format": FORMAT,
        "run_id": run.run_id,
        "stage": loop.stage,
        "global_step": place["global_step"],
        "epoch": place["epoch"],
        "batch_idx": place["batch"],
    }


def _save(run: Run, path: str, name: str, value: Any, **more: Any) -> None:  # noqa: ANN401 - whatever is saved
    keeping = Keeping()
    kept = keeping.keep(value, name)
    with Path(path).open("wb") as file:  # Given a path, torch hides what the disk says.
        torch.save({**_where(run), name: kept, "left_out": keeping.left_out, **more}, file)


def _optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    groups = [
        {
            "options": {key: _option(value) for key, value in group.items() if key != "params"},
            "parameters": [
                {"name": names.get(id(parameter)), "shape": list(parameter.shape), "dtype": dtype_of(parameter)}
                | {"state": {key: _state(value) for key, value in optimizer.state.get(parameter, {}).items()}}
                for parameter in group["params"]
            ],
        }
        for group in optimizer.param_groups
    ]
    return {"class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}", "groups": groups}


def _option(value: Any) -> Any:  # noqa: ANN401 - an optimizer's options have no types
    if isinstance(value, torch.Tensor):
        return _state(value)
    if isinstance(value, list | tuple):
        return [_option(each) for each in value]
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def _state(value: Any) -> Any:  # noqa: ANN401 - an optimizer keeps what it likes
    """Return a number as it is, and of a tensor its size, its Euclidean norm, its range and what is not finite."""
    if not isinstance(value, torch.Tensor):
        return _option(value)
    found: dict[str, Any] = {"shape": list(value.shape), "dtype": dtype_of(value), "bytes": value.nbytes}
    if value.is_meta or value.layout is not torch.strided or value.is_complex() or not is_here(value):
        return found
    numbers = value.detach()
    if numbers.numel() == 1:
        return found | {"value": numbers.item()}
    if numbers.numel():
        wide = numbers if numbers.dtype in (torch.float32, torch.float64) else numbers.float()
        least, most = wide.aminmax()
        outside = (~wide.isfinite()).sum().to(wide.dtype)
        norm, least, most, outside = torch.stack([torch.linalg.vector_norm(wide), least, most, outside]).tolist()
        found |= {"norm": norm, "min": least, "max": most, "not_finite": int(outside)}
    return found
