"""The tree: how a directory of live files is declared.

A directory is a class, and a file of it is a method that returns the file's value:

    class State(Dir):
        @file("global-step")
        def global_step(self) -> int:
            \"\"\"Optimizer steps completed.\"\"\"
            return self._run.step

In Python `state.global_step` is the value; on every face `global-step` is a file. The docstring is the file's
description and the annotation its type. As in Linux's sysfs, `show` gives a value, never text: `render` makes the text.
A file to write to is a `Control` among them, with the form that a write must fill in: see `form`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, get_type_hints, overload

from midrun.fs import names
from midrun.fs.faults import ReadOnly
from midrun.fs.form import Form
from midrun.fs.schema import schema_of
from midrun.fs.write import Writer

if TYPE_CHECKING:
    from typing import Self

D = TypeVar("D", bound="Dir")
T = TypeVar("T")


@dataclass(frozen=True)
class Leaf:
    """One file of one directory, bound to its owner: what a face opens."""

    show: Callable[[], object]
    """Return the file's value, or a `Later` that will have it."""
    doc: str = ""
    schema: Callable[[], dict[str, Any]] = dict
    """Return the JSON Schema of the value."""
    live: bool = False
    """Made on demand: a read waits for it, and nothing makes it for a listing."""
    slow: bool = False
    """Shown on another thread, because it may wait for a disk or a device."""
    cached: bool = True
    """A face may keep the value for a moment."""
    form: Form | None = None
    """What a write must hold; None for a file that takes none."""
    admit: Callable[[Any], object] | None = None
    """Raise the `Fault` with which `store` would refuse arguments, where they are only checked; or return a `Later`."""
    store: Callable[[Any, Writer], object] | None = None
    gives: Callable[[], dict[str, Any]] = dict
    """Return the JSON Schema of what storing returns."""

    def write(self, path: str, data: bytes, writer: Writer, *, check: bool = False) -> object:
        """Validate `data` and, unless only to `check` it, store it; return what storing it returned.

        The file's `path` is for the words of a refusal.

        Raises `ReadOnly` for a file that takes nothing, `Invalid` for data that is not what it takes.
        """
        if self.store is None or self.form is None:
            raise ReadOnly(f"'{path}' shows a value and takes none: read it")
        arguments = self.form.parse(data)
        if not check:
            return self.store(arguments, writer)
        return None if self.admit is None else self.admit(arguments)


@dataclass(frozen=True)
class Link:
    """A symbolic link to a file or directory of the disk, where large files stay."""

    target: Callable[[], str]
    """Return the target's absolute path."""
    doc: str = ""


class File(Generic[D, T]):
    """A method that is also a file; in Python the attribute reads as its value."""

    def __init__(self, name: str, show: Callable[[D], T], *, live: bool, slow: bool, cached: bool) -> None:
        self.name = name
        self.doc = inspect.getdoc(show) or ""
        self._show = show
        self._live, self._slow, self._cached = live, slow, cached

    @overload
    def __get__(self, owner: None, kind: type[D]) -> Self: ...
    @overload
    def __get__(self, owner: D, kind: type[D]) -> T: ...
    def __get__(self, owner: D | None, kind: type[D]) -> Self | T:
        return self if owner is None else self._show(owner)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the file's value, from the annotation."""
        return schema_of(get_type_hints(self._show).get("return", Any))

    def bind(self, owner: D) -> Leaf:
        """Return this file of `owner`."""
        return Leaf(
            lambda: self._show(owner),
            doc=self.doc,
            schema=self.schema,
            live=self._live,
            slow=self._slow,
            cached=self._cached,
        )


def file(
    name: str, *, live: bool = False, slow: bool = False, cached: bool = True
) -> Callable[[Callable[[D], T]], File[D, T]]:
    """Declare the method below as the file `name`.

    Parameters
    ----------
    live
        The value is made on demand and may take seconds. Its size is 0 until it is made.
    slow
        The method may wait for a disk or a device, or take over a millisecond: it runs on another thread.
    cached
        A face may show a value that is 100 ms old.
    """
    return lambda show: File(name, show, live=live, slow=slow, cached=cached)


