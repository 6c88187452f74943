"""The tree of a run with all that the dashboard looks at, for tests of the page alone.

What a test has the page show is put into it: numbers, names, an exception, a graph. Nothing here computes anything.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from midrun.fs import names
from midrun.fs.faults import Invalid
from midrun.fs.form import Form
from midrun.fs.later import Later
from midrun.fs.segments import Segment
from midrun.fs.tree import Control, Dir, Leaf, Link, Node, file
from midrun.fs.write import Writer

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "javascript:alert(3)",
    "\"'><svg/onload=alert(4)>",
    "{{constructor.constructor('alert(5)')()}}",
    "../../etc/passwd",
    "a%2Fb/c?d#e&f",
    "line\r\nfeed",
    "nul\0 and \x1b[31mred",
    "\u202eright to left",
    "naïve ✓ 学習率 🔥",
    "__proto__",
    "constructor",
    "x" * 300,
    "",
]
"""Names that a person who means harm, or nobody at all, may give to anything."""


class Reason(BaseModel):
    """Why."""

    model_config = ConfigDict(extra="forbid", strict=True)
    reason: Annotated[str, Field(max_length=20)] | None = Field(default=None, description="Why, for the record.")


class Amount(BaseModel):
    """How much of what."""

    model_config = ConfigDict(extra="forbid", strict=True)
    value: float = Field(ge=0, description="The amount.")
    unit: Literal["grams", "ounces"] | None = Field(default=None, description="What it is counted in.")
    gently: bool = Field(default=False, description="Whether with care.")


class Label(BaseModel):
    """A name."""

    model_config = ConfigDict(extra="forbid", strict=True)
    label: str | None = None


class Setting(BaseModel):
    """A name and a value."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    value: Any


class Which(BaseModel):
    """Which checkpoint."""

    model_config = ConfigDict(extra="forbid", strict=True)
    checkpoint: str


class Nothing(BaseModel):
    """No arguments."""

    model_config = ConfigDict(extra="forbid", strict=True)


class When(BaseModel):
    """When it is due."""

    model_config = ConfigDict(extra="forbid", strict=True)
    global_step: int | None = Field(default=None, description="Not before so many steps.")


class Execution(BaseModel):
    """How it is run."""

    model_config = ConfigDict(extra="forbid", strict=True)
    when: When = Field(default_factory=When)


class Pause(BaseModel):
    """To hold."""

    kind: Literal["pause"] = Field(description="Hold the run.")
    args: Reason = Field(default_factory=Reason)
    execution: Execution = Field(default_factory=Execution)


class Stop(BaseModel):
    """To end."""

    kind: Literal["stop"] = Field(
        description="End the run.", json_schema_extra={"x-confirm": "Stop it? It ends, and nothing brings it back."}
    )
    args: Nothing = Field(default_factory=Nothing)


class GoBack(BaseModel):
    """To be what it was."""

    kind: Literal["load_checkpoint"] = Field(
        description="Go back.", json_schema_extra={"x-confirm": "Go back? What was done since is lost."}
    )
    args: Which
    execution: Execution = Field(default_factory=Execution)


class Knead(BaseModel):
    """A kind that no dashboard has ever heard of."""

    kind: Literal["knead"] = Field(description="Knead the dough.\n\nIt rises afterwards.")
    args: Amount
    execution: Execution = Field(default_factory=Execution)


class AnyCommand(RootModel[Annotated[Pause | Stop | GoBack | Knead, Field(discriminator="kind")]]):
    """Any command."""


def _takes(name: str, arguments: type[BaseModel]) -> Control:
    return Control(Form(name, f"Do {name}.", arguments), lambda owner, asked, writer: owner.take(name, asked, writer))


