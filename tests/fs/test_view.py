"""What a face shows of a tree, and for how long. The clock is trio's mock: no test waits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from midrun.fs.faults import Fault, Gone, NotFound, TimedOut
from midrun.fs.tree import Dir, Leaf, Link, Node
from midrun.fs.verbs import Description, Entry, Local
from midrun.fs.view import MEMORY, Shot, View
from tests.fs.sample import Sample

T = TypeVar("T")


class Trainer(Local):
    """The verbs over a tree that may be slow to answer, or stuck. The answer is made when it is asked for."""

    def __init__(self, root: Dir) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()
        self.delay = 0.0
        self.generation = 0
        self._free = trio.Event()
        self._free.set()

    def get_stuck(self) -> None:
        self._free = trio.Event()

    def get_free(self) -> None:
        self._free.set()

    async def list(self, path: str) -> list[Entry]:
        return await self._answered(f"list {path}", await super().list(path))

    async def read(self, path: str) -> bytes:
        self.asked[f"read {path}"] += 1
        return await self._answered(None, await super().read(path))

    async def write(self, path: str, data: bytes, *, check: bool = False) -> Any:
        return await self._answered(f"write {path}", await super().write(path, data, check=check))

    async def describe(self, path: str) -> Description:
        return await self._answered(f"describe {path}", await super().describe(path))

    async def _answered(self, question: str | None, answer: T) -> T:
        if question is not None:
            self.asked[question] += 1
        delay, free = self.delay, self._free
        if delay:
            await trio.sleep(delay)
        await free.wait()
        return answer


class Changing(Sample):
    """A sample with members that come and go, of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.link = "/disk/1"
        self.newest = Link(lambda: self.link)
        self.members_: dict[str, Any] = {}

    def members(self) -> Iterable[str]:
        return list(self.members_)

    def member(self, name: str) -> Node | None:
        if name not in self.members_:
            return None

        def show() -> object:
            self.shown[name] += 1
            if isinstance(self.members_[name], Fault):
                raise self.members_[name]
            return self.members_[name]

        return Leaf(show)


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@pytest.fixture
def root() -> Changing:
    return Changing()


@pytest.fixture
def trainer(root: Changing) -> Trainer:
    return Trainer(root)


@asynccontextmanager
async def showing(trainer: Trainer) -> AsyncIterator[View]:
    async with View(trainer, lambda: trainer.generation, now=trio.current_time) as view:
        yield view


