"""A run as a test sees it: a trainer process, its run directory, and its two faces."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from tests.e2e.machine import (
    alive,
    children_of,
    end,
    faces_of,
    free_port,
    holders,
    inside,
    is_face,
    mounts,
    session_of,
    unmount,
)
from tests.processes import output, wait_for

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROGRAMS = Path(__file__).with_name("trainers.py")
WEB, MOUNT = "midrun.web.face", "midrun.fs.mount"

_TOLD = 2000
"""Characters of each text in the message of a failed test."""

# One thread in each trainer: the machine has few cores and many trainers.
_SINGLE = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}


class Codes(Protocol):
    """Knows the exit codes of trainers."""

    def code(self, pid: int, deadline: float) -> int | None:
        """Return the exit code of a trainer, minus the signal for one that was killed; None if it lives too long."""


class Script:
    """A trainer that is started as a user starts one: a program of `trainers`, in a fresh interpreter."""

    def __init__(
        self, program: str, plan: dict[str, Any], root: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        plan = {"root": str(root), **plan}
        plan["midrun"] = {"rest_port": free_port(), **plan.get("midrun", {})}
        with (root / "out").open("wb") as out, (root / "err").open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAMS), program, json.dumps(plan)],
                cwd=root,
                env={**os.environ, **_SINGLE, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.run = Run(self, self._process.pid, root, plan["midrun"]["rest_port"], plan)

    def code(self, pid: int, deadline: float) -> int | None:
        """Return its exit code; None if it lives too long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(0.0, deadline - time.monotonic()))
        return None

    def clean(self) -> None:
        """End whatever still runs."""
        self.run.clean()
        self._process.wait()


