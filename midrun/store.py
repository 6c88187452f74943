"""The store: writes checkpoints, snapshots and captures, each whole or not there, and an index of each folder."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from midrun.checkpoints.shelf import CHECKPOINTS, INDEX, Shelf
from midrun.fs.disk import aside, remove, sweep, sync_directory, write_whole
from midrun.fs.render import render

if TYPE_CHECKING:
    from midrun.command import Command, Place
    from midrun.run import Run

FOLDERS = (CHECKPOINTS, "snapshots", "debug")
"""The directories in the artifact directory."""
_LONGEST_LABEL = 120
"""Bytes of a label in a file name."""

_DAY = 86400.0


class Written(TypedDict):
    """One checkpoint, snapshot or capture."""

    id: str
    """The artifact's id, which is its file name."""
    path: str
    """Absolute."""
    size: int
    """Bytes."""
    label: str | None
    kind: str
    """The command's kind; `checkpoint` too for one that Lightning has written, or code of the model's."""
    command: str | None
    """The command's id; null where none asked for it."""
    number: int
    """Counts the checkpoints that midrun has written for the run, from 1; 0 for whatever else it is."""
    control_revision: int
    """The last line of the control log before it."""
    global_step: int
    epoch: int
    time: float
    """When it was there, whole. Seconds since 1970."""


class WrittenIndex(TypedDict):
    """What was written, the newest first."""

    artifacts: list[Written]


