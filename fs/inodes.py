"""Inodes: the nodes that the kernel knows of a mounted tree, and what those who have a file open see.

The kernel names a node by a number that it was told, and when it forgets the node it says how often it was told.
Numbers follow from paths, so a node that was forgotten and comes back is the same to programs that compare them.
"""

from __future__ import annotations

import stat
import time
from dataclasses import dataclass

from midrun.fs.faults import NotFound
from midrun.fs.verbs import Entry
from midrun.fs.view import Rendered

ROOT = 1
HELD = 1.0
"""Seconds, from its opening, for which a file that is held open stands still."""
ROOM = 4096
"""Nodes that come and go of which the kernel may know at one time."""
_NUMBERS = 1 << 48


@dataclass
class Content:
    """A file's content, the same for all who open the file while the first of them still has it open."""

    rendered: Rendered
    generation: int
    taken: float
    """When, on the monotonic clock."""
    users: int = 0

    def is_fresh(self) -> bool:
        """Whether a file that is held open still stands still."""
        return time.monotonic() - self.taken < HELD


@dataclass(eq=False)
class Inode:
    """One node that the kernel knows."""

    number: int
    path: str
    entry: Entry
    lookups: int = 0
    content: Content | None = None
    _promise: tuple[int, Content] | None = None

    @property
    def mode(self) -> int:
        """File type and permissions."""
        match self.entry["kind"]:
            case "dir":
                return stat.S_IFDIR | 0o555
            case "link":
                return stat.S_IFLNK | 0o777
        return stat.S_IFREG | (0o600 if self.entry["writable"] else 0o444)

    @property
    def is_plain(self) -> bool:
        """Whether it is a file that may be made for a mere look at its size."""
        return self.entry["kind"] == "file" and not self.entry["live"]

    @property
    def is_shared(self) -> bool:
        """Whether all who have the file open at one time may see one value of it."""
        return self.entry["cached"] and not self.entry["live"]

    def renew(self, entry: Entry) -> None:
        """Note how the node is listed now. Raises `NotFound` when it has become another kind of node."""
        if entry["kind"] != self.entry["kind"]:
            raise NotFound(f"'{self.path}' is a {entry['kind']} now")
        self.entry = entry

    def promise(self, pid: int, rendered: Rendered | None, generation: int) -> None:
        """Note whom the size of the file was told, and of which content: `tar` looks at it, opens, and believes it."""
        if rendered is not None and self.is_shared:
            self._promise = pid, Content(rendered, generation, time.monotonic())

    def promised(self, pid: int, generation: int) -> Rendered | None:
        """Return, once, the content whose size this process has just been told."""
        promise, self._promise = self._promise, None
        if promise is None or promise[0] != pid:
            return None
        told = promise[1]
        return told.rendered if told.generation == generation and told.is_fresh() else None

    def held(self, generation: int) -> Content | None:
        """Return what those who have the file open see, unless the last of them closed it or it is too old."""
        content = self.content
        if content is None or not content.users or not content.is_fresh():
            return None
        # What is not shared was made for the one who opened it, and is void for nobody.
        return content if content.generation == generation or not self.is_shared else None


class Inodes:
    """The table of inodes."""

    def __init__(self) -> None:
        root = Entry(name="", kind="dir", live=False, cached=True, writable=False, fixed=True, target=None)
        self._root = Inode(ROOT, "", root)
        self._numbers = {ROOT: self._root}
        self._paths = {"": self._root}
        self._passing: dict[int, Inode] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Inode:
        """Return the inode of this number. Raises `NotFound`."""
        inode = self._numbers.get(number)
        if inode is None:
            raise NotFound(f"inode {number} is not known")
        return inode

    def known(self, path: str) -> Inode | None:
        """Return the inode of `path` if the kernel knows it."""
        return self._paths.get(path)

    def inode(self, path: str, entry: Entry) -> Inode:
        """Return the inode of `path`: the one that the kernel knows, else a new one that is not in the table yet."""
        known = self._paths.get(path)
        if known is not None and known.entry["kind"] == entry["kind"]:
            known.entry = entry
            return known
        # Another kind of node under an old name is another node: the kernel would not accept the old number for it.
        number = hash((path, entry["kind"])) % _NUMBERS
        while number <= ROOT or number in self._numbers:
            number += 1
        return Inode(number, path, entry)

    def tell(self, inode: Inode) -> None:
        """Note that the kernel is being told the inode's number once more."""
        inode.lookups += 1
        self._numbers[inode.number] = self._paths[inode.path] = inode
        if not inode.entry["fixed"]:
            self._passing.pop(inode.number, None)
            self._passing[inode.number] = inode

    def surplus(self) -> Inode | None:
        """Return an inode that the kernel had better forget, or None.

        It keeps the names of nodes that are long gone for as long as it has memory.
        """
        if len(self._passing) <= ROOM:
            return None
        return self._passing.pop(next(iter(self._passing)))

    def forget(self, number: int, times: int) -> None:
        """Note that the kernel forgets so many of the times that it was told a number."""
        inode = self._numbers.get(number)
        if inode is None or inode is self._root:
            return
        inode.lookups -= times
        if inode.lookups <= 0:
            del self._numbers[number]
            self._passing.pop(number, None)
            if self._paths.get(inode.path) is inode:
                del self._paths[inode.path]
