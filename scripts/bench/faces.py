"""How long one reader waits: a file through the mount and a GET by REST, beside a plain pyfuse3 file in the same run.

python -m scripts.bench.faces [--reads N]

*hot* is a file that the face has kept, which it does for 100 ms; *cold* is one that it must ask the trainer for. A
trainer of its own trains the quickstart's model meanwhile. The figures are microseconds. The last lines give the
resident memory of the faces, and how long starting and stopping them takes the trainer.
"""

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from scripts.bench.overhead import hello, wait_for

COLD_PAUSE = 0.11
"""Seconds after which a face no longer keeps what it had."""
TRAINER = """
import sys, time, torch, warnings
import lightning.pytorch as L
from torch.utils.data import DataLoader, TensorDataset
from examples.quickstart import TinyRegressor

class Model(TinyRegressor):
    def setup(self, stage):
        begun = time.perf_counter()
        super().setup(stage)
        self.took_start = time.perf_counter() - begun
    def teardown(self, stage):
        begun = time.perf_counter()
        super().teardown(stage)
        print(f"{self.took_start * 1e3:.0f} {(time.perf_counter() - begun) * 1e3:.0f}")
    def on_train_batch_end(self, *args):
        super().on_train_batch_end(*args)
        self.trainer.should_stop = stop[0]

import signal
stop = [False]
signal.signal(signal.SIGUSR1, lambda *_: stop.__setitem__(0, True))
warnings.simplefilter("ignore")
torch.set_num_threads(1)
data = DataLoader(TensorDataset(torch.randn(1 << 20, 8), torch.randn(1 << 20, 1)), batch_size=32)
L.Trainer(max_epochs=-1, accelerator="cpu", logger=False, default_root_dir=sys.argv[1], enable_checkpointing=False,
          enable_progress_bar=False, enable_model_summary=False).fit(Model(), data)
"""


def measure(act: Callable[[], object], count: int, pause: float = 0.0) -> str:
    """Return the median and the 99th percentile of `count` durations of `act`, as two cells of a table."""
    durations = []
    for _ in range(count):
        time.sleep(pause)
        begun = time.perf_counter()
        act()
        durations.append((time.perf_counter() - begun) * 1e6)
    return f"{statistics.median(durations):,.0f} | {statistics.quantiles(durations, n=100)[-1]:,.0f}"


def getter(url: str, route: str) -> Callable[[], bytes]:
    """Return a function that asks for a route over one kept connection."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)

    def get() -> bytes:
        connection.request("GET", route)
        return connection.getresponse().read()

    return get


def cat(path: Path) -> Callable[[], object]:
    """Return a function that reads a file by /bin/cat."""
    return lambda: subprocess.run(["/bin/cat", path], check=True, stdout=subprocess.DEVNULL)


def table(procfs: Path, url: str, plain: Path, count: int) -> None:
    """Print the durations."""
    step = procfs / "state" / "global-step"
    few = max(20, count // 10)
    print("| one read, while a trainer trains | median | 99 % |\n|---|---|---|")
    print(f"| open, read, close: a plain pyfuse3 file | {measure(plain.read_bytes, count)} |")
    print(f"| open, read, close: state/global-step, hot | {measure(step.read_bytes, count)} |")
    print(f"| open, read, close: state/global-step, cold | {measure(step.read_bytes, few, COLD_PAUSE)} |")
    print(f"| cat: a plain pyfuse3 file | {measure(cat(plain), few)} |")
    print(f"| cat: state/global-step | {measure(cat(step), few)} |")
    print(f"| GET /run, hot | {measure(getter(url, '/run'), count)} |")
    print(f"| GET /run, cold | {measure(getter(url, '/run'), few, COLD_PAUSE)} |")


def memory(trainer: int) -> str:
    """Return the resident memory of the faces of a trainer."""
    handed = f'"trainer_pid": {trainer},'
    running = psutil.process_iter(["cmdline"])
    faces = [process for process in running if handed in " ".join(process.info["cmdline"] or ())]
    sizes = [face.memory_info().rss / 1e6 for face in faces]
    return f"faces: {' + '.join(f'{size:.0f}' for size in sizes)} = {sum(sizes):.0f} MB resident"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=2000)
    count = parser.parse_args().reads
    with tempfile.TemporaryDirectory(prefix="midrun-bench-") as folder:
        trainer = subprocess.Popen([sys.executable, "-c", TRAINER, folder], stdout=subprocess.PIPE, text=True)
        try:
            wait_for(lambda: any(Path(folder).glob("midrun/*/procfs/state/global-step")))
            procfs = next(Path(folder).glob("midrun/*/procfs"))
            url = json.loads((procfs.parent / "run.json").read_text())["rest_url"]
            with hello(Path(folder) / "hello"):
                table(procfs, url, Path(folder) / "hello" / "hello", count)
            print(f"\n{memory(trainer.pid)}")
        finally:
            trainer.send_signal(signal.SIGUSR1)
            output, _ = trainer.communicate(timeout=60)
        start, stop = output.split()[-2:]
        print(f"start of all services: {start} ms; stop: {stop} ms")


if __name__ == "__main__":
    main()
