"""Whoever waits for a mount can be stopped, keeps nobody else waiting, and waits no longer than is told."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midrun.fs.inodes import ROOM
from tests.fs.mounting import Mounted, end, is_whole, mounting, report
from tests.processes import on_this_machine, output, sh, stand_still, start, wait_for

pytestmark = pytest.mark.mount


@pytest.fixture
def tree(module_tree: Mounted) -> Iterator[Mounted]:
    yield module_tree
    finish(module_tree, "the end")


def finish(tree: Mounted, text: str) -> int:
    """Have the file that is waited for made; return for how many askers of the run."""
    made = tree.do("finish", text=text)
    tree.cat("still/step")  # It is answered after what was made, over the same wire.
    return int(made)


def waits(process: subprocess.Popen[str]) -> bool:
    """Whether a process waits for a file system that has its request."""
    assert process.poll() is None, process.communicate()
    return Path(f"/proc/{process.pid}/wchan").read_text() == "request_wait_answer"


def reader(tree: Mounted, path: str = "live/waiting") -> subprocess.Popen[str]:
    """Return a cat that waits for a file, and has asked the run for it if it is live."""
    process = start("cat", tree.path(path))
    wait_for(lambda: waits(process), "cat waits for its file")
    if path.startswith("live"):
        wait_for(lambda: tree.do("asked"), "the run is asked")
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGALRM])
def test_a_signal_frees_who_waits_for_a_live_file(tree: Mounted, number: signal.Signals) -> None:
    seconds = []
    for _ in range(7):
        process = reader(tree)
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait() == -number
        seconds.append(time.monotonic() - began)
        end(process)
    report(f"seconds from {number.name} to the end of cat", statistics.median(seconds))
    assert statistics.median(seconds) < 0.1


def test_a_signal_that_is_blocked_or_means_nothing_lets_who_waits_wait_on(tree: Mounted) -> None:
    script = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.signal(signal.SIGWINCH, lambda *_: None)
sys.stdout.write(open(sys.argv[1]).read())
"""
    process = start(sys.executable, "-I", "-c", script, tree.path("live/waiting"))
    try:
        wait_for(lambda: waits(process) and tree.do("asked"), "Python waits for its file")
        for number in (signal.SIGUSR1, signal.SIGWINCH, signal.SIGCONT):
            process.send_signal(number)
        made = tree.cat("live/counted")
        wait_for(lambda: tree.cat("live/counted") != made, "the mount answers others")
        time.sleep(0.15)  # What must not happen has no condition: three looks for signals.
        assert waits(process)
        assert finish(tree, "made at last") == 1
        assert process.communicate() == ("made at last\n", "")
    finally:
        end(process)


def test_a_signal_for_one_thread_frees_that_thread(tree: Mounted) -> None:
    script = """
import os, signal, sys, threading
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.siginterrupt(signal.SIGUSR1, True)
ids = []
def read():
    ids.append(threading.get_native_id())
    print(ids[0], flush=True)
    try:
        libc.open(os.fsencode(sys.argv[1]), 0)
        print(os.strerror(ctypes.get_errno()), flush=True)
    finally:
        pass
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
thread = threading.Thread(target=read)
thread.start()
sys.stdin.readline()
signal.pthread_kill(thread.ident, signal.SIGUSR1)
thread.join()
"""
    process = start(sys.executable, "-I", "-c", script, tree.path("live/waiting"), stdin=subprocess.PIPE)
    try:
        assert process.stdout is not None
        thread = int(process.stdout.readline())
        wchan = Path(f"/proc/{process.pid}/task/{thread}/wchan")
        wait_for(lambda: wchan.read_text() == "request_wait_answer", "the thread waits")
        assert process.communicate("\n") == ("Interrupted system call\n", "")
    finally:
        end(process)


def test_one_making_of_a_live_file_serves_all_who_wait_for_it(tree: Mounted) -> None:
    readers = [reader(tree) for _ in range(5)]
    assert finish(tree, "for all") == 1
    assert [process.communicate()[0] for process in readers] == ["for all\n"] * 5