class Store:
    """The artifact directory, for whoever writes into it.

    Parameters
    ----------
    run
        The run.
    directory
        The artifact directory.
    """

    def __init__(self, run: Run, directory: Path) -> None:
        self._run = run
        self.directory = directory
        self.written = 0
        """How many files have been written: after each a list is out of date."""
        self._own: dict[str, dict[str, Written]] = {folder: {} for folder in FOLDERS}
        """What this session has put into each index, by path."""
        self._lock = threading.RLock()
        """Held while an index is written: by training, the thread for the disk, or one that saves for Lightning."""
        self._gone: set[str] = set()
        """The paths of what it has taken out."""

    def save_checkpoint(self, command: Command | None, label: str | None, extra: Any = None) -> dict[str, Any]:  # noqa: ANN401 - what a user gives
        """Write a checkpoint, as `write` does; those that are not to be kept go soon after.

        Parameters
        ----------
        command, label
            As `write` has them; None is a checkpoint that code of the model's asks for.
        extra
            What whoever goes on from it is to get.
        """
        self._check_room()
        run = self._run
        number = 1 + max((entry["number"] for entry in self.index(CHECKPOINTS)["artifacts"]), default=0)

        def save(path: str) -> None:
            run.loop.save_checkpoint(path)
            run.history.settle()  # What was logged before it is not to be lost where it is gone on from.

        id_, revision = None if command is None else command.id, run.queue.control_log.revision
        with run.resume.writing(extra=extra, label=label, command=id_, control_revision=revision):
            result = self.write(CHECKPOINTS, save, command, label, suffix="ckpt", number=number)
        run.disk.put(self._retain)
        return result

    def write(
        self,
        folder: str,
        write: Callable[[str], object],
        command: Command | None,
        label: str | None,
        *,
        word: str = "",
        suffix: str = "",
        number: int = 0,
    ) -> dict[str, Any]:
        """Have `write` make a file, or a directory, aside; show it whole; put it into the index.

        Returns the result of the command, with the artifact's entry in the index. Raises OSError where the disk
        does not take it, and whatever `write` raises; then nothing is left of it.

        Parameters
        ----------
        folder
            The directory that it goes to, below the artifact directory.
        write
            Called with the path at which it is to be made.
        command
            The command that asks for it; None where code of the model's does, for a checkpoint.
        label
            Words of the user's, which its name has behind the epoch and step.
        word
            What its name begins with.
        suffix
            What its name ends in, without the dot; "" for a directory.
        number
            Of a checkpoint that midrun writes.
        """
        into = self.directory / folder
        into.mkdir(parents=True, exist_ok=True)
        place = self._run.points.place(None)
        path = _unused(into, _stem(word, place, label), suffix)
        made = aside(path)
        try:
            write(str(made))
            size = _sync(made)
            made.rename(path)
            made = path
            sync_directory(into)
            written = self._entry(path, size, command, label, place)
            written["number"] = number
            self._add(folder, written)
        except BaseException as error:
            # What is not in the index is not there: else a full disk would be the fuller for a command that failed.
            remove(made)
            if (reason := _reason_of_the_disk(error)) is not None:
                raise reason from error
            raise
        return {"artifact": written}

    def note(self, path: str, checkpoint: dict[str, Any]) -> None:
        """Put a checkpoint into the index that Lightning has written, whole, wherever it lies."""
        if "optimizer_states" not in checkpoint:
            return  # Nobody can go on from weights alone.
        # It may lie in a bucket, and hold anything; and the index is not worth an error in Lightning's code.
        with suppress(OSError, KeyError, TypeError, ValueError):
            place = {"global_step": int(checkpoint["global_step"]), "epoch": int(checkpoint["epoch"])}
            file = Path(os.path.abspath(path))
            size = sum(part.stat().st_size for part in file.rglob("*")) if file.is_dir() else file.stat().st_size
            self._add(CHECKPOINTS, self._entry(file, size, None, None, place))

    def forget(self, path: str) -> None:
        """Take a checkpoint out of the index that Lightning has removed."""
        with suppress(OSError):
            absolute = os.path.abspath(path)
            self._own[CHECKPOINTS].pop(absolute, None)
            self._gone.add(absolute)
            self._write_index(CHECKPOINTS)

    def _entry(
        self, path: Path, size: int, command: Command | None, label: str | None, place: Place | dict[str, int]
    ) -> Written:
        return Written(
            id=path.name,
            path=str(path),
            size=size,
            label=label,
            kind="checkpoint" if command is None else command.record["kind"],
            command=None if command is None else command.id,
            number=0,
            control_revision=self._run.queue.control_log.revision,
            global_step=place["global_step"],
            epoch=place["epoch"],
            time=time.time(),
        )

    def _check_room(self) -> None:
        """Raise OSError where the disk has no room for another checkpoint like the last one."""
        into = self.directory / CHECKPOINTS
        into.mkdir(parents=True, exist_ok=True)
        last = next(iter(self.index(CHECKPOINTS)["artifacts"]), None)
        free = shutil.disk_usage(into).free
        if last is not None and free < last["size"]:
            raise OSError(
                errno.ENOSPC,
                f"no room for a checkpoint: the last one took {last['size']:,} bytes, and {free:,} are free",
                str(into),
            )

    def _retain(self) -> None:
        """Remove those checkpoints of midrun's own that are not to be kept."""
        config = self._run.config
        if config.checkpoint_keep_last is None:
            return
        own = [entry for entry in self.index(CHECKPOINTS)["artifacts"] if entry["number"] > 0]
        own.sort(key=lambda entry: entry["number"], reverse=True)
        chosen, every = Shelf(self._run.directory).chosen, config.checkpoint_keep_every
        for entry in own[config.checkpoint_keep_last :]:
            if entry["path"] == chosen or (every is not None and entry["number"] % every == 0):
                continue
            remove(Path(entry["path"]))
            self.forget(entry["path"])

    # ---- the index

    def index(self, folder: str) -> WrittenIndex:
        """Return what is in the index; a file that is no index is none."""
        try:
            index = json.loads((self.directory / folder / INDEX).read_bytes())
            entries = [{"number": 0, **dict(item)} for item in index["artifacts"] if _is_entry(item)]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            entries = []
        return WrittenIndex(artifacts=entries)  # type: ignore[typeddict-item]  # as written

    def _add(self, folder: str, entry: Written) -> None:
        own = self._own[folder]
        own[entry["path"]] = entry
        self._gone.discard(entry["path"])
        try:
            self._write_index(folder)
        except BaseException:
            own.pop(entry["path"], None)
            raise
        self.written += 1

    def _write_index(self, folder: str) -> None:
        """Write the index with what this session has put into it.

        A signal's handler may save a checkpoint while another is put into the index, and so may another thread: whoever
        sees that there is more now than when the index was made writes it again.
        """
        while not self._write_once(folder):
            pass

    def _write_once(self, folder: str) -> bool:
        """Write the index; return whether there is no more by now than what is in it."""
        with self._lock:
            own = list(self._own[folder].values())
            gone, paths = set(self._gone), {entry["path"] for entry in own}
            rest = [entry for entry in self.index(folder)["artifacts"] if entry["path"] not in paths | gone]
            entries = sorted([*own, *rest], key=lambda entry: entry["time"], reverse=True)
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
            write_whole(self.directory / folder / INDEX, render(INDEX, {"artifacts": entries}))
            return len(own) == len(self._own[folder]) and gone == self._gone

    # ---- after a crash

    def sweep(self) -> None:
        """Remove what a process that was killed has left half written, and have the index say what is there."""
        for folder in FOLDERS:
            with suppress(OSError, ValueError):
                # None takes a day to write.
                sweep(self.directory / folder, older=_DAY, folders=True)
        with suppress(OSError):
            self._reconcile()

    def _reconcile(self) -> None:
        """Have the index of the checkpoints agree with the files: a process may be killed between the two."""
        entries = self.index(CHECKPOINTS)["artifacts"]
        known = {entry["path"] for entry in entries}
        lost = {path for path in known if not Path(path).exists()}
        found = [path for path in self._files() if str(path) not in known]
        for path in found:
            if (entry := _entry_in(path)) is not None:
                self._own[CHECKPOINTS].setdefault(str(path), entry)  # It may be just being added.
        if lost or found:
            self._gone |= lost
            self._write_index(CHECKPOINTS)

    def _files(self) -> list[Path]:
        folder = self.directory / CHECKPOINTS
        return [path for path in folder.glob("*.ckpt") if not path.name.startswith(".")]


