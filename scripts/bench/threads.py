"""What midrun's own threads take of a processor in the trainer: with nobody looking, and with a dashboard in live mode.

python -m scripts.bench.threads [SECONDS]

Python runs in one thread at a time, so this is most of what they can cost training. Unlike a ratio of step times it is
not lost in their noise.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from scripts.bench.overhead import Browser, wait_for

TRAIN = """
import sys
import lightning.pytorch as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset
from examples.quickstart import TinyRegressor

torch.set_num_threads(1)
data = TensorDataset(torch.randn(40960, 8), torch.randn(40960, 1))
logger = CSVLogger(sys.argv[1], name="", version="run")
trainer = L.Trainer(
    max_epochs=-1, accelerator="cpu", logger=logger, enable_progress_bar=False, enable_checkpointing=False
)
trainer.fit(TinyRegressor(), DataLoader(data, batch_size=32))
"""


def taken(trainer: int, seconds: float) -> float:
    """Return what the trainer's other threads take of a processor, as a share of the time."""
    before, began = _seconds(trainer), time.perf_counter()
    time.sleep(seconds)
    after, ended = _seconds(trainer), time.perf_counter()
    return sum(after[thread] - before.get(thread, 0.0) for thread in after) / (ended - began)


def _seconds(trainer: int) -> dict[int, float]:
    threads = psutil.Process(trainer).threads()
    return {thread.id: thread.user_time + thread.system_time for thread in threads if thread.id != trainer}


def main() -> None:
    """Train the quickstart's model, and print a table in Markdown."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory(prefix="midrun-bench-") as folder:
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAIN, folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
        )
        record = Path(folder, "run", "run.json")
        try:
            wait_for(record.exists)
            time.sleep(5)
            print("| midrun's threads in the trainer | of a processor |\n|---|---|")
            print(f"| nobody looks | {taken(trainer.pid, seconds):.2%} |", flush=True)
            browser = Browser("page", 1, f"{json.loads(record.read_text())['rest_url']}/")
            try:
                time.sleep(5)
                print(f"| the dashboard in live mode | {taken(trainer.pid, seconds):.2%} |", flush=True)
            finally:
                browser.close()
        finally:
            trainer.terminate()
            trainer.wait()


if __name__ == "__main__":
    main()
