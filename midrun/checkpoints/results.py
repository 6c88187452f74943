"""Results: what a Trainer has logged so far in an epoch, and metrics that accumulate, as tensors and plain values.

Lightning has none of it in its checkpoints: the mean of an epoch would be one of what came after the resume.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torch import Tensor
from torchmetrics import Metric

_META = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"),
    *("dataloader_idx", "metric_attribute"),
)
"""What Lightning knows of a result, but for how it is reduced."""
_KEPT = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_STATE = ("_first_loop_iter", "_current_fx")
"""Of Lightning's logger connector: what it shows, and where it is."""


class _Before(_Metadata):
    """How a result was logged in another process. This one may log it in another way, which then counts.

    Lightning compares the two when it is logged again, and raises where they differ.
    """

    result: weakref.ref[_ResultMetric]
    """Weak, since Lightning copies this deeply."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Metadata):
            return NotImplemented
        result = self.result()
        if result is None:
            return False
        is_alike = self.reduce_fx is other.reduce_fx and self.metric_attribute == other.metric_attribute
        if not is_alike:
            result.__init__(other, other.metric_attribute is None)  # type: ignore[misc]  # what it had is of another kind
        result.meta = other
        return True

    __hash__ = None  # type: ignore[assignment]  # as the class has it


def told(results: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a collection of Lightning's results, and the names of those that can't be told."""
    found, missing = [], []
    for key, result in results.items():
        sync = result.meta.sync
        if sync.group is not None:
            missing.append(result.meta.name)
            continue
        is_mean = result.is_tensor and result.meta.is_mean_reduction
        found.append(
            {
                "key": key,
                "meta": {name: getattr(result.meta, name) for name in _META},
                "reduce": result.meta.reduce_fx.__name__,
                "sync": {"_should": sync.should, "rank_zero_only": sync.rank_zero_only},
                "is_tensor": result.is_tensor,
                "value": _copy(result.value) if result.is_tensor else None,
                "count": _copy(result.cumulated_batch_size) if is_mean else None,
                "last": _copy(result._forward_cache) if isinstance(result._forward_cache, Tensor) else None,  # noqa: SLF001 - Lightning's and torchmetrics' own, and nothing else tells
                "has_reset": result.has_reset,
                "updates": result._update_count,  # noqa: SLF001 - as above
            }
        )
    return found, missing


def restore(results: dict[str, Any], rows: list[dict[str, Any]], trainer: Any) -> list[str]:  # noqa: ANN401 - either package's Trainer
    """Put results into a collection as `told` has told them; return why some can't be, a clause for each."""
    missing = []
    for row in rows:
        meta = _Before(**row["meta"], reduce_fx=getattr(torch, row["reduce"]))
        meta.sync = _Sync(fn=trainer.strategy.reduce, _group=None, **row["sync"])
        result = _ResultMetric(meta, row["is_tensor"])
        meta.result = weakref.ref(result)
        device = trainer.strategy.root_device
        if row["is_tensor"]:
            result.value = row["value"].to(device)
            if row["count"] is not None:
                result.cumulated_batch_size = row["count"].to(device)
        else:
            try:
                result.value = attrgetter(row["meta"]["metric_attribute"])(trainer.lightning_module)
            except AttributeError:
                missing.append(f"the model has no {row['meta']['metric_attribute']} any more")
                continue
        result._forward_cache = None if row["last"] is None else row["last"].to(device)  # noqa: SLF001 - as above
        result.has_reset, result._update_count = row["has_reset"], row["updates"]  # noqa: SLF001 - as above
        results[row["key"]] = result.to(device)
    return missing


def shown(trainer: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Return the metrics that Lightning shows, and where its logging is."""
    connector = trainer._logger_connector  # noqa: SLF001 - as above
    return {
        **{name: {key: _copy(value) for key, value in getattr(connector, name).items()} for name in _KEPT},
        **{name: getattr(connector, name) for name in _STATE},
    }


def show(trainer: Any, told: dict[str, Any]) -> None:  # noqa: ANN401 - as above
    """Have Lightning show what `shown` has told."""
    connector, device = trainer._logger_connector, trainer.strategy.root_device  # noqa: SLF001 - as above
    for name in _KEPT:
        setattr(connector, name, {key: _on(value, device) for key, value in told[name].items()})
    for name in _STATE:
        setattr(connector, name, told[name])


def accumulated(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Return the states of the metrics of torchmetrics in a model that have been updated."""
    return {
        name: {
            "states": {state: _copy(getattr(metric, state)) for state in metric._defaults},  # noqa: SLF001 - its states by name
            "updates": metric._update_count,  # noqa: SLF001 - as above
        }
        for name, metric in _metrics(module)
        if metric._update_count  # noqa: SLF001 - as above
    }


def accumulate(module: torch.nn.Module, told: dict[str, dict[str, Any]]) -> list[str]:
    """Give the metrics of a model the states that `accumulated` has told; return the names of those that it lacks."""
    here = dict(_metrics(module))
    for name, row in told.items():
        metric = here.get(name)
        if metric is None or not _fits(metric, row["states"]):
            continue
        for state, value in row["states"].items():
            setattr(metric, state, _on(value, metric.device))
        metric._update_count, metric._computed = row["updates"], None  # noqa: SLF001 - as above
    return [name for name in told if name not in here]


def _fits(metric: Metric, states: dict[str, Any]) -> bool:
    """Whether a metric has the states that were told, in their shapes."""
    defaults = metric._defaults  # noqa: SLF001 - as above
    return states.keys() == defaults.keys() and all(
        getattr(value, "shape", None) == getattr(defaults[name], "shape", None)
        for name, value in states.items()
        if not isinstance(value, list)
    )


def _metrics(module: torch.nn.Module) -> Iterator[tuple[str, Metric]]:
    return ((name, part) for name, part in module.named_modules() if isinstance(part, Metric))


def _copy(value: Any) -> Any:  # noqa: ANN401 - a tensor, a list of them, or a number
    if isinstance(value, Tensor):
        return value.detach().clone()
    return [_copy(part) for part in value] if isinstance(value, list) else value


def _on(value: Any, device: torch.device) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    return [_on(part, device) for part in value] if isinstance(value, list) else value
