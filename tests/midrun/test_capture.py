"""Captures: the batch, the loss, the gradients and the optimizers, saved for offline debugging."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import gc
import io
import json
import weakref
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.utils.data import DataLoader

from midrun.capture import Keeping
from midrun.fs.faults import Conflict
from midrun.nested import described
from tests.midrun.models import Staged, batches, document, only_directory, run_of, trainer
from tests.midrun.steering import Steered, done, failed, fit, give, outcome, where

Pair = namedtuple("Pair", ["image", "target"])  # noqa: PYI024 - what users of named tuples write


@dataclasses.dataclass
class Sample:
    image: Tensor
    name: str
    more: Any = None


class Custom:
    """A batch of a user's own kind."""

    def __init__(self, image: Tensor) -> None:
        self.image, self.names, self._cache = image, ["a", "b"], object()
        self.read = lambda: image


class Colour(enum.Enum):
    RED = 1


class Lazy(Sequence[Any]):
    """Makes each of its rows when it is asked for it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        if index >= 3:
            raise IndexError
        return torch.tensor([10 * index, 10 * index + 1])


@dataclasses.dataclass
class Half:
    """One of its fields can't be had."""

    image: Tensor
    lost: int = dataclasses.field(init=False)


class Slotted:
    __slots__ = ("image",)

    def __init__(self, image: Tensor) -> None:
        self.image = image


class Sub(torch.Tensor):
    """A tensor of a user's own kind."""


def saved_of(directory: Path, word: str) -> dict[str, Any]:
    """Return the one capture of a word, as anybody may load it."""
    [path] = (directory / "artifacts/debug").glob(f"{word}-*.pt")
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def kept(value: Any) -> tuple[Any, dict[str, str]]:
    """Return what is kept of a batch, having been saved and loaded, and what is left out."""
    keeping = Keeping()
    made = io.BytesIO()
    torch.save(keeping.keep(value, "batch"), made)
    made.seek(0)
    return torch.load(made, weights_only=True), keeping.left_out