def _is_entry(item: object) -> bool:
    """Whether somebody has not spoilt it."""
    kinds = {"id": str, "path": str, "size": int, "global_step": int, "epoch": int, "time": float}
    return isinstance(item, dict) and all(isinstance(item.get(name), kind) for name, kind in kinds.items())


def _entry_in(path: Path) -> Written | None:
    """Return what a checkpoint says of itself; None where it is none of midrun's, or can't be read."""
    from midrun.checkpoints.bundle import about  # noqa: PLC0415 - it loads torch, and is seldom wanted

    told = about(path)
    if told is None:
        return None
    return Written(
        id=path.name,
        path=str(path),
        size=path.stat().st_size,
        label=told["label"],
        kind="checkpoint",
        command=told["command"],
        number=0,
        control_revision=told["control_revision"],
        global_step=told["global_step"],
        epoch=told["epoch"],
        time=told["time"],
    )


def write_text(text: str, path: str) -> None:
    """Write a text, as one of the functions that a store has make a file."""
    Path(path).write_text(text, encoding="utf-8")


def _stem(word: str, place: Place, label: str | None) -> str:
    """Return an artifact's name without its ending. Of the label it has letters and digits, as many as fit."""
    cleaned = re.sub(r"[^\w.-]", "_", label or "").strip("._")
    cut = cleaned.encode()[:_LONGEST_LABEL].decode(errors="ignore")
    return "-".join(filter(None, (word, f"epoch={place['epoch']}-step={place['global_step']}", cut)))


def _unused(folder: Path, stem: str, suffix: str) -> Path:
    ending, number = f".{suffix}" if suffix else "", 1
    path = folder / f"{stem}{ending}"
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem}-{number}{ending}"
    return path


def _reason_of_the_disk(error: BaseException) -> OSError | None:
    """Return what the disk said, where torch then spoke of something else: a position in a file, say."""
    within: BaseException | None = error if isinstance(error, RuntimeError) else None
    while within is not None and not isinstance(within, OSError):
        within = within.__context__
    return within


def _sync(path: Path) -> int:
    """Return how many bytes a file or directory holds, once they are on the disk."""
    if path.is_dir():
        size = sum(_sync(below) for below in path.iterdir())
        sync_directory(path)
        return size
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)
