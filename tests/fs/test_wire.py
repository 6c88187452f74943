"""The wire's frames, and its end in a face against a peer that is played here."""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import trio_test

from midrun.fs.faults import Fault, Gone, NotFound, dump
from midrun.fs.frames import LONGEST_BODY, LONGEST_HEADER, Frames, Garbled, frame
from midrun.fs.page import Page
from midrun.fs.wire import Wire
from tests.fs.sample import until

HEADERS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.text(max_size=5), st.one_of(st.none(), st.integers(), st.text(max_size=5)), max_size=3
)
FRAMES = st.lists(st.tuples(HEADERS, st.binary(max_size=30)), max_size=5)


@given(FRAMES, st.lists(st.integers(0, 200)))
@example([({"id": 1}, b"body"), ({}, b"")], list(range(60)))
def test_frames_are_the_same_whatever_pieces_they_come_in(
    whole: list[tuple[dict[str, Any], bytes]], cuts: list[int]
) -> None:
    data = b"".join(frame(header, body) for header, body in whole)
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    frames = Frames()
    pieces = [data[start:end] for start, end in itertools.pairwise(bounds)]
    assert [got for piece in pieces for got in frames.feed(piece)] == whole


@given(FRAMES, st.integers(0, 5))
def test_frames_that_are_not_asked_for_stay(whole: list[tuple[dict[str, Any], bytes]], asked: int) -> None:
    frames = Frames()
    fed = frames.feed(b"".join(frame(header, body) for header, body in whole))
    assert [*itertools.islice(fed, asked), *frames.feed(b"")] == whole


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 8,
    struct.pack(">II", LONGEST_HEADER + 1, 0),
    struct.pack(">II", 2, LONGEST_BODY + 1),
    struct.pack(">II", 0, 0),
    struct.pack(">II", 4, 0) + b"null",
    struct.pack(">II", 2, 0) + b"[]",
    struct.pack(">II", 2, 0) + b"{\xff",
    struct.pack(">II", 100_000, 0) + b"[" * 100_000,
    frame({"id": 1})[:-1] + b"x",
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_garbled(data: bytes) -> None:
    frames = Frames()
    with pytest.raises(Garbled):
        list(frames.feed(data))


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_frames_or_garbled(data: bytes) -> None:
    try:
        frames = list(Frames().feed(data))
    except Garbled:
        return
    assert all(isinstance(header, dict) for header, _ in frames)


class Peer:
    """The other end of a wire."""

    def __init__(self, end: socket.socket) -> None:
        self.end = trio.socket.from_stdlib_socket(end)
        self._frames = Frames()
        self._got: list[tuple[dict[str, Any], bytes]] = []

    async def take(self) -> tuple[dict[str, Any], bytes]:
        """Return the next frame that came."""
        while not self._got:
            data = await self.end.recv(1 << 20)
            assert data, "the wire was closed"
            self._got.extend(self._frames.feed(data))
        return self._got.pop(0)

    async def give(self, data: bytes) -> None:
        while data:
            data = data[await self.end.send(data) :]


@asynccontextmanager
async def between(page: Page | None = None) -> AsyncIterator[tuple[Wire, Peer]]:
    """Give a wire that runs, and its peer."""
    ours, theirs = socket.socketpair()
    wire = Wire(theirs, page, slot=1)
    peer = Peer(ours)
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.run)
                yield wire, peer
                nursery.cancel_scope.cancel()
    finally:
        peer.end.close()
    assert theirs.fileno() == -1
    assert wire._waiting == {}


async def outcome(ask: Callable[[], Awaitable[Any]], outcomes: list[Any]) -> None:
    try:
        outcomes.append(await ask())
    except Fault as fault:
        outcomes.append((type(fault), fault.message))


@trio_test
async def test_each_verb_is_one_frame_with_an_id_of_its_own() -> None:
    async with between() as (wire, peer), trio.open_nursery() as nursery:
        outcomes: list[Any] = []
        nursery.start_soon(outcome, lambda: wire.read("a/\udc80"), outcomes)
        assert await peer.take() == ({"id": 1, "verb": "read", "path": "a/\udc80"}, b"")
        nursery.start_soon(outcome, lambda: wire.write("w", b"data", check=True), outcomes)
        assert await peer.take() == ({"id": 2, "verb": "write", "path": "w", "check": True}, b"data")
        nursery.start_soon(outcome, lambda: wire.list(""), outcomes)
        assert await peer.take() == ({"id": 3, "verb": "list", "path": ""}, b"")
        nursery.start_soon(outcome, lambda: wire.describe("d"), outcomes)
        assert await peer.take() == ({"id": 4, "verb": "describe", "path": "d"}, b"")
        answers: list[tuple[int, Any, bytes]] = [(4, {"doc": ""}, b""), (2, [1], b""), (3, [], b""), (1, None, b"body")]
        for number, value, body in answers:
            await peer.give(frame({"id": number, "value": value}, body))
            await until(lambda number=number: number not in wire._waiting)  # type: ignore[misc]
        assert outcomes == [{"doc": ""}, [1], [], b"body"]