def same(one: Any, other: Any) -> bool:
    """Whether two values are of the same types and have the same contents."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one.to_dense(), other.to_dense())
    if isinstance(one, dict):
        return type(other) is dict and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


T = torch.arange(6.0).reshape(2, 3)
TENSORS = [
    T,
    T.to(torch.bfloat16),
    T.to(torch.float8_e5m2),
    T.to(torch.complex64),
    T.bool(),
    T.to(torch.uint8),
    torch.tensor(0.5),
    torch.zeros(0, 3),
    T.t(),
    T.to_sparse(),
    T.clone().requires_grad_(),
    torch.nn.Parameter(torch.ones(2)),
    T.to(torch.complex64).conj(),
]
CASES: list[tuple[Any, Any]] = [
    ((T, 3), (T, 3)),
    ([T, "text", b"bytes", None, True, 0.5], [T, "text", b"bytes", None, True, 0.5]),
    ({"image": T, 3: {"deep": (T,)}}, {"image": T, 3: {"deep": (T,)}}),
    (OrderedDict(image=T), {"image": T}),
    (UserDict(image=T), {"image": T}),
    (Pair(T, 1), {"image": T, "target": 1}),
    (Sample(T, "one"), {"image": T, "name": "one", "more": None}),
    (Slotted(T), {"image": T}),
    (np.arange(3, dtype=np.int16), torch.arange(3, dtype=torch.int16)),
    (np.arange(3).astype(">i4"), torch.arange(3, dtype=torch.int32)),
    (np.float32(0.5), 0.5),
    (T.shape, (2, 3)),
    (Path("data/one.png"), "data/one.png"),
    (Colour.RED, "RED"),
    (range(3), [0, 1, 2]),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}")
def test_a_tensor_is_saved_as_it_is(tensor: Tensor) -> None:
    loaded, left_out = kept(tensor)
    assert left_out == {}
    assert loaded.dtype == tensor.dtype
    assert not loaded.requires_grad
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    assert torch.equal(loaded.to_dense().to(wide), tensor.detach().to_dense().to(wide))


@pytest.mark.parametrize(("batch", "expected"), CASES, ids=lambda value: type(value).__name__)
def test_what_a_batch_is_made_of_is_saved(batch: Any, expected: Any) -> None:
    loaded, left_out = kept(batch)
    assert left_out == {}
    assert same(loaded, expected)


def test_what_has_no_plain_form_is_left_out_with_the_reason() -> None:
    batch = Custom(T)
    loaded, left_out = kept({"own": batch, "sub": T.detach().as_subclass(Sub), "type": int, "meta": T.to("meta")})
    assert same(loaded["own"], {"image": T, "names": ["a", "b"], "_cache": None, "read": None})
    assert loaded["sub"] is loaded["type"] is loaded["meta"] is None
    assert set(left_out) == {"batch.own.read", "batch.own._cache", "batch.sub", "batch.type", "batch.meta"}
    assert "Sub" in left_out["batch.sub"]
    assert "no plain form" in left_out["batch.own.read"]


def test_a_key_that_has_no_plain_form_is_left_out() -> None:
    loaded, left_out = kept({(1, 2): T, "image": T})
    assert same(loaded, {"image": T})
    assert left_out == {"batch.(1, 2)": "its key is a tuple that has no plain form"}


def test_rows_that_are_made_when_they_are_asked_for_are_each_saved() -> None:
    loaded, left_out = kept([Lazy(), Lazy()])
    rows = [torch.tensor([10 * row, 10 * row + 1]) for row in range(3)]
    assert same(loaded, [rows, rows])
    assert left_out == {}


@pytest.mark.parametrize("value", [b"", 1 << 3000, dt.date(2026, 1, 1)], ids=["bytes", "large", "date"])
def test_what_could_not_be_loaded_is_left_out(value: Any) -> None:
    loaded, left_out = kept({"image": T, "odd": value})
    assert same(loaded, {"image": T, "odd": None})
    assert list(left_out) == ["batch.odd"]
    loaded, left_out = kept({"image": T, value: 1})
    assert same(loaded, {"image": T})
    assert list(left_out) == [f"batch.{value}"]


def test_a_field_that_can_not_be_had_does_not_take_the_others_along() -> None:
    loaded, left_out = kept(Half(T))
    assert same(loaded, {"image": T, "lost": None})
    assert list(left_out) == ["batch.lost"]


def test_what_is_expanded_takes_no_more_room_than_it_has() -> None:
    loaded, left_out = kept(torch.ones(3, 1, 1).expand(3, 1000, 1000))
    assert left_out == {}
    assert loaded.shape == (3, 1000, 1000)
    assert bool((loaded == 1).all())
    assert loaded.untyped_storage().nbytes() == 12


class Unwilling:
    """Nothing about it can be had."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_odd_parts_are_described_as_far_as_that_goes() -> None:
    class Counted(UserDict[Any, Any]):
        def __len__(self) -> int:
            raise RuntimeError("no length")

    class Mute(Exception):  # noqa: N818 - it says nothing
        __str__ = Unwilling.__str__

    odd = {
        "error": Mute(),
        "never": np.timedelta64("NaT"),
        "large": 1 << 9000,
        "counted": Counted(),
        Unwilling(): 1,
        "nested": torch.nested.nested_tensor([torch.ones(2)]),
    }
    told = described({"batch": odd})
    assert told["batch.error"] == {"type": "Mute", "message": "<exception str() failed>"}
    assert told["batch.never"] == {"type": "timedelta64", "message": "NaT"}
    assert told["batch.large"] == {"type": "int", "message": "a number of 9,001 bits"}
    assert told["batch.counted"] == {"type": "Counted", "message": "no length"}
    assert told["batch.<Unwilling>"] == {"type": "int", "value": 1}
    assert told["batch.nested"]["type"] == "Tensor"


