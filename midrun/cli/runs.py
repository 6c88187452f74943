"""Runs: those that lie in a directory, and whether each is live, from files alone: any host sees the same.

A dead mount hangs whoever touches it. So nothing here looks into a directory named `procfs`, or at one that the
kernel's table says is a mount of midrun's.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from midrun.cli.output import Trouble, one_line, span
from midrun.fs import mounts
from midrun.fs.lock import is_held
from midrun.records import FORMAT, HISTORY, LAST_STATE, RUN_RECORD, boot_id, process

DEEPEST = 8
"""How many directories down runs are searched for."""
MOST = 10_000
"""In how many directories runs are searched for."""
SILENT = 90.0
"""Seconds without a new `last-state.json`, which comes every 30, after which a run on another host counts as gone."""

_FORMAT = FORMAT.rpartition("/")[0] + "/"
"""How a record of this or another version begins."""
_MOUNTED = "procfs"
_OWN = ("spool", "artifacts", HISTORY)
"""Directories of a run in which there are no runs."""
_EMPTY = (mounts.KIND, "proc", "sysfs")
"""Kinds of mounts in which there are no runs."""

Life = Literal["live", "ended", "gone"]


@dataclass(frozen=True)
class Run:
    """A run directory, as its files tell of it."""

    directory: str
    """As the user would write it."""
    record: dict[str, Any]
    """What `run.json` holds."""
    last: dict[str, Any]
    """What `last-state.json` holds."""
    life: Life
    """`live`; `ended`, as it should; or `gone`, without a word."""
    why: str
    """By what that is known."""

    @property
    def session(self) -> dict[str, Any]:
        """The process's share of the run."""
        return _dict(self.record.get("session"))

    @property
    def path(self) -> Path:
        """Its directory."""
        return Path(self.directory)

    @property
    def is_live(self) -> bool:
        """Whether somebody trains now."""
        return self.life == "live"

    @property
    def age(self) -> float | None:
        """Seconds since `last-state.json` was written."""
        written = _number(self.last.get("written"))
        return None if written is None else max(0.0, time.time() - written)

    @property
    def is_here(self) -> bool:
        """Whether its process is one of this machine's."""
        return bool(boot_id()) and self.session.get("boot_id") == boot_id()


# ---- one run


def chosen(word: str | None) -> Run:
    """Return the run that a user means: the named one, or the one live run below the current directory.

    Raises `NoSingleRun` where that is not one run, `Trouble` where the named one is none, OSError where its record
    can't be read.
    """
    if word is not None:
        return named(word)
    runs, problem = below(".")
    live = [run for run in runs if run.is_live]
    if len(live) == 1:
        return live[0]
    listed = live or runs
    over = f"{len(runs)} that {'are' if runs[1:] else 'is'} over"
    found = f"{len(live)} live runs" if live else f"no live run, and {over}" if runs else "no run"
    advice = "name the run's directory" if listed else "go where the runs are, or name a run's directory"
    raise NoSingleRun(f"{found} below {os.getcwd()}{problem}: {advice}", listed)


class NoSingleRun(Trouble):
    """It is not clear which run is meant."""

    def __init__(self, message: str, runs: list[Run]) -> None:
        # What the user wrote is right where there are runs, and they are over.
        super().__init__(message, 1 if runs and not any(run.is_live for run in runs) else 2)
        self.runs = runs


def named(word: str) -> Run:
    """Return the run in a directory. Raises `Trouble` where there is none, OSError where its record can't be read."""
    directory = os.path.normpath(word) if word else word
    if Path(directory).name in {_MOUNTED, RUN_RECORD}:
        directory = os.path.dirname(directory) or "."
    mounted = _mount_around(directory)
    if mounted is not None:
        raise Trouble(f"{word!r} is inside the mount {mounted}: name the run's directory, which has run.json in it", 2)
    run = read(directory)
    if run is None:
        raise Trouble(f"{word!r} is no run directory: no run.json of midrun's is there; `midrun ls` lists the runs", 2)
    return run


def is_run(word: str) -> bool:
    """Whether a word is the name of a run directory. It looks at no mount."""
    with suppress(Trouble, OSError, ValueError):
        return bool(named(word))
    return False


def read(directory: str) -> Run | None:
    """Return the run in a directory, or None where there is none. Raises OSError when its record can't be read."""
    record = document(Path(directory, RUN_RECORD))
    if record is None or not str(record.get("format", "")).startswith(_FORMAT):
        return None
    last = {}
    with suppress(OSError):
        last = restored(document(Path(directory, LAST_STATE)) or {})
    return Run(directory, record, last, *_life(Path(directory), _dict(record.get("session")), last))