async def timed(ask: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """Return what `ask` returns, or its fault, and how long it took."""
    begun = trio.current_time()
    try:
        result = await ask()
    except Fault as fault:
        result = fault
    return result, round(trio.current_time() - begun, 6)


@trio_test
async def test_a_value_is_kept_for_100_ms(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        first = await view.read("step")
        assert (first.data, first.age) == (b"7\n", 0.0)
        root.step = 8
        await trio.sleep(0.0999)
        assert await view.read("step") is first
        assert view.at_hand("step") is first
        await trio.sleep(0.0002)
        assert view.at_hand("step") is None
        assert (await view.read("step")).data == b"8\n"
    assert trainer.asked["read step"] == root.shown["step"] == 2


@trio_test
async def test_a_crowd_of_readers_makes_one_question(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    trainer.delay = 0.05
    shots: list[Shot] = []

    async def read(view: View) -> None:
        shots.append(await view.read("step"))

    async with showing(trainer) as view:
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(read, view)
        assert len({id(shot) for shot in shots}) == 1
        assert len(shots) == 300
        assert trainer.asked == {"describe step": 1, "read step": 1}
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(view.list, "metrics")
        assert trainer.asked["list metrics"] == 1


@trio_test
async def test_readers_in_a_loop_cost_ten_questions_a_second(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    async def loop(view: View) -> None:
        while True:
            await view.read("step")
            await trio.sleep(0.003)

    async with showing(trainer) as view:
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(loop, view)
    assert root.shown["step"] <= 10


@trio_test
async def test_a_bump_of_the_generation_voids_what_is_kept(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        await view.read("step")
        await view.list("metrics")
        root.step = 8
        root.metrics.values["new"] = 1.0
        trainer.generation += 1
        assert view.at_hand("step") is None
        assert (await view.read("step")).data == b"8\n"
        assert (await view.list("metrics"))[-1]["name"] == "new"


@pytest.mark.parametrize("old_takes", [0.15, 0.5])
@trio_test
async def test_a_bump_voids_an_answer_that_is_under_way(
    clock: MockClock, root: Changing, trainer: Trainer, old_takes: float
) -> None:
    seen: dict[str, bytes] = {}

    async def read(view: View, name: str) -> None:
        seen[name] = (await view.read("step")).data

    async with showing(trainer) as view:
        await view.look("step")
        async with trio.open_nursery() as nursery:
            trainer.delay = old_takes
            nursery.start_soon(read, view, "before")
            await trio.sleep(0.05)
            root.step, trainer.delay = 8, 0.2
            trainer.generation += 1
            nursery.start_soon(read, view, "after")
            nursery.start_soon(read, view, "after too")
        assert seen == {"before": b"7\n", "after": b"8\n", "after too": b"8\n"}
        assert root.shown["step"] == 2
        kept = view._files.get("step")
        assert kept is not None
        assert kept.answer.data == b"8\n", "an answer that is asked for later is the newer one, whenever it comes"


@trio_test
async def test_when_no_answer_comes_in_200_ms_the_last_value_is_shown_with_its_age(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    async with showing(trainer) as view:
        first = await view.read("step")
        trainer.get_stuck()
        await trio.sleep(1)
        shot, took = await timed(lambda: view.read("step"))
        assert took == 0.2
        assert (shot.data, shot.changed_ns) == (first.data, first.changed_ns)
        assert shot.age == pytest.approx(1.2)
        assert view.at_hand("step") is None


@trio_test
async def test_an_answer_within_200_ms_is_waited_for(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        await view.read("step")
        await trio.sleep(1)
        root.step, trainer.delay = 8, 0.19
        shot, took = await timed(lambda: view.read("step"))
        assert (shot.data, shot.age, took) == (b"8\n", 0.0, 0.19)


@trio_test
async def test_after_one_late_answer_old_values_are_shown_at_once(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    root.members_ = {f"m{number}": number for number in range(500)}
    async with showing(trainer) as view:
        for name in root.members_:
            await view.read(name)
        await view.list("")
        trainer.get_stuck()
        await trio.sleep(1)
        begun = trio.current_time()
        for name in root.members_:
            assert (await view.look(name))["name"] == name
            assert (await view.read(name)).age > 0
        assert (await view.list(""))[-1]["name"] == "m499"
        assert trio.current_time() - begun == pytest.approx(0.2)


@trio_test
async def test_a_view_recovers_once_the_trainer_answers(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        await view.read("step")
        trainer.get_stuck()
        await trio.sleep(1)
        assert (await view.read("step")).age > 0
        root.step = 8
        trainer.get_free()
        await wait_all_tasks_blocked()
        shot = view.at_hand("step")
        assert shot is not None, "an answer that comes late is kept all the same"
        assert (shot.data, shot.age) == (b"7\n", 0.0)
        await trio.sleep(1)
        trainer.delay = 0.1
        shot, took = await timed(lambda: view.read("step"))
        assert (shot.data, took) == (b"8\n", 0.1), "it waits for answers again"


@trio_test
async def test_a_fault_is_an_answer_too(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        await view.read("step")
        trainer.get_stuck()
        await trio.sleep(1)
        assert (await view.read("step")).age > 0
        assert (await timed(lambda: view.read("step")))[1] == 0.0
        with pytest.raises(NotFound):
            await view.read("none")
        assert (await timed(lambda: view.read("step")))[1] == 0.2, "the trainer has answered, so it may again"


@trio_test
async def test_a_question_that_nobody_answers_is_not_asked_again(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    async with showing(trainer) as view:
        await view.read("step")
        trainer.get_stuck()
        for _ in range(50):
            await trio.sleep(0.2)
            await view.read("step")
    assert trainer.asked["read step"] == 2


@pytest.mark.parametrize(("options", "patience"), [({}, 5.0), ({"patience": 1.5}, 1.5)])
@trio_test
async def test_with_no_value_yet_a_reader_waits_and_is_told(
    clock: MockClock, trainer: Trainer, options: dict[str, float], patience: float
) -> None:
    async with showing(trainer) as view:
        trainer.get_stuck()
        for known in (False, True):
            fault, took = await timed(lambda: view.read("step", **options))
            assert type(fault) is TimedOut
            assert fault.message.startswith(f"'step': the run did not answer within {patience:g} s")
            assert took == patience, known
            trainer.get_free()
            await view.look("step")
            trainer.get_stuck()
        for ask in (view.list, view.describe):
            fault, took = await timed(lambda ask=ask: ask("metrics"))  # type: ignore[misc]
            assert (type(fault), took) == (TimedOut, 5.0)


@trio_test
async def test_what_is_not_to_be_kept_is_asked_anew_by_each_reader(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    trainer.delay = 0.1
    seen = []

    async def read(view: View) -> None:
        seen.append((await view.read("fresh")).data)

    async with showing(trainer) as view:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read, view)
        assert sorted(seen) == [b"1\n", b"2\n", b"3\n"]
        assert view.at_hand("fresh") is None
        trainer.get_stuck()
        fault, took = await timed(lambda: view.read("fresh"))
        assert (type(fault), took) == (TimedOut, 5.0), "never an old value"


@trio_test
async def test_a_live_file_is_made_once_for_all_who_wait_and_never_kept(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    seen = []

    async def read(view: View) -> None:
        seen.append((await view.read("live", patience=0.1)).data)

    async with showing(trainer) as view:
        for made in (b"one\n", b"two\n"):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(read, view)
                    await trio.sleep(1)
                await trio.sleep(20)
                root.later.get().resolve(made)
            assert view.at_hand("live") is None
        assert seen == [b"one\n"] * 5 + [b"two\n"] * 5
        assert root.shown["live"] == 2


@trio_test
async def test_a_live_file_is_waited_for_30_seconds(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        fault, took = await timed(lambda: view.read("live", patience=1))
        assert (type(fault), took) == (TimedOut, 30.0)
        assert fault.message == "'live': the run did not answer within 30 s; it is busy or stopped, try again"


@trio_test
async def test_a_live_file_that_was_asked_for_before_a_bump_is_asked_for_again(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    async with showing(trainer) as view, trio.open_nursery() as nursery:
        nursery.start_soon(view.read, "live")
        await trio.sleep(1)
        trainer.generation += 1
        nursery.start_soon(view.read, "live")
        await trio.sleep(1)
        assert root.shown["live"] == 2
        for _ in range(2):
            root.later.get().resolve("made")


@trio_test
async def test_a_reader_that_leaves_takes_nobody_along(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    seen = []

    async def read(view: View) -> None:
        seen.append((await view.read("live")).data)

    async with showing(trainer) as view, trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            nursery.start_soon(read, view)
            await view.read("live")
        root.later.get().resolve("made")
    assert seen == [b"made\n"]


@trio_test
async def test_what_was_not_found_may_be_there_the_next_moment(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    async with showing(trainer) as view:
        for ask in (view.read, view.look, view.list):
            with pytest.raises(NotFound):
                await ask("new")
        root.members_["new"] = 1
        assert (await view.look("new"))["kind"] == "file"
        assert (await view.read("new")).data == b"1\n"


@trio_test
async def test_what_has_gone_is_not_shown_as_old(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    root.members_["m"] = 1
    async with showing(trainer) as view:
        await view.read("m")
        del root.members_["m"]
        assert (await view.read("m")).data == b"1\n", "for 100 ms it may"
        await trio.sleep(0.11)
        for ask in (view.read, view.look):
            with pytest.raises(NotFound):
                await ask("m")
        root.members_["m"] = 2
        trainer.get_stuck()
        fault, took = await timed(lambda: view.read("m"))
        assert (type(fault), took) == (TimedOut, 5.0)


@trio_test
async def test_a_fault_is_not_kept_and_voids_nothing_else(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    root.members_ = {"m": Fault("the disk is full"), "n": 1}
    async with showing(trainer) as view:
        other = await view.read("n")
        for _ in range(2):
            with pytest.raises(Fault, match="the disk is full"):
                await view.read("m")
        root.members_["m"] = 2
        assert (await view.read("m")).data == b"2\n"
        assert view.at_hand("n") is other


@trio_test
async def test_what_is_kept_has_a_bound(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    root.members_ = {f"m{number}": b"x" * 1_000_000 for number in range(100)}
    async with showing(trainer) as view:
        for name in root.members_:
            await view.read(name)
        kept = [name for name in root.members_ if view.at_hand(name)]
        assert kept == list(root.members_)[-len(kept) :], "the oldest goes first"
        assert 30 <= len(kept) <= MEMORY // 1_000_000
        root.members_["huge"] = b"x" * (MEMORY + 1)
        assert (await view.read("huge")) is view.at_hand("huge")
        assert [name for name in root.members_ if view.at_hand(name)] == ["huge"]
        await view.read("m0")
        assert [name for name in root.members_ if view.at_hand(name)] == ["m0"]


@trio_test
async def test_the_moment_of_change_stays_while_the_bytes_are_the_same(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    async with showing(trainer) as view:
        before = time.time_ns()
        first = await view.read("step")
        assert before <= first.changed_ns <= time.time_ns()
        await trio.sleep(1)
        again = await view.read("step")
        assert again is not first
        assert again.changed_ns == first.changed_ns
        root.step = 8
        await trio.sleep(1)
        changed = await view.read("step")
        assert changed.changed_ns > first.changed_ns
        assert view.changed("step", Shot(b"8\n", 1)).changed_ns == changed.changed_ns
        assert view.changed("step", Shot(b"9\n", 1)).changed_ns == 1
        assert view.changed("none", Shot(b"", 1)).changed_ns == 1


@trio_test
async def test_what_is_at_hand_can_be_had_from_any_thread(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with View(trainer, lambda: trainer.generation) as view:
        shot = await view.read("step")
        seen: list[Shot | None] = []
        thread = threading.Thread(target=lambda: seen.extend([view.at_hand("step"), view.at_hand("none")]))
        thread.start()
        thread.join()
        assert seen[1] is None
        assert seen[0] is shot or time.time_ns() - shot.changed_ns > 100_000_000


@trio_test
async def test_what_is_declared_is_looked_at_once(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    root.members_["m"] = 1
    async with showing(trainer) as view:
        for _ in range(3):
            for path in ("step", "metrics", "m", "newest"):
                await view.look(path)
            await trio.sleep(1)
            trainer.generation += 1
        assert [trainer.asked[f"describe {path}"] for path in ("step", "metrics", "m", "newest")] == [1, 1, 3, 3]
        root.link = "/disk/2"
        assert (await view.look("newest"))["target"] == "/disk/2", "a link may point elsewhere by and by"


@trio_test
async def test_a_write_goes_through_and_has_five_seconds(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        assert await view.write("rate", b"0.5", check=True) is None
        assert (await view.write("rate", b"0.5"))["value"] == 0.5
        assert root.stored == [0.5]
        with pytest.raises(Fault, match="held"):
            await view.write("busy", b'{"value": 1}')
        fault, took = await timed(lambda: view.write("promise", b'{"value": 1}'))
        assert (type(fault), took) == (TimedOut, 5.0)


@trio_test
async def test_when_the_run_has_ended_readers_are_told(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    root.members_["m"] = 1
    async with showing(trainer) as view:
        await view.read("m")
        root.members_["m"] = Gone("the run has ended")
        await trio.sleep(1)
        with pytest.raises(Gone):
            await view.read("m")


@trio_test
async def test_who_waits_when_the_face_ends_is_told(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    outcomes = []

    async def read(view: View, path: str) -> None:
        outcomes.append(await timed(lambda: view.read(path)))

    async with trio.open_nursery() as nursery, showing(trainer) as view:
        trainer.get_stuck()
        for path in ("step", "live"):
            nursery.start_soon(read, view, path)
        await trio.sleep(1)
    assert [(type(fault), took) for fault, took in outcomes] == [(Gone, 1.0)] * 2
