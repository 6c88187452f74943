"""A small run for these tests: a real tree, and what serves it."""

from __future__ import annotations

import http.client
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast

import trio
from pydantic import BaseModel, ConfigDict, Field, RootModel

from midrun.fs.face import Face
from midrun.fs.faults import Conflict, Fault
from midrun.fs.form import Form
from midrun.fs.later import Later
from midrun.fs.segments import Segment
from midrun.fs.tree import Control as Written
from midrun.fs.tree import Dir, Leaf, Link, Node, file
from midrun.fs.view import View
from midrun.fs.write import Writer
from midrun.web.face import serve
from midrun.web.site import Site
from tests.controls import control
from tests.local import Local

METRICS: dict[str, float] = {
    "train/loss": 0.25,
    "plain": 1.5,
    "not a number": math.nan,
    "naïve ✓": 2.0,
    "50%": 3.0,
    "a%2Fb": 4.0,
    "..": 5.0,
    ".": 6.0,
    "": 7.0,
    "../../etc/passwd": 8.0,
    "line\r\nfeed": 9.0,
    "nul\0": 10.0,
    "index.json": 11.0,
    "what?#;=&+ \\": 12.0,
    "<img src=x onerror=alert(1)>": 13.0,
    "x" * 300: 14.0,
}


class Metrics(Dir):
    """The metrics, a file each."""

    @file("index.json")
    def index(self) -> dict[str, float]:
        """All of them, by their unescaped names."""
        return METRICS

    def members(self) -> Iterable[str]:
        return METRICS

    def member(self, name: str) -> Node | None:
        return Leaf(lambda: METRICS[name]) if name in METRICS else None


class Index(TypedDict):
    """What /run shows."""

    status: str
    epoch: int
    metrics: dict[str, float]


class Pipeline(Dir):
    """Where its time goes."""

    @file("summary.json")
    def summary(self) -> dict[str, str]:
        """All of it."""
        return {"verdict": "computing 90 % of the time"}


class State(Dir):
    """What the run is doing."""

    def __init__(self) -> None:
        self.step = 7
        self.stuck: Later | None = None
        self.metrics = Metrics()
        self.pipeline = Pipeline()

    @file("index.json")
    def index(self) -> Index:
        """The run at its last safe point."""
        if self.stuck is not None:
            return cast("Index", self.stuck)
        return {"status": "running", "epoch": 3, "metrics": {"train/loss": 0.25, "odd": math.inf}}

    @file("status")
    def status(self) -> str:
        """One word."""
        return "running"

    @file("global-step")
    def global_step(self) -> int:
        """Optimizer steps completed."""
        return self.step

    @file("stage")
    def stage(self) -> str | None:
        """Nothing yet."""
        return None

    @file("optimizers.json")
    def optimizers(self) -> dict[str, list[float]]:
        """Learning rates."""
        return {"lr": [0.1, 0.01]}

    @file("rewinds.json")
    def rewinds(self) -> dict[str, Any]:
        """Where it has gone back."""
        return {"rewinds": []}

    @file("resume.json")
    def resume(self) -> dict[str, Any]:
        """What it goes on from."""
        return {}

    @file("control-log.json")
    def control_log(self) -> dict[str, list[str]]:
        """What was asked."""
        return {"events": ["pause"]}


class Inspectors(Dir):
    """Views of the model."""

    @file("index.json")
    def index(self) -> dict[str, list[str]]:
        """All of them."""
        return {"inspectors": ["torchinfo"]}


class CudaMemory(Dir):
    """Memory of devices."""

    @file("snapshot.json")
    def snapshot(self) -> dict[str, bool]:
        """What it is used for."""
        return {"available": False}

    @file("history.json")
    def history(self) -> dict[str, bool]:
        """Whether it is recorded."""
        return {"recording": False}


class Debug(Dir):
    """What helps to debug."""

    def __init__(self) -> None:
        self.cuda_memory = CudaMemory()


class Model(Dir):
    """What the model is."""

    def __init__(self) -> None:
        self.inspectors = Inspectors()
        self.pending: queue.SimpleQueue[Later] = queue.SimpleQueue()
        self.at_once = False

    @file("summary-live.txt", live=True)
    def summary_live(self) -> Later:
        """Made at the next step."""
        return self._later()

    @file("graph.dot", live=True)
    def graph(self) -> Later:
        """Made at the next step, too."""
        return self._later()

    @file("busy")
    def busy(self) -> Later:
        """Made when the run gets round to it."""
        return self._later()

    @file("big.txt")
    def big(self) -> str:
        """As long as a file gets."""
        return "line\n" * 600_000

    def _later(self) -> Later:
        later = Later()
        if self.at_once:
            later.set_result("made")
        else:
            self.pending.put(later)
        return later


