"""The tree thread: whatever faces and other threads do to it, it goes on answering."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from midrun.fs.answers import Answers
from midrun.fs.faults import Fault, Gone
from midrun.fs.frames import Frames, frame
from midrun.fs.page import Page
from midrun.fs.tree import Dir, file
from midrun.fs.verbs import Tree
from midrun.fs.wire import Wire
from tests.fs.sample import Sample, answering, open_files, until, wait_until, wired

MEGABYTE = b"x" * 1_000_000


class Heavy(Sample):
    @file("megabyte")
    def megabyte(self) -> bytes:
        self.shown["megabyte"] += 1
        return MEGABYTE


@contextmanager
def plain_wire(answers: Answers, slot: int | None = None) -> Iterator[socket.socket]:
    """Give the face's end of a wire as a socket that blocks, for a face that does as it pleases."""
    ours, theirs = socket.socketpair()
    answers.connect(ours, lambda *_: None, slot)
    theirs.settimeout(20)
    with theirs:
        yield theirs


def frames_from(end: socket.socket) -> Iterator[tuple[dict[str, Any], bytes]]:
    frames = Frames()
    while data := end.recv(1 << 20):
        yield from frames.feed(data)


def ends(end: socket.socket) -> bool:
    """Read to the end of file."""
    while end.recv(1 << 20):
        pass
    return True


# ---- faces


def test_the_headers_of_any_frame_do_no_harm() -> None:
    requests: list[dict[str, Any]] = [
        {},
        {"id": None, "verb": "read"},
        {"id": [1], "verb": "read", "path": "step"},
        {"id": {"a": 1}, "verb": {}, "path": []},
        {"id": 1, "verb": "remove", "path": "step"},
        {"id": 2, "verb": "read", "path": None},
        {"id": 3, "verb": "read", "path": "step", "slot": 99},
        {"id": "x", "verb": "read", "path": "step", "slot": 0},
        {"id": 4, "verb": "read", "path": "step", "slot": "0"},
        {"id": 10**30, "verb": "read", "path": "step", "slot": 1},
        {"id": -1, "verb": "read", "path": "step", "slot": True},
    ]
    with answering(Sample()) as answers, plain_wire(answers) as end:
        end.sendall(b"".join(frame(request) for request in requests))
        replies = [header for header, _ in itertools.islice(frames_from(end), len(requests))]
        assert [reply["id"] for reply in replies] == [request.get("id") for request in requests]
        faulty = [reply for reply in replies if "fault" in reply]
        assert len(faulty) == 5
        assert faulty[3]["fault"]["message"] == "no verb 'remove': it is list, read, write or describe"


@pytest.mark.parametrize("data", [b"\xff" * 100, frame({"id": 1})[:-1] + b"x", b"\0\0\0\2\0\0\0\0[]"])
@trio_test
async def test_a_face_that_sends_garbage_loses_its_own_wire_alone(data: bytes) -> None:
    with answering(Sample()) as answers:
        async with wired(answers) as wire:
            with plain_wire(answers) as end:
                end.sendall(frame({"id": 1, "verb": "read", "path": "step"}) + data)
                assert await trio.to_thread.run_sync(ends, end)
            assert await wire.read("step") == b"7\n"
            assert len(answers._wires) == 1


@trio_test
async def test_a_face_that_leaves_in_the_middle_takes_nobody_along() -> None:
    with answering(Heavy()) as answers:
        async with wired(answers) as wire:
            for data in (
                b"",
                b"\0",
                frame({"id": 1, "verb": "read", "path": "megabyte"}) * 50,
                frame({"id": 1}, b"x")[:-1],
            ):
                with plain_wire(answers) as end:
                    end.sendall(data)
            assert await wire.read("step") == b"7\n"
            await until(lambda: len(answers._wires) == 1)


