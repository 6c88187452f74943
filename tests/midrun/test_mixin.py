"""The mixin among a model's classes and hooks: midrun's part of each hook runs once, whatever a model makes of it."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from torch import nn

from midrun import MidrunMixin
from midrun.hooks import HOOKS
from midrun.run import Run
from midrun.turns import Turns
from tests.midrun.models import QUIET, Bare, BareStaged, Staged, Watched, batches, runs, sample_of, trainer

Deed = tuple[str, int | None, int, str | None]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Deed]:
    """Give the list of what midrun does: the method of the run, and where the loop is when it has been done."""
    done: list[Deed] = []

    def noting(name: str, part: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(part)
        def noted(self: Run | Turns, *args: Any, **kwargs: Any) -> None:
            part(self, *args, **kwargs)
            run = self._run if isinstance(self, Turns) else self
            done.append((name, run.sample.batch, run.sample.global_step, run.loop.stage))

        return noted

    for kind, name in ((Run, "start"), (Turns, "end_batch"), (Turns, "_turn"), (Run, "stop")):
        monkeypatch.setattr(kind, name, noting(name, vars(kind)[name]))
    return done


def all_stages(model: L.LightningModule, root: Path) -> None:
    """Fit with validation, save, and validate, test from what was saved, and predict."""
    fitting = trainer(root, max_epochs=2, num_sanity_val_steps=1)
    fitting.fit(model, batches(2), batches(1))
    fitting.save_checkpoint(root / "model.ckpt")
    fitting.validate(model, batches(1), verbose=False)
    fitting.test(model, batches(1), ckpt_path=root / "model.ckpt", weights_only=True, verbose=False)
    fitting.predict(model, batches(1))


@pytest.fixture
def usual(parts: list[Deed], tmp_path: Path) -> list[Deed]:
    """Give what midrun does for a model without hooks of its own."""
    all_stages(Staged(), tmp_path / "usual")
    usual = [*parts]
    parts.clear()
    return usual


def overriding(*names: str, calls_super: bool, base: type = Staged, called: list[str] | None = None) -> type:
    """Return a subclass of `base`, called Own, that overrides hooks."""
    called = called if called is not None else []

    def override(name: str) -> Callable[..., Any]:
        def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
            called.append(name)
            return getattr(super(own, self), name)(*args, **kwargs) if calls_super else None

        hook.__name__ = name
        return hook

    own: type = type("Own", (base,), {name: override(name) for name in names})
    return own


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Give the hooks, of those that midrun has a part in, that Lightning calls in all stages, as often as it does."""
    called: list[str] = []
    all_stages(
        overriding(*HOOKS, calls_super=True, base=BareStaged, called=called)(), tmp_path_factory.mktemp("hooked")
    )
    assert set(called) == set(HOOKS)
    return called


# ---- the order of the base classes


def test_the_module_before_the_mixin_is_a_type_error_that_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"Wrong\(LightningModule, MidrunMixin\): MidrunMixin must come before"):
        type("Wrong", (L.LightningModule, MidrunMixin), {})


def test_a_model_before_the_mixin_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"Wrong\(Bare, MidrunMixin\)"):
        type("Wrong", (Bare, MidrunMixin), {})


def test_the_order_counts_through_classes_in_between_too() -> None:
    class Between(MidrunMixin):
        pass

    with pytest.raises(TypeError, match=r"Wrong\(Bare, Between\)"):
        type("Wrong", (Bare, Between), {})
    with pytest.raises(TypeError, match=r"Wrong\(Other, Between\)"):
        type("Wrong", (type("Other", (Bare,), {}), Between), {})


def test_a_model_that_is_no_lightning_module_is_told_so() -> None:
    class Alone(MidrunMixin):
        pass

    with pytest.raises(TypeError, match=r"Alone is no LightningModule: write class Alone\(MidrunMixin, L.Lightning"):
        Alone()


def test_a_class_in_between_may_carry_the_mixin(parts: list[Deed], usual: list[Deed], tmp_path: Path) -> None:
    class Between(MidrunMixin):
        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            pass

    class Model(Between, BareStaged):
        pass

    all_stages(Model(**QUIET), tmp_path)
    assert parts == usual


# ---- overrides of hooks


def test_every_hook_with_super_runs_once(
    parts: list[Deed], usual: list[Deed], hooked: list[str], tmp_path: Path, warned: list[str]
) -> None:
    called: list[str] = []
    all_stages(overriding(*HOOKS, calls_super=True, called=called)(), tmp_path)
    assert parts == usual
    assert called == hooked
    assert warned == []


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_without_super_gets_midrun_s_part_and_one_warning(
    name: str, parts: list[Deed], usual: list[Deed], hooked: list[str], tmp_path: Path, warned: list[str]
) -> None:
    called: list[str] = []
    all_stages(overriding(name, calls_super=False, called=called)(), tmp_path)
    assert parts == usual
    assert len(called) == hooked.count(name)
    assert len(warned) == 1, warned
    assert f"Own.{name} does not call super().{name}()" in warned[0]


