"""Memory: of the host as the kernel has it, and what is said where there is no CUDA device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from midrun.fs.faults import Refused
from midrun.memory import host
from tests.midrun.models import document
from tests.midrun.steering import Steered, failed, fit
from tests.processes import wait_for

NO_CUDA = "built without CUDA" if torch.version.cuda is None else "no CUDA device"


def test_the_host_says_what_the_process_and_those_below_it_hold() -> None:
    code = "import sys; held = bytearray(50_000_000); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        memory = host()
        own = next(each for each in memory["children"] if each["pid"] == child.pid)
        child.stdin.close()
    assert own["resident"] > 50_000_000
    assert own["name"].startswith("python")
    assert 10_000_000 < memory["resident"] < 1.1 * memory["largest"]  # The kernel counts the two apart.
    assert memory["open_files"] >= 3
    assert memory["open_files_limit"] > memory["open_files"]
    assert memory["threads"] >= 1
    assert memory["available"] is not None


def test_a_process_that_ends_while_it_is_looked_at_is_left_out() -> None:
    with subprocess.Popen(["true"]) as child:
        wait_for(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "its end")
        host()
    assert all(each["pid"] != child.pid for each in host()["children"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_cuda_device_each_view_says_why_there_is_nothing(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    model = Steered()
    paths = ("state/cuda/memory.json", "debug/cuda-memory/snapshot.json", "debug/cuda-memory/history.json")
    model.plan[1] = lambda: shown.extend(document(model, path) for path in paths)
    fit(model, tmp_path, 3)
    memory, snapshot, history = shown
    assert memory["available"] is snapshot["available"] is history["available"] is False
    assert NO_CUDA in memory["why"]
    assert NO_CUDA in snapshot["warning"]
    assert memory["devices"] == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_cuda_device_its_commands_are_refused(tmp_path: Path) -> None:
    model, sent, refused = Steered(), [], []

    def ask() -> None:
        sent.append(model.give("cuda_memory_snapshot"))
        with pytest.raises(Refused, match="there is no CUDA memory") as caught:
            model.give("cuda_memory_history", enabled=True)
        refused.append(caught.value)

    model.plan[1] = ask
    fit(model, tmp_path, 3)
    assert failed(model.live, sent[0])[0] == "Refused"
    assert len(refused) == 1


def test_a_run_shows_its_hosts_memory(tmp_path: Path) -> None:
    shown = []
    model = Steered()
    model.plan[1] = lambda: shown.append(document(model, "state/memory.json"))
    fit(model, tmp_path, 3)
    assert shown[0]["resident"] > 10_000_000
