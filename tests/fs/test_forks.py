"""What a forked child, a DataLoader worker say, keeps of the trainer's wires: nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from midrun.fs import forks
from midrun.fs.answers import Answers
from midrun.fs.frames import Frames, frame
from midrun.fs.page import Page
from midrun.fs.verbs import Tree
from tests.fs.sample import Sample, answering, file_behind, open_files


def in_child(work: Callable[[], object]) -> object:
    """Return what `work` returns in a forked child, as JSON."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        text = result.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def ask(end: socket.socket) -> bytes:
    end.sendall(frame({"id": 1, "verb": "read", "path": "step"}))
    frames = Frames()
    while True:
        for _, body in frames.feed(end.recv(1 << 16)):
            return body


def test_a_child_holds_no_copy_of_a_wire_and_the_parent_goes_on() -> None:
    with answering(Sample()) as answers:
        ours, theirs = socket.socketpair()
        with theirs:
            name = file_behind(ours.fileno())
            answers.connect(ours, lambda *_: None)
            assert ask(theirs) == b"7\n"
            assert name in open_files()
            held = in_child(open_files)
            assert isinstance(held, list)
            assert name not in held
            assert "anon_inode:[eventpoll]" not in held
            assert ask(theirs) == b"7\n"


def test_a_child_that_is_forked_right_after_a_wire_was_connected_holds_none() -> None:
    # The tree thread has not seen the wire yet.
    answers = Answers(Tree(Sample()), Page())
    ours, theirs = socket.socketpair()
    with theirs:
        name = file_behind(ours.fileno())
        answers.connect(ours, lambda *_: None)
        pidfds = open_files().count("anon_inode:[pidfd]")
        answers.watch(os.pidfd_open(os.getpid()), lambda: None)
        held = in_child(open_files)
        assert isinstance(held, list)
        assert name not in held
        assert held.count("anon_inode:[pidfd]") == pidfds
        answers.stop()


def test_stop_ends_the_wire_whatever_a_child_holds() -> None:
    # A process that was started without a fork hook, by C code say, may hold a copy all the same.
    with answering(Sample()) as answers:
        ours, theirs = socket.socketpair()
        with theirs, ours.dup():
            answers.connect(ours, lambda *_: None)
            assert ask(theirs) == b"7\n"
            answers.stop()
            while theirs.recv(1 << 16):
                pass


def test_a_child_may_call_what_it_inherits() -> None:
    with answering(Sample()) as answers:
        ours, theirs = socket.socketpair()
        with theirs:
            disconnect = answers.connect(ours, lambda *_: None)

            def meddle() -> str:
                disconnect()
                answers.call(os.abort)
                answers.stop()
                return "done"

            assert in_child(meddle) == "done"
            assert ask(theirs) == b"7\n"


TRAINER = r"""
import multiprocessing, os, signal, socket, sys
from tests.fs.sample import Sample, answering

def stuck():
    os.write(1, b"%d\n" % os.getpid())
    signal.pause()

with answering(Sample()) as answers:
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    answers.connect(end, print)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=stuck) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
"""


def test_the_wire_ends_when_the_trainer_is_killed_though_its_workers_are_stuck() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", TRAINER, str(ours.fileno())]
    workers: list[int] = []
    with theirs, subprocess.Popen(command, pass_fds=[ours.fileno()], stdout=subprocess.PIPE, text=True) as trainer:
        ours.close()
        assert trainer.stdout is not None
        try:
            workers.extend(int(trainer.stdout.readline()) for _ in range(2))
            theirs.settimeout(10)
            assert ask(theirs) == b"7\n"
            trainer.kill()
            assert theirs.recv(1) == b""
            for worker in workers:
                os.kill(worker, 0)
        finally:
            trainer.kill()
            for worker in workers:
                os.kill(worker, signal.SIGKILL)


class Owner:
    def __init__(self, fault: Exception | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._fault = fault
        forks.close_in_children(self)

    def close_in_child(self) -> None:
        if self._fault is not None:
            raise self._fault
        self.listener.close()

    def close(self) -> None:
        forks.forget(self)
        self.listener.close()


def test_owners_close_what_they_own_in_children_whatever_becomes_of_others() -> None:
    owners = [Owner(fault) for fault in (OSError("gone"), None, ValueError("closed"), None) * 5]
    closed = in_child(lambda: [owner.listener.fileno() == -1 for owner in owners])
    assert closed == [False, True, False, True] * 5
    assert all(owner.listener.fileno() >= 0 for owner in owners)
    for owner in owners:
        owner.close()


def test_an_owner_that_is_forgotten_is_left_alone() -> None:
    owner = Owner()
    forks.forget(owner)
    forks.forget(owner)
    assert in_child(owner.listener.fileno) == owner.listener.fileno()
    owner.close()


def test_a_grandchild_is_not_asked_to_close_again() -> None:
    owner = Owner()
    assert in_child(lambda: in_child(owner.listener.fileno)) == -1
    owner.close()
