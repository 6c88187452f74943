"""What a training step does to its own run directory, while the mount in it is served by a process that asks this one.

Each function is called in the training thread as f(model); it raises when what it reads is wrong.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import mmap
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.e2e.trainers import Model

FILE = "state/index.json"


def timed(model: Model) -> None:
    """Wait for the mount, then do what the plan's `touch` says and write down how many seconds it took."""
    place = Path(str(model.midrun.run_dir), "procfs")
    deadline = time.monotonic() + 20
    # Asking the mount itself would be one of the touches.
    while f" {place} " not in Path("/proc/self/mountinfo").read_text():
        if time.monotonic() > deadline:
            raise TimeoutError("no mount")
        time.sleep(0.01)
    began = time.monotonic()
    globals()[model.plan["touch"]](place)
    path = Path(model.plan["root"], "touched")
    path.with_name(".touched").write_text(json.dumps(time.monotonic() - began))
    path.with_name(".touched").rename(path)  # whole at once


def walk(place: Path) -> None:
    seen = [Path(folder, name).stat() for folder, _, names in os.walk(place.parent) for name in names]
    assert len(seen) > 20, len(seen)


def scan(place: Path) -> None:
    """As a logger does that looks for its event files, whatever it finds."""
    for path in sorted(place.parent.rglob("*")):
        if path.is_file():
            logging.getLogger("scan").debug("%s %d", path, len(path.read_bytes()))


def copy_tree(place: Path) -> None:
    copy = place.parent.parent / "copy"
    shutil.copytree(place, copy, symlinks=True)
    json.loads((copy / FILE).read_text())


def read(place: Path) -> None:
    for _ in range(100):
        json.loads((place / FILE).read_text())


def numpy_fromfile(place: Path) -> None:
    size = (place / FILE).stat().st_size
    assert np.fromfile(place / FILE, dtype=np.uint8).tobytes().startswith(b"{") or size == 0


def numpy_memmap(place: Path) -> None:
    assert bytes(np.memmap(place / FILE, dtype=np.uint8, mode="c")[:1]) == b"{"


def mapped(place: Path) -> None:
    with (place / FILE).open("rb") as file:
        assert mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)[:1] == b"{"


def sqlite(place: Path) -> None:
    """Open it as a database, which it is not."""
    base = sqlite3.connect(f"file:{place / FILE}?mode=ro&immutable=1", uri=True)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        base.execute("select * from sqlite_master")
    base.close()


def pydll_stat(place: Path) -> None:
    """Ask for a file's status with the GIL held, so that no other thread of this process can answer."""
    (place / FILE).stat()  # so that there is an old answer to show
    libc = ctypes.PyDLL(None, use_errno=True)
    status = ctypes.create_string_buffer(256)
    path = str(place / FILE).encode()
    assert libc.stat(path, status) == 0, os.strerror(ctypes.get_errno())


def pydll_read(place: Path) -> None:
    """Read a file that nobody has seen before with the GIL held: nobody can make its value, and yet the wait ends."""
    libc = ctypes.PyDLL(None, use_errno=True)
    path = str(place / "state/optimizers.json").encode()
    buffer = ctypes.create_string_buffer(1 << 16)
    number = libc.open(path, os.O_RDONLY)
    assert number >= 0 or ctypes.get_errno() == errno.ETIMEDOUT, os.strerror(ctypes.get_errno())
    if number >= 0:
        assert libc.read(number, buffer, len(buffer)) > 0
        libc.close(number)


def started_in_it(place: Path) -> None:
    """Start a program whose working directory it is."""
    done = subprocess.run(["cat", FILE], cwd=place, capture_output=True, check=True)
    json.loads(done.stdout)


def spawned(place: Path) -> None:
    """Start a program without the usual care for descriptors, and fork by hand."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", "pass"], os.environ)
    assert os.waitpid(pid, 0)[1] == 0
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if (place / FILE).read_text().startswith("{") else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def c_fork(place: Path) -> None:
    """Leave a child behind that was forked past Python, and so holds a copy of every descriptor."""
    libc = ctypes.CDLL(None)
    if libc.fork() == 0:
        libc.sleep(60)
        libc._exit(0)


def written_to(place: Path) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        (place / FILE).write_text("1")


def waited_for(place: Path) -> None:
    """As a program does that waits for whatever children it has, until it has none."""
    for _ in range(2):
        if os.fork() == 0:
            os._exit(0)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return