@trio_test
async def test_answers_that_nobody_waits_for_are_passed_over() -> None:
    async with between() as (wire, peer), trio.open_nursery() as nursery:
        outcomes: list[Any] = []
        with trio.move_on_after(0):
            await wire.read("left")
        nursery.start_soon(outcome, lambda: wire.read("a"), outcomes)
        for header in ({"id": 1, "value": 0}, {"id": 99, "value": 0}, {"id": [2]}, {"id": None}, {"x": 1}, {}):
            await peer.give(frame(header, b"no"))
        await peer.give(frame({"id": 2, "value": None}, b"yes"))
        await until(lambda: outcomes)
        assert outcomes == [b"yes"]


@trio_test
async def test_a_fault_is_raised_and_an_answer_without_a_value_is_one() -> None:
    async with between() as (wire, peer), trio.open_nursery() as nursery:
        outcomes: list[Any] = []
        for answer in (
            {"fault": dump(NotFound("gone"))},
            {"fault": {**dump(Fault("new")), "kind": "FromTheFuture"}},
            {},
        ):
            nursery.start_soon(outcome, lambda: wire.list("a"), outcomes)
            header, _ = await peer.take()
            await peer.give(frame({"id": header["id"], **answer}))
            await until(lambda: wire._waiting == {})
        assert outcomes[:2] == [(NotFound, "gone"), (Fault, "new")]
        assert outcomes[2][1].startswith("the run answered without a value")


@trio_test
async def test_notices_are_frames_too() -> None:
    async with between() as (wire, peer):
        wire.notify("running", port=8090)
        assert await peer.take() == ({"notice": "running", "port": 8090}, b"")


async def _quit(peer: Peer) -> None:
    await peer.give(frame({"quit": True}))


async def _close(peer: Peer) -> None:
    peer.end.close()


async def _garble(peer: Peer) -> None:
    await peer.give(b"\xff" * 8)


@pytest.mark.parametrize("end", [_quit, _close, _garble])
@trio_test
async def test_when_the_wire_ends_who_waits_and_who_comes_later_are_told_so(
    end: Callable[[Peer], Awaitable[None]],
) -> None:
    async with between() as (wire, peer), trio.open_nursery() as nursery:
        outcomes: list[Any] = []
        for _ in range(3):
            nursery.start_soon(outcome, lambda: wire.read("a"), outcomes)
        for _ in range(3):
            await peer.take()
        assert not wire.quit.is_set()
        await end(peer)
        await wire.quit.wait()
        await until(lambda: len(outcomes) == 3)
        assert outcomes == [(Gone, "the run has ended")] * 3
        for ask in (wire.read, wire.list, wire.describe):
            with pytest.raises(Gone, match="the run has ended"):
                await ask("a")
        with pytest.raises(Gone, match="the run has ended"):
            await wire.write("a", b"")
        wire.notify("late")


@trio_test
async def test_what_was_answered_before_the_quit_is_not_lost() -> None:
    async with between() as (wire, peer), trio.open_nursery() as nursery:
        outcomes: list[Any] = []
        nursery.start_soon(outcome, lambda: wire.read("a"), outcomes)
        await peer.take()
        await peer.give(frame({"id": 1, "value": None}, b"x" * 1_000_000) + frame({"quit": True}))
        await until(lambda: outcomes)
        assert outcomes == [b"x" * 1_000_000]


@trio_test
async def test_a_peer_that_does_not_read_keeps_nobody_from_asking() -> None:
    async with between() as (wire, peer), trio.open_nursery() as nursery:
        outcomes: list[Any] = []
        bodies = [bytes([number]) * 3_000_000 for number in range(4)]
        for body in bodies:
            nursery.start_soon(outcome, lambda body=body: wire.write("w", body), outcomes)
        await until(lambda: len(wire._waiting) == 4)
        assert len(wire._outgoing) > 8_000_000
        taken = [await peer.take() for _ in range(4)]
        assert sorted(body for _, body in taken) == bodies
        for header, _ in taken:
            await peer.give(frame({"id": header["id"], "value": header["id"]}))
        await until(lambda: len(outcomes) == 4)
        assert sorted(outcomes) == [1, 2, 3, 4]


@trio_test
async def test_a_question_is_marked_on_the_page_once_it_is_sent() -> None:
    page = Page()
    async with between(page) as (wire, peer), trio.open_nursery() as nursery:
        outcomes: list[Any] = []
        assert page.asks[0] == page.asks[1]
        nursery.start_soon(outcome, lambda: wire.read("a"), outcomes)
        header, _ = await peer.take()
        assert header == {"id": 1, "slot": 1, "verb": "read", "path": "a"}
        await until(lambda: page.asks[0] != page.asks[1])
        page.take(1, 1)
        assert page.asks[0] == page.asks[1]
        await peer.give(frame({"id": 1, "value": None}))


def test_a_frame_is_what_the_documentation_says() -> None:
    assert (
        frame({"id": 1}, b"body")
        == struct.pack(">II", 8, 4) + json.dumps({"id": 1}, separators=(",", ":")).encode() + b"body"
    )