def test_every_hook_without_super_at_once(
    parts: list[Deed], usual: list[Deed], tmp_path: Path, warned: list[str]
) -> None:
    all_stages(overriding(*HOOKS, calls_super=False)(), tmp_path)
    assert parts == usual
    assert len(warned) == len(HOOKS)


def test_an_override_is_blamed_where_it_is_written_and_its_subclasses_are_not(
    parts: list[Deed], usual: list[Deed], tmp_path: Path, warned: list[str]
) -> None:
    forgetful = overriding(*HOOKS, calls_super=False)
    forgetful.__qualname__ = "Forgetful"
    all_stages(overriding(*HOOKS, calls_super=True, base=forgetful)(), tmp_path)
    assert parts == usual
    assert {warning.partition(" ")[0].partition(".")[0] for warning in warned} == {"Forgetful"}, warned
    assert len(warned) == len(HOOKS)


def test_a_subclass_that_forgets_super_over_a_parent_that_calls_it(
    parts: list[Deed], usual: list[Deed], tmp_path: Path, warned: list[str]
) -> None:
    parent = overriding(*HOOKS, calls_super=True)
    all_stages(overriding(*HOOKS, calls_super=False, base=parent)(), tmp_path)
    assert parts == usual
    assert len(warned) == len(HOOKS)


def test_a_model_that_is_switched_off_is_not_told_of_super(tmp_path: Path, warned: list[str]) -> None:
    all_stages(overriding(*HOOKS, calls_super=False)(midrun_enabled=False), tmp_path)
    assert warned == []


def test_what_a_hook_returns_is_handed_on(tmp_path: Path) -> None:
    class Skipping(Watched):
        trained = 0

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            super().on_train_batch_start(batch, batch_idx)
            return -1 if batch_idx == 1 else None

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trained += 1
            return super().training_step(batch, batch_idx)

    model = Skipping()
    trainer(tmp_path).fit(model, batches(4))
    assert model.trained == 1


def test_a_hook_that_raises_raises_as_it_did(tmp_path: Path) -> None:
    class Raising(Watched):
        def on_train_batch_end(self, *args: Any) -> None:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        trainer(tmp_path).fit(Raising(), batches())


# ---- shapes of models


def hooks(called: list[str], *, calls_super: bool) -> dict[str, Callable[..., Any]]:
    """Return overrides of every hook, for a class that is no subclass of the mixin."""

    def override(name: str) -> Callable[..., Any]:
        def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
            called.append(name)
            if calls_super:
                kind = next(kind for kind in type(self).__mro__ if vars(kind).get(name) is hook)
                return getattr(super(kind, self), name)(*args, **kwargs)
            return None

        return hook

    return {name: override(name) for name in HOOKS}


@pytest.mark.parametrize("calls_super", [True, False])
def test_a_base_after_the_mixin_with_hooks_of_its_own(
    calls_super: bool, parts: list[Deed], usual: list[Deed], hooked: list[str], tmp_path: Path, warned: list[str]
) -> None:
    called: list[str] = []
    base = type("Base", (BareStaged,), hooks(called, calls_super=calls_super))
    model: type = type("Model", (MidrunMixin, base), {})
    all_stages(model(**QUIET), tmp_path)
    assert parts == usual
    assert called == hooked
    assert warned == [], "the base comes after the mixin, and need not know of it"


@pytest.mark.parametrize("calls_super", [True, False])
def test_a_base_before_the_mixin_with_hooks_of_its_own(
    calls_super: bool, parts: list[Deed], usual: list[Deed], hooked: list[str], tmp_path: Path, warned: list[str]
) -> None:
    called: list[str] = []
    base = type("Base", (BareStaged,), hooks(called, calls_super=calls_super))

    class Model(base, MidrunMixin, L.LightningModule):  # type: ignore[valid-type,misc]  # made above
        def __init__(self) -> None:
            MidrunMixin.__init__(self, **QUIET)
            self.net = nn.Linear(3, 1)

    all_stages(Model(), tmp_path)
    assert parts == usual
    assert called == hooked
    assert len(warned) == (0 if calls_super else len(HOOKS))
    assert all(warning.startswith("Base.") for warning in warned)


