"""The tree as it is declared, and what the verbs make of it in the thread that owns it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict

from midrun.fs.faults import Conflict, Fault, Invalid, IsADirectory, NotADirectory, NotFound, ReadOnly
from midrun.fs.form import Form
from midrun.fs.later import Later
from midrun.fs.names import escape
from midrun.fs.tree import Control, Dir, Leaf, Link, Node, file
from midrun.fs.verbs import Tree
from midrun.fs.write import Writer
from tests.controls import control

LONG = ["long/" * 60, "long/" * 61]


class Value(BaseModel):
    """A value."""

    model_config = ConfigDict(extra="forbid")
    value: int


class Metrics(Dir):
    """The metrics."""

    one_value: ClassVar[bool] = True

    def __init__(self) -> None:
        self.values: dict[str, float] = dict.fromkeys(
            ["train/loss", "..", "index.json", "loss.json", "gone", *LONG], 0.5
        )

    @file("index.json")
    def index(self) -> dict[str, float]:
        """All metrics by their unescaped names."""
        return self.values

    def members(self) -> Iterable[str]:
        return list(self.values)

    def member(self, name: str) -> Node | None:
        return Leaf(lambda: self.values[name]) if name in self.values else None


class Base(Dir):
    """What is common."""

    @file("zero")
    def zero(self) -> int:
        """Nought."""
        return 0

    @file("one")
    def one(self) -> int:
        """The first one."""
        return 1


class Sub(Base):
    """What is special."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.sub_folder = Metrics()
        self.last_checkpoint = Link(lambda: "/disk/last.ckpt", doc="The newest.")
        self._hidden = Metrics()
        self.count = 3

    @file("two")
    def two(self) -> int:
        """A pair."""
        return 2

    @file("one")
    def one(self) -> int:
        """Another one."""
        return -1

    @file("live.txt", live=True)
    def live(self) -> str:
        """Made on demand."""
        self.ran.append("live")
        return "live"

    @file("slow.txt", slow=True)
    def slow(self) -> str:
        """Waits for the disk."""
        self.ran.append("slow")
        return "slow"

    @file("fresh", cached=False)
    def fresh(self) -> str:
        """Never kept."""
        return "fresh"

    @file("broken")
    def broken(self) -> str:
        """Raises."""
        raise ZeroDivisionError("by nought")

    @file("refused")
    def refused(self) -> str:
        """Raises a fault."""
        raise Conflict("not now")

    @file("odd")
    def odd(self) -> object:
        """Shows what no plain file shows."""
        return [1]

    @control("set", Value, bare="value")
    def set_it(self, arguments: Value) -> dict[str, Any]:
        """Set it."""
        self.ran.append(f"set {arguments.value}")
        return {"set": (arguments.value,)}

    @control("crash", Value)
    def crash(self, arguments: Value) -> None:
        """Break."""
        raise ZeroDivisionError


@pytest.fixture
def root() -> Sub:
    return Sub()


@pytest.fixture
def tree(root: Sub) -> Tree:
    return Tree(root)


def test_files_are_listed_as_declared_then_directories_then_what_comes_and_goes(tree: Tree) -> None:
    names = [entry["name"] for entry in tree.list("")]
    declared = ["zero", "one", "two", "live.txt", "slow.txt", "fresh", "broken", "refused", "odd", "set", "crash"]
    assert names == [*declared, "sub-folder", "last-checkpoint"]
    members = ["train%2Floss", "%2E%2E", "index%2Ejson", "loss%2Ejson", "gone", *map(escape, LONG)]
    assert [entry["name"] for entry in tree.list("sub-folder")] == ["index.json", *members]


def test_every_entry_that_is_listed_is_found(tree: Tree, root: Sub) -> None:
    for name, node in root:
        found = root.entry(name)
        assert type(found) is type(node)
    for entry in tree.list("sub-folder"):
        assert tree.describe(f"sub-folder/{entry['name']}")["kind"] == "file"
        assert tree.read(f"sub-folder/{entry['name']}")