def test_what_is_too_deep_is_left_out_and_said_so() -> None:
    deep: Any = T
    for _ in range(30):
        deep = [deep]
    loaded, left_out = kept(deep)
    assert loaded is not None
    [(path, why)] = left_out.items()
    assert path == "batch" + ".0" * 24
    assert "24 steps down" in why


def test_a_mapping_whose_items_can_not_be_had_is_left_out_and_said_so() -> None:
    class Broken(UserDict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("no items today")

    loaded, left_out = kept({"image": T, "broken": Broken()})
    assert same(loaded, {"image": T, "broken": None})
    assert left_out == {"batch.broken": "no items today"}


def test_what_holds_itself_is_saved_once() -> None:
    batch: dict[str, Any] = {"image": T}
    batch["self"] = batch
    loaded, left_out = kept(batch)
    assert same(loaded, {"image": T, "self": None})
    assert left_out == {"batch.self": "it holds itself"}


def test_a_batch_of_very_many_parts_is_cut_and_says_so() -> None:
    loaded, left_out = kept([list(range(9000)), list(range(9000)), T])
    assert len(loaded[0]) == 9000
    assert len(loaded[1]) < 1000
    assert left_out == dict.fromkeys(("batch.1", "batch"), "only the first 10,000 parts of all are kept")


def test_a_tensor_that_the_batch_holds_twice_is_saved_once() -> None:
    loaded, _ = kept([T, T])
    assert loaded[0].data_ptr() == loaded[1].data_ptr()


def test_a_slice_does_not_take_the_whole_tensor_along() -> None:
    whole = torch.zeros(1000, 1000)
    loaded, _ = kept(whole[3])
    assert loaded.untyped_storage().nbytes() == 4000


def test_a_part_that_can_not_be_read_is_left_out() -> None:
    class Broken:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("CUDA error")

    loaded, left_out = kept({"image": T, "broken": Broken()})
    assert same(loaded, {"image": T, "broken": None})
    assert list(left_out) == ["batch.broken"]


class Catching(Steered):
    """Gives commands in the batch that it is told, and notes their batch and loss."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.seen.append((batch, loss.detach().clone()))
        return loss


@pytest.mark.parametrize("point", ["before_optimizer_step", "train_batch_end"])
def test_the_batch_in_flight_is_saved(tmp_path: Path, point: str) -> None:
    model = Catching()
    sent = []
    model.plan[1] = lambda: sent.append(model.give("save_current_batch", {"safe_point": point}, label="odd one"))
    fit(model, tmp_path)
    assert where(model.live, sent[0]) == (point, 1 + (point == "train_batch_end"), 0, 1)
    saved = saved_of(only_directory(tmp_path), "batch")
    assert same(saved["batch"], model.seen[1][0])
    assert saved["parts"]["batch.0"] == {"type": "Tensor", "shape": [4, 3], "dtype": "float32", "device": "cpu"}
    assert saved["left_out"] == {}
    assert saved["format"] == "midrun.capture/1"
    assert (saved["stage"], saved["epoch"], saved["batch_idx"]) == ("train", 0, 1)


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_the_batch_of_another_stage_is_saved_too(tmp_path: Path, stage: str) -> None:
    sent: list[Any] = []

    class Giving(Staged):
        def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            if batch_idx == 1:
                sent.append((run_of(self), give(run_of(self), "save_current_batch")))

        on_test_batch_start = on_predict_batch_start = on_validation_batch_start

    model = Giving()
    getattr(trainer(tmp_path), stage)(model, batches(3))
    done(*sent[0])
    saved = saved_of(only_directory(tmp_path), "batch")
    assert same(saved["batch"], list(batches(3))[1])
    assert saved["stage"] == stage


def test_where_no_batch_is_in_flight_the_command_fails_and_says_so(tmp_path: Path) -> None:
    model = Catching()
    sent: list[Any] = []
    model.plan[1] = lambda: sent.extend(
        model.give(kind, {"safe_point": "train_epoch_end"}) for kind in ("save_current_batch", "save_current_loss")
    )
    fit(model, tmp_path)
    for command, what in zip(sent, ("no batch", "no loss"), strict=True):
        kind, message = failed(model.live, command)
        assert kind == Conflict.__name__
        assert message.startswith(f"{what} is in flight here")


def test_the_loss_in_flight_is_saved(tmp_path: Path) -> None:
    model = Catching()
    sent = []
    model.plan[1] = lambda: sent.append(model.give("save_current_loss"))
    fit(model, tmp_path, accumulate_grad_batches=1)
    done(model.live, sent[0])
    saved = saved_of(only_directory(tmp_path), "loss")
    assert same(saved["loss"], model.seen[1][1])
    assert saved["requires_grad"] is True


def test_the_loss_at_the_end_of_a_batch_is_what_the_batch_has_given(tmp_path: Path) -> None:
    model = Catching()
    model.plan[1] = lambda: model.give("save_current_loss", {"safe_point": "train_batch_end"})
    fit(model, tmp_path)
    assert same(saved_of(only_directory(tmp_path), "loss")["loss"], model.seen[1][1])


@pytest.mark.parametrize("point", ["before_optimizer_step", "train_batch_end"])
def test_with_manual_optimization_the_loss_is_there_at_the_end_of_the_batch(tmp_path: Path, point: str) -> None:
    class Manual(Catching):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return loss

    model = Manual()
    sent: list[Any] = []
    model.plan[1] = lambda: sent.append(model.give("save_current_loss", {"safe_point": point}))
    fit(model, tmp_path)
    if point == "train_batch_end":
        assert same(saved_of(only_directory(tmp_path), "loss")["loss"], model.seen[1][1])
    else:
        assert "with manual optimization at train_batch_end alone" in failed(model.live, sent[0])[1]


def test_gradients_are_saved_by_the_names_of_their_parameters(tmp_path: Path) -> None:
    gradients: dict[str, Tensor] = {}

    class Noting(Catching):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            super().on_before_optimizer_step(optimizer)
            if self.begun == 2:
                gradients.update({name: p.grad.clone() for name, p in self.named_parameters() if p.grad is not None})

    model = Noting()
    model.plan[1] = lambda: model.give("save_partial_gradients")
    fit(model, tmp_path)
    saved = saved_of(only_directory(tmp_path), "gradients")
    assert set(gradients) == {"net.weight", "net.bias"}
    assert same(saved["gradients"], gradients)
    assert saved["without"] == []
    assert saved["loss_scale"] == {}


class Scaled(Catching):
    """With a frozen parameter."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)


def scaled() -> Any:
    """Return the Trainer's options for mixed precision with a GradScaler, on the CPU."""
    return {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=64.0))]}


