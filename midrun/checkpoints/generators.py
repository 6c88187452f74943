"""Generators: the states of random number generators, as tensors and plain values."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
"""What draws random numbers for somebody alone."""
KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class States(NamedTuple):
    """The states of the generators that everybody in a process draws from, as each gives its own."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: torch.Tensor
    cuda: list[torch.Tensor] | None
    """One for each device; None where none is in use."""

    def plain(self) -> dict[str, Any]:
        """Return them as tensors and plain values, which `torch.load(weights_only=True)` reads."""
        version, internal, gauss_next = self.python
        plain: dict[str, Any] = {
            "torch": self.torch,
            "numpy": _plain(self.numpy),
            "python": {
                "version": version,
                "internal": torch.tensor(internal, dtype=torch.int64),
                "gauss_next": gauss_next,
            },
        }
        if self.cuda is not None:
            plain["cuda"] = self.cuda
        return plain


def states() -> States:
    """Return the states of now. It takes some 60 µs."""
    uses_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's own
    return States(
        random.getstate(),
        _numpys().get_state(legacy=False),
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if uses_cuda else None,
    )


def restore(plain: dict[str, Any]) -> None:
    """Give the generators the states that `States.plain` has told. One that is not among them stays as it is."""
    if "python" in plain:
        told = plain["python"]
        random.setstate((told["version"], tuple(told["internal"].tolist()), told["gauss_next"]))
    if "numpy" in plain:
        _numpys().set_state(_from_plain(plain["numpy"]))
    if "torch" in plain:
        torch.set_rng_state(plain["torch"].cpu())
    if "cuda" in plain and torch.cuda.is_available():
        for device, state in enumerate(plain["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state.cpu(), device)


def state_of(generator: Generator) -> Any:  # noqa: ANN401 - each kind has its own
    """Return the state of a generator, as tensors and plain values."""
    match generator:
        case torch.Generator():
            return generator.get_state()
        case np.random.Generator():
            return _plain(dict(generator.bit_generator.state))
        case np.random.RandomState():
            return _plain(generator.get_state(legacy=False))
        case _:
            return _plain(generator.getstate())


def give(generator: Generator, state: Any) -> None:  # noqa: ANN401 - as above
    """Give a generator the state that `state_of` has told. Raises what it raises where that is none of its own."""
    match generator:
        case torch.Generator():
            generator.set_state(state)
        case np.random.Generator():
            generator.bit_generator.state = _from_plain(state)
        case np.random.RandomState():
            generator.set_state(_from_plain(state))
        case _:
            generator.setstate(_from_plain(state))


def _numpys() -> np.random.RandomState:
    """Return the generator behind `numpy.random.rand` and the like."""
    return np.random.mtrand._rand  # noqa: SLF001 - what user code draws from, and no other way to its `get_state`


def _plain(value: Any) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        # As whole numbers: torch has no tensors of all of numpy's types.
        return {"dtype": str(value.dtype), "values": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _from_plain(value: Any) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, dict) and value.keys() == {"dtype", "values"}:
        return np.array(value["values"], dtype=value["dtype"])
    return {name: _from_plain(part) for name, part in value.items()} if isinstance(value, dict) else value
