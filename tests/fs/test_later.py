import threading
from collections.abc import Callable

import pytest

from midrun.fs.faults import Conflict
from midrun.fs.later import Later


def test_a_value_is_told_when_it_comes() -> None:
    later, told = Later(), []
    later.add_done_callback(lambda _: told.append(later.result()))
    assert told == []
    later.set_result(7)
    assert told == [7]


def test_a_value_that_is_there_is_told_at_once() -> None:
    later, told = Later(), []
    later.set_result(None)
    later.add_done_callback(lambda _: told.append(later.result()))
    assert told == [None]


def test_all_who_wait_for_one_value_are_told() -> None:
    later, told = Later(), []
    for reader in range(3):
        later.add_done_callback(lambda _, reader=reader: told.append(reader))  # type: ignore[misc]
    later.set_result(7)
    assert told == [0, 1, 2]


def test_a_fault_is_raised() -> None:
    later = Later()
    later.set_exception(Conflict("held"))
    with pytest.raises(Conflict, match="held"):
        later.result()


def test_the_first_outcome_counts() -> None:
    later = Later()
    later.set_result(1)
    later.set_result(2)
    later.set_exception(Conflict("held"))
    assert later.result() == 1


def test_there_is_no_result_before_the_outcome() -> None:
    with pytest.raises(RuntimeError, match="not there yet"):
        Later().result()


def test_what_is_made_of_a_value_is_later_too() -> None:
    later, told = Later(), []
    made = later.then(lambda value: f"{value}!").then(str.upper)  # type: ignore[arg-type]
    made.add_done_callback(lambda _: told.append(made.result()))
    assert told == []
    later.set_result("made")
    assert told == ["MADE!"]


def test_a_fault_is_raised_of_what_is_made_of_it() -> None:
    later = Later()
    made = later.then(str)
    later.set_exception(Conflict("held"))
    with pytest.raises(Conflict, match="held"):
        made.result()


def test_nobody_is_forgotten_or_told_twice_when_two_threads_meet(times: Callable[[int], int]) -> None:
    for _ in range(times(5000)):
        later, told, ready = Later(), list[int](), threading.Barrier(2)

        def wait(later: Later = later, told: list[int] = told, ready: threading.Barrier = ready) -> None:
            ready.wait()
            later.add_done_callback(lambda _: told.append(1))

        thread = threading.Thread(target=wait)
        thread.start()
        ready.wait()
        later.set_result(7)
        thread.join()
        assert told == [1]