def test_gradients_that_a_scaler_has_unscaled_are_saved_as_such(tmp_path: Path) -> None:
    model = Scaled()
    model.plan[1] = lambda: model.give("save_partial_gradients")
    fit(model, tmp_path, **scaled())
    saved = saved_of(only_directory(tmp_path), "gradients")
    assert saved["loss_scale"] == {}
    assert saved["without"] == ["frozen"]


@pytest.mark.parametrize("accumulated", [1, 4])
def test_gradients_between_two_steps_are_refused_where_nothing_tells_whether_they_are_scaled(
    tmp_path: Path, accumulated: int
) -> None:
    model = Scaled()
    sent: list[Any] = []
    model.plan[1] = lambda: sent.append(model.give("save_partial_gradients", {"safe_point": "train_batch_end"}))
    fit(model, tmp_path, 4, accumulate_grad_batches=accumulated, **scaled())
    kind, message = failed(model.live, sent[0])
    assert kind == Conflict.__name__
    assert "save them at before_optimizer_step" in message


def test_the_optimizers_are_summed_up(tmp_path: Path) -> None:
    class Adam(Catching):
        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.25, betas=(0.5, 0.75))

    model = Adam()
    model.plan[2] = lambda: model.give("save_optimizer_summary")
    fit(model, tmp_path)
    [path] = (only_directory(tmp_path) / "artifacts/debug").glob("optimizers-*.json")
    summary = json.loads(path.read_text())
    [optimizer] = summary["optimizers"]
    assert optimizer["class"] == "torch.optim.adamw.AdamW"
    [group] = optimizer["groups"]
    assert group["options"]["lr"] == 0.25
    assert group["options"]["betas"] == [0.5, 0.75]
    weight, bias = group["parameters"]
    assert (weight["name"], weight["shape"], bias["name"]) == ("net.weight", [1, 3], "net.bias")
    assert weight["state"]["step"]["value"] == 2.0
    average = weight["state"]["exp_avg"]
    assert average["shape"] == [1, 3]
    assert average["min"] <= average["max"]
    assert average["norm"] > 0
    assert average["not_finite"] == 0