class ControlDir(Dir):
    """What can be asked."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def take(self, name: str, asked: BaseModel, writer: Writer) -> dict[str, Any] | Later:
        """Note what is asked, as a command that waits."""
        if self._board.late is not None:
            return self._board.late
        document = asked.model_dump(exclude_unset=True)
        kind = document.get("kind", name)
        if kind == self._board.refuses:
            raise Invalid(f"{kind} is refused: <b>no</b>")
        record = {
            "id": f"c{len(self._board.given) + 1}",
            "kind": kind,
            "args": document.get("args", {}) if "kind" in document else document,
            "execution": document.get("execution", {}),
            "status": "queued",
            "source": writer.via,
            "via": writer.via,
            "submitted": time.time(),
            "started": None,
            "finished": None,
            "place": None,
            "result": None,
            "error": None,
        }
        self._board.given.append(record)
        return record

    commands = _takes("commands", AnyCommand)
    pause = _takes("pause", Reason)
    checkpoint = _takes("checkpoint", Label)
    stop = _takes("stop", Nothing)
    load_checkpoint = _takes("load_checkpoint", Which)
    choose_checkpoint = _takes("choose_checkpoint", Which)
    set_hparam = _takes("set_hparam", Setting)
    set_learning_rate = _takes("set_learning_rate", Amount)


class Metrics(Dir):
    """The metrics."""

    def __init__(self, board: Board) -> None:
        self._board = board

    @file("index.json", cached=False)
    def index(self) -> dict[str, Any]:
        """All of them."""
        return {"global_step": self._board.step, "epoch": 0, "batch": 0, "metrics": self._board.metrics}


class Points(dict[str, str]):
    """The points of each name as CSV; they are on the disk as well, where charts have them from."""

    def __init__(self, directory: str, points: Mapping[str, str]) -> None:
        super().__init__(points)
        self._parent = Path(directory) / "history"
        self._write()

    def __setitem__(self, name: str, points: str) -> None:
        super().__setitem__(name, points)
        self._write()

    def _write(self) -> None:
        """Write a segment. It takes the place of the last at once, as what a run has written is there for good."""
        made = self._parent.with_name("made")
        segment = Segment(made, "fit", 1_700_000_000.0, 0)
        for name, points in self.items():
            rows = [[float(number) for number in line.split(",")] for line in points.splitlines()[1:]]
            steps, times, values = zip(*rows, strict=True) if rows else ((), (), ())
            segment.append((name,), [*map(int, steps)], times, [[value] for value in values])
        segment.flush()
        if made.exists():
            self._parent.mkdir(parents=True, exist_ok=True)
            last = max((int(path.name) for path in self._parent.iterdir()), default=0)
            (made / "0001").rename(self._parent / f"{last + 1:04}")
            made.rmdir()
            for old in sorted(self._parent.iterdir())[:-1]:
                shutil.rmtree(old)


class History(Dir):
    """The points."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.rows = Link(lambda: f"{board.directory}/history")

    @file("index.json", cached=False)
    def index(self) -> dict[str, Any]:
        """What there is."""
        return {"series": {name: names.escape(f"{name}.csv") for name in self._board.points}}

    def members(self) -> Iterable[str]:
        return [f"{name}.csv" for name in self._board.points]

    def member(self, name: str) -> Node | None:
        points = self._board.points.get(name.removesuffix(".csv"))
        return None if points is None else Leaf(lambda: points, cached=False)


class State(Dir):
    """Where it is."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.metrics = Metrics(board)
        self.pipeline: Dir | None = None
        self.cuda: Dir | None = None

    @file("index.json", cached=False)
    def index(self) -> dict[str, Any]:
        """All at one glance."""
        return self._board.index()

    def members(self) -> Iterable[str]:
        return [] if self._board.memory is None else ["memory.json"]

    def member(self, name: str) -> Node | None:
        return Leaf(lambda: self._board.memory, cached=False) if name in self.members() else None

    @file("optimizers.json", cached=False)
    def optimizers(self) -> dict[str, Any]:
        """The optimizers."""
        group = {"lr": self._board.rate, "parameters": 2, "options": {"momentum": math.nan, "betas": [0.9, 0.99]}}
        return {"global_step": self._board.step, "optimizers": [{"name": self._board.label, "groups": [group]}]}

    @file("finite-check.json", cached=False)
    def finite_check(self) -> dict[str, Any]:
        """What was found in batches."""
        return self._board.checked

    @file("services.json", cached=False)
    def services(self) -> dict[str, Any]:
        """The services."""
        return {"services": self._board.services}

    @file("rewinds.json", cached=False)
    def rewinds(self) -> dict[str, Any]:
        """Where the run has gone back."""
        return {"rewinds": self._board.rewinds}

    @file("control-log.json", cached=False)
    def control_log(self) -> dict[str, Any]:
        """The log."""
        return {"revision": 0, "entries": self._board.log}


class Model(Dir):
    """What is trained."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.inspectors: Dir | None = None

    @file("class")
    def class_name(self) -> str:
        """Its class."""
        return self._board.label

    @file("hparams.json")
    def hparams(self) -> dict[str, Any]:
        """The hyperparameters."""
        return dict.fromkeys(HOSTILE, self._board.label)

    @file("tunable-hparams.json", cached=False)
    def tunables(self) -> dict[str, Any]:
        """What can be changed."""
        return {"hparams": self._board.tunables}

    @file("graph.dot", live=True)
    def graph(self) -> str | Later:
        """The graph."""
        self._board.drawn += 1
        return self._board.graph

    def members(self) -> Iterable[str]:
        return [] if self._board.summary is None else ["summary-live.txt"]

    def member(self, name: str) -> Node | None:
        return Leaf(lambda: self._board.summary, live=True) if name in self.members() else None


