"""The smallest model with midrun: one mixin before LightningModule, and nothing else changes.

Start it with ``python examples/quickstart.py`` and, in a second terminal, look at the run::

    RUN=lightning_logs/version_0
    watch -n1 cat $RUN/procfs/state/global-step
"""

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from midrun import MidrunMixin


class TinyRegressor(MidrunMixin, L.LightningModule):
    """Two layers fitted to noise, with a weight penalty that can be changed while it trains."""

    # Declares what may be changed on a live run, and within which limits; as `hparams.l2` it can be set.
    midrun_tunable_hparams = {"hparams.l2": {"min": 0.0, "max": 1.0}}

    def __init__(self, lr: float = 1e-2, l2: float = 0.0) -> None:
        super().__init__()  # options of midrun are keyword arguments of this call
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the penalised squared error of one batch."""
        inputs, targets = batch
        error = nn.functional.mse_loss(self.net(inputs), targets)
        penalty = torch.stack([weights.square().sum() for weights in self.parameters()]).sum()
        loss = error + self.hparams.l2 * penalty
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def main() -> None:
    """Train on random data for some minutes."""
    dataset = TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1))
    trainer = L.Trainer(max_epochs=1000, accelerator="cpu")
    trainer.fit(TinyRegressor(), DataLoader(dataset, batch_size=32))


if __name__ == "__main__":
    main()
