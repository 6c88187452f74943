"""Odd hooks: whatever a model has for a hook is called as without midrun, and midrun's part runs beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from torch import nn

from midrun import MidrunMixin
from tests.midrun.models import QUIET, Watched, batches, sample_of, trainer

END = "on_train_batch_end"


class Plain(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class CallableObject:
    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> None:
        self.function(*args)


KINDS: dict[str, Callable[[Callable[..., None]], Any]] = {
    "function": lambda note: lambda _, *args: note(*args),
    "staticmethod": staticmethod,
    "classmethod": lambda note: classmethod(lambda _, *args: note(*args)),
    "partial": functools.partial,
    "partialmethod": lambda note: functools.partialmethod(lambda _, *args: note(*args)),
    "property": lambda note: property(lambda _: note),
    "object": CallableObject,
}


@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor")  # Python 3.13, without midrun too
@pytest.mark.parametrize("hook", ["on_train_start", END, "on_before_optimizer_step"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["behind", "in front"])
def test_a_hook_of_any_kind_is_called_as_without_midrun(where: str, kind: str, hook: str, tmp_path: Path) -> None:
    calls: list[int] = []
    odd = type("Odd", (), {hook: KINDS[kind](lambda *args: calls.append(len(args)))})
    without = type("Without", (odd, Plain), {})
    trainer(tmp_path).fit(without(), batches(3))
    expected, calls[:] = [*calls], []
    bases = (MidrunMixin, odd, Plain) if where == "behind" else (odd, MidrunMixin, Plain)
    shown: list[Any] = []

    class Shown(*bases):  # type: ignore[misc]  # made here
        def __init__(self) -> None:
            super().__init__(**QUIET)

        def on_train_end(self) -> None:
            super().on_train_end()
            shown.append(sample_of(self).global_step)

    trainer(tmp_path).fit(Shown(), batches(3))
    assert calls == expected
    assert len(calls) in {1, 3}
    assert shown == [3], "midrun's part has run as well"


def test_a_class_that_is_called_as_lightnings_own_is_not_taken_for_it(tmp_path: Path) -> None:
    calls: list[str] = []
    odd = type("ModelHooks", (), {END: lambda *_: calls.append("called")})
    model: Any = type("Model", (MidrunMixin, odd, Plain), {})(**QUIET)
    trainer(tmp_path).fit(model, batches(2))
    assert calls == ["called", "called"]


@pytest.mark.parametrize("hook", ["on_train_start", END])
def test_a_base_that_is_patched_between_two_fits_is_called(hook: str, tmp_path: Path) -> None:
    calls: list[str] = []

    class Base(Plain):
        pass

    class Model(MidrunMixin, Base):
        pass

    model = Model(**QUIET)
    trainer(tmp_path).fit(model, batches(1))
    setattr(Base, hook, lambda *_: calls.append("called"))
    trainer(tmp_path).fit(model, batches(1))
    assert calls == ["called"]


def test_a_base_that_is_patched_in_a_fit_is_called_from_the_next_epoch_on(tmp_path: Path) -> None:
    calls: list[str] = []

    class Base(Plain):
        pass

    class Model(MidrunMixin, Base):
        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            Base.on_train_batch_end = lambda *_: calls.append("called")  # type: ignore[method-assign]  # as said

    trainer(tmp_path, max_epochs=2).fit(Model(**QUIET), batches(2))
    assert calls == ["called", "called"]


def test_a_model_that_changes_its_class_has_the_new_one_s_hooks(tmp_path: Path) -> None:
    calls: list[str] = []
    odd = type("Odd", (), {END: lambda *_: calls.append("called")})

    class Model(MidrunMixin, Plain):
        def on_train_start(self) -> None:
            super().on_train_start()
            self.__class__ = other

    other: Any = type("Other", (MidrunMixin, odd, Plain), {})
    trainer(tmp_path).fit(Model(**QUIET), batches(2))
    assert calls == ["called", "called"]


def test_a_hook_that_is_set_on_the_model_is_named_and_the_state_is_shown_still(
    tmp_path: Path, warned: list[str]
) -> None:
    shown: list[tuple[int, int | None]] = []

    class Model(Watched):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            super().on_before_optimizer_step(optimizer)
            shown.append((sample_of(self).global_step, sample_of(self).batch))

    model: Any = Model()
    model.on_train_batch_end = lambda *_: None
    trainer(tmp_path).fit(model, batches(3))
    assert shown == [(0, 0), (1, 1), (2, 2)]
    assert len(warned) == 1, warned
    assert "on_train_batch_end is set on the model itself" in warned[0]


def test_a_rate_and_a_step_are_of_one_moment_where_a_scheduler_steps(tmp_path: Path) -> None:
    class Model(Watched):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    class Looking(L.Callback):
        seen: list[tuple[int, float]] = []

        def on_train_batch_end(self, trainer: L.Trainer, module: Any, *args: Any) -> None:
            sample = sample_of(module)  # after the scheduler, before the batch's end is shown
            self.seen.append((sample.global_step, sample.values().rates[0][0]))

    looking = Looking()
    trainer(tmp_path, callbacks=[looking]).fit(Model(), batches(3))
    assert looking.seen == [(0, 1.0), (1, 0.5), (2, 0.25)]