def test_an_entry_says_what_it_is(tree: Tree) -> None:
    entries = {entry["name"]: entry for entry in tree.list("")}
    plain = {"kind": "file", "live": False, "cached": True, "writable": False, "fixed": True, "target": None}
    assert entries["one"] == {"name": "one", **plain}
    assert entries["live.txt"] == {"name": "live.txt", **plain, "live": True}
    assert entries["fresh"] == {"name": "fresh", **plain, "cached": False}
    assert entries["set"] == {"name": "set", **plain, "cached": False, "writable": True}
    assert entries["sub-folder"] == {"name": "sub-folder", **plain, "kind": "dir"}
    target = {"kind": "link", "fixed": False, "target": "/disk/last.ckpt"}
    assert entries["last-checkpoint"] == {"name": "last-checkpoint", **plain, **target}
    assert not any(entry["fixed"] for entry in tree.list("sub-folder") if entry["name"] != "index.json")


def test_a_subclass_has_its_bases_files_and_may_say_otherwise(tree: Tree, root: Sub) -> None:
    assert (tree.read("zero"), tree.read("one"), tree.read("two")) == (b"0\n", b"-1\n", b"2\n")
    assert tree.describe("one")["doc"] == "Another one."
    assert [name for name, _ in Base()] == ["zero", "one"]


def test_a_directory_of_two_kinds_has_the_files_of_both() -> None:
    class Other(Dir):
        @file("three")
        def three(self) -> int:
            return 3

    class Both(Base, Other):
        pass

    assert sorted(name for name, _ in Both()) == ["one", "three", "zero"]


def test_in_python_a_file_is_its_value(root: Sub) -> None:
    two: int = root.two
    assert two == 2
    assert Sub.two.name == "two"


def test_docstrings_and_annotations_describe_a_node(tree: Tree) -> None:
    two = tree.describe("two")
    assert (two["path"], two["name"], two["doc"], two["schema"]) == ("two", "two", "A pair.", {"type": "integer"})
    assert two["takes"] is None
    assert tree.describe("")["doc"] == "What is special."
    assert tree.describe("last-checkpoint")["doc"] == "The newest."
    takes = tree.describe("set")["takes"]
    assert takes is not None
    assert takes["anyOf"][0]["properties"] == {"value": {"title": "Value", "type": "integer"}}


def test_without_a_docstring_or_an_annotation_nothing_is_claimed() -> None:
    class Bare(Dir):
        @file("bare")
        def bare(self):  # type: ignore[no-untyped-def]
            return 1

    described = Tree(Bare()).describe("bare")
    assert (described["doc"], described["schema"]) == ("", {})
    assert Tree(Bare()).describe("")["doc"] == ""


def test_a_listing_and_a_description_make_nothing(tree: Tree, root: Sub) -> None:
    tree.list("")
    for entry in tree.list(""):
        tree.describe(entry["name"])
    assert root.ran == []


def test_private_directories_are_not_shown(tree: Tree) -> None:
    for path in ("-hidden", "_hidden", "sub_folder", "count", "ran"):
        with pytest.raises(NotFound):
            tree.describe(path)


@pytest.mark.parametrize(
    "path", ["nothing", "sub-folder/nothing", "sub-folder/nothing/more", "a//b", "/", "..", "one/", "x\0"]
)
def test_a_path_without_a_node_is_not_found(tree: Tree, path: str) -> None:
    for verb in (tree.list, tree.read, tree.describe):
        with pytest.raises(NotFound, match=r"no such file or directory|is no path: a segment"):
            verb(path)
    with pytest.raises(NotFound):
        tree.write(path, b"1")


