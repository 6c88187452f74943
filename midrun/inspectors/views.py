"""Views: what each inspector makes of a model and one forward pass through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import compress
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
        given = {id(tensor): tensor for call in calls for tensor in _tensors(call.args, call.kwargs)}
        made = {id(tensor) for call in calls for tensor in _tensors(call.output)}
        self.given = [tensor for number, tensor in given.items() if number not in made]
        """The tensors that the calls are given and do not make for each other."""
        self._is_end = [not any(id(tensor) in given for tensor in _tensors(call.output)) for call in calls]

    def forward(self, *given: torch.Tensor) -> Any:  # noqa: ANN401 - a model's own
        """Make the calls in their order, with what is `given` in place of those; return what they make for nobody."""
        made = list(again(self._calls, dict(zip(map(id, self.given), given, strict=False))))
        ends = list(compress(made, self._is_end)) or made[-1:]
        return ends[0] if len(ends) == 1 else ends


def once(model: nn.Module, calls: Sequence[Call]) -> Pass:
    """Return the calls as one pass, which is called as the model is."""
    return type(type(model).__name__, (Pass,), {})(calls)  # type: ignore[no-any-return]  # its class is made here


def again(calls: Sequence[Call], given: Mapping[int, torch.Tensor] | None = None) -> Iterator[Any]:
    """Make calls again, and yield what comes of each; what one has made for another is passed on to it.

    Parameters
    ----------
    given
        What takes the place of tensors that they were given, by the tensors' ids.
    """
    made = dict(given or {})

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


def _tensors(*values: Any) -> list[torch.Tensor]:  # noqa: ANN401 - arguments, or what is returned
    return [leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, torch.Tensor)]


def _original(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` was given."""
    original = getattr(module, "_orig_mod", module)
    return original if isinstance(original, nn.Module) else module


def _title(call: Call) -> str:
    return call.name.removesuffix("._orig_mod").replace(".", "_") or type(call.module).__name__


def summary(torchinfo: Any, model: nn.Module, calls: Sequence[Call], depth: int) -> str:  # noqa: ANN401 - as above
    """Return a table of the modules, with the sizes of what goes through them."""
    made = once(model, calls)
    device = next((parameter.device for parameter in made.parameters()), torch.device("cpu"))
    statistics = torchinfo.summary(
        made,
        input_data=[tensor.detach() for tensor in made.given] or [torch.zeros(1, device=device)],
        mode="eval",
        device=device,
        depth=depth + 1,
        col_names=("input_size", "output_size", "num_params", "trainable", "mult_adds"),
        row_settings=("depth", "var_names"),
        verbose=0,
    )
    return f"{type(model).__name__}, as the batch in flight runs through it\n{statistics}\n"


def graph(torchview: Any, model: nn.Module, calls: Sequence[Call], depth: int) -> str:  # noqa: ANN401 - as above
    """Return, in DOT, the modules and what flows between them."""
    for call in calls:
        if not _tensors(call.args, call.kwargs):
            given = ", ".join(type(value).__qualname__ for value in (*call.args, *call.kwargs.values())) or "nothing"
            raise Refused(
                "torchview follows the tensors in tuples, lists and dictionaries, and found none in what"
                f" {_title(call)} is given ({given})"
            )
    made = once(model, calls)
    drawn = torchview.draw_graph(
        made,
        input_data=[tensor.detach() for tensor in made.given],
        device=next(made.parameters()).device,
        mode="eval",
        depth=depth + 1,
        graph_name=type(model).__name__,
    )
    return str(drawn.visual_graph.source)


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