def test_two_hundred_who_wait_keep_nobody_else_waiting(tree: Mounted) -> None:
    script = """
import os, sys, threading
errors = []
def read():
    with open(sys.argv[1]) as file:
        if file.read() != "for all\\n": errors.append(1)
threads = [threading.Thread(target=read) for _ in range(200)]
for thread in threads: thread.start()
print("started", flush=True)
for thread in threads: thread.join()
print(len(errors))
"""
    crowd = start(sys.executable, "-I", "-c", script, tree.path("live/waiting"))
    try:
        assert crowd.stdout is not None
        crowd.stdout.readline()
        tasks = Path(f"/proc/{crowd.pid}/task")

        def all_wait() -> bool:
            return sum((task / "wchan").read_text() == "request_wait_answer" for task in tasks.iterdir()) == 200

        wait_for(lambda: all_wait() and tree.do("asked"), "all 200 wait")
        began = time.monotonic()
        assert is_whole(tree.cat("values/text"))
        seconds = time.monotonic() - began
        report("seconds for a cat beside 200 who wait", seconds)
        assert seconds < 1
        assert finish(tree, "for all") == 1
        assert crowd.communicate()[0] == "0\n"
    finally:
        end(crowd)


# Who is killed in open or read closes a file, and that is another request; who is killed in stat leaves nothing.
LOOK = "while [[ -s $1 ]]; do :; done"
READ = 'while true; do read -r line < "$1"; done'
OBSERVER = """
import os, select, sys, time
longest = 0.0
count = 0
while not select.select([0], [], [], 0.002)[0]:
    began = time.monotonic()
    if len(sys.argv) > 1:
        with open(sys.argv[1]) as file: file.read()
    else:
        time.sleep(0.002)
    longest = max(longest, time.monotonic() - began)
    count += 1
print(longest, count)
"""


@pytest.fixture
def pulse() -> Iterator[Callable[[], float]]:
    """Say for how long the machine itself stood still, for a process as nice as a face."""
    heart = start("nice", "-n", "5", sys.executable, "-I", "-c", OBSERVER, stdin=subprocess.PIPE)
    try:
        yield lambda: float(heart.communicate("\n")[0].split()[0])
    finally:
        end(heart)


def kill(victims: list[subprocess.Popen[str]], number: signal.Signals, chance: random.Random) -> None:
    """Kill those who are reading, at any moment."""
    time.sleep(chance.uniform(0.005, 0.025))
    for victim in victims:
        victim.send_signal(number)
    for victim in victims:
        end(victim)


def test_readers_that_are_killed_while_they_read_stop_no_one_else(
    tree: Mounted, times: Callable[[int], int], pulse: Callable[[], float]
) -> None:
    """A request that is gone when it is fetched must not stop the mount until the next one comes."""
    chance = random.Random(1)  # noqa: S311 - a test that does the same each time
    slowest = 0.0
    for round_ in range(times(300)):
        waiting = reader(tree)
        victims = [start("bash", "-c", script, "-", tree.path("values/text")) for script in (LOOK, LOOK, READ)]
        kill(victims, signal.SIGKILL if round_ % 2 else signal.SIGINT, chance)
        began = time.monotonic()
        assert tree.do("finish", text="not lost") == 1
        assert waiting.communicate(timeout=20)[0] == "not lost\n"
        slowest = max(slowest, time.monotonic() - began)
        end(waiting)
    machine = pulse()
    report("slowest answer after a kill, in seconds", slowest)
    report("longest pause of the machine, in seconds", machine)
    assert slowest < on_this_machine(0.2) + 2 * machine


def test_readers_beside_those_that_are_killed_do_not_stall(
    tree: Mounted, times: Callable[[int], int], pulse: Callable[[], float]
) -> None:
    chance = random.Random(2)  # noqa: S311 - as above
    observer = start(sys.executable, "-I", "-c", OBSERVER, tree.path("values/text"), stdin=subprocess.PIPE)
    try:
        for round_ in range(times(300)):
            victims = [start("bash", "-c", script, "-", tree.path("values/text")) for script in (LOOK, READ)]
            kill(victims, signal.SIGKILL if round_ % 2 else signal.SIGINT, chance)
        longest, count = map(float, observer.communicate("\n")[0].split())
    finally:
        end(observer)
    machine = pulse()
    report("longest read beside readers that are killed, in seconds", longest)
    report("longest pause of the machine, in seconds", machine)
    assert count > 10
    assert longest < on_this_machine(0.2) + 2 * machine


def test_a_stopped_run_shows_its_last_values_at_once_with_the_time_of_their_change() -> None:
    with mounting() as tree:
        tree.ready()
        tree.do("members", names=[f"metric {number}" for number in range(500)])
        output("ls", "-l", tree.path("many"), tree.path("values"))
        text = tree.cat("values/text")
        stand_still(tree.pid)
        stopped = time.time()
        time.sleep(0.2)  # until what is kept is old
        began = time.monotonic()
        assert tree.cat("values/text") == text
        assert time.monotonic() - began < 1
        assert float(output("stat", "-c", "%.Y", tree.path("values/text"))) < stopped
        began = time.monotonic()
        listed = output("ls", "-l", tree.path("many"), tree.path("values")).splitlines()
        seconds = time.monotonic() - began
        assert len(listed) > 500
        assert seconds < 2, seconds
        os.kill(tree.pid, signal.SIGCONT)
        wait_for(lambda: tree.cat("values/text") != text, "values are new again")


