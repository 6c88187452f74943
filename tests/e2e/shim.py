"""The ground under a trainer that changes while it trains: its wall clock is set, its disk takes no more changes.

`shim.c` is loaded into the trainer and its faces, and is told by a file that the test shares with it. Times of files
are the kernel's: they stay right when the clock goes wrong, as on a file server.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from tests.processes import output

_LAYOUT = struct.Struct("=q i I Q 4072s")
"""`struct ground` of `shim.c`."""


class Shim:
    """One trainer's ground.

    Parameters
    ----------
    folder
        Where the library and the shared file are made.
    disk
        The folder that lies on the disk that can be made to fail.
    """

    def __init__(self, folder: Path, disk: Path) -> None:
        library, shared = folder / "shim.so", folder / "ground"
        output("gcc", "-shared", "-fPIC", "-O1", "-o", library, Path(__file__).with_name("shim.c"), "-ldl")
        shared.write_bytes(bytes(_LAYOUT.size))
        with shared.open("r+b") as file:
            self._ground = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._disk = disk
        self.environ = {"LD_PRELOAD": str(library), "MIDRUN_TEST_GROUND": str(shared)}

    def set_clock(self, seconds: float) -> None:
        """Have the wall clock be so many seconds ahead of what it is."""
        struct.pack_into("=q", self._ground, 0, int(seconds * 1e9))

    def fail(self, error: int, share: float = 1.0) -> None:
        """Have this share of the changes to the disk fail, with this errno."""
        struct.pack_into("=4072s", self._ground, _LAYOUT.size - 4072, str(self._disk).encode())
        struct.pack_into("=i I", self._ground, 8, error, int(share * 1000))

    def heal(self) -> None:
        """Have the disk work."""
        struct.pack_into("=i I", self._ground, 8, 0, 0)

    @property
    def failures(self) -> int:
        """How many changes have failed."""
        return int(struct.unpack_from("=Q", self._ground, 16)[0])
