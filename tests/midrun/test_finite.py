"""The finite check: NaN and infinity in batches, told by the path of the first bad part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from midrun.finite import look_at
from tests.midrun.models import Staged, batches, document, only_directory, run_of, trainer
from tests.midrun.steering import Steered, aside, done, fit, give, held, let_go

NAN, INF = float("nan"), float("inf")
GOOD = torch.zeros(3)


class Graph:
    """A batch as libraries for graphs have it: an object that is called, and keeps what it has to itself."""

    def __init__(self, x: Any) -> None:
        self._store = {"x": x}

    def __call__(self, *names: str) -> Any:
        return [self._store[name] for name in names]


class Failing(torch.Tensor):
    """A tensor whose numbers can't be had, as where there is no memory for them."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.isfinite:
            raise RuntimeError("out of memory")
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # torch's own


class Unnamed:
    """A key that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no name")


def deep(value: Any, steps: int) -> Any:
    """Return a value so many steps down."""
    return deep([value], steps - 1) if steps else value


@dataclasses.dataclass
class Sample:
    image: Any
    name: str = "one"


BAD: list[tuple[Any, str]] = [
    (torch.tensor([0, NAN]), "batch"),
    ([GOOD, torch.tensor(INF)], "batch.1"),
    ({"image": GOOD, "more": {"deep": (GOOD, torch.tensor([-INF]))}}, "batch.more.deep.1"),
    (Sample(torch.tensor([NAN])), "batch.image"),
    ([GOOD.to(torch.bfloat16), torch.tensor([NAN]).to(torch.bfloat16)], "batch.1"),
    (torch.tensor([NAN]).to(torch.float8_e5m2), "batch"),
    (torch.tensor([complex(0, NAN)]), "batch"),
    (torch.tensor([0, NAN]).to_sparse(), "batch"),
    ([GOOD, np.array([0, INF])], "batch.1"),
    ([1.0, NAN], "batch.1"),
    ([1.0, np.float32(NAN)], "batch.1"),
    (np.array([0, NAN], dtype=np.longdouble), "batch"),
    (np.array([0, NAN]).astype(">f8"), "batch"),
    (Graph(torch.tensor([NAN])), "batch._store.x"),
    ([torch.tensor(NAN), torch.tensor(INF)], "batch.0"),
]
FINE: list[Any] = [
    GOOD,
    [GOOD, torch.tensor([1, 2]), torch.tensor([True]), "nan", None, 3],
    torch.zeros(0),
    torch.tensor([torch.finfo(torch.float32).max]),
    np.array(["nan"]),
    np.array([object()]),
    torch.zeros(2, device="meta"),
    iter([NAN]),
]


@pytest.mark.parametrize(("batch", "path"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_the_path_of_the_first_part_that_is_not_finite_is_found(batch: Any, path: str) -> None:
    bad, unread = look_at(batch)
    assert bad is not None
    assert bad.path == path
    assert unread is None


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_compressed_rows_are_looked_at_too() -> None:
    assert look_at(torch.tensor([[0, NAN]]).to_sparse_csr()).bad is not None


UNREAD: list[tuple[Any, str, str]] = [
    ([[GOOD] * 9000, [GOOD] * 9000], "batch.…", "only the first 10,000 parts"),
    (deep(GOOD, 40), f"batch{'.0' * 24}.…", "24 steps down"),
    ([torch.zeros(2).as_subclass(Failing), GOOD], "batch.0", "out of memory"),
]


@pytest.mark.parametrize(("batch", "path", "why"), UNREAD, ids=["many", "deep", "failing"])
def test_what_could_not_be_looked_at_is_found_too(batch: Any, path: str, why: str) -> None:
    bad, unread = look_at(batch)
    assert bad is None
    assert unread is not None
    assert unread.path == path
    assert why in unread.value.why


def test_what_can_not_be_looked_at_does_not_hide_what_can(tmp_path: Path, warned: list[str]) -> None:
    batch = {Unnamed(): torch.zeros(2).as_subclass(Failing), "image": torch.tensor([NAN])}
    bad, unread = look_at(batch)
    assert (bad and bad.path, unread and unread.path) == ("batch.image", "batch.<Unnamed>")

    class Own(Steered):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step([batch["x"], batch["y"]], batch_idx)

    rows = {"x": torch.zeros(4, 3), "y": torch.zeros(4, 1), "odd": torch.zeros(2).as_subclass(Failing)}
    model = Own(dataloader_finite_check_enabled=True)
    train(model, tmp_path, DataLoader([rows] * 2, batch_size=None))  # type: ignore[arg-type]  # a list is a data set
    record = model.live.finite_check.record
    assert (record["batches"], record["not_finite"], record["unread"]) == (2, 0, 2)
    assert [text for text in warned if "can't be checked" in text] == [
        "batch.odd can't be checked for NaN and infinity: out of memory"
    ]


@pytest.mark.parametrize("batch", FINE, ids=[str(number) for number in range(len(FINE))])
def test_nothing_is_found_where_everything_is_finite(batch: Any) -> None:
    assert look_at(batch) == (None, None)


def spoilt(at: dict[int, Callable[[Tensor], object]], count: int = 4) -> Any:
    """Return a loader of batches of two rows, some of them spoilt."""
    rows = []
    for number in range(count):
        image = torch.zeros(2, 3)
        at.get(number, Tensor.numel)(image)
        rows += [(row, torch.zeros(1)) for row in image]
    return DataLoader(rows, 2)  # type: ignore[arg-type]  # a list is a data set


def two(image: Tensor) -> None:
    image[0, 1], image[1, 2] = NAN, INF


def train(model: Any, root: Path, loader: Any, **options: Any) -> None:
    trainer(root, limit_val_batches=0, num_sanity_val_steps=0, **options).fit(model, loader, batches(1))


def test_the_option_checks_every_batch_counts_and_holds_nothing(tmp_path: Path, warned: list[str]) -> None:
    model = Steered(dataloader_finite_check_enabled=True)
    with let_go(model) as holds:
        train(model, tmp_path, spoilt({1: two, 3: two}))
    assert holds == []
    record = model.live.finite_check.record
    assert (record["batches"], record["not_finite"]) == (4, 2)
    first, last = record["first"], record["last"]
    assert first is not None
    assert last is not None
    expected = {"path": "batch.0", "nan": 1, "infinite": 1, "numbers": 6, "stage": "train", "epoch": 0}
    assert first.items() >= {**expected, "batch": 1, "global_step": 1}.items()
    assert last.items() >= {**expected, "batch": 3, "global_step": 3}.items()
    [warning] = [text for text in warned if "NaN" in text]
    assert warning.startswith("batch.0 has 1 NaN and 1 infinite of 6 numbers (train, epoch 0, batch 1, step 1)")
    log = (only_directory(tmp_path) / "midrun.log").read_text()
    assert "batch.0 has 1 NaN and 1 infinite of 6 numbers (train, epoch 0, batch 3, step 3)" in log


def test_without_the_option_nothing_is_checked_and_the_trainer_has_no_callback_for_it(tmp_path: Path) -> None:
    model = Steered()
    callbacks = []
    model.plan[0] = lambda: callbacks.extend(model.trainer.callbacks)  # type: ignore[attr-defined]
    train(model, tmp_path, spoilt({1: two}))
    assert not [callback for callback in callbacks if "midrun" in type(callback).__module__]
    assert model.live.finite_check.record["batches"] == 0


def test_the_check_is_turned_on_and_off_while_the_run_is_live(tmp_path: Path) -> None:
    model = Steered()
    sent = []
    seen = []
    model.plan[0] = lambda: sent.append(model.give("set_dataloader_finite_check", enabled=True))
    model.plan[2] = lambda: sent.append(model.give("set_dataloader_finite_check", enabled=False))
    model.plan[3] = lambda: seen.append(document(model, "state/finite-check.json"))
    train(model, tmp_path, spoilt({0: two, 1: two, 3: two}))
    changes = [done(model.live, command)["changes"] for command in sent]
    what = "dataloader_finite_check"
    assert changes == [[{"what": what, "old": "off", "new": "on"}], [{"what": what, "old": "on", "new": "off"}]]
    assert seen[0]["enabled"] is False
    assert (seen[0]["batches"], seen[0]["not_finite"], seen[0]["first"]["batch"]) == (2, 1, 1)
    assert model.live.finite_check.record["batches"] == 2
    assert model.trainer.callbacks == []  # type: ignore[attr-defined]


def test_it_holds_before_the_step_of_the_bad_batch_when_it_is_asked_to(tmp_path: Path) -> None:
    model = Steered()
    model.plan[0] = lambda: model.give("set_dataloader_finite_check", enabled=True, hold=True)
    seen: list[Any] = []

    def act() -> None:
        active = held(model)
        seen.append((active.place["safe_point"], active.place["batch"], active.command.record["source"]))
        seen.append(active.command.record["args"]["reason"])
        done(model.live, give(model.live, "save_current_batch"))
        give(model.live, "continue")

    with aside(model, act):
        train(model, tmp_path, spoilt({2: two}))
    assert seen[0] == ("before_optimizer_step", 2, "finite check")
    assert seen[1].startswith("batch.0 has 1 NaN and 1 infinite of 6 numbers")
    [path] = (only_directory(tmp_path) / "artifacts/debug").glob("batch-*.pt")
    assert torch.load(path, weights_only=True)["batch"][0].isnan().any()


def test_where_gradients_are_gathered_it_holds_at_the_end_of_the_bad_batch(tmp_path: Path) -> None:
    model = Steered()
    model.plan[0] = lambda: model.give("set_dataloader_finite_check", enabled=True, hold=True)
    with let_go(model) as holds:
        train(model, tmp_path, spoilt({1: two}), accumulate_grad_batches=4)
    assert [(point, batch) for point, _, _, batch in holds] == [("train_batch_end", 1)]


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_batches_of_every_stage_are_checked(tmp_path: Path, stage: str) -> None:
    records: list[Any] = []

    class Noting(Staged):
        def teardown(self, stage: str) -> None:
            records.append(run_of(self).finite_check.record)
            super().teardown(stage)

    getattr(trainer(tmp_path), stage)(Noting(dataloader_finite_check_enabled=True), spoilt({2: two}))
    assert (records[0]["batches"], records[0]["not_finite"]) == (4, 1)
    assert records[0]["first"]["stage"] == stage


def test_a_batch_that_can_not_be_checked_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr("midrun.finite.look_at", broken)
    model = Steered(dataloader_finite_check_enabled=True)
    train(model, tmp_path, spoilt({}))
    assert model.begun == 4
    log = (only_directory(tmp_path) / "midrun.log").read_text()
    assert "a batch could not be checked for NaN and infinity: RuntimeError: CUDA error" in log


def test_the_check_changes_nothing_in_what_is_trained(tmp_path: Path) -> None:
    weights = []
    for checks in (False, True):
        torch.manual_seed(3)
        model = Steered(dataloader_finite_check_enabled=checks)
        fit(model, tmp_path / str(checks), 4)
        weights.append(model.net.weight.detach())
    assert torch.equal(*weights)
