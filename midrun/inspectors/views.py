"""Views: what each inspector makes of a model and one forward pass through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from midrun.fs.faults import Refused
from midrun.inspectors.calls import Call


@dataclass(frozen=True)
class Inspector:
    """A tool that makes a view of a model."""

    name: str
    """The package's name, too."""
    extra: str
    """The extra of midrun's that brings it."""
    suffix: str
    """What the names of its files end in."""
    draw: Callable[[Any, nn.Module, Sequence[Call], int], str]
    """Make the view, of the package, the model, the calls of one pass and how many levels of modules are shown."""
    gradients: bool = False
    """Whether the pass must make an autograd graph."""

    @property
    def is_installed(self) -> bool:
        """Whether its package can be imported."""
        return find_spec(self.name) is not None

    def load(self) -> Any:  # noqa: ANN401 - a module has no type of its own
        """Import its package. Raises Refused, with what to install."""
        try:
            return import_module(self.name)
        except ImportError as error:
            raise Refused(f"{self.name} can't be imported ({error}): pip install 'midrun[{self.extra}]'") from error


class Pass(nn.Module):
    """The calls of one forward pass, made again: a module that a tool can call without a word about arguments."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self._calls = list(calls)
        for call in calls:
            self._modules[_title(call)] = _original(call.module)

    def forward(self, *_: object) -> Any:  # noqa: ANN401 - a model's own
        """Make the calls in their order, and return what the last one returns."""
        return list(again(self._calls))[-1]


def again(calls: Sequence[Call]) -> Iterator[Any]:
    """Make calls again, and yield what comes of each; what one has made for another is passed on to it."""
    made: dict[int, torch.Tensor] = {}

    def renewed(value: Any) -> Any:  # noqa: ANN401 - an argument may be anything
        if not isinstance(value, torch.Tensor):
            return value
        return made[id(value)] if id(value) in made else value.detach()

    for call in calls:
        args, kwargs = tree_map(renewed, (call.args, call.kwargs))
        output = _original(call.module)(*args, **kwargs)
        for old, new in zip(tree_flatten(call.output)[0], tree_flatten(output)[0], strict=False):
            if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
                made[id(old)] = new
        yield output


def _original(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` was given."""
    original = getattr(module, "_orig_mod", module)
    return original if isinstance(original, nn.Module) else module


def _title(call: Call) -> str:
    return call.name.removesuffix("._orig_mod").replace(".", "_") or type(call.module).__name__


def summary(torchinfo: Any, model: nn.Module, calls: Sequence[Call], depth: int) -> str:  # noqa: ANN401 - as above
    """Return a table of the modules, with the sizes of what goes through them."""
    once = Pass(calls)
    device = next((parameter.device for parameter in once.parameters()), torch.device("cpu"))
    statistics = torchinfo.summary(
        once,
        input_data=[torch.zeros(1, device=device)],
        mode="eval",
        device=device,
        depth=depth + 1,
        col_names=("input_size", "output_size", "num_params", "trainable", "mult_adds"),
        row_settings=("depth", "var_names"),
        verbose=0,
    )
    return f"{type(model).__name__}, as the batch in flight runs through it\n{statistics}\n"


def graph(torchview: Any, model: nn.Module, calls: Sequence[Call], depth: int) -> str:  # noqa: ANN401 - as above
    """Return, in DOT, a graph of each call: the modules and what flows between them."""
    drawn = []
    for number, call in enumerate(calls):
        args, kwargs = tree_map(_detached, (call.args, call.kwargs))
        module = _original(call.module)
        device = next(module.parameters()).device
        graph = torchview.draw_graph(
            module,
            input_data=list(args),
            device=device,
            mode="eval",
            depth=depth,
            graph_name=f"{number} {_title(call)}",
            **kwargs,
        )
        if not graph.edge_list:
            given = ", ".join(type(value).__qualname__ for value in (*args, *kwargs.values()))
            raise Refused(
                "torchview follows the tensors in tuples, lists and dictionaries, and found none in what"
                f" {_title(call)} is given ({given})"
            )
        drawn.append(str(graph.visual_graph.source))
    return "\n".join(drawn)


def _detached(value: Any) -> Any:  # noqa: ANN401 - as above
    return value.detach() if isinstance(value, torch.Tensor) else value


def autograd(torchviz: Any, model: nn.Module, calls: Sequence[Call], depth: int) -> str:  # noqa: ANN401 - as above
    """Return, in DOT, how what the modules return came to be. Raises Refused where it has no gradient."""
    made = [leaf for output in again(calls) for leaf in tree_flatten(output)[0]]
    ends = [leaf for leaf in made if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not ends:
        raise Refused("nothing that the modules return needs a gradient: there is no autograd graph to draw")
    return autograd_graph(torchviz, model, *ends)


def autograd_graph(torchviz: Any, model: nn.Module, *ends: torch.Tensor) -> str:  # noqa: ANN401 - as above
    """Return, in DOT, how tensors came to be."""
    drawn = torchviz.make_dot(ends, params=dict(model.named_parameters()), show_saved=False)
    return str(drawn.source)


def operations(torchlens: Any, model: nn.Module, calls: Sequence[Call], depth: int) -> str:  # noqa: ANN401 - as above
    """Return a table of each call: its operations with their modules, sizes, and where their inputs come from."""
    from torchlens.backends.torch.wrappers import unwrap_torch  # noqa: PLC0415 - of an extra

    options = torchlens.options.CaptureOptions(layers_to_save="none", save_code_context=False, verbose=False)
    drawn = []
    try:
        for call in calls:
            args, kwargs = tree_map(_detached, (call.args, call.kwargs))
            traced = torchlens.trace(_original(call.module), list(args), kwargs or None, capture=options)
            drawn.append(f"{_title(call)}\n{traced.summary()}\n\n{_table(traced)}\n")
            traced.cleanup()
    finally:
        # It leaves all of torch wrapped, and with that training fails at the next metric that is logged.
        unwrap_torch()
    return "\n".join(drawn)


def _table(traced: Any) -> str:  # noqa: ANN401 - as above
    rows = [("operation", "module", "shape", "type", "from")]
    for operation in traced.layer_list:
        module, _, _ = (operation.module or "").rpartition(":")
        kind = str(operation.dtype).removeprefix("torch.")
        rows.append((operation.label, module, str(tuple(operation.shape or ())), kind, ", ".join(operation.parents)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
