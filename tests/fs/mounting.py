"""What the tests of the mount share: a mounted tree, and programs that use it.

No test touches a file of a mount in its own process: a mount that does not answer hangs whoever does.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midrun.fs import mounts
from tests.processes import PATIENCE, output, sh, start, wait_for

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do what this test does")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "tests.fs.mounted"


def report(what: str, value: float) -> None:
    """Note a figure; -rP shows it."""
    sys.stdout.write(f"{what}: {value:.3f}\n")


def shell(script: str, *arguments: str | Path, program: str = "bash") -> subprocess.CompletedProcess[str]:
    """Run a shell script, with arguments from $1 on."""
    return sh(program, "-c", script, program, *arguments)


def python(script: str, *arguments: str | Path, seconds: float = PATIENCE) -> str:
    """Return what a Python script prints, with arguments from sys.argv[1] on."""
    return output(sys.executable, "-I", "-c", script, *arguments, seconds=seconds)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process if it still runs, and close its pipes."""
    process.kill()
    process.wait(PATIENCE)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def is_whole(content: str) -> bool:
    """Whether a text that changes its length was read as it was at one moment."""
    parts = re.fullmatch(r"(\d+):(a*):\1(b*)\n", content)
    if parts is None:
        return False
    longest = 3_000_017 if parts[3] else 50
    return len(parts[2]) == int(parts[1]) * 7 % longest and len(parts[3]) in {0, 300_000}


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def state(pid: int) -> str:
    """Return the letter of a process's state: R, S, D, T, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Mounted:
    """A tree that another process has and mounts.

    Parameters
    ----------
    folder
        A folder for the mountpoint and other files, gone afterwards.
    options
        Options of the mount.
    plan
        How the face is started.
    """

    def __init__(self, folder: Path, options: dict[str, Any] | None = None, **plan: Any) -> None:
        self.folder = folder
        self.mountpoint = folder / "procfs"
        self.target = folder / "target"
        self.target.write_text("a real file\n")
        options = {"mountpoint": str(self.mountpoint), "writable": True, "run_id": "test", **(options or {})}
        given = json.dumps({"target": str(self.target), "options": options, **plan})
        with (folder / "errors").open("wb") as errors:
            self.process = start(sys.executable, "-m", PROGRAM, given, stdin=subprocess.PIPE, stderr=errors, cwd=ROOT)
        self.pid = self.process.pid
        self._notices: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._faces: list[int] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "notice" in said:
                self._notices.put(said)
            elif "started" in said:
                self._faces.append(said["started"])
            else:
                self._answers.put(said["answer"])

    def path(self, path: str) -> Path:
        return self.mountpoint / path

    @property
    def face(self) -> int:
        """Process id of the face."""
        return wait_for(lambda: self._faces, "the program tells its face")[-1]

    def notice(self) -> dict[str, Any]:
        """Return the next that the face says of itself."""
        try:
            return self._notices.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"the face says nothing: {self.errors()}") from None

    def ready(self) -> Mounted:
        notice = self.notice()
        assert notice["notice"] == "running", (notice, self.errors())
        return self

    def failure(self) -> str:
        """Return why the face can't serve."""
        notice = self.notice()
        assert notice["notice"] == "failed", notice
        return str(notice["reason"])

    def do(self, what: str, **arguments: object) -> Any:
        """Have the program do something, and return what it answers."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._answers.get(timeout=PATIENCE)

    def restart(self) -> None:
        """Start another face in place of one that ended."""
        self._faces.append(self.do("restart"))

    def errors(self) -> str:
        """What the program and its face printed to their standard error."""
        return (self.folder / "errors").read_text()

    def cat(self, path: str) -> str:
        return output("cat", self.path(path))

    def mounted(self) -> list[mounts.TableLine]:
        """All that is mounted below the folder."""
        return [mount for mount in mounts.table() if Path(mount.mountpoint).is_relative_to(self.folder)]

    def end(self) -> None:
        """End what still runs, and fail if something is left that should not be."""
        face = self._faces[-1] if self._faces else None
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        try:
            if face is not None:
                wait_for(lambda: not alive(face), f"face {face} ends with its trainer")
            assert self.mounted() == []
        finally:
            if face is not None and alive(face):
                os.kill(face, signal.SIGKILL)
            for mount in reversed(self.mounted()):
                sh("umount", "-f", "-l", mount.mountpoint)
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


@contextlib.contextmanager
def mounting(options: dict[str, Any] | None = None, **plan: Any) -> Iterator[Mounted]:
    """Mount a tree in a new folder; afterwards nothing is left."""
    folder = Path(tempfile.mkdtemp(prefix="midrun-"))
    try:
        mounted = Mounted(folder, options, **plan)
        try:
            yield mounted
        finally:
            mounted.end()
    finally:
        shutil.rmtree(folder)
