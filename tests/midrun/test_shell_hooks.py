"""Shell hooks: scripts that run at Lightning's callbacks, from when they are executable."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor
from torch.utils.data import DataLoader

from midrun.callbacks import ARGUMENTS, UNSERVED
from midrun.command import STEP
from midrun.shell import scripts
from midrun.shell.hooks import FAILING
from midrun.shell.payload import array_of
from midrun.shell.watch import Watch
from tests.midrun.models import Staged, batches, document, left_as_it_was, only_directory, trainer
from tests.midrun.steering import Steered, aside, fit, until

KEEPS = """\
#!/bin/sh
printf '%s %s ' "$MIDRUN_CALLBACK" "$(basename "$(dirname "$0")")" >> "$MIDRUN_RUN_DIR/calls"
tr -d '\\n' < "$1" >> "$MIDRUN_RUN_DIR/calls"
echo >> "$MIDRUN_RUN_DIR/calls"
"""
"""Writes down what it is told, a line for each call."""


def set_of(folder: Path, *paths: str, text: str = KEEPS) -> Path:
    """Return a user's own set of executable scripts, at paths such as `light/on_fit_start.sh`."""
    for path in paths:
        script = folder / path
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        script.chmod(0o755)
    return folder


def calls(directory: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Return what was called: the callback, the kind of script, and the payload."""
    found = []
    for line in (directory / "calls").read_text().splitlines():
        name, kind, payload = line.split(" ", 2)
        found.append((name, kind, json.loads(payload)))
    return found


def log_of(directory: Path) -> str:
    return (directory / "midrun.log").read_text()


def enable(script: Path, text: str) -> None:
    script.write_text(text)
    script.chmod(0o755)


class Recorder(L.Callback):
    """Notes each call that a callback gets, with the names of its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []


def _noting(name: str) -> Callable[..., None]:
    def note(self: Recorder, *args: Any, **kwargs: Any) -> None:
        self.calls.append((name, dict(zip(ARGUMENTS[name], args[2:], strict=False)) | kwargs))

    return note


for _name in ARGUMENTS:
    setattr(Recorder, _name, _noting(_name))


# ---- where and with what they run


def test_each_script_runs_once_where_lightning_calls_its_callback_with_the_same_arguments(tmp_path: Path) -> None:
    source = set_of(tmp_path / "set", *(f"{kind}/{name}.sh" for kind in ("light", "heavy") for name in ARGUMENTS))
    called: set[str] = set()
    for stage in ("fit", "validate", "test", "predict"):
        model, recorder = Staged(hooks_source_dir=str(source)), Recorder()
        root = tmp_path / stage
        training = trainer(root, callbacks=[recorder], num_sanity_val_steps=1, limit_val_batches=2)
        loaders = (batches(2), batches(2)) if stage == "fit" else (batches(2),)
        getattr(training, stage)(model, *loaders)
        if stage == "fit":
            training.save_checkpoint(root / "x.ckpt")
        ran = calls(only_directory(root))
        recorded = [(name, arguments) for name, arguments in recorder.calls if name != "on_save_checkpoint"]
        assert [name for name, kind, _ in ran if kind == "light"] == [name for name, _ in recorded]
        assert [name for name, kind, _ in ran if kind == "heavy"] == [name for name, _ in recorded]
        for (name, _, payload), (_, arguments) in zip(
            [call for call in ran if call[1] == "light"], recorded, strict=True
        ):
            told = payload["arguments"]
            assert [path for path in told if "." not in path] == list(arguments)
            for path, value in arguments.items():
                assert told[path]["type"] == type(value).__name__, (name, path)
                if isinstance(value, int | str):
                    assert told[path]["value"] == value
        called |= {name for name, _ in recorded}
    only_now_and_then = {"on_exception", "on_save_checkpoint", "on_load_checkpoint"}
    assert called == set(ARGUMENTS) - only_now_and_then


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_scripts_run_at_an_exception_and_when_a_checkpoint_is_saved_and_loaded(tmp_path: Path) -> None:
    rare = ("on_exception", "on_save_checkpoint", "on_load_checkpoint")
    source = set_of(tmp_path / "set", *(f"light/{name}.sh" for name in rare))

    class Model(Steered):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            if batch_idx == 1:
                self.trainer.save_checkpoint(tmp_path / "x.ckpt")
                raise RuntimeError("the plan says so")
            return super().training_step(batch, batch_idx)

    model = Model(hooks_source_dir=str(source))
    with pytest.raises(RuntimeError, match="the plan"):
        fit(model, tmp_path / "first")
    ran = calls(only_directory(tmp_path / "first"))
    assert [name for name, *_ in ran] == ["on_save_checkpoint", "on_exception"]
    assert ran[0][2]["arguments"]["checkpoint"]["type"] == "dict"
    assert ran[0][2]["arguments"]["checkpoint.state_dict.net.weight"]["shape"] == [1, 3]
    assert ran[1][2]["arguments"]["exception"] == {"type": "RuntimeError", "message": "the plan says so"}
    whole = Steered(hooks_source_dir=str(source))
    again = trainer(tmp_path / "second", max_epochs=2, num_sanity_val_steps=0, limit_val_batches=0)
    again.fit(whole, batches(2), batches(1), ckpt_path=tmp_path / "x.ckpt")
    assert [name for name, *_ in calls(only_directory(tmp_path / "second"))] == ["on_load_checkpoint"]
    checkpoint = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert not re.search("midrun|Caller", str(checkpoint["callbacks"]))


def test_what_is_told_is_where_training_is_and_what_was_logged(tmp_path: Path) -> None:
    source = set_of(tmp_path / "set", "light/on_train_batch_end.sh")
    model = Steered(hooks_source_dir=str(source))
    fit(model, tmp_path, 3)
    told = [payload for *_, payload in calls(only_directory(tmp_path))]
    assert [payload["global_step"] for payload in told] == [1, 2, 3]
    assert [payload["batch_idx"] for payload in told] == [0, 1, 2]
    assert {(payload["stage"], payload["epoch"], payload["rank"], payload["kind"]) for payload in told} == {
        ("train", 0, 0, "light")
    }
    for payload in told:
        assert payload["callback"] == "on_train_batch_end"
        assert payload["run_dir"] == str(only_directory(tmp_path))
        loss = payload["arguments"]["outputs.loss"]
        assert payload["metrics"] == {"loss": pytest.approx(loss["value"])}
        assert payload["arguments"]["batch.0"] == {
            "type": "Tensor",
            "shape": [4, 3],
            "dtype": "float32",
            "device": "cpu",
        }


@dataclasses.dataclass
class Pair:
    image: Tensor
    name: str


class Odd:
    """A batch of a class of its own."""

    def __init__(self) -> None:
        self.half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
        self.tiny = torch.tensor([0.5]).to(torch.float8_e4m3fn)
        self.turned = torch.ones(2, 3).t()
        self.flags = torch.tensor([True, False])
        self.whole = np.arange(3)
        self.nested = {"a/b": (Pair(torch.zeros(1, 2), "x"), [torch.tensor(7)]), 3: None}
        self.sparse = torch.eye(2).to_sparse()
        self.empty: list[Any] = []
        self.me = self


def test_a_heavy_script_gets_the_tensors_of_any_batch_and_they_are_gone_afterwards(tmp_path: Path) -> None:
    keep = 'cp -r "$(dirname "$1")" "$MIDRUN_RUN_DIR/kept"\necho "$1"'
    source = set_of(tmp_path / "set", "heavy/on_train_batch_start.sh", text=keep)
    loader: DataLoader[Any] = DataLoader([Odd()], batch_size=None, collate_fn=lambda batch: batch)  # type: ignore[arg-type]  # a list will do

    class Model(Steered):
        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch

        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            return batch

        def loss(self, batch: Any) -> Tensor:
            loss: Tensor = self.net(torch.ones(1, 3)).sum()
            return loss

    model = Model(hooks_source_dir=str(source))
    trainer(tmp_path, num_sanity_val_steps=0, limit_val_batches=0).fit(model, loader, batches(1))
    directory = only_directory(tmp_path)
    told = json.loads((directory / "kept" / "payload.json").read_text())["arguments"]
    values: dict[str, Any] = {}
    for path, part in told.items():
        if "file" in part:
            values[path] = np.load(directory / "kept" / Path(part["file"]).name, allow_pickle=False)
            assert str(values[path].dtype) == part["stored_as"]
    assert {path: value.tolist() for path, value in values.items()} == {
        "batch.half": [1.5, -2.0],
        "batch.tiny": [0.5],
        "batch.turned": [[1.0, 1.0]] * 3,
        "batch.flags": [True, False],
        "batch.whole": [0, 1, 2],
        "batch.nested.a/b.0.image": [[0.0, 0.0]],
        "batch.nested.a/b.1.0": 7,
    }
    assert told["batch.half"]["dtype"] == "bfloat16"
    assert told["batch.half"]["stored_as"] == told["batch.tiny"]["stored_as"] == "float32"
    assert "only dense tensors" in told["batch.sparse"]["left_out"]
    assert told["batch.nested.a/b.0.name"] == {"type": "str", "value": "x"}
    assert told["batch.nested.3"] == {"type": "NoneType", "value": None}
    assert told["batch"] == {"type": "Odd"}
    assert told["batch.me"] == {"type": "Odd"}
    [payload] = re.findall(r"hook heavy/on_train_batch_start.sh: (/.*)", log_of(directory))
    assert not Path(payload).parent.exists()


# ---- enabling


def test_no_script_is_executable_at_start_and_each_shows_its_payload(tmp_path: Path) -> None:
    model = Steered()
    fit(model, tmp_path, 1)
    directory = only_directory(tmp_path)
    names = {f"{name}.sh" for name in ARGUMENTS}
    for kind in ("light", "heavy"):
        folder = directory / "hooks" / kind
        assert {path.name for path in folder.iterdir()} == names
        for path in folder.iterdir():
            assert not path.stat().st_mode & 0o111
            assert f'"callback": "{path.stem}"' in path.read_text()
    assert not (directory / "calls").exists()


def test_a_script_runs_from_the_next_callback_on_after_chmod_and_no_more_after_the_next(tmp_path: Path) -> None:
    model = Steered()

    def script() -> Path:
        return model.live.directory / "hooks/light/on_train_batch_end.sh"

    def change(mode: int, count: int) -> Callable[[], None]:
        def act() -> None:
            script().write_text(KEEPS)
            script().chmod(mode)
            until(lambda: len(model.live.shell_hooks.index()["enabled"]) == count)

        return act

    model.plan = {2: change(0o755, 1), 5: change(0o644, 0)}
    left = [callback for callback in fit(model, tmp_path, 8).callbacks if type(callback).__name__ == "Caller"]  # type: ignore[attr-defined]
    assert [payload["batch_idx"] for *_, payload in calls(model.live.directory)] == [2, 3, 4]
    assert left == [], "the Trainer has its callbacks as before"


def test_while_none_is_executable_the_trainer_has_no_more_callbacks_than_its_own(tmp_path: Path) -> None:
    model, seen = Steered(), []
    model.plan[1] = lambda: seen.append(list(model.trainer.callbacks))  # type: ignore[attr-defined]
    fit(model, tmp_path, 2, callbacks=[(own := Recorder())])
    assert [callback for callback in seen[0] if callback is not own] == []


def test_edits_stay_and_what_was_deleted_stays_so_and_the_rest_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scripts.Scripts(tmp_path)
    made.install(None)
    light = tmp_path / "hooks/light"
    (light / "on_fit_start.sh").write_text("echo mine\n")
    (light / "on_fit_end.sh").unlink()
    (light / "on_test_end.sh").chmod(0o755)
    (light / "notes.txt").write_text("mine\n")
    state = json.loads((tmp_path / "midrun-hooks-state.json").read_text())
    assert state["format"] == "midrun.hooks/1"
    assert len(state["made"]) == 2 * len(ARGUMENTS)
    monkeypatch.setattr(scripts, "template", lambda kind, name: f"# newer {kind} {name}\n")
    scripts.Scripts(tmp_path).install(None)
    assert (light / "on_fit_start.sh").read_text() == "echo mine\n"
    assert not (light / "on_fit_end.sh").exists()
    assert (light / "on_test_end.sh").read_text() == "# newer light on_test_end\n"
    assert (light / "on_test_end.sh").stat().st_mode & 0o777 == 0o755
    assert (light / "notes.txt").read_text() == "mine\n"
    (tmp_path / "midrun-hooks-state.json").write_text("not JSON")
    scripts.Scripts(tmp_path).install(None)
    assert (light / "on_fit_start.sh").read_text() == "echo mine\n"


def test_a_set_of_one_s_own_is_copied_with_its_modes_and_never_over_edits(tmp_path: Path) -> None:
    source = set_of(tmp_path / "set", "light/on_fit_start.sh", "heavy/on_fit_end.sh", "lib/common.sh")
    (source / "light" / "on_fit_end.sh").write_text("off\n")
    made = scripts.Scripts(tmp_path / "run")
    made.install(source)
    light = tmp_path / "run/hooks/light"
    assert {name: [path.parent.name for path in paths] for name, paths in made.executable()[0].items()} == {
        "on_fit_start": ["light"],
        "on_fit_end": ["heavy"],
    }
    assert (light / "on_fit_end.sh").read_text() == "off\n"
    assert (tmp_path / "run/hooks/lib/common.sh").stat().st_mode & 0o777 == 0o755
    assert (light / "on_test_end.sh").exists(), "what the set lacks is made"
    (light / "on_fit_start.sh").write_text("echo mine\n")
    made.install(source)
    assert (light / "on_fit_start.sh").read_text() == "echo mine\n"


def test_a_set_that_is_not_there_is_told_and_training_goes_on(tmp_path: Path) -> None:
    model = Steered(hooks_source_dir=str(tmp_path / "nowhere"))
    fit(model, tmp_path, 1)
    assert "hooks_source_dir" in log_of(only_directory(tmp_path))
    with pytest.raises(RuntimeError, match="hooks_source_dir"):
        fit(Steered(hooks_source_dir=str(tmp_path / "nowhere"), inspection_strict=True), tmp_path / "strict", 1)


def test_without_hooks_nothing_is_made(tmp_path: Path) -> None:
    model = Steered(hooks_enabled=False)
    fit(model, tmp_path, 1)
    assert not (only_directory(tmp_path) / "hooks").exists()
    assert model.live.services["hooks"].reason == "hooks_enabled=False"


# ---- whatever they do

ODD: dict[str, tuple[str, str]] = {
    "fails": ("echo before; exit 3", "failed: exit status 3"),
    "has no interpreter": ("#!/nonexistent/python\nx", "names an interpreter that is not there: #!/nonexistent/python"),
    "prints what is no UTF-8": ("printf 'a\\377b\\n'", r"a\xffb"),
    "prints a line without an end": ("printf half", ": half"),
    "never ends": ("echo waiting; sleep 1000", "it was ended after 1.0 s: hooks_timeout_s"),
    "does not want to end": ("trap '' TERM INT HUP; sleep 1000 & wait; sleep 1000", "it was ended after"),
    "leaves a daemon": ("sleep 1000 & echo left $!", "left "),
    "has a grandchild that keeps its output": ("setsid sleep 1000 & sleep 1000", "it was ended after"),
    "closes its output": ("exec >&- 2>&-; sleep 0.1; exit 4", "failed: exit status 4"),
    "prints very much": ("head -c 100000000 /dev/zero | tr '\\0' x", "bytes more"),
    "deletes its own directory": ('rm -rf "$(dirname "$1")" "$(dirname "$0")"; echo gone', "gone"),
    "is killed": ("kill -9 $$", "it was ended by SIGKILL"),
    "is binary rubbish": ("\x00\x01\x02", "failed"),
}


@pytest.mark.parametrize("what", ODD)
def test_training_goes_on_whatever_a_script_does_and_the_log_says_what_it_was(what: str, tmp_path: Path) -> None:
    text, told = ODD[what]
    source = set_of(tmp_path / "set", "light/on_train_batch_end.sh", text=text)
    with left_as_it_was():
        model = Steered(hooks_source_dir=str(source), hooks_timeout_s=1)
        fitting = fit(model, tmp_path, 2)
        log = log_of(model.live.directory)
        for left in re.findall(r"left (\d+)", log):
            os.kill(int(left), 9)
        del model.live
    assert (fitting.state.status, fitting.global_step) == ("finished", 2)
    assert told in log
    assert len(log) < 5_000_000


def test_a_script_that_fails_again_and_again_is_said_to_and_runs_all_the_same(tmp_path: Path) -> None:
    model, seen = Steered(), []
    script = "hooks/light/on_train_batch_end.sh"

    def begin() -> None:
        enable(model.live.directory / script, "exit 1")
        until(lambda: model.live.shell_hooks.index()["enabled"])

    model.plan = {
        0: begin,
        7: lambda: seen.append(document(model, "hooks/index.json")),
        8: lambda: (model.live.directory / script).write_text("exit 0"),
        9: lambda: seen.append(document(model, "hooks/index.json")),
    }
    fit(model, tmp_path, 10)
    first, second = (index["scripts"]["light/on_train_batch_end.sh"] for index in seen)
    assert first["failures_in_a_row"] == first["failures"] == first["runs"] >= FAILING
    assert (first["is_failing"], first["trouble"]) == (True, "exit status 1")
    assert (second["is_failing"], second["failures_in_a_row"], second["trouble"]) == (False, 0, None)
    assert second["runs"] > first["runs"]
    assert log_of(model.live.directory).count(f"has failed {FAILING} times in a row; it goes on being run") == 1


def test_a_script_that_hangs_is_said_to_with_the_way_out_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midrun.shell.hooks._LONG", 0.0)
    source = set_of(tmp_path / "set", "light/on_train_batch_end.sh", text="sleep 1000")
    model = Steered(hooks_source_dir=str(source))
    told = []

    def running() -> int | None:
        found = model.live.shell_hooks.index()["running"] if hasattr(model, "live") else None
        assert found is None or found["script"] == "light/on_train_batch_end.sh"
        return None if found is None else found["pid"]

    def act() -> None:
        for _ in range(2):
            pid = until(running)
            told.extend(document(model, "state/index.json")["notices"])
            os.killpg(pid, 9)
            until(lambda pid=pid: running() != pid)  # type: ignore[misc]  # a default argument

    with aside(model, act):
        fit(model, tmp_path, 2)
    assert len(told) == 2
    words = "training waits for the hook light/on_train_batch_end.sh since ..:..:..; to end that script: kill -- -"
    assert re.match(words, told[0])
    assert model.live.shell_hooks.index()["running"] is None


@pytest.mark.usefixtures("signals")
def test_sigterm_leaves_a_script_a_moment_to_end_and_then_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midrun.shell.execution._LAST_WORDS", 0.3)
    source = set_of(tmp_path / "set", "light/on_train_batch_end.sh", text="kill -TERM $PPID; sleep 1000")
    model = Steered(hooks_source_dir=str(source))
    with pytest.raises(SIGTERMException):
        fit(model, tmp_path, 2)
    assert "s: the run was told to end" in log_of(model.live.directory)


def test_a_script_that_has_become_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    heavy = "hooks/heavy/on_train_batch_end.sh"
    source = set_of(tmp_path / "set", "heavy/on_train_batch_end.sh", text="exit 0")
    set_of(source, "light/on_train_batch_end.sh", text=f"rm {heavy}; mkfifo {heavy}; chmod +x {heavy}")
    model = Steered(hooks_source_dir=str(source))
    fit(model, tmp_path, 1)
    assert "it is no file any more" in log_of(model.live.directory)


def test_a_script_with_the_line_ends_of_windows_is_told_so(tmp_path: Path) -> None:
    source = set_of(tmp_path / "set", "light/on_train_batch_end.sh", text="#!/bin/sh\r\necho hi\r\n")
    model = Steered(hooks_source_dir=str(source))
    fit(model, tmp_path, 1)
    assert "its lines end as those of Windows do" in log_of(model.live.directory)


def test_an_executable_script_that_no_callback_is_called_by_is_told(tmp_path: Path, warned: list[str]) -> None:
    source = set_of(tmp_path / "set", "light/on_trian_batch_end.sh", "light/helper.sh")
    fit(Steered(hooks_source_dir=str(source)), tmp_path, 1)
    known = [text for text in warned if "never runs" in text]
    assert sorted(known) == [
        "hook light/helper.sh never runs: no callback has that name; docs/hooks.md says which there are",
        "hook light/on_trian_batch_end.sh never runs: no callback has that name; did you mean on_train_batch_end.sh?",
    ]


def test_a_command_that_a_script_drops_is_done_at_the_next_safe_point_of_its_callback(tmp_path: Path) -> None:
    drop = """\
echo '{"kind": "set_learning_rate", "args": {"value": 0.5}}' > "$MIDRUN_SPOOL/.lr"
mv "$MIDRUN_SPOOL/.lr" "$MIDRUN_SPOOL/lr.json"
chmod -x "$0"
"""
    source = set_of(tmp_path / "set", "light/on_before_optimizer_step.sh", text=drop)
    model = Steered(hooks_source_dir=str(source))
    fitting = fit(model, tmp_path, 3)
    [record] = [record for record in model.live.queue.table.newest if record["id"] == "lr"]
    assert record["status"] == "succeeded"
    assert record["place"] is not None
    assert (record["place"]["safe_point"], record["place"]["global_step"]) == (STEP, 0)
    assert fitting.optimizers[0].param_groups[0]["lr"] == 0.5


def test_the_watch_ends_although_a_process_that_was_forked_meanwhile_lives(tmp_path: Path) -> None:
    looks: list[int] = []
    with left_as_it_was():
        watch = Watch([tmp_path], lambda: looks.append(1))
        with subprocess.Popen(["sleep", "60"], pass_fds=(watch._bell, watch._changes)) as child:
            (tmp_path / "new").touch()
            until(lambda: looks)
            began = time.monotonic()
            watch.stop(20)
            child.kill()
    assert time.monotonic() - began < 10


def test_a_watch_that_has_ended_before_it_is_woken_writes_to_no_file_that_is_closed(tmp_path: Path) -> None:
    class Late(Watch):
        def wake(self) -> None:
            (tmp_path / "new").touch()
            self._thread.join(20)
            super().wake()

    with left_as_it_was():
        Late([tmp_path], lambda: None).stop(20)


def test_many_callbacks_leave_nothing_behind(tmp_path: Path, times: Callable[[int], int]) -> None:
    source = set_of(
        tmp_path / "set", "light/on_train_batch_end.sh", "heavy/on_train_batch_start.sh", text="#!/bin/true"
    )
    with left_as_it_was():
        model = Steered(hooks_source_dir=str(source))
        fit(model, tmp_path, times(5_000) // 2)
        runs = Counter({name: script["runs"] for name, script in model.live.shell_hooks.index()["scripts"].items()})
        del model.live
    assert set(runs.values()) == {times(5_000) // 2}


def test_the_page_on_hooks_names_each_callback_that_has_no_script(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text()
    callbacks = {name for name in vars(L.Callback) if not name.startswith("_") and callable(getattr(L.Callback, name))}
    assert callbacks == {*ARGUMENTS, *UNSERVED}
    assert all(f"`{name}`" in page for name in UNSERVED)


def test_a_tensor_for_which_there_is_no_room_says_how_much_is_left() -> None:
    for value in (torch.zeros(100), np.zeros(100, dtype=np.float32)):
        with pytest.raises(ValueError, match="it has 400 bytes, and 399 are left of the 1073741824 that are saved"):
            array_of(value, 399)
        assert array_of(value, 400).nbytes == 400
