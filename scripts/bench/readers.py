"""Readers: what looks at a run while it is measured. Each is a process that reads at a steady rate until it is ended.

python -m scripts.bench.readers cat|open|get RATE WHAT
"""

import subprocess
import sys
import time
import urllib.request
from pathlib import Path


def cat(path: str) -> None:
    """Read a file as a shell does."""
    subprocess.run(["/bin/cat", path], check=True, stdout=subprocess.DEVNULL)


def read(path: str) -> None:
    """Read a file as a program does."""
    with Path(path).open("rb") as file:
        file.read()


def get(url: str) -> None:
    """Ask for a URL."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - the run's own address
        answer.read()


def main() -> None:
    """Read until ended, as often a second as was asked for, and no faster after a pause."""
    kind, rate, what = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    act = {"cat": cat, "open": read, "get": get}[kind]
    act(what)
    print("ready", flush=True)
    due = time.perf_counter()
    while True:
        due = max(due + 1 / rate, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))
        act(what)


if __name__ == "__main__":
    main()