class Forge:
    """The fork server, as one of its clients sees it."""

    def __init__(self, shared: Path) -> None:
        self._address = shared / "forge"
        with (shared / "forge.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._socket = self._connect() or self._start()
        self._received = b""
        self._codes: dict[int, int] = {}
        self.started: list[Run] = []

    def close(self) -> None:
        """End every trainer and let go of the server."""
        self._socket.close()

    def start(self, program: str, plan: dict[str, Any], root: Path, **how: Any) -> Run:
        """Start a trainer; `how` has more of `environ`, `path` and `ground`."""
        plan = {"root": str(root), **plan}
        port = plan["midrun"] = {"rest_port": free_port(), **plan.get("midrun", {})}
        asked = {
            "program": program,
            "plan": plan,
            "folder": str(root),
            "out": str(root / "out"),
            "err": str(root / "err"),
            "path": [str(entry) for entry in how.get("path", ())],
            "environ": {**os.environ, **_SINGLE, **how.get("environ", {})},
            "ground": how.get("ground", {}),
        }
        self._socket.sendall(f"{json.dumps(asked)}\n".encode())
        pid = self._hear("started")
        self._codes.pop(pid, None)  # of an earlier trainer: numbers are used again
        run = Run(self, pid, root, port["rest_port"], plan)
        self.started.append(run)
        return run

    def code(self, pid: int, deadline: float) -> int | None:
        """Return the exit code of a trainer, minus the signal for one that was killed; None if it lives too long."""
        while pid not in self._codes:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                self._hear("")
            except TimeoutError:
                return None
            finally:
                self._socket.settimeout(None)
        return self._codes[pid]

    def _hear(self, wanted: str) -> int:
        """Take news until one is of the wanted kind, or take one."""
        while True:
            news = json.loads(self._readline())
            if "ended" in news:
                self._codes[news["ended"]] = news["code"]
            if wanted in news or not wanted:
                return int(news.get(wanted, 0))

    def _readline(self) -> bytes:
        while b"\n" not in self._received:
            received = self._socket.recv(4096)
            if not received:
                message = f"the fork server ended: {Path(f'{self._address}.log').read_text()}"
                raise AssertionError(message)
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _connect(self) -> socket.socket | None:
        end_ = socket.socket(socket.AF_UNIX)
        try:
            end_.connect(str(self._address))
            end_.settimeout(10)
            if end_.recv(3) == b"{}\n":
                end_.settimeout(None)
                return end_
        except OSError:
            pass
        end_.close()
        said = Path(f"{self._address}.log")
        if said.exists():
            assert "Traceback" not in said.read_text(), said.read_text()
        return None

    def _start(self) -> socket.socket:
        # With a parent that ends at once, it is nobody's child: the last to leave ends it.
        with Path(f"{self._address}.log").open("wb") as log:
            subprocess.run(
                ["setsid", "--fork", sys.executable, "-m", "tests.e2e.forkserver", str(self._address)],
                cwd=REPOSITORY,
                env={**os.environ, **_SINGLE},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )
        return wait_for(self._connect, "the fork server listens", 50, every=0.05)


class Run:
    """One trainer process and what it shows."""

    def __init__(self, codes: Codes, pid: int, root: Path, port: int, plan: Mapping[str, Any]) -> None:
        self.pid, self.root, self.plan = pid, root, plan
        self.first_port = port
        self.directory = root / "logs" / str(plan.get("logger", "v"))
        self.faces_seen: set[int] = set()
        self.ports_seen = {port}
        self._codes = codes
        self._url: str | None = None

    # ---- the process

    def ended(self, seconds: float = 30.0) -> int:
        """Wait for the end of the trainer; return its exit code."""
        code = self._codes.code(self.pid, time.monotonic() + seconds)
        assert code is not None, f"the trainer {self.pid} did not end in {seconds:g} s\n{self.told()}"
        return code

    @property
    def alive(self) -> bool:
        """Whether the trainer lives."""
        return alive(self.pid)

    def signal(self, number: int) -> None:
        """Send the trainer a signal."""
        os.kill(self.pid, number)

    def faces(self) -> dict[int, str]:
        """Return the face processes, and the module of each."""
        found = faces_of(self.pid)
        self.faces_seen.update(found)
        return found

    def face(self, module: str) -> int | None:
        """Return the process of one face, or None when it has none that is no child of the trainer's any more."""
        children = children_of(self.pid)
        return next((pid for pid, runs in self.faces().items() if runs == module and pid not in children), None)

    def at(self, name: str = "waiting", seconds: float = 30.0) -> None:
        """Wait until the trainer has made a mark."""
        wait_for(lambda: (self.root / name).exists() or self._ended_early(), f"the trainer is at {name!r}", seconds)

    def go(self, name: str = "") -> None:
        """Let a trainer that waits go on."""
        (self.root / f"go{name}").touch()

    def enough(self) -> None:
        """Have a trainer that trains until it is told so stop."""
        (self.root / "enough").touch()

    def mark(self, name: str) -> Any:
        """Return what the trainer wrote down, as JSON."""
        return json.loads((self.root / name).read_text())

    def other(self, version: str) -> Run:
        """Return another run of the same process."""
        return Run(self._codes, self.pid, self.root, self.first_port, {**self.plan, "logger": version})

    def assert_content(self) -> None:
        """Check that the run had nothing to complain about."""
        for word in ("WARNING", "Traceback"):
            assert word not in self.log, self.told()
        for word in ("ResourceWarning", "Traceback", "Exception ignored"):
            assert word not in self.err, self.told()

    def passes(self, steps: int) -> None:
        """Wait until a trainer that trains until enough has made so many more steps; nobody asks midrun for it."""
        wait_for((self.root / "steps").exists, "the first steps")
        first = self.mark("steps")
        try:
            wait_for(lambda: self.mark("steps") >= first + steps, f"{steps} more steps")
        except AssertionError as error:
            error.add_note(self.told())
            raise

    @property
    def out(self) -> str:
        """What the trainer printed."""
        return (self.root / "out").read_text()

    @property
    def err(self) -> str:
        """What the trainer complained about."""
        return (self.root / "err").read_text()

    @property
    def log(self) -> str:
        """The run's log."""
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "midrun.log").read_text()
        return ""

    def told(self) -> str:
        """Return the end of what the run has said, for the message of a failed test."""
        return "\n".join(f"--- {name}\n{text[-_TOLD:]}" for name, text in (("err", self.err), ("log", self.log)))

    def _ended_early(self) -> bool:
        code = self._codes.code(self.pid, time.monotonic())
        assert code is None, f"the trainer ended early, with exit code {code}\n{self.told()}"
        return False

    # ---- what it shows

    def find(self) -> None:
        """Find the directory of a run that has no logger."""
        [record] = wait_for(lambda: list((self.root / "midrun").glob("run-*/run.json")), "run.json is there")
        self.directory = record.parent

    @property
    def procfs(self) -> Path:
        """The mountpoint."""
        return self.directory / "procfs"

    def live(self, *, rest: bool = True, mount: bool = True, seconds: float = 30.0) -> Run:
        """Wait until the faces serve."""
        if rest:
            wait_for(lambda: self.answers() or self._ended_early(), "REST answers", seconds)
        if mount:
            wait_for(lambda: self.mounted or self._ended_early(), "the mount is there", seconds)
        self.faces()
        return self

    @property
    def mounted(self) -> bool:
        """Whether the mount is there."""
        return str(self.procfs) in mounts(self.procfs, self.pid)

    def record(self) -> dict[str, Any]:
        """Return run.json."""
        return dict(json.loads((self.directory / "run.json").read_text()))

    def last_state(self) -> dict[str, Any]:
        """Return last-state.json."""
        return dict(json.loads((self.directory / "last-state.json").read_text()))

    @property
    def port(self) -> int:
        """The port of REST, from the run's record. Of two runs in one directory only the first one's is there."""
        record = self.record()
        if record["session"]["pid"] != self.pid:
            return self.first_port
        port = int(record["rest_url"].rpartition(":")[2])
        self.ports_seen.add(port)
        return port

    def answers(self) -> bool:
        """Whether REST answers, for this trainer."""
        with contextlib.suppress(OSError, http.client.HTTPException, FileNotFoundError, AttributeError, ValueError):
            return bool(self.get("/files/meta/pid", seconds=1)[1] == f"{self.pid}\n".encode())
        return False

    def get(self, path: str, seconds: float = 10.0) -> tuple[int, bytes, Mapping[str, str]]:
        """Ask REST; return status, body and headers."""
        return self._ask("GET", path, None, {}, seconds)

    def post(
        self, path: str, body: bytes | str = b"", headers: Mapping[str, str] | None = None, seconds: float = 10.0
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Post to REST; return status, body and headers."""
        return self._ask("POST", path, body, headers or {}, seconds)

    def _ask(
        self, method: str, path: str, body: bytes | str | None, given: Mapping[str, str], seconds: float
    ) -> tuple[int, bytes, Mapping[str, str]]:
        asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            asking.request(method, path, body, dict(given))
            answer = asking.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        finally:
            asking.close()

    def rest(self, path: str) -> bytes:
        """Return a file of the tree, by REST."""
        status, body, _ = self.get(f"/files/{quote(path)}")
        assert status == 200, (path, status, body)
        return body

    def shown(self, path: str) -> Any:
        """Return a JSON file of the tree, by REST."""
        return json.loads(self.rest(path))

    def shown_names(self, path: str) -> list[str]:
        """Return the names in a directory of the tree, by REST."""
        return sorted(entry["name"] for entry in self.shown(path)["entries"])

    def step(self) -> int:
        """Return the global step, by REST."""
        return int(self.rest("state/global-step"))

    def service(self, name: str) -> tuple[str, str | None]:
        """Return a service's state and reason, by REST."""
        record = self.shown("state/services.json")["services"][name]
        return record["state"], record["reason"]

    def cat(self, path: str, seconds: float = 10.0) -> str:
        """Return a file of the tree, by cat."""
        return output(*inside(self.pid), "cat", self.procfs / path, seconds=seconds)

    # ---- what is left of it

    def left(self) -> list[str]:
        """Return what is left of midrun in this run: mounts, face processes, a port."""
        found = [f"mount {place}" for place in mounts(self.root)]
        found += [f"face {pid}" for pid in sorted(self.faces_seen) if is_face(pid)]
        if found:
            return found  # The rest takes long to look for.
        ours = {*self.faces(), *session_of(self.pid)}
        found += [f"face {pid}" for pid in sorted(self.faces_seen) if is_face(pid)]
        found += [f"port {port}" for port in sorted(self.ports_seen) if ours & holders(port)]
        return found

    def gone(self) -> float:
        """Wait until nothing of midrun is left; return how many seconds that took."""
        began, seconds = time.monotonic(), 10.0
        while left := self.left():
            spent = time.monotonic() - began
            assert spent < seconds, f"left after {spent:.2f} s: {', '.join(left)}\n{self.told()}"
            time.sleep(0.02)
        return time.monotonic() - began

    def clean(self) -> None:
        """End whatever still runs, unmount whatever is still mounted."""
        for pid in session_of(self.pid):
            end(pid, signal.SIGKILL)
        for pid in {*self.faces_seen, *faces_of(self.pid)}:
            if alive(pid):
                end(pid, signal.SIGCONT)
                end(pid, signal.SIGKILL)
        for place in mounts(self.root):
            unmount(place)


def new_root() -> Path:
    """Return a new folder that every user can reach, with no mount below it that could be in the way."""
    root = Path(tempfile.mkdtemp(prefix="midrun-e2e-"))
    root.chmod(0o777)
    return root


def drop(root: Path) -> None:
    """Delete such a folder."""
    for place in mounts(root):
        unmount(place)
    output("chmod", "-R", "u+w", root)  # copies of what is read-only are read-only
    shutil.rmtree(root)
