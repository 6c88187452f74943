"""Mailboxes: what is put in comes out, in order, and who waits for it waits no longer than it wants to."""

from __future__ import annotations

import os
import signal
import threading
import time
from queue import Empty
from typing import Any

import pytest

from midrun.mailbox import Mailbox

pytestmark = pytest.mark.usefixtures("signals")


def interrupted(handle: Any) -> threading.Timer:
    """Have a signal come in a moment."""
    signal.signal(signal.SIGTERM, lambda *_: handle())
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    return timer


def test_what_is_put_in_comes_out_in_order() -> None:
    box = Mailbox[int]()
    for number in range(3):
        box.put(number)
    assert [box.get(0), box.get_nowait(), box.get(10)] == [0, 1, 2]
    assert box.empty()
    for take in (box.get_nowait, lambda: box.get(0), lambda: box.get(0.01)):
        with pytest.raises(Empty):
            take()


def test_who_waits_is_woken_by_what_another_thread_puts_in() -> None:
    box = Mailbox[str]()
    timer = threading.Timer(0.05, box.put, ("late",))
    timer.start()
    assert box.get(10) == "late"
    timer.join()


def test_a_signal_whose_handler_takes_longer_than_the_timeout_does_not_make_it_longer() -> None:
    box = Mailbox[str]()
    rescue = threading.Timer(5, box.put, ("rescue",))
    rescue.start()
    timer = interrupted(lambda: threading.Event().wait(0.3))
    with pytest.raises(Empty):
        box.get(0.1)
    rescue.cancel()
    timer.join()


def test_what_a_signal_s_handler_puts_in_comes_at_once() -> None:
    box = Mailbox[str]()
    timer = interrupted(lambda: box.put("from the handler"))
    began = time.monotonic()
    assert box.get(10) == "from the handler"
    assert time.monotonic() - began < 5
    timer.join()
