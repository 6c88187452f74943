"""The scripts of a run: `hooks/light/` and `hooks/heavy/`, and which of them are executable now.

What somebody has edited is never written over. `midrun-hooks-state.json` has the digest of each script that midrun
made, so that a newer midrun, or a user's own set, replaces those alone that nobody has edited, and midrun makes none of
its own again that somebody has deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from midrun.callbacks import ARGUMENTS
from midrun.fs.disk import aside, write_whole
from midrun.fs.guesses import closest
from midrun.fs.render import render

Weight = Literal["light", "heavy"]
WEIGHTS: tuple[Weight, ...] = ("light", "heavy")
"""A light script is told what the arguments are; a heavy one gets the tensors too. The order in which they run."""
SUFFIX = ".sh"
STATE = "midrun-hooks-state.json"
FORMAT = "midrun.hooks/1"

_EXECUTABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_TEMPLATE = """\
#!/bin/sh
# Runs at {name}, on the training thread: training waits for it.
# To enable it: chmod +x {path}
#
# $1 is a JSON file:
#   {{"callback": "{name}", "kind": "{weight}", "rank": 0, "stage": "train", "global_step": 312, "epoch": 3,
#    "batch_idx": 12, "metrics": {{"train/loss": 0.25}},
#    "arguments": {{{arguments}}}}}{files}
#
# Of a container each part is described by its path, as "batch.0". The environment has MIDRUN_RUN_DIR, MIDRUN_SPOOL,
# MIDRUN_URL, MIDRUN_RANK and MIDRUN_CALLBACK. What it prints goes into midrun's log.
# Never wait here for a command that you send: it is done only when training goes on.

"""
_FILES = """
# The tensors are .npy files, each named by the "file" of its part. They are removed when this script ends."""


class NoSet(OSError):  # noqa: N818 - what is wrong, as all faults here are named
    """A user's own set of scripts is not there."""


class Scripts:
    """The scripts in a run directory.

    Parameters
    ----------
    directory
        The run directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "hooks"
        self._state = directory / STATE

    @property
    def are_there(self) -> bool:
        """Whether there are directories for them."""
        return all((self.directory / weight).is_dir() for weight in WEIGHTS)

    def install(self, source: Path | None) -> None:
        """Make the scripts that are not there, those of a user's own set first. Raises OSError."""
        made = self._made()
        for weight in WEIGHTS:
            (self.directory / weight).mkdir(parents=True, exist_ok=True)
        if source is not None:
            self._copy(source, made)
        for path, text in _templates():
            self._make(path, text, made)
        write_whole(self._state, render(STATE, {"format": FORMAT, "made": dict(sorted(made.items()))}))

    def executable(self) -> tuple[dict[str, list[Path]], list[Path]]:
        """Return the scripts that are executable: by their callbacks in the order in which they run, and strangers.

        Those have names that are no callback's.
        """
        found: dict[str, list[Path]] = {}
        strangers: list[Path] = []
        for weight in WEIGHTS:
            with suppress(OSError), os.scandir(self.directory / weight) as entries:
                for entry in entries:
                    name = entry.name.removesuffix(SUFFIX)
                    if name != entry.name and _is_executable(entry):
                        scripts = found.setdefault(name, []) if name in ARGUMENTS else strangers
                        scripts.append(Path(entry.path))
        return found, strangers

    def _made(self) -> dict[str, str]:
        """Return the digests of the scripts that midrun has made."""
        with suppress(OSError, ValueError, AttributeError):
            made = json.loads(self._state.read_bytes()).get("made")
            if isinstance(made, Mapping):
                return {str(path): str(digest) for path, digest in made.items()}
        return {}

    def _make(self, path: str, text: str, made: dict[str, str]) -> None:
        script, digest = self.directory / path, _digest(text.encode())
        is_there = os.path.lexists(script)
        if is_there and (path not in made or made[path] == digest or _digest_of(script) != made[path]):
            return  # It is the user's, or it is this one.
        if not is_there and path in made:
            return  # Somebody does not want it.
        mode = stat.S_IMODE(script.stat().st_mode) if is_there else 0o644
        written = aside(script)
        written.write_text(text, encoding="utf-8")
        written.chmod(mode)
        written.replace(script)  # Not waited for: what a crash takes is made again.
        made[path] = digest

    def _copy(self, source: Path, made: Mapping[str, str]) -> None:
        """Copy a user's own set, with its modes. What is here already stays, unless midrun has made it."""
        if not source.is_dir():
            raise NoSet(f"hooks_source_dir: there is no directory {os.path.abspath(source)!r}")
        for folder, below, names in os.walk(source):
            below[:] = [name for name in below if not name.startswith(".")]
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), source)
                script = self.directory / path
                if os.path.lexists(script) and (path not in made or _digest_of(script) != made[path]):
                    continue
                script.parent.mkdir(parents=True, exist_ok=True)
                written = aside(script)
                shutil.copy2(os.path.join(folder, name), written)
                written.replace(script)


def likest(script: Path) -> str | None:
    """Return the name of the script whose callback's name is most like a stranger's, or None where none is."""
    close = closest(script.name.removesuffix(SUFFIX), ARGUMENTS)
    return None if close is None else f"{close}{SUFFIX}"


def template(weight: Weight, name: str) -> str:
    """Return the script that midrun makes for a callback."""
    described = '"type": "Tensor", "shape": [32, 8], "dtype": "float32", "device": "cpu"'
    file = ', "file": "…/{}.npy", "stored_as": "float32"' if weight == "heavy" else ""
    part = f'"batch.0": {{{described}{file.format("batch.0")}}}'
    examples = {
        "batch": f'"batch": {{"type": "list", "length": 2}},\n#      {part}',
        "batch_idx": '"batch_idx": {"type": "int", "value": 12}',
        "dataloader_idx": '"dataloader_idx": {"type": "int", "value": 0}',
        "outputs": '"outputs": {"type": "dict", "length": 1}',
        "loss": '"loss": {"type": "Tensor", "shape": [], "dtype": "float32", "device": "cpu", "value": 0.25}',
        "optimizer": '"optimizer": {"type": "Adam"}',
        "exception": '"exception": {"type": "RuntimeError", "message": "…"}',
        "checkpoint": '"checkpoint": {"type": "dict", "length": 9}',
        "stage": '"stage": {"type": "str", "value": "fit"}',
    }
    arguments = ",\n#      ".join(examples.get(argument, f'"{argument}": {{…}}') for argument in ARGUMENTS[name])
    return _TEMPLATE.format(
        name=name,
        weight=weight,
        path=f"hooks/{weight}/{name}{SUFFIX}",
        arguments=arguments,
        files=_FILES * (weight == "heavy"),
    )


def _templates() -> Iterator[tuple[str, str]]:
    for weight in WEIGHTS:
        for name in ARGUMENTS:
            yield f"{weight}/{name}{SUFFIX}", template(weight, name)


def _is_executable(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        status = entry.stat()
        return stat.S_ISREG(status.st_mode) and bool(status.st_mode & _EXECUTABLE)
    return False


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of(path: Path) -> str:
    try:
        return _digest(path.read_bytes())
    except OSError:
        return ""
