"""The shelf: the checkpoints of a run on the disk, and which of them training is to go on from. It needs no torch.

Any process may look: the run itself, the command line on another host, a script that starts the next process. What is
on the shelf says `index.json` beside the checkpoints that commands have written; what was chosen says `chosen.json`.
"""

from __future__ import annotations

import json
import os
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from midrun.checkpoints.faults import CheckpointError
from midrun.control_log import CONTROL_LOG
from midrun.fs.curves import last_step
from midrun.fs.disk import write_whole
from midrun.fs.lock import is_held
from midrun.fs.render import render
from midrun.records import FORMAT, HISTORY, LAST_STATE, RUN_RECORD, boot_id, process

CHECKPOINTS = "checkpoints"
"""The name of their directory, among the artifacts."""
INDEX, CHOSEN = "index.json", "chosen.json"
"""Their names, beside the checkpoints."""
LATEST, RESUME = "latest", "resume"
"""The words for the newest checkpoint, and for the one that was chosen or else the newest."""
_HIGHEST = 4
"""How many directories up from a checkpoint the run's may be."""
_TAIL = 1 << 20
"""Bytes at the end of the control log in which its last line is looked for."""


class Kept(TypedDict):
    """A checkpoint that training can go on from."""

    id: str
    """Its file name."""
    path: str
    """Absolute."""
    size: int
    """Bytes."""
    label: str | None
    global_step: int
    epoch: int
    time: float
    """When it was there, whole. Seconds since 1970."""
    steps_to_redo: int
    """How many optimizer steps the run has done since, which are done again."""
    is_older_than_control: bool
    """Whether something was changed by a command since."""
    is_chosen: bool
    """Whether it is the one that `resume` goes on from, once."""


class KeptIndex(TypedDict):
    """The checkpoints that training can go on from, the newest first."""

    reached: int
    """The last optimizer step of the run."""
    checkpoints: list[Kept]