def document(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None where there is none. Raises OSError where it can't be read."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def restored(found: dict[str, Any]) -> dict[str, Any]:
    """Return a document with the numbers that JSON has no word for, which `_nonfinite` names."""
    for pointer, text in _dict(found.pop("_nonfinite", None)).items():
        *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in str(pointer).split("/")[1:])
        holder: Any = found
        with suppress(LookupError, TypeError, ValueError):
            for step in steps:
                holder = holder[int(step) if isinstance(holder, list) else step]
            holder[int(last) if isinstance(holder, list) else last] = float(text)
    return found


# ---- whether it is live


def _life(directory: Path, session: dict[str, Any], last: dict[str, Any]) -> tuple[Life, str]:
    if session.get("ended") is not None:
        by = session.get("stopped_by")
        return "ended", one_line(f"{session.get('outcome') or 'ended'}{f', stopped by {by}' if by else ''}")
    pid, host = session.get("pid"), one_line(str(session.get("host")))
    if boot_id() and session.get("boot_id") == boot_id():
        if isinstance(pid, int) and _is_process(pid, session.get("born")):
            return "live", f"process {pid} lives"
        # It may be hidden from us, as in another container.
        if is_held(directory / "spool"):
            return "live", f"a process that is not seen from here holds {directory / 'spool'}"
        return "gone", f"process {pid} was killed: it is not there, and has not said that it ended"
    written = _number(last.get("written"))
    if written is None:
        return "gone", f"it was on host {host}, and has no last-state.json"
    silence = time.time() - written
    if silence <= SILENT:
        return "live", f"process {pid} on host {host} wrote last-state.json {span(silence)} ago"
    return "gone", f"host {host} has not written last-state.json for {span(silence)}"


def _is_process(pid: int, born: object) -> bool:
    """Whether a process lives that began then: numbers are used again."""
    found = process(pid)
    return found is not None and found.state not in {"Z", "X"} and found.born == born


# ---- many runs


def below(top: str) -> tuple[list[Run], str]:
    """Return the runs in and below a directory, by their start, and a note where not all of it was searched.

    It follows no links, looks into no directory whose name begins with `.` or `__`, goes `DEEPEST` levels down, and
    looks into `MOST` directories. Raises `Trouble` inside a mount of midrun's, OSError where `top` can't be read.
    """
    mounted = _mount_around(top)
    if mounted is not None:
        raise Trouble(f"{top!r} is inside the mount {mounted}: name a directory outside", 2)
    with os.scandir(top):
        pass  # Whoever names a directory that can't be read is told so; of those below it the others matter.
    avoided = {mount.mountpoint for mount in _mounts(*_EMPTY)}
    base = os.path.realpath(top)
    found: list[Run] = []
    left, looked = deque([("", 0)]), 0
    while left:
        if looked == MOST:
            return _by_start(found), f" (in the {MOST} directories nearest to it)"
        directory, depth = left.popleft()
        looked += 1
        with suppress(OSError):
            shown = os.path.normpath(os.path.join(top, directory))
            names = list(os.scandir(os.path.join(base, directory)))
            run = read(shown) if any(entry.name == RUN_RECORD for entry in names) else None
            found += [run] if run else []
            if depth < DEEPEST:
                left += [(os.path.join(directory, name), depth + 1) for name in _searched(names, run, avoided)]
    return _by_start(found), ""


def _searched(entries: list[os.DirEntry[str]], run: Run | None, avoided: set[str]) -> Iterator[str]:
    """Iterate over the names of the directories that are searched next."""
    for entry in sorted(entries, key=lambda entry: entry.name):
        skipped = entry.name == _MOUNTED or entry.name.startswith((".", "__")) or (run and entry.name in _OWN)
        # A mount is known by its path: is_dir might have to look at it.
        if not skipped and entry.path not in avoided and entry.is_dir(follow_symlinks=False):
            yield entry.name


def _by_start(runs: list[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (_number(run.session.get("started")) or 0.0, run.directory))


def _mounts(*kinds: str) -> list[mounts.TableLine]:
    with suppress(OSError, ValueError):
        return [mount for mount in mounts.table() if mount.kind in kinds]
    return []


def _mount_around(path: str) -> str | None:
    """Return the mount of midrun's that a path leads into, looking only at what lies outside of it."""
    places = {mount.mountpoint for mount in _mounts(mounts.KIND)}

    def around(path: str) -> str | None:
        return next((place for place in places if path == place or path.startswith(f"{place}/")), None)

    if not places:
        return None
    return around(os.path.abspath(path)) or around(mounts.resolve(path))


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
