"""Profiles: of some steps by torch, and Lightning's profilers, set while training goes on."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, PyTorchProfiler, SimpleProfiler

from midrun.fs.later import Later
from midrun.run import Run
from tests.midrun.models import settled
from tests.midrun.steering import Steered, done, failed, fit, outcome

KINDS = {
    "none": PassThroughProfiler,
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": PyTorchProfiler,
}


def test_some_batches_are_profiled_into_a_trace_and_a_table(tmp_path: Path) -> None:
    model, sent = Steered(), []
    model.plan[2] = lambda: sent.append(model.give("profile", steps=3, warmup=2, memory=True, shapes=True, label="why"))
    fit(model, tmp_path, 12)
    artifact = done(model.live, sent[0])["artifact"]
    folder = Path(artifact["path"])
    assert folder.name == "profile-epoch=0-step=8-why"  # The end of the third batch, two more, and three.
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert sum("ProfilerStep" in str(event.get("name")) for event in events) >= 3
    assert any("Input Dims" in event.get("args", {}) for event in events)
    assert "aten::" in (folder / "table.txt").read_text()


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_a_second_profile_at_the_same_time_is_refused(warmup: int, tmp_path: Path) -> None:
    model, sent = Steered(), []

    def ask() -> None:
        sent.append(model.give("profile", steps=6, warmup=warmup))

    model.plan.update(dict.fromkeys(range(2, 6), ask))
    model.plan[14] = ask
    fit(model, tmp_path, 24)
    done(model.live, sent[0])
    for second in sent[1:4]:
        kind, words = failed(model.live, second)
        assert kind == "Conflict"
        assert words.startswith("torch makes one profile at a time")
    done(model.live, sent[4])


def test_a_profile_and_lightnings_profiler_that_is_torchs_exclude_each_other(tmp_path: Path) -> None:
    model, sent = Steered(), []
    model.plan[2] = lambda: sent.append(model.give("profile", steps=3))
    model.plan[3] = lambda: sent.append(model.give("set_lightning_profiler", profiler="pytorch"))
    model.plan[10] = lambda: sent.append(model.give("set_lightning_profiler", profiler="pytorch"))
    model.plan[12] = lambda: sent.append(model.give("profile", steps=3))
    fit(model, tmp_path, 24)
    done(model.live, sent[0])
    assert failed(model.live, sent[1])[0] == "Conflict"
    done(model.live, sent[2])
    assert failed(model.live, sent[3])[0] == "Conflict"


def test_a_profile_of_the_models_own_is_left_alone_also_before_it_begins(tmp_path: Path) -> None:
    model, sent = Steered(), []
    own = [torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])]
    model.plan[2] = lambda: sent.append(model.give("profile", steps=2, warmup=0))
    model.plan[6] = own.clear
    model.plan[8] = lambda: sent.append(model.give("profile", steps=2, warmup=0))
    fit(model, tmp_path, 24)
    assert failed(model.live, sent[0])[0] == "Conflict"
    done(model.live, sent[1])


def test_a_profile_that_ends_while_it_warms_up_leaves_nothing_behind(tmp_path: Path) -> None:
    for number in range(2):
        model, sent = Steered(), []
        model.plan[2] = lambda: sent.append(model.give("profile", steps=2, warmup=50))  # noqa: B023 - called in this turn
        fit(model, tmp_path / str(number), 6)
        assert failed(model.live, sent[0])[0] == "Conflict"
        assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]  # nothing else tells


def test_a_profile_that_training_does_not_outlast_says_so_and_profiles_no_more(tmp_path: Path) -> None:
    model, sent = Steered(), []
    model.plan[2] = lambda: sent.append(model.give("profile", steps=50))
    fit(model, tmp_path, 6)
    assert failed(model.live, sent[0]) == ("Conflict", "the session has ended before it was done")
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]  # nothing else tells


def test_a_profile_is_executing_until_it_is_done(tmp_path: Path) -> None:
    model, sent, seen = Steered(), [], []
    model.plan[2] = lambda: sent.append(model.give("profile", steps=3, warmup=0))
    model.plan[4] = lambda: seen.append(sent[0].status)
    fit(model, tmp_path, 12)
    assert seen == ["executing"]


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("names", [["simple", "none"], ["advanced", "simple"], ["pytorch", "none"], ["pytorch"] * 3])
def test_lightnings_profiler_is_set_while_training_goes_on(names: list[str], automatic: bool, tmp_path: Path) -> None:
    class Manual(Steered):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.automatic_optimization:
                return super().training_step(batch, batch_idx)
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
            return None

    model, sent = Manual(), []

    def put(name: str) -> None:
        sent.append(model.give("set_lightning_profiler", profiler=name))

    model.automatic_optimization = automatic
    for number, name in enumerate(names):
        model.plan[3 + 6 * number] = partial(put, name)
    fitting = fit(model, tmp_path, 30)
    befores = ["none", *names]
    for command, old, new in zip(sent, befores, names, strict=False):
        result = done(model.live, command)
        assert result["changes"] == [{"what": "lightning_profiler", "old": old, "new": new}]
        if old != "none":
            assert Path(result["artifact"]["path"]).stat().st_size > 100
    assert type(fitting.profiler) is KINDS[names[-1]]  # type: ignore[attr-defined]  # set by a connector


@pytest.mark.parametrize("name", ["simple", "advanced", "pytorch"])
def test_what_lightnings_profiler_has_found_is_a_live_file(name: str, tmp_path: Path) -> None:
    model: Any = Steered()
    asked: list[Later] = []
    read: list[str] = []

    def file(run: Run) -> Any:
        leaf = run.root.model.entry("lightning-profiler-summary.txt")
        assert leaf is not None
        return leaf.show()  # type: ignore[union-attr]  # it is a file

    model.plan[2] = lambda: read.append(file(model.live))
    model.plan[3] = lambda: model.give("set_lightning_profiler", profiler=name)
    model.plan[20] = lambda: asked.append(file(model.live))
    model.plan[23] = lambda: read.append(settled(asked[0]))
    model.plan[25] = lambda: asked.append(file(model.live))
    model.plan[28] = lambda: read.append(settled(asked[1]))
    fit(model, tmp_path, 30)
    assert read[0].startswith("no Lightning profiler is set")
    assert "run_training_batch" in read[1]
    assert ("a new one begins" in read[1]) == (name == "pytorch")
    assert len(read) == 3


def test_a_profiler_of_the_users_own_is_named_and_its_findings_are_kept(tmp_path: Path) -> None:
    class Own(SimpleProfiler):
        pass

    model, sent = Steered(), []
    model.plan[3] = lambda: sent.append(model.give("set_lightning_profiler", profiler="none"))
    fit(model, tmp_path, 6, profiler=Own())
    record = outcome(model.live, sent[0])
    assert record["result"] is not None
    assert record["result"]["changes"][0]["old"].endswith("Own")
    assert "run_training_batch" in Path(record["result"]["artifact"]["path"]).read_text()