class Shelf:
    """The checkpoints of one run.

    Parameters
    ----------
    directory
        The run directory.

    Raises CheckpointError where that is none.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(os.path.abspath(directory))
        self.record = _document(self.directory / RUN_RECORD)
        if not str(self.record.get("format", "")).startswith(FORMAT.rpartition("/")[0]):
            raise CheckpointError(
                f"{os.fspath(directory)!r} is no run directory: no {RUN_RECORD} of midrun's is there; "
                "`midrun ls` lists the runs"
            )
        self.folder = Path(str(self.record.get("artifact_dir") or self.directory / "artifacts"), CHECKPOINTS)

    @property
    def is_closed(self) -> bool:
        """Whether the run was closed for good."""
        return self.record.get("state") == "closed"

    @property
    def is_live(self) -> bool:
        """Whether somebody trains in it now, as far as that is seen from this host."""
        session = self.record.get("session")
        if not isinstance(session, dict) or session.get("ended") is not None:
            return False
        pid = session.get("pid")
        found = process(pid) if isinstance(pid, int) and session.get("boot_id") == boot_id() else None
        is_there = found is not None and found.born == session.get("born") and found.state not in {"Z", "X"}
        return is_there or is_held(self.directory / "spool")

    @property
    def reached(self) -> int:
        """The last optimizer step that is known of."""
        told = _document(self.directory / LAST_STATE).get("global_step") or 0
        written = 0
        with suppress(OSError):
            written = last_step(self.directory / HISTORY)
        return max(int(told), written)

    def entries(self) -> list[dict[str, Any]]:
        """Return what the index says of the files that are there, the newest first."""
        found = _document(self.folder / INDEX).get("artifacts")
        entries = [dict(entry) for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
        return [entry for entry in entries if Path(str(entry.get("path"))).exists()]

    def listed(self, reached: int | None = None, revision: int | None = None) -> KeptIndex:
        """Return what training can go on from.

        Parameters
        ----------
        reached, revision
            The run's last step, and the last line of its control log, where the caller knows them.
        """
        reached = self.reached if reached is None else reached
        revision = self._revision() if revision is None else revision
        chosen = self.chosen
        return KeptIndex(
            reached=reached,
            checkpoints=[
                Kept(
                    id=str(entry["id"]),
                    path=str(entry["path"]),
                    size=int(entry["size"]),
                    label=entry.get("label"),
                    global_step=int(entry["global_step"]),
                    epoch=int(entry["epoch"]),
                    time=float(entry["time"]),
                    steps_to_redo=max(0, reached - int(entry["global_step"])),
                    is_older_than_control=int(entry.get("control_revision", 0)) < revision,
                    is_chosen=entry["path"] == chosen,
                )
                for entry in self.entries()
            ],
        )

    def _revision(self) -> int:
        """Return the number of the last line of the control log that has changed something."""
        with suppress(OSError), (self.directory / CONTROL_LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            for text in reversed(file.read().splitlines()):
                with suppress(ValueError):
                    line = json.loads(text)
                    if isinstance(line, dict) and line.get("changes"):
                        return int(line.get("revision", 0))
        return 0

    # ---- which one

    @property
    def chosen(self) -> str | None:
        """The path of the checkpoint that was chosen and is there; None where there is none."""
        path = _document(self.folder / CHOSEN).get("path")
        return path if isinstance(path, str) and Path(path).exists() else None

    def choose(self, name: str, by: str) -> dict[str, Any] | None:
        """Have `resume` mean a checkpoint, once, and return its entry; `latest` takes it back, and returns None.

        Raises CheckpointError, OSError.
        """
        if name == LATEST:
            with suppress(FileNotFoundError):
                (self.folder / CHOSEN).unlink()
            return None
        entry = self.find(name)
        check(entry["path"])
        write_whole(self.folder / CHOSEN, render(CHOSEN, {"path": entry["path"], "by": by, "time": time.time()}))
        return entry

    def find(self, name: str) -> dict[str, Any]:
        """Return the entry of a checkpoint, by its id, its label or its path. Raises CheckpointError."""
        entries = self.entries()
        path = os.path.abspath(name)
        named = [e for e in entries if name in {e["id"], e.get("label"), e["path"]} or path == e["path"]]
        if len(named) == 1:
            return named[0]
        listed = ", ".join(str(entry["id"]) for entry in entries[:5]) or "none"
        what = f"several checkpoints are called {name!r}: give the id" if named else f"there is no checkpoint {name!r}"
        raise CheckpointError(f"{what}; the newest are {listed}")

    def _named(self, which: str) -> str:
        """Return the path that a name means: one of the run's, or else any file's."""
        try:
            return str(self.find(which)["path"])
        except CheckpointError:
            with suppress(OSError):
                if which and Path(which).exists():
                    return which
            raise

    def used(self, path: str) -> None:
        """Have `resume` mean the newest again, where this one was chosen."""
        with suppress(OSError):
            if self.chosen == path:
                (self.folder / CHOSEN).unlink()

    def resolve(self, which: str) -> str | None:
        """Return the path of the checkpoint that is meant; None where the run has none.

        One that is torn is left out, where the newest is meant. Raises CheckpointError where one is named that is not
        there, or torn, and where the run is closed.
        """
        if self.is_closed:
            raise CheckpointError(
                f"the run in {str(self.directory)!r} is closed: nobody goes on with it. To train on from its weights "
                "all the same, give the path of its checkpoint to trainer.fit(ckpt_path=...)"
            )
        if which == RESUME and (chosen := self.chosen) is not None:
            check(chosen)
            return chosen
        if which not in {LATEST, RESUME}:
            path = self._named(which)
            check(path)
            return os.path.abspath(path)
        for entry in self.entries():
            with suppress(CheckpointError):
                check(entry["path"])
                return str(entry["path"])
        return None


def check(path: str) -> None:
    """Raise CheckpointError where a file is no whole checkpoint. A directory is taken for one."""
    if Path(path).is_dir():
        return
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path!r}") from None
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path!r} can't be read: {error.strerror}") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path!r} is torn, or no checkpoint: {error}") from error
    if not any(name.endswith("/data.pkl") for name in names):
        raise CheckpointError(f"{path!r} is no checkpoint: nothing of torch.save's is in it")


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_resolved: dict[str, tuple[Shelf, int]] = {}
"""Whose checkpoint each path is, of those that this process has asked for, and how far that run had come then."""


def checkpoint(run: str | os.PathLike[str], which: str = RESUME) -> str | None:
    """Return the path of the checkpoint that the next process goes on from: `trainer.fit(ckpt_path=...)` takes it.

    Parameters
    ----------
    run
        The run directory.
    which
        `latest`, the newest; `resume`, the one that somebody has chosen for the run, once, else the newest; or the id,
        the label or the path of one.

    Returns None where the run has none yet. Raises CheckpointError where `run` is no run directory, the run is closed,
    or a checkpoint that is named is not there, or torn.
    """
    shelf = Shelf(run)
    path = shelf.resolve(which)
    if path is not None:
        _resolved[path] = shelf, shelf.reached
    return path


def shelf_of(path: str | None) -> Shelf | None:
    """Return the shelf that a checkpoint was taken from in this process, or lies on."""
    if path is None:
        return None
    if path in _resolved:
        return _resolved[path][0]
    for above in list(Path(os.path.abspath(path)).parents)[:_HIGHEST]:
        with suppress(CheckpointError):
            return Shelf(above)
    return None


def reach_of(path: str) -> int:
    """Return how far the run had come whose checkpoint it is, before this process wrote of it where that is known."""
    if path in _resolved:
        return _resolved[path][1]
    shelf = shelf_of(path)
    return 0 if shelf is None else shelf.reached
