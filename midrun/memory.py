"""Memory: what the training process and its devices hold."""

from __future__ import annotations

import os
import pickle
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import torch

from midrun.fs.faults import Refused
from midrun.fs.render import jsonable
from midrun.fs.tree import Dir, file

MAX_ENTRIES = 100_000
"""Events of the allocator that its history keeps, where nothing else is said."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CGROUP = Path("/sys/fs/cgroup")


class ChildRecord(TypedDict):
    """A process that training has started: a loader's worker, say."""

    pid: int
    name: str
    resident: int
    """Bytes."""


class HostMemory(TypedDict):
    """What the training process holds of its host. Sizes are in bytes."""

    resident: int
    largest: int
    """The most that was resident at once."""
    children: list[ChildRecord]
    """The processes below it, the largest first. Memory that they share with it counts in each."""
    available: int | None
    """What the host could still give without swapping."""
    limit: int | None
    """What this process's control group may hold, where it has a limit."""
    open_files: int
    open_files_limit: int
    threads: int


class DeviceMemory(TypedDict):
    """What torch's allocator holds of one CUDA device. Sizes are in bytes."""

    name: str
    total: int
    free: int
    """Of the whole device: other processes may hold some of it."""
    allocated: int
    """By tensors."""
    reserved: int
    """From the device, tensors and what is kept for the next ones."""
    largest_allocated: int
    largest_reserved: int
    retries: int
    """How often the allocator had to give back all that it kept."""
    out_of_memory: int
    """How often there was not enough even then."""


class CudaMemory(TypedDict):
    """What torch's allocator holds of the CUDA devices."""

    available: bool
    why: str | None
    """Why there is nothing to show."""
    recording: bool
    """Whether the allocator's history is recorded, with the lines of code that allocate."""
    max_entries: int | None
    devices: dict[str, DeviceMemory]


class Snapshot(TypedDict):
    """What every block of the allocator's memory is used for."""

    available: bool
    warning: str | None
    """Why there is nothing to show, or less than there might be."""
    snapshot: dict[str, Any] | None
    """As `torch.cuda.memory._snapshot()` makes it."""


def resident(pid: int | str = "self") -> int:
    """Return how many bytes of a process's memory are in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def host() -> HostMemory:
    """Return what this process holds of its host."""
    children = [record for pid in _below(os.getpid()) if (record := _child(pid)) is not None]
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostMemory(
        resident=resident(),
        largest=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        children=sorted(children, key=lambda child: -child["resident"]),
        available=_available(),
        limit=_limit(),
        open_files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
        open_files_limit=soft,
        threads=sum(1 for _ in Path("/proc/self/task").iterdir()),
    )


def _below(pid: int) -> list[int]:
    """Return the processes below a process."""
    found, left = [], [pid]
    while left:
        at = left.pop()
        for path in Path(f"/proc/{at}/task").glob("*/children"):
            with suppress(OSError):  # That thread has ended.
                below = [int(number) for number in path.read_text(encoding="ascii").split()]
                found += below
                left += below
    return found


def _child(pid: int) -> ChildRecord | None:
    with suppress(OSError, IndexError):  # It has ended.
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        return ChildRecord(pid=pid, name=name, resident=resident(pid))
    return None


def _available() -> int | None:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return None


def _limit() -> int | None:
    """Return the least limit of the control groups that this process is in; version 2 alone."""
    limits = []
    with suppress(OSError, ValueError, StopIteration):
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next(line for line in groups if line.startswith("0::")).removeprefix("0::/")
        for group in (own, *map(str, Path(own).parents)):
            with suppress(OSError, ValueError):  # "max" is no number, and no limit.
                limits.append(int((_CGROUP / group / "memory.max").read_text(encoding="ascii")))
    return min(limits, default=None)


class Cuda:
    """Torch's allocator for CUDA devices. Any thread may ask it."""

    def __init__(self) -> None:
        self._max_entries: int | None = None

    @property
    def lacks(self) -> str | None:
        """Why there is no CUDA memory to show; None where there is some."""
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA"
        if not torch.cuda.is_available():
            return "torch finds no CUDA device on this machine"
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
            return "this run does not use a CUDA device"
        return None

    @property
    def memory(self) -> CudaMemory:
        """What the allocator holds."""
        why = self.lacks
        count = 0 if why else torch.cuda.device_count()
        return CudaMemory(
            available=why is None,
            why=why,
            recording=self._max_entries is not None,
            max_entries=self._max_entries,
            devices={f"cuda:{device}": _device(device) for device in range(count)},
        )

    def record(self, *, enabled: bool, max_entries: int) -> tuple[int | None, int | None]:
        """Record the allocator's history, or no more; return how many entries it has kept until now, and from now on.

        Raises Refused where there is no CUDA memory.
        """
        self._insist()
        old, self._max_entries = self._max_entries, max_entries if enabled else None
        if enabled:
            torch.cuda.memory._record_memory_history(max_entries=max_entries)  # noqa: SLF001 - the documented way
        else:
            torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - as above
        return old, self._max_entries

    @property
    def warning(self) -> str | None:
        """Why a snapshot shows nothing, or less than it might."""
        if (why := self.lacks) is not None:
            return why
        if self._max_entries is None:
            return "the history was off: blocks are shown without who has allocated them; record it first"
        return None

    @property
    def snapshot(self) -> Snapshot:
        """What every block is used for."""
        taken = None if self.lacks else jsonable(torch.cuda.memory._snapshot())  # noqa: SLF001 - as above
        return Snapshot(available=taken is not None, warning=self.warning, snapshot=taken)

    def write(self, path: str) -> None:
        """Write a snapshot that pytorch.org/memory_viz shows. Raises Refused where there is no CUDA memory."""
        self._insist()
        with Path(path).open("wb") as written:
            pickle.dump(torch.cuda.memory._snapshot(), written)  # noqa: SLF001 - as above

    def _insist(self) -> None:
        if (why := self.lacks) is not None:
            raise Refused(f"there is no CUDA memory: {why}")


def _device(device: int) -> DeviceMemory:
    free, total = torch.cuda.mem_get_info(device)
    statistics = torch.cuda.memory_stats(device)
    return DeviceMemory(
        name=torch.cuda.get_device_name(device),
        total=total,
        free=free,
        allocated=statistics.get("allocated_bytes.all.current", 0),
        reserved=statistics.get("reserved_bytes.all.current", 0),
        largest_allocated=statistics.get("allocated_bytes.all.peak", 0),
        largest_reserved=statistics.get("reserved_bytes.all.peak", 0),
        retries=statistics.get("num_alloc_retries", 0),
        out_of_memory=statistics.get("num_ooms", 0),
    )


class CudaFiles(Dir):
    """The CUDA devices' memory."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    @file("memory.json", slow=True)
    def memory(self) -> CudaMemory:
        """What torch's allocator holds of each CUDA device; on a machine without one, why there is nothing."""
        return self._cuda.memory


class CudaDebug(Dir):
    """The CUDA allocator's history, and snapshots of its memory."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    @file("snapshot.json", slow=True, cached=False)
    def snapshot(self) -> Snapshot:
        """What every block of CUDA memory is used for; with the history on, which lines of code have allocated it.

        For pytorch.org/memory_viz, have `cuda_memory_snapshot` write it into `artifacts/debug/`.
        """
        return self._cuda.snapshot

    @file("history.json", slow=True, cached=False)
    def history(self) -> CudaMemory:
        """Whether the allocator's history is recorded, by `cuda_memory_history`."""
        return self._cuda.memory
