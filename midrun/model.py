"""`model/`: what is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from midrun.fs.tree import Dir, file
from midrun.sample import is_real_scalar

if TYPE_CHECKING:
    from midrun.run import Run

_DEPTH = 3
"""Levels of submodules in the summary."""
_ITEMS = 5000
_ITEMS_EACH = 500
_DEPTH_SHOWN = 12
_TEXT = 10_000

T = TypeVar("T")


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


class Model(Dir):
    """What is trained."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @file("class")
    def class_name(self) -> str:
        """The model's class, with its module."""
        kind = type(self._run.loop.module)
        return f"{kind.__module__}.{kind.__qualname__}"

    @file("hparams.json", slow=True)
    def hparams(self) -> dict[str, Any]:
        """The hyperparameters that the model saved, as they are now. What JSON lacks is text; what is large is cut."""
        return cast("dict[str, Any]", bounded(dict(getattr(self._run.loop.module, "hparams", {}))))

    @file("tunable-hparams.json", slow=True)
    def tunable_hparams(self) -> Tunables:
        """The attributes that the model declares as tunable, with their values and limits."""
        declared = getattr(type(self._run.loop.module), "midrun_tunable_hparams", ())
        limits = declared if isinstance(declared, Mapping) else {path: {} for path in declared}
        return Tunables(hparams={path: self._tunable(path, limit) for path, limit in limits.items()})

    @file("summary.txt", slow=True)
    def summary(self) -> str:
        """The model's modules, three levels deep, with their classes and the numbers of their parameters."""
        return summary(self._run.loop.module)

    def _tunable(self, path: str, limits: Mapping[str, Any]) -> Tunable:
        tunable = cast("Tunable", {key: limits[key] for key in ("min", "max", "label") if key in limits})
        try:
            value = attribute(self._run.loop.module, path)
        except (AttributeError, KeyError) as error:
            tunable["error"] = f"the model has no {path!r}: {error}"
        except Exception as error:  # noqa: BLE001 - a property of the model's is anybody's code
            tunable["error"] = f"{path!r} can't be read: {type(error).__name__}: {error}"
        else:
            tunable["value"], tunable["type"] = shown(value, waits=False), type(value).__name__
        return tunable


def shown(value: Any, *, waits: bool) -> Any:  # noqa: ANN401 - a hyperparameter may be anything
    """Return a value as it is shown. A tensor's number is read; if it `waits`, also from a device."""
    is_number = isinstance(value, torch.Tensor) and is_real_scalar(value)
    return value.item() if is_number and (waits or value.device.type == "cpu") else bounded(value)


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
    if depth < _DEPTH_SHOWN and isinstance(value, Mapping):
        shown = {str(key)[:_TEXT]: _cut(item, left, depth + 1) for key, item in _some(value.items(), left)}
        return shown if len(shown) >= len(value) else {**shown, "…": f"{len(value):,} items"}
    if depth < _DEPTH_SHOWN and isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        listed = [_cut(item, left, depth + 1) for item in _some(value, left)]
        return listed if len(listed) >= len(value) else [*listed, f"… {len(value):,} items"]
    if depth < _DEPTH_SHOWN and isinstance(value, set | frozenset):
        return _cut(sorted(islice(value, _ITEMS_EACH), key=repr), left, depth)
    text = value if isinstance(value, str) else "…" if isinstance(value, Mapping | Sequence) else str(value)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}… {len(text):,} characters"


def _some(items: Iterable[T], left: list[int]) -> Iterator[T]:
    """Iterate over items as long as there are any `left` to show."""
    for item in islice(items, _ITEMS_EACH):
        if left[0] <= 0:
            return
        yield item


def attribute(owner: object, path: str) -> Any:  # noqa: ANN401 - an attribute may hold anything
    """Return the attribute of `owner` at a dotted path. Raises AttributeError or KeyError when it is not there."""
    value = owner
    for name in path.split("."):
        value = value[name] if isinstance(value, Mapping) and name in value else getattr(value, name)
    return value


def summary(module: nn.Module) -> str:
    """Return a table of the submodules of `module`, with a total.

    A parameter that several submodules share counts once in the total. One that a lazy module has yet to make
    counts nothing, and the table says so.
    """
    rows = [("module", "class", "parameters", "trainable")]
    for name, part in module.named_modules(remove_duplicate=False):
        if name and name.count(".") < _DEPTH:
            total, trainable, lazy = _counts(part)
            rows.append((name, type(part).__name__, f"{total:,}{' + lazy' if lazy else ''}", f"{trainable:,}"))
    total, trainable, lazy = _counts(module)
    rows.append(("total", type(module).__name__, f"{total:,}{' + lazy' if lazy else ''}", f"{trainable:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
    ]
    size = sum(p.numel() * p.element_size() for p in module.parameters() if not _is_lazy(p))
    buffers = sum(b.numel() for b in module.buffers() if not _is_lazy(b))
    return "\n".join([*lines, "", f"parameters take {size / 1e6:,.3f} MB; {buffers:,} numbers in buffers"])


def _counts(module: nn.Module) -> tuple[int, int, bool]:
    """Return how many numbers the parameters hold, how many are trained, and whether some are yet to be made."""
    total = trainable = 0
    lazy = False
    for parameter in module.parameters():
        if _is_lazy(parameter):
            lazy = True
            continue
        total += parameter.numel()
        trainable += parameter.numel() if parameter.requires_grad else 0
    return total, trainable, lazy


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a lazy module has yet to make this parameter or buffer."""
    return bool(is_lazy(tensor))
