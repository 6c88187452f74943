"""History: the points of a run's metrics and learning rates, from its directory, as CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from midrun.cli.output import Trouble, plain, to_stdout
from midrun.cli.runs import Run
from midrun.fs.guesses import closest
from midrun.fs.segments import Duplicates, Name, curve_of, names_in

FOLDER = "history"
"""Its name in the run directory."""


def listed(run: Run) -> int:
    """Print what there is a history of, with the number of points."""
    for name, entry in names_in(run.path / FOLDER).items():
        if not to_stdout(f"{entry['rows']:>12,}  {plain(name)}"):
            break
    return 0


def printed(
    run: Run, name: str, *, first: int = 0, last: float = math.inf, points: float = math.inf, every: bool = False
) -> int:
    """Print the points of one name, a line each.

    Parameters
    ----------
    every
        Whether the values are printed as well that a later session has made again.
    """
    duplicates: Duplicates = "both" if every else "last"
    found = curve_of(run.path / FOLDER, name, first=first, last=last, points=points, duplicates=duplicates)
    if found is None:
        raise Trouble(f"{run.directory} has no history of {name!r}: {_known(names_in(run.path / FOLDER), name)}", 2)
    lines = ["step,time,value"]
    for attempt in found["attempts"]:
        lines += map(_line, attempt["steps"], attempt["times"], attempt["values"])
    _print(lines)
    return 0


def _line(step: int, time: float, value: float) -> str:
    return f"{step},{time:.3f},{value!r}"


def _print(lines: Sequence[str]) -> None:
    to_stdout("\n".join(lines))


def _known(names: Mapping[str, Name], name: str) -> str:
    close = closest(name, names)
    return "midrun history without a name lists what there is" if close is None else f"did you mean {close!r}?"
