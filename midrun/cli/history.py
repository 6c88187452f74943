"""History: the points of a run's metrics and learning rates, from its directory, as CSV."""

from __future__ import annotations

from midrun.cli.output import Trouble, plain, to_stdout
from midrun.cli.runs import Run
from midrun.fs.guesses import closest
from midrun.fs.segments import curve_of, names_in
from midrun.records import HISTORY
from midrun.series import HEADER, line


def listed(run: Run) -> int:
    """Print what there is a history of, with the number of points."""
    for name, entry in names_in(run.path / HISTORY).items():
        if not to_stdout(f"{entry['rows']:>12,}  {plain(name)}"):
            break
    return 0


def printed(run: Run, name: str, *, first: int, last: float, points: float, every: bool) -> int:
    """Print the points of one name, a line each.

    Parameters
    ----------
    first, last, points
        As in `curve_of`.
    every
        Whether the values are printed as well that a later session has made again.
    """
    parent = run.path / HISTORY
    found = curve_of(parent, name, first=first, last=last, points=points, duplicates="both" if every else "last")
    if found is None:
        close = closest(name, names_in(parent))
        hint = "midrun history without a name lists what there is" if close is None else f"did you mean {close!r}?"
        raise Trouble(f"{run.directory} has no history of {name!r}: {hint}", 2)
    lines = [HEADER]
    for attempt in found["attempts"]:
        lines += map(line, attempt["steps"], attempt["times"], attempt["values"])
    to_stdout("".join(lines).removesuffix("\n"))
    return 0