@pytest.mark.parametrize("calls_super", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_foreign_mixin_with_hooks_of_its_own(
    first: bool, calls_super: bool, parts: list[Deed], usual: list[Deed], hooked: list[str], tmp_path: Path
) -> None:
    called: list[str] = []
    foreign = type("Foreign", (), hooks(called, calls_super=calls_super))
    bases = (foreign, MidrunMixin, BareStaged) if first else (MidrunMixin, foreign, BareStaged)
    model: type = type("Model", bases, {})
    all_stages(model(**QUIET), tmp_path)
    assert parts == usual
    assert called == hooked


def test_arguments_that_are_no_options_reach_the_base() -> None:
    class Base(L.LightningModule):
        def __init__(self, width: int, *, depth: int = 1) -> None:
            super().__init__()
            self.width, self.depth = width, depth

    class Model(MidrunMixin, Base):
        pass

    model = Model(3, depth=2, rest_port=9000)
    assert (model.width, model.depth, model.midrun.config.rest_port) == (3, 2, 9000)
    with pytest.raises(TypeError, match="rest_prot"):
        Model(3, rest_prot=9000)


def test_an_init_that_never_reaches_the_mixin_gets_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Past(MidrunMixin, Bare):
        def __init__(self) -> None:
            Bare.__init__(self)

    model = Past()
    assert model.midrun.config.rest_port == 8090
    assert model.midrun is model.midrun
    model.midrun.config = Watched().midrun.config  # Without faces, from here on.
    trainer(tmp_path).fit(model, batches(1))
    assert list((tmp_path / "midrun").iterdir())


def test_a_pickle_of_a_model_from_before_it_had_the_mixin_still_trains(tmp_path: Path) -> None:
    model = Watched()
    state = model.__getstate__()
    del state["_midrun"]
    older = Watched.__new__(Watched)
    older.__setstate__(pickle.loads(pickle.dumps(state)))  # type: ignore[no-untyped-call]  # noqa: S301 - our own bytes
    older.midrun.config = model.midrun.config
    trainer(tmp_path).fit(older, batches(1))


def test_hooks_may_be_called_without_a_trainer() -> None:
    model = Watched()
    model.setup("fit")
    model.on_train_batch_start([torch.zeros(1, 3)], 0)
    model.on_before_optimizer_step(torch.optim.SGD(model.parameters()))
    model.on_train_batch_end(None, [torch.zeros(1, 3)], 0)
    model.on_validation_start()
    model.on_train_epoch_end()
    model.teardown("fit")
    assert not runs(model)


def test_the_run_is_there_when_super_setup_returns_and_gone_after_super_teardown(tmp_path: Path) -> None:
    seen: list[str | None] = []

    class Model(Watched):
        def setup(self, stage: str) -> None:
            seen.append(self.midrun.run_dir)
            super().setup(stage)
            seen.append(self.midrun.run_dir)

        def teardown(self, stage: str) -> None:
            seen.append(self.midrun.run_dir)
            super().teardown(stage)
            seen.append(self.midrun.run_dir)

    trainer(tmp_path).fit(Model(), batches(1))
    (directory,) = (tmp_path / "midrun").iterdir()
    assert seen == [None, str(directory), str(directory), None]


# ---- modules in modules, compiled modules


def test_a_module_in_a_module_owns_no_run(tmp_path: Path) -> None:
    class Outer(Watched):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Watched()

        def setup(self, stage: str) -> None:
            super().setup(stage)
            self.inner.setup(stage)  # As models do that pass on what they get.

        def on_train_start(self) -> None:
            super().on_train_start()
            assert runs(self)
            assert not runs(self.inner)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(outputs, batch, batch_idx)
            self.inner.on_train_batch_end(outputs, batch, batch_idx)

        def teardown(self, stage: str) -> None:
            self.inner.teardown(stage)
            assert runs(self)
            super().teardown(stage)

    trainer(tmp_path).fit(Outer(), batches(2))
    assert len(list((tmp_path / "midrun").iterdir())) == 1


def test_a_model_that_trains_another_within_its_own_fit(tmp_path: Path) -> None:
    class Outer(Watched):
        def on_train_epoch_end(self) -> None:
            super().on_train_epoch_end()
            inner = Watched()
            trainer(tmp_path / "inner").fit(inner, batches(1))
            assert runs(self)
            assert not runs(inner)

    model = Outer()
    trainer(tmp_path / "outer").fit(model, batches(2))
    assert not runs(model)


@pytest.mark.filterwarnings("ignore:Guards may run slower")  # torch on Python 3.13.0, without midrun too
def test_a_compiled_model_trains(tmp_path: Path) -> None:
    class Silent(Watched):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch)  # To log from compiled code is beyond this torch and this Lightning.

    model = Silent()
    batch_ends: list[int | None] = []

    class Seeing(L.Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            batch_ends.append(sample_of(model).batch)

    compiled = torch.compile(model, backend="eager")
    trainer(tmp_path, callbacks=[Seeing()]).fit(compiled, batches(3))  # type: ignore[arg-type]  # Lightning takes it
    assert batch_ends == [None, 0, 1]
    assert not runs(model)
