"""History: the points of a run's metrics and learning rates, from its directory, as CSV."""

from __future__ import annotations

import math
from pathlib import Path

from midrun.cli.output import Trouble, plain, to_stdout
from midrun.cli.runs import Run
from midrun.fs.curves import Attempt, curve_of, names_in
from midrun.fs.guesses import closest
from midrun.records import HISTORY
from midrun.series import HEADER, line

_HEADER = "step,time,mean,low,high\n"


def listed(run: Run) -> int:
    """Print what there is a history of, with the number of points."""
    for name, entry in names_in(run.path / HISTORY).items():
        if not to_stdout(f"{entry['rows']:>12,}  {plain(name)}"):
            break
    return 0


def printed(run: Run, name: str, *, first: int, last: float, count: float, every: bool) -> int:
    """Print the points of one name, a line each; or of about so many pieces the first step, mean, lowest and highest.

    Parameters
    ----------
    first, last
        As in `curve_of`.
    count
        About how many lines; every point has one where it is infinite.
    every
        Whether the values are printed as well that a later session has made again.
    """
    parent = run.path / HISTORY
    found = curve_of(parent, name, first=first, last=last, points=2 * count, duplicates="both" if every else "last")
    if found is None:
        close = closest(name, names_in(parent))
        hint = "midrun history without a name lists what there is" if close is None else f"did you mean {close!r}?"
        if Path(name).is_dir():
            hint = "a directory has this name, but no run.json is in it"
        raise Trouble(f"{run.directory} has no history of {name!r}: {hint}", 2)
    lines = [_HEADER if count < math.inf else HEADER]
    for attempt in found["attempts"]:
        lines += _pieces_of(attempt) if count < math.inf else map(line, *_points_of(attempt))
    to_stdout("".join(lines).removesuffix("\n"))
    return 0


def _points_of(attempt: Attempt) -> tuple[list[int], list[float], list[float]]:
    return attempt["steps"], attempt["times"], attempt["values"]


def _pieces_of(attempt: Attempt) -> list[str]:
    if not attempt["pieces"]:  # There are no more points than were asked for, and each is a piece.
        return [
            f"{step},{time:.3f},{value!r},{value!r},{value!r}\n"
            for step, time, value in zip(*_points_of(attempt), strict=True)
        ]
    return [
        f"{piece['step']},{piece['time']:.3f},{piece['mean']!r},{piece['low']!r},{piece['high']!r}\n"
        for piece in attempt["pieces"]
    ]
