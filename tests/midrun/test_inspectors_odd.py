"""Views of the model where something is odd: strategies, holds, compilers, and modules that misbehave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from midrun.fs.faults import Refused
from midrun.run import Run
from tests.midrun.models import Watched, batches, read, run_of, trainer
from tests.midrun.shapes import Compiled, Forward, Shape, StepOnly
from tests.midrun.steering import Steered, aside, done, failed, fit, give, held, outcome, until, where
from tests.midrun.test_inspectors import KINDS
from tests.midrun.test_inspectors import fit as fit_shape


class FSDPStrategy(SingleDeviceStrategy):
    """A strategy with the name of one that shards the parameters."""


class Wrapped(StepOnly):
    """A model with a parameter that wraps others, as those of a sharded model do."""

    def build(self) -> None:
        super().build()
        self.sharded = nn.Parameter(TwoTensor(torch.ones(2), torch.ones(2)), requires_grad=False)  # type: ignore[no-untyped-call]  # torch's own


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (StepOnly, {"strategy": FSDPStrategy}, "FSDPStrategy shards the parameters"),
        (Wrapped, {}, "sharded is a TwoTensor"),
    ],
)
def test_a_pass_of_one_rank_alone_is_refused_where_the_others_would_have_to_join(
    model: type[Shape], options: dict[str, Any], words: str, kind: str, tmp_path: Path
) -> None:
    sent: list[Any] = []
    said: list[str] = []

    def ask(run: Run) -> None:
        sent.append(give(run, kind))
        for path in ("model/summary-live.txt", "model/graph.dot"):
            with pytest.raises(Refused) as caught:
                read(run.loop.module, path)
            said.append(str(caught.value))

    made = {name: kind(accelerator=CPUAccelerator()) for name, kind in options.items()}
    run = fit_shape(model(), tmp_path, {2: ask}, **made, **({"accelerator": "auto"} if made else {}))
    error, message = failed(run, sent[0])
    assert error == "Refused"
    assert message.startswith(words)
    assert all(text.startswith(words) for text in said)
    assert len(said) == 2


def test_in_the_hold_after_a_failed_backward_the_failed_loss_is_drawn_without_a_pass(tmp_path: Path) -> None:
    passes: list[int] = []

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(*_: Any) -> Any:
            raise ArithmeticError("on purpose")

    class Model(Watched):
        def loss(self, batch: list[Tensor]) -> Tensor:
            passes.append(1)
            out: Tensor = Failing.apply(super().loss(batch))  # type: ignore[no-untyped-call]  # torch's own
            return out

    model = Model()
    drawn: list[str] = []
    runs: list[Run] = []

    def act() -> None:
        until(lambda: model.midrun.run is not None and model.midrun.run.holds.exception is not None)
        run = run_of(model)
        runs.append(run)
        waits = give(run, "torchview_capture")
        sent = give(run, "torchviz_capture")
        drawn.append(Path(done(run, sent)["artifact"]["path"]).read_text())
        assert waits.status == "queued"
        run.holds.release_exception("test")

    with aside(model, act), pytest.raises(ArithmeticError):
        trainer(tmp_path).fit(model, batches(3))
    assert "FailingBackward" in drawn[0]
    assert "net.weight" in drawn[0]
    assert passes == [1]


def test_a_command_waits_while_the_run_is_held_and_is_done_behind_it(tmp_path: Path) -> None:
    model = Steered()
    sent: list[Any] = []
    model.plan[2] = lambda: model.give("hold")

    def act() -> None:
        active = held(model)
        run = run_of(model)
        sent.append(give(run, "torchinfo_capture"))
        assert sent[0].status == "queued"
        assert active is not None
        run.holds.release("test")

    with aside(model, act):
        fit(model, tmp_path, 8)
    assert outcome(model.live, sent[0])["status"] == "succeeded"


def test_nothing_is_compiled_anew_for_a_view(tmp_path: Path) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    fit_shape(Compiled(), tmp_path / "plain", {})
    plain = counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    counters.clear()
    run = fit_shape(
        Compiled(), tmp_path, {number: lambda run: [give(run, kind) for kind in KINDS] for number in range(5)}
    )
    assert counters["stats"]["unique_graphs"] == plain >= 1
    assert run.inspection.last.keys() == {kind.removesuffix("_capture") for kind in KINDS}


class Restless(nn.Linear):
    """A module that changes its weight whenever it is called, in eval mode too."""

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(1.0)
        return super().forward(inputs)


class Writing(nn.Linear):
    """A module that fails in eval mode."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            raise ArithmeticError("only for training")
        return super().forward(inputs)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (Restless, "the model's forward has changed a parameter in place, also in eval mode"),
        (Writing, "only for training"),
    ],
)
@pytest.mark.parametrize("kind", ["torchinfo_capture", "torchviz_capture"])
def test_a_module_that_spoils_a_view_fails_the_command_and_training_goes_on(
    net: type[nn.Linear], words: str, kind: str, tmp_path: Path
) -> None:
    class Model(StepOnly):
        def build(self) -> None:
            self.net = net(3, 1)

    sent: list[Any] = []
    run = fit_shape(Model(), tmp_path, {2: lambda run: sent.append(give(run, kind))})
    assert words in failed(run, sent[0])[1]
    assert run.sample.global_step == 8


def test_several_views_at_once_are_each_of_a_whole_pass(tmp_path: Path) -> None:
    asked: list[Any] = []

    def ask(run: Run) -> None:
        asked.extend(give(run, kind) for kind in KINDS)

    run = fit_shape(Forward(), tmp_path, {2: ask, 3: ask})
    texts = [Path(done(run, sent)["artifact"]["path"]).read_text() for sent in asked]
    assert len(texts) == 8
    assert all("inear" in text or "Addmm" in text for text in texts)
    assert nn.Module.__call__.__name__ == "_wrapped_call_impl"


def test_a_tool_that_is_loaded_while_a_pass_is_watched_keeps_nothing_of_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchview"]:
        monkeypatch.delitem(sys.modules, name)
    asking: dict[int, Any] = {
        2: lambda run: give(run, "torchinfo_capture"),
        3: lambda run: give(run, "torchview_capture"),
    }
    fit_shape(Forward(), tmp_path, asking)
    assert "torchview" in sys.modules
    assert nn.Module.__call__.__name__ == "_wrapped_call_impl"


def test_views_that_take_long_are_made_batch_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midrun.inspectors._MOST_SECONDS", 0.0)
    asked: list[Any] = []
    run = fit_shape(
        Forward(), tmp_path, {1: lambda run: asked.extend(give(run, "torchinfo_capture") for _ in range(4))}
    )
    assert [where(run, sent)[1] for sent in asked] == [2, 3, 4, 5]
