import mmap
import os
import subprocess
import sys
import threading

import pytest

from midrun.fs.page import CALLS, SLOTS, Page

OTHER_PROCESS = """
import sys
from midrun.fs.page import Page
page = Page(int(sys.argv[1]))
print(page.generation, flush=True)
sys.stdin.readline()
print(page.generation, page.asks[0] != page.asks[1])
page.ask(1, 3)
"""


def test_what_one_process_writes_the_other_reads() -> None:
    page = Page()
    for _ in range(3):
        page.bump()
    page.ask(0, 1)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(page.fd)],
        pass_fds=[page.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "3\n"
        page.bump()
        page.take(0, 1)
        other.stdin.write("\n")
        other.stdin.close()
        assert other.stdout.read() == "4 False\n"
    assert page.asks[0] != page.asks[1]
    page.take(1, 3)
    assert page.asks[0] == page.asks[1]


def test_a_bump_changes_the_generation_beyond_every_byte() -> None:
    page, seen = Page(), set()
    for _ in range(70_000):
        seen.add(page.generation)
        page.bump()
    assert len(seen) == 70_000


def test_bumps_of_many_threads_void_what_was_kept_between_them() -> None:
    page = Page()
    written: list[list[int]] = [[] for _ in range(4)]

    def bump(mine: list[int]) -> None:
        for _ in range(2000):
            before = page.generation
            page.bump()
            mine.append(page.generation)
            assert mine[-1] != before

    threads = [threading.Thread(target=bump, args=(mine,)) for mine in written]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number for mine in written for number in mine} <= set(range(1, 8001))


@pytest.mark.parametrize("slot", [*range(SLOTS), CALLS])
def test_a_face_waits_until_its_last_question_is_taken(slot: int) -> None:
    page = Page()
    for number in range(1, 600):
        page.ask(slot, number)
        assert page.asks[0] != page.asks[1]
        page.take(slot, number)
        assert page.asks[0] == page.asks[1]


def test_faces_do_not_disturb_each_other() -> None:
    page = Page()
    page.ask(0, 1)
    page.ask(1, 7)
    page.take(0, 1)
    assert page.asks[0] != page.asks[1]
    page.ask(0, 2)
    page.take(1, 7)
    assert page.asks[0] != page.asks[1]
    page.take(0, 2)
    assert page.asks[0] == page.asks[1]


def test_nobody_makes_way_for_a_face_that_is_gone_and_its_successor_starts_anew() -> None:
    page = Page()
    page.ask(1, 200)
    page.release(1)
    assert page.asks[0] == page.asks[1]
    page.ask(1, 1)
    assert page.asks[0] != page.asks[1]
    page.take(1, 1)
    assert page.asks[0] == page.asks[1]


def test_who_is_released_takes_nobody_along() -> None:
    page = Page()
    page.ask(0, 1)
    page.ask(1, 1)
    page.release(1)
    assert page.asks[0] != page.asks[1]
    page.take(0, 1)
    assert page.asks[0] == page.asks[1]


def test_the_page_is_closed_with_the_last_reference() -> None:
    page = Page()
    fd = page.fd
    assert os.fstat(fd).st_size == mmap.PAGESIZE
    del page
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