def test_a_file_is_no_directory_and_a_directory_no_file(tree: Tree) -> None:
    for path in ("one/more", "last-checkpoint/more"):
        for verb in (tree.list, tree.read, tree.describe):
            with pytest.raises(NotADirectory):
                verb(path)
    for path in ("one", "last-checkpoint"):
        with pytest.raises(NotADirectory):
            tree.list(path)
    for path in ("", "sub-folder", "last-checkpoint"):
        with pytest.raises(IsADirectory):
            tree.read(path)
        with pytest.raises(IsADirectory):
            tree.write(path, b"1")


class Panic(BaseException):
    """As a library of Rust's raises it; it can't even be told."""

    def __str__(self) -> str:
        raise self


@pytest.mark.parametrize("kind", [Panic, SystemExit, KeyboardInterrupt])
def test_a_node_that_panics_or_exits_ends_nobody(kind: type[BaseException]) -> None:
    class Root(Dir):
        @file("panic")
        def panic(self) -> str:
            raise kind

    with pytest.raises(Fault, match=rf"'panic' failed: {kind.__name__}: "):
        Tree(Root()).read("panic")


def test_a_node_that_breaks_is_its_own_fault(tree: Tree) -> None:
    with pytest.raises(Fault, match=r"'broken' failed: ZeroDivisionError: by nought"):
        tree.read("broken")
    with pytest.raises(Fault, match=r"'odd' failed: TypeError: a plain file shows one value"):
        tree.read("odd")
    with pytest.raises(Fault, match=r"'crash' failed: ZeroDivisionError"):
        tree.write("crash", b'{"value": 1}')
    with pytest.raises(Conflict, match="not now"):
        tree.read("refused")
    assert tree.read("two") == b"2\n"


class Unsound(Dir):
    """Every part of it breaks."""

    def __init__(self) -> None:
        self.link = Link(lambda: str([].pop()))
        self.deeper = Deeper()

    @file("untyped")
    def untyped(self) -> Missing:  # type: ignore[name-defined]  # noqa: F821 - what this is about
        """Has an annotation that cannot be resolved."""


class Deeper(Dir):
    def members(self) -> Iterable[str]:
        raise OSError("no members")

    def member(self, name: str) -> Node | None:
        raise OSError(f"no {name}")


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        (Tree.list, ""),
        (Tree.describe, "link"),
        (Tree.describe, "untyped"),
        (Tree.list, "deeper"),
        (Tree.describe, "deeper/x"),
        (Tree.read, "deeper/x"),
        (Tree.read, "deeper/x/y"),
    ],
)
def test_whatever_breaks_is_a_fault(verb: Callable[[Tree, str], object], path: str) -> None:
    with pytest.raises(Fault, match=r"failed: (IndexError|NameError|OSError)"):
        verb(Tree(Unsound()), path)


def test_what_comes_and_goes_is_found_while_it_is_there(tree: Tree, root: Sub) -> None:
    assert tree.read("sub-folder/gone") == b"0.5\n"
    del root.sub_folder.values["gone"]
    with pytest.raises(NotFound):
        tree.read("sub-folder/gone")
    root.sub_folder.values["new"] = 1.5
    assert tree.read("sub-folder/new") == b"1.5\n"


def test_a_declared_entry_hides_one_that_comes_and_goes() -> None:
    class Crowded(Metrics):
        @file("loss")
        def loss(self) -> str:
            """Declared."""
            return "declared"

        def members(self) -> Iterable[str]:
            return ["loss", "loss%", "other"]

        def member(self, name: str) -> Node | None:
            return Leaf(lambda: "member")

    tree = Tree(Crowded())
    assert [entry["name"] for entry in tree.list("")] == ["index.json", "loss", "loss%25", "other"]
    assert tree.read("loss") == b"declared\n"


def test_a_member_that_goes_while_it_is_listed_is_left_out() -> None:
    class Fading(Dir):
        def members(self) -> Iterable[str]:
            return ["here", "gone"]

        def member(self, name: str) -> Node | None:
            return Leaf(lambda: name) if name == "here" else None

    assert [entry["name"] for entry in Tree(Fading()).list("")] == ["here"]


