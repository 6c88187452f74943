"""What the machine says of a run: its processes, mounts, ports. Nothing here asks midrun.

Files of a mount are only ever touched in other processes, since a mount can hang whoever touches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.processes import sh

_FORCE, _DETACH = 1, 2


# ---- processes


def alive(pid: int) -> bool:
    """Whether a process lives; one that has ended and is not waited for does not."""
    return _state(pid) not in {"", "Z", "X"}


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def faces_of(trainer: int) -> dict[int, str]:
    """Return the living face processes of a trainer, and the module that each runs."""
    found = {}
    for pid in _pids():
        # Faces of other versions of midrun may run here too.
        if (handed := _handed(pid)) is not None and handed.get("trainer_pid") == trainer:
            found[pid] = str(handed["module"])
    return found


def is_face(pid: int) -> bool:
    """Whether a process lives and is a face: numbers are used again."""
    return _handed(pid) is not None


def _handed(pid: int) -> dict[str, Any] | None:
    """Return what a face was handed when it was started, or None for what is no living face."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if len(words) > 4 and "midrun.fs.birth" in "".join(words[:5]) and alive(pid):
            return dict(json.loads(words[-2]))
    return None


def session_of(leader: int) -> list[int]:
    """Return the living processes of a session: the trainer, if it lives, and its workers."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3] == str(leader) and alive(pid):
                found.append(pid)
    return found


def children_of(parent: int, *, dead: bool = False) -> list[int]:
    """Return the living children of a process, in the order of their start, and also those nobody has waited for."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(parent) and (
                dead or alive(pid)
            ):
                found.append(pid)
    return sorted(found)


def open_files(pid: int) -> list[str]:
    """Return what the descriptors of a process point at."""
    found = []
    with contextlib.suppress(FileNotFoundError, PermissionError):  # it is ending
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(link.readlink()))
    return found


def end(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal, if the process is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# ---- files


def shown(directory: Path, pattern: str) -> Iterator[Path]:
    """Return the files below a directory that somebody may look at: what is being made has a name with a dot."""
    for path in directory.rglob(pattern):
        if not any(part.startswith(".") for part in path.relative_to(directory).parts):
            yield path


def is_json(path: Path) -> bool:
    """Whether a file is whole."""
    with contextlib.suppress(ValueError):
        json.loads(path.read_bytes())
        return True
    return False


# ---- mounts


def mounts(below: Path | str, pid: int | str = "self") -> dict[str, str]:
    """Return the mounts at or below a folder, and the kinds of their file systems."""
    found = {}
    folder = str(below)
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        if place == folder or place.startswith(f"{folder}/"):
            found[place] = after.split()[0]
    return found


def inside(pid: int) -> tuple[str, ...]:
    """Return how to start a program so that it sees the mounts that process `pid` sees."""
    own, theirs = Path("/proc/self/ns/mnt").readlink(), Path(f"/proc/{pid}/ns/mnt").readlink()
    return () if own == theirs else ("nsenter", "--target", str(pid), "--mount")


def unmount(place: str) -> None:
    """Take a mount away and let go of whoever waits in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(place.encode(), _FORCE | _DETACH) != 0:
        sh("fusermount3", "-u", "-z", place)


# ---- ports


def free_port(count: int = 20) -> int:
    """Return a port that is free, with `count` more behind it that nobody is likely to want."""
    while True:
        # Below those that the kernel gives to whoever asks for any.
        first = random.randrange(12000, 32000 - count)  # noqa: S311 - no secret
        with contextlib.suppress(OSError):
            listening(first).close()
            return first


def listening(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine."""
    end_ = socket.socket()
    try:
        end_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end_.bind(("127.0.0.1", port))
        end_.listen()
    except OSError:
        end_.close()
        raise
    return end_


def holders(port: int) -> set[int]:
    """Return the processes that hold a socket that listens on a port of this machine."""
    wanted, sockets = f":{port:04X}", set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":  # LISTEN
                    sockets.add(f"socket:[{words[9]}]")
    found = set()
    for pid in _pids() if sockets else ():
        with contextlib.suppress(OSError):
            if sockets & set(open_files(pid)):
                found.add(pid)
    return found