class Listing(Dir):
    """A list in a file."""

    def __init__(self, show: Any) -> None:
        self._show = show

    @file("index.json", cached=False)
    def index(self) -> dict[str, Any]:
        """All of it."""
        shown: dict[str, Any] = self._show()
        return shown


class Shelf(Dir):
    """Files and directories that not every run has."""

    def __init__(self, **files: Callable[[], object] | Dir) -> None:
        self._shown = {name.replace("_", "."): show for name, show in files.items()}

    def members(self) -> Iterable[str]:
        return self._shown

    def member(self, name: str) -> Node | None:
        shown = self._shown.get(name)
        return shown if shown is None or isinstance(shown, Dir) else Leaf(shown, cached=False)


class Artifacts(Listing):
    """The files that were written."""

    def __init__(self, board: Board) -> None:
        super().__init__(lambda: {"artifact_dir": board.directory, "artifacts": board.written})
        self._board = board
        self.debug = Link(lambda: f"{board.directory}/debug")

    @file("resumable.json", cached=False)
    def resumable(self) -> dict[str, Any]:
        """What training can go on from."""
        return {"reached": self._board.step, "checkpoints": self._board.kept}


class Board(Dir):
    """A run."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.run_id = "run-1"
        self.status = "running"
        self.label = "SGD"
        self.step = 100
        self.started = time.time() - 60
        self.rate: float = 0.1
        self.refuses = ""
        self.late: Later | None = None
        """What comes of what is asked, while it is not known yet."""
        self.pace: dict[str, float | None] = {"steps_per_second": None, "seconds_left": None}
        self.metrics: dict[str, float] = {"train/loss": 0.25}
        self.points = {"train/loss": csv([0.5, 0.4, 0.25])}
        self.services: dict[str, dict[str, Any]] = {"rest": {"state": "running", "reason": None, "since": 0.0}}
        self.tunables: dict[str, dict[str, Any]] = {}
        self.rewinds: list[dict[str, Any]] = []
        self.kept: list[dict[str, Any]] = []
        """The checkpoints."""
        self.written: list[dict[str, Any]] = []
        """The artifacts."""
        self.exception: dict[str, Any] | None = None
        self.checked: dict[str, Any] = {"enabled": False, "hold": False, "batches": 0, "not_finite": 0, "unread": 0}
        self.checked |= {"first": None, "last": None}
        self.graph: str | Later = "digraph { a -> b }"
        self.drawn = 0
        """How often somebody has had the graph made."""
        self.given: list[dict[str, Any]] = []
        """What was asked, as commands."""
        self.log: list[dict[str, Any]] = []
        self.holding: dict[str, Any] = {
            "active": None,
            "exception": None,
            "pending": [],
            "waiting": [],
            "stopped": False,
        }
        self.summary: str | Later | None = None
        """What model/summary-live.txt shows, where there is one."""
        self.memory: dict[str, Any] | None = None
        """What state/memory.json shows, where there is one."""
        self.state = State(self)
        self.model = Model(self)
        self.history = History(self)
        self.control = ControlDir(self)
        self.commands = Listing(lambda: {"commands": self.given})
        self.holds = Listing(lambda: self.holding)
        self.artifacts = Artifacts(self)
        self.hooks: Dir | None = None
        self.meta: Dir | None = None

    def furnish(self, *, phases: dict[str, Any], memory: dict[str, Any], hooks: dict[str, Any], host: str) -> None:
        """Show the nodes too that not every run has."""
        self.state.pipeline = Shelf(summary_json=lambda: phases)
        self.state.cuda = Shelf(memory_json=lambda: memory)
        self.hooks = Listing(lambda: hooks)
        self.meta = Shelf(**{"host": lambda: host, "run-dir": lambda: self.directory})

    @property
    def points(self) -> dict[str, str]:
        """The points of each name, as CSV."""
        return self._points

    @points.setter
    def points(self, points: Mapping[str, str]) -> None:
        self._points = Points(self.directory, points)

    def index(self) -> dict[str, Any]:
        """Return what `state/index.json` shows."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "stage": "train",
            "epoch": 1,
            "global_step": self.step,
            "batch": 9,
            "max_epochs": 4,
            "max_steps": None,
            "batches": 20,
            "started": self.started,
            "sampled": time.time(),
            "progress": 0.375,
            **self.pace,
            "exception": self.exception,
        }


def csv(values: Iterable[float], start: int = 1) -> str:
    """Return points as `history/` shows them."""
    lines = [f"{step},{1_700_000_000 + step:.3f},{value!r}\n" for step, value in enumerate(values, start)]
    return "step,time,value\n" + "".join(lines)
