"""Captures: what training has in its hands, saved so that `torch.load(weights_only=True)` reads it anywhere.

Tensors are saved as they are, on the CPU, each with its own numbers alone: a slice of a large tensor does not take the
whole along. Of what has no plain form there is a description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from midrun.fs.faults import Conflict, message
from midrun.fs.render import jsonable, render
from midrun.nested import DEEPEST, MOST_PARTS, contents, described, dtype_of, insist_on_numbers, is_container
from midrun.sample import is_here

if TYPE_CHECKING:
    from midrun.run import Run

FORMAT = "midrun.capture/1"

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
        self._kept: dict[int, torch.Tensor] = {}
        """By the tensor that it was made of, which a batch may hold twice."""

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
        held = {}
        for step, part in contents(value):
            if self._parts >= MOST_PARTS:
                self._leave(path, f"only the first {MOST_PARTS:,} parts of all are kept")
                break
            if isinstance(value, Mapping) and type(step) not in _PLAIN:
                self._leave(f"{path}.{step}", f"its key is a {type(step).__qualname__}")
            else:
                held[step] = self.keep(part, f"{path}.{step}", above)
        if not isinstance(value, Sequence) or hasattr(value, "_fields"):
            return held
        return tuple(held.values()) if isinstance(value, tuple) else list(held.values())

    def _leave(self, path: str, why: str) -> None:
        self.left_out[path] = why

    def _whole(self, value: Any) -> Any:  # noqa: ANN401 - as above
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value, order="C"))
        plain = value.item() if isinstance(value, np.generic) else value
        if type(plain) not in _PLAIN:
            raise TypeError(f"a {type(value).__qualname__} has no plain form")
        return plain

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        insist_on_numbers(tensor, torch.strided, torch.sparse_coo, torch.sparse_csr)
        if id(tensor) not in self._kept:
            self._kept[id(tensor)] = tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True)
        return self._kept[id(tensor)]


def write_batch(run: Run, path: str) -> None:
    """Save the batch that is in flight. Raises Conflict when none is."""
    batch = run.loop.flight.batch
    if batch is None:
        raise Conflict("no batch is in flight here: save it at before_optimizer_step or train_batch_end")
    _save(run, path, "batch", batch, parts=jsonable(described({"batch": batch})))


def write_loss(run: Run, path: str) -> None:
    """Save the loss. Raises Conflict when there is none."""
    loss = run.loop.flight.loss
    if loss is None:
        raise Conflict(
            "no loss is in flight here: it is from backward() to the end of the optimizer's step; a model that"
            " optimizes manually shows it by self.manual_backward(loss)"
        )
    made_by = None if loss.grad_fn is None else loss.grad_fn.name()
    _save(run, path, "loss", loss, requires_grad=loss.requires_grad, grad_fn=made_by)


def write_gradients(run: Run, path: str) -> None:
    """Save the gradients, by the names of their parameters. Raises Conflict when there are none."""
    parameters = dict(run.loop.module.named_parameters())
    gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    if not gradients:
        raise Conflict("no parameter has a gradient here: they are made by backward()")
    if run.loop.flight.scales and run.points.at not in ("before_optimizer_step", None):
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
    torch.save({**_where(run), name: kept, "left_out": keeping.left_out, **more}, path)


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