class SetLearningRate(BaseModel):
    """The arguments."""

    model_config = ConfigDict(extra="forbid")
    value: float


class Unit(BaseModel):
    """A part of arguments."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    scale: float = 1.0


class Scale(BaseModel):
    """Arguments that have parts."""

    model_config = ConfigDict(extra="forbid")
    unit: Unit


class Recording(BaseModel):
    """Whether something is recorded."""

    model_config = ConfigDict(extra="forbid", strict=True)
    enabled: bool = True
    max_entries: int = 100_000


class Nothing(BaseModel):
    """No arguments."""

    model_config = ConfigDict(extra="forbid")


class Pause(BaseModel):
    """To hold, as one command of many."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["pause"]
    args: Nothing


class Resize(BaseModel):
    """To scale, as one command of many."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["scale"]
    args: Scale


class Command(RootModel[Annotated[Pause | Resize, Field(discriminator="kind")]]):
    """Any command."""


class Asked(TypedDict):
    """What came of a write: its key."""

    id: str | None


class Asking(Dir):
    """A directory that notes by which key each of its files is written."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.late: Later | None = None

    def ask(self, name: str, writer: Writer) -> Asked | Later:
        self.asked.append((name, writer.key))
        return {"id": writer.key} if self.late is None else self.late


def asks(name: str, doc: str, arguments: type[BaseModel] = Nothing) -> Written:
    """Declare a control file that answers with the key by which it was written."""
    return Written(Form(name, doc, arguments), lambda owner, _, writer: owner.ask(name, writer))


class Buttons(Asking):
    """What steers the run, with documents alone."""

    commands = asks("commands", "Give any command.\nIt is done by and by.", Command)
    hold = asks("hold", "Hold the run somewhere.", Scale)
    checkpoint = asks("checkpoint", "Save a checkpoint.")
    snapshot = asks("snapshot", "Save a snapshot.")
    cuda_memory_snapshot = asks("cuda_memory_snapshot", "Save what memory is used for.")

    @control("cuda_memory_history", Recording)
    def cuda_memory_history(self, arguments: Recording) -> dict[str, Any]:
        """Record it."""
        return arguments.model_dump()

    @file("errors.json")
    def errors(self) -> dict[str, list[str]]:
        """What was refused."""
        return {"errors": []}

    @control("pause", Nothing)
    def pause(self, arguments: Nothing) -> str:
        """Hold the run."""
        del arguments
        return "held"

    @control("refuse", Nothing)
    def refuse(self, arguments: Nothing) -> None:
        """Do nothing, loudly."""
        raise Conflict("the run has stopped")

    @control("scale", Scale)
    def scale(self, arguments: Scale) -> float:
        """Scale something."""
        return arguments.unit.scale