def test_who_lists_a_stopped_run_that_was_never_read_waits_for_one_file_not_for_each() -> None:
    with mounting() as tree:
        tree.ready()
        output("find", tree.mountpoint)
        stand_still(tree.pid)
        began = time.monotonic()
        listed = sh("ls", "-l", tree.path("values"), tree.path("still"))
        seconds = time.monotonic() - began
        assert "Connection timed out" in listed.stderr
        assert 4 < seconds < 9, seconds
        os.kill(tree.pid, signal.SIGCONT)
        assert wait_for(lambda: sh("ls", "-l", tree.path("values")).returncode == 0, "all is well again")


def test_who_waits_for_a_stopped_run_is_freed_by_ctrl_c() -> None:
    with mounting() as tree:
        tree.ready()
        stand_still(tree.pid)
        process = reader(tree, "values/text")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
        assert time.monotonic() - began < 1
        end(process)


WRITE = """
import os, sys
f = os.open(sys.argv[1], os.O_WRONLY)
sys.stdout.write("open\\n")
sys.stdout.flush()
sys.stdin.readline()
os.write(f, sys.argv[2].encode())
os.close(f)
"""


@pytest.mark.parametrize("text", ["1\n", '{"value":'])
def test_who_writes_to_a_stopped_run_is_freed_by_ctrl_c(text: str) -> None:
    """The whole command waits where it is written, the one that is cut short where it is closed."""
    with mounting() as tree:
        tree.ready()
        tree.cat("control/rate")
        writer = start(sys.executable, "-I", "-c", WRITE, tree.path("control/rate"), text, stdin=subprocess.PIPE)
        try:
            assert writer.stdin is not None
            assert writer.stdout is not None
            assert writer.stdout.readline() == "open\n"
            stand_still(tree.pid)
            writer.stdin.write("\n")
            writer.stdin.flush()
            wait_for(lambda: waits(writer), "the command waits")
            began = time.monotonic()
            writer.send_signal(signal.SIGINT)
            writer.wait(20)
            assert time.monotonic() - began < 1
        finally:
            end(writer)
        os.kill(tree.pid, signal.SIGCONT)


def test_what_was_opened_by_one_who_has_ended_is_written_by_others(tree: Mounted) -> None:
    script = '(exec 3> "$1"; sh -c "sleep 0.1; echo 5 >&3 || echo refused" & exit 0) | cat'
    assert sh("bash", "-c", script, "-", tree.path("control/rate")).stdout == ""
    wait_for(lambda: tree.do("applied") == [5.0], "it is done")


def test_a_command_for_a_stopped_run_times_out() -> None:
    with mounting() as tree:
        tree.ready()
        tree.cat("control/rate")
        stand_still(tree.pid)
        refused = sh("dd", f"of={tree.path('control/rate')}", "status=none", text="1\n")
        assert "Connection timed out" in refused.stderr


def test_the_run_itself_does_not_stand_still_on_its_own_mount(tree: Mounted) -> None:
    """It may hold the GIL while it waits, and then none of its threads can answer."""
    for path in ("values/text", "control/rate", "many/nothing", "live/waiting", "values"):
        _, seconds = tree.do("touch", path=str(tree.path(path)))
        assert seconds < 1, (path, seconds)
    text, seconds = tree.do("open", path=str(tree.path("live/waiting")))
    assert text.startswith("This file is made while training goes on")
    assert seconds < 1
    written, seconds = tree.do("write", path=str(tree.path("control/rate")), text="1\n")
    assert written == -1
    assert seconds < 1
    text, _ = tree.do("open", path=str(tree.path("values/text")))
    assert is_whole(text)


def test_names_that_come_and_go_leave_nothing_behind(times: Callable[[int], int]) -> None:
    """The kernel keeps them for as long as it has memory, unless it is told to forget them."""
    with mounting(module="tests.fs.counted") as tree:
        tree.ready()

        def inodes() -> int:
            os.kill(tree.face, signal.SIGUSR1)
            return int(tree.notice()["inodes"])

        for round_ in range(max(12, times(10_000) // 500)):
            tree.do("members", names=[f"{round_} {number}" for number in range(500)])
            assert len(output("ls", tree.path("many")).splitlines()) == 500
        assert output("cat", tree.path(f"many/{round_} 0")) == f"I am '{round_} 0'\n"
        wait_for(lambda: inodes() < ROOM + 100, "the kernel forgets")