def test_a_write_is_checked_then_stored_and_its_result_is_json(tree: Tree, root: Sub) -> None:
    assert tree.write("set", b"7", check=True) is None
    assert root.ran == []
    assert tree.write("set", b'{"value": 7}') == {"set": [7]}
    assert root.ran == ["set 7"]
    for check in (True, False):
        with pytest.raises(Invalid):
            tree.write("set", b"seven", check=check)
    assert root.ran == ["set 7"]


def test_what_takes_nothing_is_read_only(tree: Tree) -> None:
    for check in (True, False):
        with pytest.raises(ReadOnly):
            tree.write("one", b"1", check=check)


def test_a_control_file_shows_how_to_use_it(tree: Tree) -> None:
    usage = tree.read("set")
    assert isinstance(usage, bytes)
    assert usage.decode().startswith("Set it.\n")
    assert "value: integer, required" in usage.decode()


def test_a_slow_file_is_shown_aside(root: Sub) -> None:
    aside: list[Callable[[], None]] = []
    tree = Tree(root, aside=aside.append)
    later = tree.read("slow.txt")
    assert isinstance(later, Later)
    with pytest.raises(RuntimeError, match="not there yet"):
        later.result()
    assert root.ran == []
    aside.pop()()
    assert later.result() == b"slow\n"
    assert tree.read("two") == b"2\n"


def test_a_slow_file_that_breaks_is_its_own_fault(root: Sub) -> None:
    class Slow(Dir):
        @file("slow", slow=True)
        def slow(self) -> str:
            raise ZeroDivisionError

    aside: list[Callable[[], None]] = []
    later = Tree(Slow(), aside=aside.append).read("slow")
    assert isinstance(later, Later)
    aside.pop()()
    with pytest.raises(Fault, match="'slow' failed: ZeroDivisionError"):
        later.result()


class Steered(Dir):
    """A control file of a directory that is asked whether it takes something."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, Writer]] = []

    def take(self, arguments: Value, writer: Writer) -> Later:
        self.taken.append((arguments.value, writer))
        return self.later

    def admit(self, arguments: Value) -> None:
        if arguments.value < 0:
            raise Conflict("not below 0")

    later = Later()
    steer = Control(Form("steer", "Steer.", Value), take, admit, dict[str, int])


def test_what_is_only_checked_is_held_against_what_the_run_admits_and_not_stored() -> None:
    root = Steered()
    tree = Tree(root)
    assert tree.write("steer", b'{"value": 1}', check=True) is None
    with pytest.raises(Conflict, match="not below 0"):
        tree.write("steer", b'{"value": -1}', check=True)
    assert root.taken == []


def test_who_writes_is_told_to_who_is_written_to() -> None:
    root = Steered()
    writer = Writer("rest", "k-1")
    Tree(root).write("steer", b'{"value": 1}', writer=writer)
    Tree(root).write("steer", b'{"value": 2}')
    assert root.taken == [(1.0, writer), (2.0, Writer("python", None))]


def test_what_a_write_gives_back_is_described() -> None:
    described = Tree(Steered()).describe("steer")
    assert described["gives"] == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_each_write_that_is_refused_is_told_also_one_that_is_refused_later() -> None:
    told: list[tuple[str, bytes, str, str]] = []
    root = Steered()
    root.later = Later()
    tree = Tree(root, refused=lambda path, data, writer, fault: told.append((path, data, writer.via, fault.message)))
    for path, data in (("steer", b'{"value": "x"}'), ("nowhere", b"1")):
        with pytest.raises(Fault):
            tree.write(path, data, writer=Writer("fuse"))
    tree.write("steer", b'{"value": 3}', writer=Writer("rest"))
    assert [(path, data, face) for path, data, face, _ in told] == [
        ("steer", b'{"value": "x"}', "fuse"),
        ("nowhere", b"1", "fuse"),
    ]
    root.later.set_exception(Conflict("too late"))
    assert told[2] == ("steer", b'{"value": 3}', "rest", "too late")