class Control(Buttons):
    """What steers the run, with documents and bare values."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    @control("set_learning_rate", SetLearningRate, bare="value")
    def set_learning_rate(self, arguments: SetLearningRate) -> dict[str, Any]:
        """Set the learning rate."""
        self.rates.append(arguments.value)
        return {"id": "c1", "value": arguments.value}


class Record(TypedDict):
    """A command or a hold as it is shown."""

    name: str
    state: str


class Given(Asking):
    """One command."""

    cancel = asks("cancel", "Give it up.")

    @file("command.json")
    def command(self) -> Record:
        """The command, and what came of it."""
        return {"name": "pause", "state": "done"}


class Hold(Asking):
    """One hold."""

    cancel = asks("cancel", "Give it up.")
    release = asks("release", "Go on.")

    @file("hold.json")
    def hold(self) -> Record:
        """The hold."""
        return {"name": "here", "state": "armed"}


class Listed(Dir):
    """What has been asked for, a directory each."""

    def __init__(self, **entries: Asking) -> None:
        self.listed = entries

    @file("index.json")
    def index(self) -> dict[str, list[str]]:
        """All of it."""
        return {"names": list(self.listed)}

    def members(self) -> Iterable[str]:
        return list(self.listed)

    def member(self, name: str) -> Node | None:
        return self.listed.get(name)


class Artifacts(Dir):
    """Where large files are."""

    def __init__(self, directory: str = "/data/run/artifacts") -> None:
        self.checkpoints = Link(lambda: f"{directory}/checkpoints", doc="The directory of checkpoints.")
        self.snapshots = Link(lambda: f"{directory}/snapshots")
        self.debug = Link(lambda: f"{directory}/debug")

    @file("index.json")
    def index(self) -> dict[str, int]:
        """All of them, with their sizes."""
        return {"last.ckpt": 1234}

    @file("checkpoints.json")
    def checkpoints_index(self) -> dict[str, int]:
        """The checkpoints."""
        return {"last.ckpt": 1234}

    @file("resumable.json")
    def resumable(self) -> dict[str, Any]:
        """What training can go on from."""
        return {"reached": 100, "checkpoints": []}

    @file("snapshots.json")
    def snapshots_index(self) -> dict[str, int]:
        """The snapshots."""
        return {}


class History(Dir):
    """Points, in two segments on the disk, where there is a directory for them."""

    def __init__(self, directory: str) -> None:
        self.rows = Link(lambda: f"{directory}/history")
        if Path(directory).is_dir():
            for first in (0, 6):
                segment = Segment(Path(directory) / "history", "fit", 1000.0, first)
                steps = range(first, 10)
                segment.append(
                    ("loss",), steps, [1000.0 + step for step in steps], [[first + step / 8] for step in steps]
                )
                segment.flush()


class Broken(Dir):
    """What does not work."""

    @file("fault")
    def fault(self) -> str:
        """Fail with a reason."""
        raise Fault("the disk is gone")

    @file("mistake")
    def mistake(self) -> str:
        """Fail without one."""
        raise ZeroDivisionError("division by zero")


class Root(Dir):
    """A run."""

    def __init__(self, *, broken: bool = False, directory: str = "/data/run/artifacts") -> None:
        self.state = State()
        self.model = Model()
        self.debug = Debug()
        self.control = Control()
        self.commands = Listed(c1=Given(), c2=Given())
        self.holds = Listed(h1=Hold())
        self.artifacts = Artifacts(directory)
        self.history = History(directory)
        if broken:
            self.broken = Broken()


class Documented(Dir):
    """A run whose schemas say all there is to say, and which answers at once."""

    def __init__(self, directory: str) -> None:
        self.state = State()
        self.model = Model()
        self.debug = Debug()
        self.model.at_once = True
        self.control = Buttons()
        self.commands = Listed(c1=Given())
        self.holds = Listed(h1=Hold())
        self.artifacts = Artifacts(directory)
        self.history = History(directory)


def wait_until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until `condition` holds, and fail when it does not come to that."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.005)


@contextmanager
def looping(main: Any) -> Iterator[Any]:
    """Run `main(tell, stop)` in a trio loop of its own thread, until the block ends; the value it tells."""
    told: queue.SimpleQueue[tuple[Any, Any, Any]] = queue.SimpleQueue()

    async def run() -> None:
        stop = trio.Event()
        token = trio.lowlevel.current_trio_token()
        await main(lambda value: told.put((value, token, stop)), stop)

    thread = threading.Thread(target=trio.run, args=(run,), name="test-loop")
    thread.start()
    value, token, stop = told.get(timeout=10)
    try:
        yield value
    finally:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(stop.set)
        thread.join(10)
        assert not thread.is_alive(), "the loop goes on after its end"


@contextmanager
def shown(root: Dir) -> Iterator[Site]:
    """Show a tree: its site, to be used from this thread."""

    async def main(tell: Any, stop: trio.Event) -> None:
        async with View(Local(root)) as view:
            site = Site(view, {"id": "run-1", "dir": "/data/run"}, "1.2.3")
            tell(site)
            await stop.wait()
            site.close()

    with looping(main) as site:
        yield site


@dataclass
class Served:
    """A web face that serves."""

    port: int
    root: Any
    notices: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def notify(self, notice: str, **detail: Any) -> None:
        self.notices.append((notice, detail))


@contextmanager
def serving(root: Dir, **options: Any) -> Iterator[Served]:
    """Serve a tree with the web face, as its process does, and stop it at the end of the block."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    served = Served(listener.getsockname()[1], root)
    handed = {"run_id": "run-1", "run_dir": "/data/run", "version": "1.2.3", "host": "127.0.0.1", "allowed_hosts": []}

    async def main(tell: Any, stop: trio.Event) -> None:
        async with View(Local(root)) as view, trio.open_nursery() as nursery:
            face = Face(view, {**handed, **options, "listener": listener.detach()}, served)
            nursery.start_soon(partial(serve, face))
            while not served.notices:  # noqa: ASYNC110 - the wire that the notice goes to has no event
                await trio.sleep(0.001)
            tell(served)
            await stop.wait()
            nursery.cancel_scope.cancel()

    with looping(main) as value:
        yield value


def ask_once(served: Served, host: str, path: str = "/files/state/status") -> int:
    """Return the status of one GET under a host's name."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()