class Control:
    """A file of a directory to write to.

    Parameters
    ----------
    form
        What is to be written; its name and words are the file's.
    store
        Called with the directory, the arguments that were written, and who wrote them.
    admit
        Called with the directory and arguments that are only checked: see `Leaf.admit`.
    gives
        The annotation of what `store` returns.
    """

    def __init__(
        self,
        form: Form,
        store: Callable[[Any, Any, Writer], object],
        admit: Callable[[Any, Any], object] | None = None,
        gives: object = Any,
    ) -> None:
        self.name, self.doc = form.name, form.doc
        self.form = form
        self._store = store
        self._admit = admit
        self._gives = gives

    def bind(self, owner: Dir) -> Leaf:
        """Return this control file of `owner`; what it shows is how to use it."""
        return Leaf(
            self.form.usage,
            doc=self.doc,
            schema=partial(schema_of, str),
            cached=False,
            form=self.form,
            admit=None if self._admit is None else partial(self._admit, owner),
            store=partial(self._store, owner),
            gives=partial(schema_of, self._gives),
        )


class Dir:
    """A directory: its files in the order they are declared, the directories it holds, then what comes and goes.

    An attribute that is a `Dir` or a `Link` is an entry too, named as the attribute with `-` for `_`, unless it begins
    with `_`. A directory whose entries come and go also overrides `members` and `member`.
    """

    one_value: ClassVar[bool] = False
    """Whether each entry that comes and goes is a file of one value, whatever its name: see `names.escape`."""
    placeholder: ClassVar[str] = "<name>"
    """What the documentation calls an entry that comes and goes."""

    _files: ClassVar[dict[str, File[Any, Any] | Control]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared = [f for kind in reversed(cls.__mro__) for f in vars(kind).values() if isinstance(f, File | Control)]
        cls._files = {f.name: f for f in declared}

    @property
    def doc(self) -> str:
        """What the directory holds."""
        return "" if type(self).__doc__ is None else inspect.getdoc(type(self)) or ""

    def members(self) -> Iterable[str]:
        """Return the unescaped names of the entries that come and go."""
        return ()

    def member(self, name: str) -> Node | None:
        """Return the entry of this unescaped name that comes and goes, or None."""
        del name
        return None

    def missing(self, name: str) -> str:
        """Return what is said where there is no such entry; nothing is the usual words."""
        del name
        return ""

    def declares(self, file_name: str) -> bool:
        """Whether the entry of this file name is there for good."""
        return file_name in self._files or self._held(file_name) is not None

    def __iter__(self) -> Iterator[tuple[str, Node]]:
        """Iterate over file names and nodes."""
        for file_name, declared in self._files.items():
            yield file_name, declared.bind(self)
        for attribute, value in vars(self).items():
            if isinstance(value, Dir | Link) and not attribute.startswith("_"):
                yield attribute.replace("_", "-"), value
        for name in self.members():
            file_name = self._escape(name)
            node = None if self.declares(file_name) else self.member(name)
            if node is not None:
                yield file_name, node

    def entry(self, file_name: str) -> Node | None:
        """Return the entry of this file name, or None."""
        declared = self._files.get(file_name)
        if declared is not None:
            return declared.bind(self)
        held = self._held(file_name)
        if held is not None:
            return held
        name = names.unescape(file_name, one_value=self.one_value)
        if name is not None:
            return self.member(name)
        # A name too long for a file is found by its hash.
        return next((self.member(name) for name in self.members() if self._escape(name) == file_name), None)

    def _escape(self, name: str) -> str:
        return names.escape(name, one_value=self.one_value)

    def _held(self, file_name: str) -> Dir | Link | None:
        if "_" in file_name or file_name.startswith("-"):
            return None
        value = vars(self).get(file_name.replace("-", "_"))
        return value if isinstance(value, Dir | Link) else None


Node: TypeAlias = Dir | Leaf | Link
