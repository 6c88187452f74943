"""What midrun leaves in a model's hyperparameters, checkpoints, copies and pickles: its options, in the copies."""

from __future__ import annotations

import argparse
import copy
import inspect
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from midrun import MidrunMixin
from midrun.config import OPTIONS
from tests.midrun.models import QUIET, Bare, Watched, batches, runs, trainer

HPARAMS = {"lr": 0.5, "width": 3}
ALL: dict[str, Any] = {**HPARAMS, **QUIET}


class Everything(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, rest_enabled: bool = True, fuse_enabled: bool = True) -> None:
        super().__init__(rest_enabled=rest_enabled, fuse_enabled=fuse_enabled)
        self.save_hyperparameters()


class PassedOn(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, **options: Any) -> None:
        super().__init__(**options)
        self.save_hyperparameters()


class Named(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, rest_enabled: bool = True, fuse_enabled: bool = True) -> None:
        super().__init__(rest_enabled=rest_enabled, fuse_enabled=fuse_enabled)
        self.save_hyperparameters("lr", "width")


class NamedWithOptions(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, rest_enabled: bool = True, fuse_enabled: bool = True) -> None:
        super().__init__(rest_enabled=rest_enabled, fuse_enabled=fuse_enabled)
        self.save_hyperparameters("lr", "width", "rest_enabled", "fuse_enabled")
        self.save_hyperparameters("rest_enabled")


class IgnoringOne(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, loss: str = "mse", **options: Any) -> None:
        super().__init__(**options)
        self.save_hyperparameters(ignore="loss")


