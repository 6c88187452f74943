"""Resume: the checkpoints of a run that training can go on from, and the choice of one."""

from __future__ import annotations

import json
import os

from midrun.checkpoints.faults import CheckpointError
from midrun.checkpoints.shelf import Kept, Shelf
from midrun.cli.output import Trouble, clock, plain, to_stdout
from midrun.cli.runs import Run

_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000


def listed(run: Run, *, as_json: bool) -> int:
    """Print the checkpoints of a run, the newest first, with the steps that each leaves to redo."""
    index = Shelf(run.path).listed()
    if as_json:
        to_stdout(json.dumps(index))
        return 0
    if not index["checkpoints"]:
        raise Trouble(f"{run.directory} has no checkpoint: midrun send {run.directory} checkpoint writes one")
    to_stdout(f"{'step':>10} {'epoch':>6} {'to redo':>10} {'size':>8}  {'written':19}  checkpoint")
    for kept in index["checkpoints"]:
        size, written = _size(kept["size"]), clock(kept["time"])
        row = f"{kept['global_step']:>10,} {kept['epoch']:>6} {kept['steps_to_redo']:>10,} {size:>8}  {written:19}"
        if not to_stdout(f"{row}  {plain(kept['id'])}{_notes(kept)}"):
            break
    return 0


def chosen(run: Run, name: str) -> int:
    """Have the next process go on from a checkpoint, where it asks for `resume`; `latest` takes that back."""
    try:
        entry = Shelf(run.path).choose(name, f"command line ({os.environ.get('USER', 'unknown')})")
    except CheckpointError as error:
        raise Trouble(str(error), 2) from error
    what = "the newest" if entry is None else f"{entry['path']}, once"
    to_stdout(f"midrun.checkpoint({run.directory!r}, 'resume') is {what}")
    return 0


def _notes(kept: Kept) -> str:
    notes = [
        "chosen" if kept["is_chosen"] else "",
        "older than the last change by a command" if kept["is_older_than_control"] else "",
    ]
    told = ", ".join(filter(None, notes))
    return f" ({told})" if told else ""


def _size(number: float) -> str:
    unit = 0
    while number >= _THOUSAND and unit < len(_UNITS) - 1:
        number, unit = number / _THOUSAND, unit + 1
    return f"{number:.0f} {_UNITS[unit]}" if not unit or number >= 100 else f"{number:.1f} {_UNITS[unit]}"  # noqa: PLR2004 - two digits or three
