"""Handles: the files of a mounted tree that are open, each with what it shows and what is being written to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from midrun.fs.faults import Invalid
from midrun.fs.inodes import Content, Inode
from midrun.fs.write import check_length

_BLOCK = 512
"""Bytes of which programs that write long texts write a multiple at once."""
_PAGE = 4096
"""Bytes after which a text without an end counts as a long one."""


@dataclass
class Draft:
    """What is being written to a control file: it counts once it is whole."""

    appends: bool
    """The kernel says where the end of the file is, which means nothing here."""
    text: bytearray = field(default_factory=bytearray)
    _start: int = 0

    def put(self, offset: int, data: bytes) -> None:
        """Take a piece. The first one may have any offset: `>>` writes behind what the file shows."""
        if not self.text:
            self._start = offset
        at = len(self.text) if self.appends else offset - self._start
        if not 0 <= at <= len(self.text):
            end = self._start + len(self.text)
            raise Invalid(
                f"a piece was written at byte {offset}, not at byte {end}, where the text ended: "
                "write a command from its beginning to its end, without holes"
            )
        check_length("a control file", at + len(data))
        self.text[at : at + len(data)] = data

    def may_go_on(self, piece: int) -> bool:
        """Whether more may follow a piece of so many bytes: what does not look whole is judged when it is closed.

        Programs write long texts in full blocks, or in pieces of any size after the first pages; and what is short but
        begins an object and does not end one is the head that a JSON library writes before a long string.
        """
        if piece % _BLOCK == 0:
            return True
        is_open = self.text.startswith(b"{") and not self.text.endswith(b"}")
        return not self.text.endswith(b"\n") and (is_open or len(self.text) >= _PAGE)

    def take(self) -> bytes:
        """Return what was written, and begin anew."""
        text = bytes(self.text)
        self.text.clear()
        return text


@dataclass(eq=False)
class Handle:
    """One open file."""

    inode: Inode
    pid: int
    """Who opened it. The kernel does not say who reads and writes it."""
    draft: Draft | None = None
    content: Content | None = None
    ended: bool = False
    """Its reader has seen the end of the content."""

    @property
    def reads_on(self) -> bool:
        """Whether its reader now wants to see what has become of it: `tail -f` does, `cat` does not."""
        return self.content is not None and not self.content.is_fresh() and not self.inode.entry["live"]

    @property
    def data(self) -> bytes:
        """What it shows."""
        return self.content.rendered.data if self.content is not None else b""

    def use(self, content: Content) -> None:
        """Have it show this content."""
        self.leave()
        content.users += 1
        self.content = content

    def leave(self) -> None:
        """Let go of what it shows: it is closed."""
        if self.content is not None:
            self.content.users -= 1
            self.content = None