class IgnoringSome(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, loss: str = "mse", net: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.save_hyperparameters(ignore=["loss", "net", "rest_enabled"], logger=False)


class IgnoringATuple(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, loss: str = "mse", **options: Any) -> None:
        super().__init__(**options)
        self.save_hyperparameters(ignore=("loss",))


class ByDictionary(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, **options: Any) -> None:
        super().__init__(**options)
        self.save_hyperparameters({"lr": lr, "width": width, **options})


class ByNamespace(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, **options: Any) -> None:
        super().__init__(**options)
        self.save_hyperparameters(argparse.Namespace(lr=lr, width=width, **options))


class WithFrame(MidrunMixin, Bare):
    def __init__(self, lr: float, width: int = 3, **options: Any) -> None:
        super().__init__(**options)
        self.save(inspect.currentframe())

    def save(self, frame: Any) -> None:
        self.save_hyperparameters(frame=frame)


class Base(Bare):
    def __init__(self, lr: float, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()


class SavedByTheBaseAfter(MidrunMixin, Base):
    pass


class SavedByTheBaseAfterWithInit(MidrunMixin, Base):
    def __init__(self, lr: float, width: int = 3, rest_enabled: bool = True, fuse_enabled: bool = True) -> None:
        super().__init__(lr, width=width, rest_enabled=rest_enabled, fuse_enabled=fuse_enabled)


class WatchedBase(MidrunMixin, Bare):
    def __init__(self, lr: float, **options: Any) -> None:
        super().__init__(**options)
        self.save_hyperparameters()


class SavedByTheBaseBefore(WatchedBase):
    def __init__(self, lr: float, width: int = 3, **options: Any) -> None:
        super().__init__(lr, **options)


class SavedTwice(WatchedBase):
    def __init__(self, lr: float, width: int = 3, **options: Any) -> None:
        super().__init__(lr, **options)
        self.save_hyperparameters()


@dataclass(eq=False)
class AsDataclass(MidrunMixin, Bare):
    lr: float
    width: int = 3
    rest_enabled: bool = True
    fuse_enabled: bool = True

    def __post_init__(self) -> None:
        super().__init__(rest_enabled=self.rest_enabled, fuse_enabled=self.fuse_enabled)
        self.save_hyperparameters()


KINDS = [
    Everything,
    PassedOn,
    Named,
    NamedWithOptions,
    IgnoringOne,
    IgnoringSome,
    IgnoringATuple,
    ByDictionary,
    ByNamespace,
    WithFrame,
    SavedByTheBaseAfter,
    SavedByTheBaseAfterWithInit,
    SavedByTheBaseBefore,
    SavedTwice,
    AsDataclass,
]


@pytest.mark.parametrize("kind", KINDS)
def test_hyperparameters_are_those_of_the_model_alone(kind: Any, tmp_path: Path) -> None:
    model = kind(**ALL)
    assert dict(model.hparams) == HPARAMS
    assert dict(model.hparams_initial) == HPARAMS
    assert not model.midrun.config.rest_enabled
    fitting = trainer(tmp_path)
    fitting.fit(model, batches(1))
    fitting.save_checkpoint(tmp_path / "model.ckpt")
    saved = torch.load(tmp_path / "model.ckpt", weights_only=True)
    assert saved["hyper_parameters"] == HPARAMS
    del saved["midrun"]
    assert "midrun" not in repr(saved)
    loaded = kind.load_from_checkpoint(tmp_path / "model.ckpt", **QUIET)
    assert dict(loaded.hparams) == HPARAMS
    assert not loaded.midrun.config.fuse_enabled
    assert torch.equal(loaded.net.weight, model.net.weight)


def test_a_plain_load_gets_the_defaults_of_the_options(tmp_path: Path) -> None:
    model = Everything(**ALL)
    fitting = trainer(tmp_path)
    fitting.fit(model, batches(1))
    fitting.save_checkpoint(tmp_path / "model.ckpt")
    loaded = Everything.load_from_checkpoint(tmp_path / "model.ckpt")
    assert loaded.midrun.config.rest_enabled
    assert dict(loaded.hparams) == HPARAMS


def test_what_is_a_hyperparameter_stays_one_when_it_is_called_as_an_option_that_was_not_given() -> None:
    class Model(MidrunMixin, Bare):
        def __init__(self, artifact_dir: str) -> None:
            super().__init__(midrun_enabled=False)
            self.save_hyperparameters()

    assert dict(Model("elsewhere").hparams) == {"artifact_dir": "elsewhere"}


def test_a_logger_is_told_no_options(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="", version=0)
    trainer(tmp_path, logger=logger, log_every_n_steps=1).fit(PassedOn(**ALL), batches(1))
    text = (tmp_path / "version_0" / "hparams.yaml").read_text()
    assert "lr: 0.5" in text
    assert not any(option in text for option in OPTIONS)


def test_a_checkpoint_has_one_member_more_than_without_midrun(tmp_path: Path) -> None:
    members = []
    for number, model in enumerate((Bare(), Watched())):
        fitting = trainer(tmp_path)
        fitting.fit(model, batches(1))
        fitting.save_checkpoint(tmp_path / f"{number}.ckpt")
        members.append(sorted(torch.load(tmp_path / f"{number}.ckpt", weights_only=True)))
        assert list(model.state_dict()) == ["net.weight", "net.bias"]
    assert sorted([*members[0], "midrun"]) == members[1]


# ---- copies and pickles


class Copying(Watched):
    """Copies and pickles itself while its run is live."""

    copies: tuple[Any, ...] = ()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        copied = copy.deepcopy(self)
        self.copies = (copied, pickle.loads(pickle.dumps(copied)), pickle.loads(pickle.dumps(self.midrun)))  # noqa: S301
        assert runs(self)


def test_a_copy_of_a_live_model_has_the_options_and_no_run(tmp_path: Path) -> None:
    model = Copying(rest_port=9123)
    trainer(tmp_path).fit(model, batches(2))
    copied, pickled, attachment = model.copies
    for one in (copied.midrun, pickled.midrun, attachment):
        assert one.config == model.midrun.config
        assert one.given == model.midrun.given
        assert one is not model.midrun
        assert one.run_dir is None
    for one in (copied, pickled):
        one.copies = ()
        trainer(tmp_path).fit(one, batches(1))
    assert len(list((tmp_path / "midrun").iterdir())) == 3, "each has a run of its own"


def test_a_model_that_has_trained_can_be_copied_and_pickled(tmp_path: Path) -> None:
    model = Watched(rest_port=9124)
    trainer(tmp_path).fit(model, batches(1))
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - our own bytes
        assert torch.equal(one.net.weight, model.net.weight)
        assert one.midrun.config.rest_port == 9124


def test_a_whole_model_in_a_file_of_torch_s_comes_back(tmp_path: Path) -> None:
    model = Watched(rest_port=9125)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert loaded.midrun.config.rest_port == 9125


@pytest.mark.parametrize(
    "averaging",
    [
        lambda: StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1),
        WeightAveraging,
    ],
    ids=["swa", "ema"],
)
def test_callbacks_that_copy_the_model_work(averaging: Any, tmp_path: Path) -> None:
    weights = []
    for kind in (Bare, Watched):
        torch.manual_seed(1)
        model = kind()
        trainer(tmp_path, max_epochs=3, callbacks=[averaging()]).fit(model, batches(2))
        weights.append(model.net.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not runs(model)
    assert len(list((tmp_path / "midrun").iterdir())) == 1


def test_a_model_can_be_exported() -> None:
    class Model(Watched):
        def forward(self, x: Any) -> Any:
            return self.net(x)

    model, x = Model().eval(), torch.randn(2, 3)
    exported = torch.export.export(model, (x,))
    assert torch.equal(exported.module()(x), model(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*to_torchscript.*")
def test_a_model_can_be_scripted() -> None:
    class Line(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x)

    class WatchedLine(MidrunMixin, Line):
        pass

    model, x = WatchedLine(), torch.randn(2, 3)
    assert torch.equal(Line.to_torchscript(model)(x), model(x))  # type: ignore[operator]  # a module or a dictionary
