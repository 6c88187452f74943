import threading
from collections.abc import Callable

import pytest

from midrun.fs.faults import Conflict
from midrun.fs.later import Later


def test_a_value_is_told_when_it_comes() -> None:
    later, told = Later(), []
    later.tell(lambda: told.append(later.result()))
    assert (later.settled, told) == (False, [])
    later.resolve(7)
    assert (later.settled, told) == (True, [7])


def test_a_value_that_is_there_is_told_at_once() -> None:
    later, told = Later(), []
    later.resolve(None)
    later.tell(lambda: told.append(later.result()))
    assert told == [None]


def test_all_who_wait_for_one_value_are_told() -> None:
    later, told = Later(), []
    for reader in range(3):
        later.tell(lambda reader=reader: told.append(reader))  # type: ignore[misc]
    later.resolve(7)
    assert told == [0, 1, 2]


def test_a_fault_is_raised() -> None:
    later = Later()
    later.fail(Conflict("held"))
    with pytest.raises(Conflict, match="held"):
        later.result()


def test_the_first_outcome_counts() -> None:
    later = Later()
    later.resolve(1)
    later.resolve(2)
    later.fail(Conflict("held"))
    assert later.result() == 1


def test_there_is_no_result_before_the_outcome() -> None:
    with pytest.raises(RuntimeError, match="not there yet"):
        Later().result()


def test_what_is_made_of_a_value_is_later_too() -> None:
    later, told = Later(), []
    made = later.then(lambda value: f"{value}!").then(str.upper)  # type: ignore[arg-type]
    made.tell(lambda: told.append(made.result()))
    assert (made.settled, told) == (False, [])
    later.resolve("made")
    assert (made.settled, told) == (True, ["MADE!"])


def test_a_fault_is_raised_of_what_is_made_of_it() -> None:
    later = Later()
    made = later.then(str)
    later.fail(Conflict("held"))
    with pytest.raises(Conflict, match="held"):
        made.result()


def test_nobody_is_forgotten_or_told_twice_when_two_threads_meet(times: Callable[[int], int]) -> None:
    for _ in range(times(5000)):
        later, told, ready = Later(), list[int](), threading.Barrier(2)

        def wait(later: Later = later, told: list[int] = told, ready: threading.Barrier = ready) -> None:
            ready.wait()
            later.tell(lambda: told.append(1))

        thread = threading.Thread(target=wait)
        thread.start()
        ready.wait()
        later.resolve(7)
        thread.join()
        assert told == [1]