@trio_test
async def test_a_face_that_does_not_read_hinders_nobody_and_memory_is_bounded() -> None:
    root, page, count = Heavy(), Page(), 300
    with answering(root, page) as answers, plain_wire(answers) as lazy:
        (end,) = answers._wires
        requests = [{"id": number, "verb": "read", "path": "megabyte", "slot": 1} for number in range(1, count + 1)]
        lazy.sendall(b"".join(map(frame, requests)))
        page.ask(1, count)
        await until(lambda: end.full)
        async with wired(answers) as wire:
            for _ in range(50):
                assert await wire.read("step") == b"7\n"
        assert root.shown["megabyte"] < 20
        assert len(end.outgoing) < 18_000_000
        await until(lambda: page.asks[0] == page.asks[1])  # Nobody makes way for who does not read.

        def read_all() -> None:
            for number, (header, body) in enumerate(itertools.islice(frames_from(lazy), count), start=1):
                assert header == {"id": number, "value": None}
                assert body == MEGABYTE

        await trio.to_thread.run_sync(read_all)
        assert root.shown["megabyte"] == count
        await until(lambda: page.asks[0] == page.asks[1])


@trio_test
async def test_notices_are_passed_on() -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    with answering(Sample()) as answers:
        async with wired(answers, notice=lambda *notice: heard.append(notice)) as wire:
            wire.notify("running", port=8090)
            wire.notify("failed", reason="no port is free")
            await until(lambda: len(heard) == 2)
    assert heard == [("running", {"port": 8090}), ("failed", {"reason": "no port is free"})]


@trio_test
async def test_a_question_is_marked_as_taken_when_it_is_answered_or_its_value_is_awaited() -> None:
    root, page = Sample(), Page()
    with answering(root, page) as answers:
        async with wired(answers, page) as wire, trio.open_nursery() as nursery:
            for _ in range(300):
                await wire.read("step")
            await until(lambda: page.asks[0] == page.asks[1])
            with pytest.raises(Fault):
                await wire.read("broken")
            nursery.start_soon(wire.read, "live")
            await until(lambda: root.shown["live"])
            await until(lambda: page.asks[0] == page.asks[1])
            root.later.get().set_result("made")


@trio_test
async def test_nobody_makes_way_for_a_face_that_is_gone() -> None:
    page = Page()
    with answering(Sample(), page) as answers:
        with plain_wire(answers, slot=1):
            page.ask(0, 3)
            page.ask(1, 5)
        await until(lambda: not answers._wires)
        assert page.asks[0] != page.asks[1], "the other face waits on"
        page.take(0, 3)
        await until(lambda: page.asks[0] == page.asks[1])


@trio_test
async def test_the_slot_of_a_face_that_is_gone_is_known_from_its_requests_too() -> None:
    page = Page()
    with answering(Sample(), page) as answers:
        with plain_wire(answers) as end:
            end.sendall(frame({"id": 1, "slot": 2, "verb": "read", "path": "step"}))
            assert await trio.to_thread.run_sync(lambda: next(frames_from(end))[0]) == {"id": 1, "value": None}
            page.ask(2, 5)
        await until(lambda: page.asks[0] == page.asks[1])


