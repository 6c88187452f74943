"""Views of the model: what they show, for models of many shapes, and that nothing is left of them."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from midrun.inspectors import INSPECTORS
from midrun.run import Run
from tests.midrun.models import document, read, run_of, settled, trainer
from tests.midrun.shapes import DRAWN, Chained, Forward, Functional, Shape
from tests.midrun.steering import failed, give, outcome

KINDS = [f"{inspector.name}_capture" for inspector in INSPECTORS]
DOT = {"torchview_capture", "torchviz_capture"}


def fit(model: Shape, root: Path, plan: dict[int, Callable[[Run], object]], **options: Any) -> Run:
    """Train the model for a batch each, doing what is planned at the start of a batch, and return its run."""
    runs: list[Run] = []

    class Planned(type(model)):  # type: ignore[misc]  # its class is known at run time alone
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            runs[:] = [run_of(self)]
            plan.get(self.trainer.fit_loop.epoch_loop.total_batch_idx, str)(runs[0])

    model.__class__ = Planned
    trainer(root, **options).fit(model, model.data())
    return runs[0]


def captured(model: Shape, root: Path, kind: str, **args: Any) -> str:
    """Return the text of a capture that is asked for in the third batch."""
    sent: list[Any] = []
    run = fit(model, root, {2: lambda run: sent.append(give(run, kind, **args))})
    record = outcome(run, sent[0])
    assert record["status"] == "succeeded", record
    assert record["result"] is not None
    return Path(record["result"]["artifact"]["path"]).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", DRAWN)
def test_a_model_of_each_shape_is_drawn(shape: str, kind: str, tmp_path: Path) -> None:
    if (shape, kind) == ("Dataclasses", "torchview_capture"):
        return  # The next test has what is said of it.
    text = captured(DRAWN[shape](), tmp_path, kind)
    assert text.count("digraph") == (kind in DOT)
    assert ("->" in text) == (kind in DOT)
    assert any(word in text for word in ("Linear", "linear", "AddmmBackward"))


def test_what_one_network_makes_for_another_flows_between_them_in_one_graph(tmp_path: Path) -> None:
    text = captured(Chained(), tmp_path, "torchview_capture", depth=1)
    kinds = dict(re.findall(r"^\t(\d+) \[label=<.*?<TD[^>]*>([\w-]+)", text, re.MULTILINE | re.DOTALL))
    edges = [(kinds[start], kinds[end]) for start, end in re.findall(r"^\t(\d+) -> (\d+)", text, re.MULTILINE)]
    flow = ["input-tensor", "Linear", "ReLU", "Linear", "output-tensor"]
    assert edges == list(pairwise(flow))


def test_a_graph_of_which_torchview_sees_nothing_is_refused(tmp_path: Path) -> None:
    sent: list[Any] = []
    run = fit(DRAWN["Dataclasses"](), tmp_path, {2: lambda run: sent.append(give(run, "torchview_capture"))})
    assert failed(run, sent[0]) == (
        "Refused",
        "torchview follows the tensors in tuples, lists and dictionaries, and found none in what net is given (Batch)",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_calls_no_module_says_that_there_is_nothing_to_repeat(kind: str, tmp_path: Path) -> None:
    sent: list[Any] = []
    run = fit(Functional(), tmp_path, {2: lambda run: sent.append(give(run, kind))})
    kind_of_error, words = failed(run, sent[0])
    assert kind_of_error == "Refused"
    assert words.startswith("training_step has called none of the model's modules that have parameters")


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Return all that a pass could leave behind."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    states = [torch.get_rng_state().numpy().tobytes(), repr(random.getstate()), repr(np.random.get_state())]  # noqa: NPY002 - it is that state
    return {
        "tensors": {name: tensor.detach().clone().tolist() for name, tensor in tensors.items()},
        "gradients": {name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
        "hooks": [[len(getattr(m, n)) for n in vars(m) if n.endswith("_hooks")] for m in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "random": hashlib.sha256(repr(states).encode()).hexdigest(),
        "call": nn.Module.__call__,
    }


@pytest.mark.parametrize("shape", DRAWN)
def test_two_runs_of_which_one_is_inspected_all_the_time_end_alike(shape: str, tmp_path: Path) -> None:
    ends = []
    for is_inspected in (False, True):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - as above
        sent: list[Any] = []

        def ask(run: Run) -> None:
            sent.extend(give(run, kind) for kind in KINDS)  # noqa: B023 - called within this turn

        model = DRAWN[shape]()
        run = fit(model, tmp_path / str(is_inspected), dict.fromkeys(range(8), ask) if is_inspected else {})
        made = [outcome(run, command)["status"] for command in sent]
        assert made.count("succeeded") >= (20 if is_inspected else 0)
        ends.append(fingerprint(model))
    plain, inspected = ends
    assert inspected == plain


def test_what_a_pass_changes_of_the_modules_attributes_is_put_back(tmp_path: Path) -> None:
    model = Forward()
    run = fit(model, tmp_path, {2: lambda run: give(run, "torchinfo_capture")})
    assert (model.passes, model.seen) == (8, [4] * 8)
    assert "mean" in run.sample.metrics


def test_a_command_that_comes_in_the_middle_of_a_batch_shows_the_next_one(tmp_path: Path) -> None:
    sent: list[Any] = []
    run = fit(Forward(), tmp_path, {2: lambda run: sent.append(give(run, "torchinfo_capture", label="here"))})
    place = outcome(run, sent[0])["place"]
    assert place is not None
    assert (place["safe_point"], place["batch"], place["global_step"]) == ("before_optimizer_step", 3, 3)


def test_the_last_capture_of_each_inspector_is_a_link_below_the_model(tmp_path: Path) -> None:
    shown: list[Any] = []

    def look(run: Run) -> None:
        shown.append(document(run.loop.module, "model/inspectors/index.json"))
        shown.append(dict(run.root.model.inspectors))

    run = fit(Forward(), tmp_path, {2: lambda run: give(run, "torchview_capture"), 5: look})
    index, members = shown
    last = index["inspectors"]["torchview"]["last"]
    assert members["torchview.dot"].target() == last["path"]
    assert index["inspectors"]["torchview"]["installed"] is True
    assert index["inspectors"]["torchlens"]["last"] is None
    assert index["refused"] is None
    assert run.inspection.last.keys() == {"torchview"}


@pytest.mark.parametrize(("path", "words"), [("model/summary-live.txt", "Mult-Adds"), ("model/graph.dot", "digraph")])
def test_a_live_file_is_made_at_the_next_optimizer_step_once_for_all_who_read_it(
    path: str, words: str, tmp_path: Path
) -> None:
    asked: list[Any] = []
    drawn: list[Any] = []
    fit(
        Forward(),
        tmp_path,
        {
            2: lambda run: asked.extend([node(run, path).show(), node(run, path).show()]),
            5: lambda _: drawn.append(settled(asked[0])),
        },
    )
    assert asked[0] is asked[1]
    assert words in drawn[0]


def node(run: Run, path: str) -> Any:
    """Return a file of a run's model."""
    found = run.root.model.entry(path.removeprefix("model/"))
    assert found is not None
    return found


def test_an_inspector_that_is_not_installed_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchinfo", None)
    sent: list[Any] = []
    run = fit(Forward(), tmp_path, {2: lambda run: sent.append(give(run, "torchinfo_capture"))})
    kind, words = failed(run, sent[0])
    assert kind == "Refused"
    assert words.endswith("pip install 'midrun[inspectors]'")


def test_a_live_file_says_at_once_that_no_optimizer_step_is_coming(tmp_path: Path) -> None:
    said: list[str] = []

    class Testing(Forward):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            with pytest.raises(Exception, match="nothing is being trained") as caught:
                read(self, "model/graph.dot")
            said.append(type(caught.value).__name__)

    model = Testing()
    trainer(tmp_path).test(model, model.data(), verbose=False)
    assert set(said) == {"Conflict"}