def test_captures_are_in_the_index_with_their_kind_and_label(tmp_path: Path) -> None:
    model = Catching()
    shown = []
    model.plan[1] = lambda: [model.give("save_current_batch", label="a"), model.give("save_current_loss")]
    model.plan[2] = lambda: shown.append(document(model, "artifacts/debug.json"))
    fit(model, tmp_path)
    entries = shown[0]["artifacts"]
    assert [(entry["kind"], entry["label"], entry["id"]) for entry in entries] == [
        ("save_current_loss", None, "loss-epoch=0-step=1.pt"),
        ("save_current_batch", "a", "batch-epoch=0-step=1-a.pt"),
    ]
    assert all(Path(entry["path"]).stat().st_size == entry["size"] for entry in entries)


def test_a_batch_and_a_loss_live_no_longer_for_midrun(tmp_path: Path) -> None:
    """What is watched has nothing more in memory than what is not."""
    alive: list[list[bool]] = []

    class Watching(Catching):
        def __init__(self) -> None:
            super().__init__()
            self.images: list[weakref.ref[Tensor]] = []
            self.losses: list[weakref.ref[Tensor]] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            gc.collect()
            alive.append([ref() is not None for ref in (*self.images, *self.losses)])
            self.images.append(weakref.ref(batch[0]))
            loss = self.loss(batch)
            self.losses.append(weakref.ref(loss))
            return loss

    model = Watching()
    model.plan[1] = lambda: [model.give("save_current_batch"), model.give("save_current_loss")]
    fit(model, tmp_path, 4)
    assert len(alive) == 4
    assert not any(any(each) for each in alive)


def test_a_batch_that_is_a_users_own_object_is_saved_from_a_real_loader(tmp_path: Path) -> None:
    class Own(Catching):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step([batch.image, batch.more], batch_idx)

    data = [Sample(torch.randn(3), f"name {number}", torch.randn(1)) for number in range(8)]

    def collate(rows: list[Sample]) -> Sample:
        return Sample(torch.stack([r.image for r in rows]), "all", torch.stack([r.more for r in rows]))

    model = Own()
    sent = []
    model.plan[1] = lambda: sent.append(model.give("save_current_batch"))
    loader: Any = DataLoader(data, 4, collate_fn=collate)  # type: ignore[arg-type]  # a list is a data set
    trainer(tmp_path, limit_val_batches=0, num_sanity_val_steps=0).fit(model, loader, batches(1))
    assert outcome(model.live, sent[0])["status"] == "succeeded"
    saved = saved_of(only_directory(tmp_path), "batch")
    assert saved["batch"]["name"] == "all"
    assert same(saved["batch"]["image"], torch.stack([row.image for row in data[4:]]))
