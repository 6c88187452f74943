"""Models of many shapes: how their training_step feeds their networks differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from midrun import MidrunMixin
from tests.midrun.models import QUIET

ROWS = 4


class Items(Dataset[Any]):
    """Eight rows, always the same, each made by `make` of three numbers and a target."""

    def __init__(self, make: Any) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs, self.targets = torch.randn(32, 3, generator=generator), torch.randn(32, 1, generator=generator)
        self.make = make

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> Any:
        return self.make(self.inputs[number], self.targets[number])


def loader(make: Any = lambda x, y: (x, y), collate: Any = None) -> DataLoader[Any]:
    """Return a loader of eight batches of four rows."""
    return DataLoader(Items(make), batch_size=ROWS, collate_fn=collate)


class Shape(MidrunMixin, L.LightningModule):
    """The base: a loss, and plain gradient descent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**QUIET, **options})
        self.build()

    def build(self) -> None:
        raise NotImplementedError

    def data(self) -> DataLoader[Any]:
        return loader()

    def predicted(self, batch: Any) -> Tensor:
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.predicted(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Forward(Shape):
    """Calls itself, on a member of the batch; it has all that a pass changes: dropout, and statistics of the batch."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.passes = 0
        self.seen: list[int] = []

    def forward(self, inputs: Tensor) -> Any:
        self.passes += 1
        self.seen.append(len(inputs))
        result = self.net(inputs)
        self.log("mean", result.mean())
        return result

    def predicted(self, batch: Any) -> Tensor:
        out: Tensor = self(batch[0])
        return out


class StepOnly(Shape):
    """Has no forward: training_step does it all."""

    def build(self) -> None:
        self.net = nn.Linear(3, 1)

    def predicted(self, batch: Any) -> Tensor:
        out: Tensor = self.net(batch[0]) - batch[1]
        return out


class Chained(Shape):
    """Has no forward, and two networks, of which the second gets what the first makes."""

    def build(self) -> None:
        self.encoder, self.head = nn.Sequential(nn.Linear(3, 8), nn.ReLU()), nn.Linear(8, 1)

    def predicted(self, batch: Any) -> Tensor:
        out: Tensor = self.head(self.encoder(batch[0]))
        return out


class Dicts(Shape):
    """Its batches are dictionaries, and its network takes them as keyword arguments."""

    def build(self) -> None:
        self.net = _Keywords()

    def data(self) -> DataLoader[Any]:
        return loader(lambda x, y: {"inputs": x, "scale": y, "name": "row"})

    def predicted(self, batch: Any) -> Tensor:
        out: Tensor = self.net(**batch)
        return out


class _Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, *, inputs: Tensor, scale: Tensor, name: list[str]) -> Any:
        assert len(name) == len(inputs)
        return self.line(inputs) * scale


@dataclass
class Batch:
    """A batch of a class of its own."""

    inputs: Tensor
    targets: Tensor


def _collate(rows: list[tuple[Tensor, Tensor]]) -> Batch:
    return Batch(torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))


class Dataclasses(Shape):
    """Its batches are of a class of its own, which its network is handed whole."""

    def build(self) -> None:
        self.net = _Whole()

    def data(self) -> DataLoader[Any]:
        return loader(collate=_collate)

    def predicted(self, batch: Any) -> Tensor:
        out: Tensor = self.net(batch) - batch.targets
        return out


class _Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, batch: Batch) -> Any:
        return self.line(batch.inputs)


class Several(Shape):
    """Two networks, the second of which gets what the first has made, and something else."""

    def build(self) -> None:
        self.encoder, self.decoder = nn.Linear(3, 4), nn.Bilinear(4, 3, 1)
        self.criterion = nn.MSELoss()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.criterion(self.decoder(self.encoder(batch[0]), batch[0]), batch[1])


class Adversaries(Shape):
    """Two networks against each other, each with its optimizer, stepped by hand."""

    def build(self) -> None:
        self.automatic_optimization = False
        self.generator, self.judge = nn.Linear(3, 3), nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()  # type: ignore[attr-defined]  # a list of two
        made = self.generator(batch[0])
        for optimizer, loss in ((first, -self.judge(made).mean()), (second, self.judge(made.detach()).square().mean())):
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(net.parameters(), lr=0.01) for net in (self.generator, self.judge)]


class Compiled(Shape):
    """Its network is compiled, by a backend that needs no compiler."""

    def build(self) -> None:
        self.inner = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        self.net = torch.compile(self.inner, backend="aot_eager")

    def predicted(self, batch: Any) -> Tensor:
        out: Tensor = self.net(batch[0])
        return out


class Lazy(Shape):
    """Its layers learn their sizes from the first batch."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))

    def predicted(self, batch: Any) -> Tensor:
        out: Tensor = self.net(batch[0])
        return out


class Shared(Shape):
    """One layer twice, and a weight that two layers share."""

    def build(self) -> None:
        self.square, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.other.weight = self.square.weight

    def predicted(self, batch: Any) -> Tensor:
        out: Tensor = self.other(self.square(self.square(batch[0])))
        return out


class Frozen(Shape):
    """A part that is not trained, and runs without gradients."""

    def build(self) -> None:
        self.features, self.head = nn.Linear(3, 8).requires_grad_(False), nn.Linear(8, 1)

    def predicted(self, batch: Any) -> Tensor:
        with torch.no_grad():
            features = self.features(batch[0])
        out: Tensor = self.head(features)
        return out


class Transformer(Shape):
    """Attention, which has a fast path of its own in eval mode."""

    def build(self) -> None:
        layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
        self.embed, self.encoder, self.head = nn.Linear(1, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 1)

    def predicted(self, batch: Any) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embed(batch[0].unsqueeze(-1))))
        return out


class Functional(Shape):
    """Calls no module: its parameters are its own."""

    def build(self) -> None:
        self.weight = nn.Parameter(torch.ones(1, 3))

    def predicted(self, batch: Any) -> Tensor:
        return nn.functional.linear(batch[0], self.weight)


DRAWN: dict[str, type[Shape]] = {
    kind.__name__: kind
    for kind in (
        Forward,
        StepOnly,
        Dicts,
        Dataclasses,
        Several,
        Adversaries,
        Compiled,
        Lazy,
        Shared,
        Frozen,
        Transformer,
    )
}
"""The shapes of which there is something to draw."""
