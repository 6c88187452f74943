"""A slow training run on the CPU, to look at while it trains.

Start it in the repository with ``python -m examples.playground.run``; Ctrl-C ends it. By default it lasts about an
hour. It learns to tell three spirals apart, which needs no data and takes next to no computing: it is slow because
each training step sleeps for what is left of its ``--step-ms``, so there is time to read, pause and change things.
Whatever is worth changing on a live run has a visible effect here: the learning rate, which a scheduler also moves,
and the dropout, label smoothing and weight penalty that the model declares as tunable.
"""

import argparse
import math
import time
from pathlib import Path

import lightning.pytorch as L
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from midrun import MidrunMixin

ARMS = 3
BATCH_SIZE = 32
Batch = tuple[Tensor, Tensor]


def spirals(points: int, seed: int, noise: float = 0.08) -> TensorDataset:
    """Return that many points on three intertwined spirals, each with the number of its spiral."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(ARMS, (points,), generator=generator)
    radius = torch.rand(points, generator=generator).sqrt()
    angle = 4 * radius + 2 * math.pi / ARMS * arm
    position = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return TensorDataset(position + noise * torch.randn(points, 2, generator=generator), arm)


class SpiralClassifier(MidrunMixin, L.LightningModule):
    """A small network with dropout whose training steps take as long as they are told to."""

    midrun_tunable_hparams = {
        "hparams.dropout": {"min": 0.0, "max": 0.9, "label": "Dropout"},
        "hparams.label_smoothing": {"min": 0.0, "max": 0.5, "label": "Label smoothing"},
        "hparams.l2": {"min": 0.0, "max": 0.1, "label": "Weight penalty"},
        "hparams.step_ms": {"min": 0, "max": 10_000, "label": "Milliseconds per step"},
    }

    def __init__(
        self,
        lr: float = 0.02,
        dropout: float = 0.1,
        label_smoothing: float = 0.05,
        l2: float = 1e-4,
        step_ms: int = 75,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.ModuleList([nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, ARMS)])
        self._step_began = time.monotonic()

    def forward(self, position: Tensor) -> Tensor:
        """Return a score for each spiral."""
        first, second, last = self.layers
        hidden = first(position).relu()
        # The functional dropout reads the hyperparameter at each call, so that a change works at once.
        hidden = nn.functional.dropout(hidden, self.hparams.dropout, self.training)
        return last(second(hidden).relu())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one batch, after the time that a step is to take."""
        position, arm = batch
        scores = self(position)
        penalty = torch.stack([weights.square().sum() for weights in self.parameters()]).sum()
        loss = nn.functional.cross_entropy(scores, arm, label_smoothing=self.hparams.label_smoothing)
        loss = loss + self.hparams.l2 * penalty
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/accuracy", (scores.argmax(1) == arm).float().mean(), prog_bar=True)
        self.log("train/penalty", penalty)
        self._sleep_out_the_step()
        return loss

    def _sleep_out_the_step(self) -> None:
        ends = self._step_began + self.hparams.step_ms / 1000
        time.sleep(max(0.0, ends - time.monotonic()))
        self._step_began = time.monotonic()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log how large the gradients are."""
        super().on_before_optimizer_step(optimizer)
        norms = [weights.grad.norm() for weights in self.parameters() if weights.grad is not None]
        self.log("train/gradient-norm", torch.stack(norms).norm())

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss and the accuracy on points that are not trained on."""
        position, arm = batch
        scores = self(position)
        self.log("val/loss", nn.functional.cross_entropy(scores, arm), prog_bar=True)
        self.log("val/accuracy", (scores.argmax(1) == arm).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return momentum descent whose learning rate falls and rises again every ten epochs."""
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=self.hparams.lr / 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}


def logger_for(kind: str, run_dir: Path | None) -> Logger:
    """Return a logger of that kind which writes to the directory, or to a new one under lightning_logs."""
    make = CSVLogger if kind == "csv" else TensorBoardLogger
    if run_dir is None:
        return make(".")
    return make(run_dir.parent, name="", version=run_dir.name)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.playground.run", description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=120, help="how many, of half a minute each (default: 120)")
    parser.add_argument("--steps-per-epoch", type=int, default=400, help="training steps in an epoch (default: 400)")
    parser.add_argument("--step-ms", type=int, default=75, help="how long a training step takes (default: 75)")
    parser.add_argument("--run-dir", type=Path, help="the run directory (default: a new lightning_logs/version_N)")
    parser.add_argument("--logger", choices=["csv", "tensorboard"], default="csv", help="who writes the metrics")
    parser.add_argument("--seed", type=int, default=1, help="of data and weights (default: 1)")
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")
    return parser.parse_args()


def main() -> None:
    """Train until the epochs are done or somebody stops the run."""
    chosen = arguments()
    L.seed_everything(chosen.seed)
    torch.set_num_threads(1)  # so small a model gains nothing from more, and the other cores stay free
    train = DataLoader(spirals(BATCH_SIZE * chosen.steps_per_epoch, chosen.seed), BATCH_SIZE, shuffle=True)
    validation = DataLoader(spirals(BATCH_SIZE * 16, chosen.seed + 1), BATCH_SIZE)
    logger = logger_for(chosen.logger, chosen.run_dir)
    trainer = L.Trainer(
        max_epochs=chosen.epochs,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=10,
        enable_progress_bar=not chosen.no_progress,
        enable_model_summary=not chosen.no_progress,
    )
    print(f"playground: the run directory is {trainer.log_dir}; Ctrl-C ends the run", flush=True)
    trainer.fit(SpiralClassifier(step_ms=chosen.step_ms), train, validation)


if __name__ == "__main__":
    main()