def test_a_face_that_is_gone_kills_no_trainer_that_lets_broken_pipes_kill() -> None:
    # Scripts restore SIGPIPE so that `python train.py | head` ends; the wire must not end training.
    code = """
import signal, socket, threading
from midrun.fs.later import Later
from tests.fs.sample import Sample, answering, wait_until
from midrun.fs.frames import frame
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
root = Sample()
with answering(root) as answers:
    ours, theirs = socket.socketpair()
    answers.connect(ours, print)
    theirs.sendall(frame({"id": 1, "verb": "read", "path": "live"}))
    wait_until(lambda: root.shown["live"])
    theirs.shutdown(socket.SHUT_RD)
    root.later.get().set_result("x" * 10_000_000)
    wait_until(lambda: not answers._wires)
    theirs.close()
print("alive")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "alive\n"), ran.stderr


# ---- the trainer's threads


def test_any_thread_can_call() -> None:
    count: list[int] = []
    with answering(Sample()) as answers:

        def call() -> None:
            for number in range(500):
                answers.call(lambda number=number: count.append(number))  # type: ignore[misc]

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: len(count) == 4000)


def test_a_signal_handler_can_call_wherever_it_interrupts() -> None:
    called, handled, done = 0, 0, 0
    with answering(Sample()) as answers:

        def count() -> None:
            nonlocal done
            done += 1

        def handle(number: int, frame: object) -> None:
            nonlocal handled
            handled += 1
            answers.call(count)

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            while handled < 200:
                answers.call(count)
                called += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        wait_until(lambda: done == called + handled)


@trio_test
async def test_a_mistake_in_what_the_thread_is_given_to_do_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    def leave() -> None:
        raise SystemExit

    with answering(Sample()) as answers:
        answers.call(fail)
        answers.call(leave)
        child = os.fork()
        if child == 0:
            os._exit(0)
        answers.watch(os.pidfd_open(child), fail)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
        async with wired(answers, notice=fail) as wire:
            wire.notify("running")
            assert await wire.read("step") == b"7\n"
        await until(lambda: len(caplog.records) == 4)
    assert {record.getMessage() for record in caplog.records} == {"a task of the tree thread failed"}
    assert all(record.exc_info for record in caplog.records)


def test_the_death_of_a_process_is_told_once_and_its_descriptor_closed() -> None:
    died: list[str] = []
    with answering(Sample()) as answers:
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        pidfd = os.pidfd_open(child.pid)
        answers.watch(pidfd, lambda: died.append("child"))
        answers.watch(os.pidfd_open(other.pid), lambda: died.append("other"))
        child.kill()
        wait_until(lambda: died)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pidfd)
    assert died == ["child"]
    for process in (child, other):
        process.kill()
        process.communicate()


# ---- life and death


@trio_test
async def test_stop_says_quit_and_who_waits_is_told() -> None:
    root, outcomes = Sample(), []

    async def read(wire: Wire) -> None:
        with pytest.raises(Gone) as caught:
            await wire.read("live")
        outcomes.append(caught.value.message)

    with answering(root) as answers:
        async with wired(answers) as wire, trio.open_nursery() as nursery:
            nursery.start_soon(read, wire)
            await until(lambda: root.shown["live"])
            await trio.to_thread.run_sync(answers.stop)
            await wire.quit.wait()
            with pytest.raises(Gone):
                await wire.read("step")
        root.later.get().set_result("late")
    assert outcomes == ["the run has ended"]


@trio_test
async def test_one_wire_can_be_closed_alone() -> None:
    with answering(Sample()) as answers:
        async with wired(answers) as wire:
            ours, theirs = socket.socketpair()
            disconnect = answers.connect(ours, lambda *_: None)
            with theirs:
                disconnect()
                assert await trio.to_thread.run_sync(lambda: list(frames_from(theirs))) == [({"quit": True}, b"")]
                disconnect()
            assert await wire.read("step") == b"7\n"


def test_whoever_comes_after_the_end_is_not_kept_waiting() -> None:
    page = Page()
    with answering(Sample(), page) as answers, plain_wire(answers) as before:
        answers.stop()
        assert ends(before)
        with plain_wire(answers) as after:
            assert ends(after)
        pidfd = os.pidfd_open(os.getpid())
        answers.watch(pidfd, lambda: None)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pidfd)
        for _ in range(300):
            answers.call(lambda: None)
            assert page.asks[0] == page.asks[1], "the training thread makes way for nobody"
        answers.stop()


def test_a_thread_that_never_started_closes_what_it_was_given() -> None:
    answers = Answers(Tree(Sample()), Page())
    with plain_wire(answers) as end:
        answers.stop()
        assert ends(end)
    answers.stop()


def test_stop_does_not_wait_for_a_node_that_hangs() -> None:
    hanging, go_on = threading.Event(), threading.Event()

    class Hanging(Dir):
        @file("hang")
        def hang(self) -> str:
            hanging.set()
            go_on.wait(20)
            return ""

    with answering(Hanging()) as answers, plain_wire(answers) as end:
        end.sendall(frame({"id": 1, "verb": "read", "path": "hang"}))
        assert hanging.wait(20)
        begun = time.monotonic()
        answers.stop(patience=0.05)
        assert time.monotonic() - begun < 5
        go_on.set()
        assert ends(end)


def test_starting_and_stopping_leaks_nothing(times: Callable[[int], int]) -> None:
    def cycle() -> None:
        page = Page()
        with answering(Sample(), page) as answers, plain_wire(answers) as end:
            end.sendall(frame({"id": 1, "verb": "read", "path": "step"}))
            assert next(frames_from(end)) == ({"id": 1, "value": None}, b"7\n")
            answers.watch(os.pidfd_open(os.getpid()), lambda: None)

    cycle()
    descriptors, threads = len(open_files()), set(threading.enumerate())
    for _ in range(times(300)):
        cycle()
    assert len(open_files()) <= descriptors
    assert set(threading.enumerate()) <= threads
