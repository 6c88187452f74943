"""The parts of the mount, each by itself: inodes, drafts, signals of readers, answers of handlers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections import Counter

import pyfuse3
import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import trio_test

from midrun.fs.faults import Conflict, Fault, Gone, Invalid, NotFound, TimedOut, TooLarge
from midrun.fs.handles import Draft, Handle
from midrun.fs.inodes import ROOM, ROOT, Content, Inode, Inodes
from midrun.fs.operations import errno_only
from midrun.fs.readers import OWN_PATIENCE, Interrupted, Readers, is_interrupted
from midrun.fs.tree import Dir, Leaf, Node, file
from midrun.fs.verbs import Description, Entry, Kind
from midrun.fs.view import Rendered, View
from midrun.fs.write import LONGEST_WRITE
from tests.fs.mounting import end
from tests.local import Local
from tests.processes import stand_still, start


def entry(name: str = "x", *, kind: Kind = "file", fixed: bool = False) -> Entry:
    return Entry(name=name, kind=kind, live=False, cached=True, writable=False, fixed=fixed, target=None)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0.01)


@pytest.fixture
def gone() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# ---- inodes


def test_a_node_keeps_its_number_though_it_is_forgotten_and_comes_back() -> None:
    inodes = Inodes()
    first = inodes.inode("a/x", entry())
    inodes.tell(first)
    inodes.tell(first)
    assert inodes[first.number] is inodes.inode("a/x", entry()) is inodes.known("a/x") is first
    inodes.forget(first.number, 1)
    assert inodes.known("a/x") is first
    inodes.forget(first.number, 1)
    assert inodes.known("a/x") is None
    with pytest.raises(NotFound):
        inodes[first.number]
    assert inodes.inode("a/x", entry()).number == first.number
    assert len(inodes) == 1


def test_another_kind_of_node_under_an_old_name_is_another_node() -> None:
    inodes = Inodes()
    was = inodes.inode("x", entry())
    inodes.tell(was)
    now = inodes.inode("x", entry(kind="dir"))
    assert now.number != was.number
    inodes.tell(now)
    inodes.forget(was.number, 1)
    assert inodes.known("x") is now
    with pytest.raises(NotFound):
        now.renew(entry())


def test_the_root_and_what_is_not_known_are_never_forgotten() -> None:
    inodes = Inodes()
    inodes.forget(ROOT, 10)
    inodes.forget(4711, 10)
    assert inodes[ROOT].path == ""


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_the_table_holds_exactly_what_the_kernel_was_told(steps: list[tuple[int, bool]]) -> None:
    inodes = Inodes()
    told: Counter[int] = Counter()
    for name, tells in steps:
        if tells:
            inode = inodes.inode(str(name), entry(str(name)))
            inodes.tell(inode)
            told[inode.number] += 1
        elif told:
            number = next(iter(told))
            inodes.forget(number, 1)
            told[number] -= 1
            told += Counter()
    assert len(inodes) == 1 + len(told)


def test_of_too_many_nodes_the_ones_not_seen_for_longest_are_surplus() -> None:
    inodes = Inodes()
    inodes.tell(inodes.inode("fixed", entry(fixed=True)))
    for number in range(ROOM):
        inodes.tell(inodes.inode(str(number), entry()))
    assert inodes.surplus() is None
    inodes.tell(inodes.inode("0", entry()))
    inodes.tell(inodes.inode("new", entry()))
    surplus = inodes.surplus()
    assert surplus is not None
    assert surplus.path == "1"
    assert inodes.surplus() is None


def test_a_snapshot_is_held_while_the_file_is_open_and_no_longer_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("midrun.fs.inodes.time.monotonic", lambda: now)
    inode = Inode(5, "x", entry())
    inode.content = Content(Rendered(b"1", 1), 0, now)
    assert inode.held(0) is None
    first, second = Handle(inode, 1), Handle(inode, 1)
    first.use(inode.content)
    second.use(inode.content)
    first.leave()
    first.leave()
    assert inode.held(0) is inode.content
    assert inode.held(1) is None, "a bump voids it"
    assert not second.reads_on
    now += 1.1
    assert inode.held(0) is None
    assert second.reads_on
    assert second.data == b"1"
    second.leave()
    assert (second.data, inode.content.users) == (b"", 0)


# ---- drafts


@given(st.lists(st.binary(min_size=1, max_size=50)), st.integers(0, 10_000), st.booleans())
def test_a_draft_is_what_was_written_piece_by_piece(pieces: list[bytes], offset: int, appends: bool) -> None:
    draft = Draft(appends)
    at = offset
    for piece in pieces:
        draft.put(at, piece)
        at = 7 if appends else at + len(piece)
    assert draft.take() == b"".join(pieces)
    assert draft.take() == b""


def test_a_draft_may_be_written_over_but_has_no_holes_and_an_end() -> None:
    draft = Draft(appends=False)
    draft.put(10, b"abc")
    draft.put(11, b"X")
    draft.put(13, b"d")
    with pytest.raises(Invalid, match="at byte 9, not at byte 14"):
        draft.put(9, b"x")
    with pytest.raises(Invalid, match="at byte 15, not at byte 14"):
        draft.put(15, b"x")
    with pytest.raises(TooLarge, match=f"at most {LONGEST_WRITE} bytes, not {LONGEST_WRITE + 4}: "):
        draft.put(14, bytes(LONGEST_WRITE))
    assert draft.take() == b"aXcd"


@pytest.mark.parametrize(
    ("text", "goes_on"),
    [
        (b"0.5", False),
        (b"bad", False),
        (b'{"a": 1}', False),
        (b'{"a": 1\n', False),
        (b'{"a": ', True),
        (b"x" * 512, True),
        (b"x" * 511 + b"\n", True),
        (b"x" * 5000, True),
        (b"x" * 5000 + b"\n", False),
    ],
)
def test_what_does_not_look_whole_may_go_on(text: bytes, goes_on: bool) -> None:
    draft = Draft(appends=False)
    draft.put(0, text)
    assert draft.may_go_on(len(text)) is goes_on


# ---- readers


def test_pending_signals_are_seen_but_not_those_that_are_blocked_or_mean_nothing() -> None:
    blocked = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        sleeper = start("sleep", "60")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    try:
        assert not is_interrupted(sleeper.pid)
        sleeper.send_signal(signal.SIGTERM)
        assert not is_interrupted(sleeper.pid)
        stand_still(sleeper.pid)
        sleeper.send_signal(signal.SIGWINCH)
        assert not is_interrupted(sleeper.pid)
        sleeper.send_signal(signal.SIGINT)  # it stays pending in a stopped process
        assert is_interrupted(sleeper.pid)
    finally:
        end(sleeper)
    assert is_interrupted(sleeper.pid), "who is gone waits for nothing"
    assert not is_interrupted(0), "of who is in another process namespace nothing is known"
    assert not is_interrupted(os.getpid())


@trio_test
async def test_an_answer_is_passed_on_and_so_is_a_fault() -> None:
    readers = Readers(None)

    async def fail() -> None:
        raise Conflict("not now")

    async def answer() -> int:
        await trio.lowlevel.checkpoint()
        return 42

    assert await readers.wait(1, answer, 1) == 42
    with pytest.raises(Conflict):
        await readers.wait(1, fail, 1)


@trio_test
async def test_a_wait_ends_after_its_time_and_for_the_run_itself_sooner(autojump_clock: trio.abc.Clock) -> None:
    began = trio.current_time()
    with pytest.raises(TimedOut):
        await Readers(None).wait(os.getpid(), trio.sleep_forever, 5)
    assert trio.current_time() - began == pytest.approx(5)
    began = trio.current_time()
    with pytest.raises(TimedOut):
        await Readers(os.getpid()).wait(os.getpid(), trio.sleep_forever, 5)
    assert trio.current_time() - began == pytest.approx(OWN_PATIENCE)


@trio_test
async def test_a_wait_ends_with_a_signal_for_the_one_who_waits_alone(autojump_clock: trio.abc.Clock, gone: int) -> None:
    readers = Readers(None)
    ended: list[int] = []

    async def wait(pid: int) -> None:
        with pytest.raises(Interrupted):
            await readers.wait(pid, trio.sleep_forever, 1e6)
        ended.append(pid)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readers.watch)
        nursery.start_soon(wait, os.getpid())
        nursery.start_soon(wait, gone)
        await trio.sleep(1)
        assert ended == [gone]
        nursery.cancel_scope.cancel()


# ---- handlers


async def code_of(failure: BaseException) -> int:
    @errno_only
    async def handler(self: object) -> None:
        raise failure

    with pytest.raises(pyfuse3.FUSEError) as raised:
        await handler(None)
    return raised.value.errno


@trio_test
async def test_whatever_goes_wrong_in_a_handler_is_an_errno(capsys: pytest.CaptureFixture[str]) -> None:
    assert await code_of(NotFound("x")) == errno.ENOENT
    assert await code_of(Gone("x")) == errno.ENODEV
    assert await code_of(Fault("x")) == errno.EIO
    assert await code_of(Interrupted()) == errno.EINTR
    assert await code_of(pyfuse3.FUSEError(errno.EXDEV)) == errno.EXDEV
    assert capsys.readouterr().err == ""


@trio_test
async def test_a_mistake_of_ours_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        assert await code_of(ZeroDivisionError("a mistake")) == errno.EIO
        assert await code_of(BlockingIOError()) == errno.EIO
    told = capsys.readouterr().err
    assert told.count("ZeroDivisionError: a mistake") == 1
    assert told.count("BlockingIOError") == 1


@trio_test
async def test_who_waits_when_the_mount_ends_gets_an_answer_and_the_task_still_ends() -> None:
    codes = []

    @errno_only
    async def handler(self: object) -> None:
        await trio.sleep_forever()

    async def task() -> None:
        try:
            await handler(None)
        except pyfuse3.FUSEError as error:
            codes.append(error.errno)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(task)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert codes == [errno.ENODEV] * 3


# ---- what a listing saves


class Members(Dir):
    """Files that come and go, and one that stays."""

    @file("stays")
    def stays(self) -> int:
        """A number."""
        return 1

    def members(self) -> list[str]:
        return [f"m{number}" for number in range(20)]

    def member(self, name: str) -> Node | None:
        return Leaf(lambda: name) if name in self.members() else None


class Asked(Local):
    """The verbs over a tree, counted."""

    def __init__(self, root: Dir) -> None:
        super().__init__(root)
        self.described = 0

    async def describe(self, path: str) -> Description:
        self.described += 1
        return await super().describe(path)


@trio_test
async def test_who_has_just_listed_a_directory_asks_for_none_of_its_entries() -> None:
    verbs = Asked(Members())
    now = 0.0
    async with View(verbs, now=lambda: now) as view:
        listed = await view.list("")
        for item in listed:
            assert await view.entry(item["name"]) == item
            await view.read(item["name"])
        assert verbs.described == 0
        now += 1
        assert (await view.entry("stays"))["fixed"]
        assert verbs.described == 0, "what is declared stays"
        assert (await view.entry("m1"))["name"] == "m1"
        assert verbs.described == 1
        with pytest.raises(NotFound):
            await view.entry("nothing")
