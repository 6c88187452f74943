"""What a face shows of a tree, and for how long. The clock is trio's mock: no test waits."""

from __future__ import annotations

import threading
import time

import pytest
import trio
from trio.testing import MockClock, trio_test

from midrun.fs.faults import Fault, NotFound
from midrun.fs.view import MEMORY, Rendered, View
from tests.fs.busy import Changing, Trainer, showing


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
    answers: list[Rendered] = []

    async def read(view: View) -> None:
        answers.append(await view.read("step"))

    async with showing(trainer) as view:
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(read, view)
        assert len({id(rendered) for rendered in answers}) == 1
        assert len(answers) == 300
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
        await view.describe("step")
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
        assert kept.value is not None
        assert kept.value.data == b"8\n", "an answer that is asked for later is the newer one, whenever it comes"


@trio_test
async def test_a_reader_that_leaves_takes_nobody_along(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    seen = []

    async def read(view: View) -> None:
        seen.append((await view.read("live")).data)

    async with showing(trainer) as view, trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            nursery.start_soon(read, view)
            await view.read("live")
        root.later.get().set_result("made")
    assert seen == [b"made\n"]


@trio_test
async def test_what_was_not_found_may_be_there_100_ms_later(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        for ask in (view.read, view.describe, view.list):
            with pytest.raises(NotFound):
                await ask("new")
        root.members_["new"] = 1
        with pytest.raises(NotFound):
            await view.read("new")
        await trio.sleep(0.1001)
        assert (await view.describe("new"))["kind"] == "file"
        assert (await view.read("new")).data == b"1\n"


async def ask_too_soon(view: View, root: Changing) -> None:
    """Ask for what is not there, and then make it."""
    with pytest.raises(NotFound):
        await view.read("new")
    root.members_["new"] = 1


@trio_test
async def test_a_bump_voids_what_was_not_found(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        await ask_too_soon(view, root)
        trainer.generation += 1
        assert (await view.read("new")).data == b"1\n"


@trio_test
async def test_a_listing_has_what_was_not_found_before(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        await ask_too_soon(view, root)
        await view.list("")
        assert (await view.read("new")).data == b"1\n"


@trio_test
async def test_a_fault_is_kept_for_100_ms_and_voids_nothing_else(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    root.members_ = {"m": Fault("the disk is full"), "n": 1}
    async with showing(trainer) as view:
        other = await view.read("n")
        for _ in range(2):
            with pytest.raises(Fault, match="the disk is full"):
                await view.read("m")
            root.members_["m"] = 2
        assert root.shown["m"] == 1
        assert view.at_hand("m") is None
        assert view.at_hand("n") is other
        await trio.sleep(0.1001)
        assert (await view.read("m")).data == b"2\n"


@pytest.mark.parametrize("path", ["none", "m"])
@trio_test
async def test_what_is_absent_or_broken_costs_ten_questions_a_second_too(
    clock: MockClock, root: Changing, trainer: Trainer, path: str
) -> None:
    root.members_ = {"m": Fault("the disk is full")}
    told: list[Fault] = []

    async def loop(view: View) -> None:
        while True:
            try:
                await view.read(path)
            except Fault as fault:
                told.append(fault)
            await trio.sleep(0.003)

    async with showing(trainer) as view:
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(loop, view)
    assert len(told) > 6000
    assert 1 < max(trainer.asked.values()) <= 10
    depth, traceback = 0, told[-1].__traceback__
    while traceback is not None:
        depth, traceback = depth + 1, traceback.tb_next
    assert depth < 10, "a fault that is told often remembers who was told last"


@trio_test
async def test_faults_of_any_length_are_kept_within_the_bound(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    async with showing(trainer) as view:
        for number in range(20):
            with pytest.raises(NotFound):
                await view.read(f"{number}{'x' * 1_000_000}")
        assert len(view._entries._kept) <= MEMORY // 2_000_000


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
        usage = await view.read("rate")
        assert (await view.read("rate")).changed_ns == usage.changed_ns, "also of what is never kept"
        assert view.changed("step", Rendered(b"8\n", 1)).changed_ns == changed.changed_ns
        assert view.changed("step", Rendered(b"9\n", 1)).changed_ns == 1
        assert view.changed("none", Rendered(b"", 1)).changed_ns == 1


@trio_test
async def test_what_is_at_hand_can_be_had_from_any_thread(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with View(trainer, lambda: trainer.generation) as view:
        rendered = await view.read("step")
        seen: list[Rendered | None] = []
        thread = threading.Thread(target=lambda: seen.extend([view.at_hand("step"), view.at_hand("none")]))
        thread.start()
        thread.join()
        assert seen[1] is None
        assert seen[0] is rendered or time.time_ns() - rendered.changed_ns > 100_000_000


@trio_test
async def test_what_is_declared_is_looked_at_once(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    root.members_["m"] = 1
    async with showing(trainer) as view:
        for _ in range(3):
            for path in ("step", "metrics", "m", "newest"):
                await view.describe(path)
            await trio.sleep(1)
            trainer.generation += 1
        assert [trainer.asked[f"describe {path}"] for path in ("step", "metrics", "m", "newest")] == [1, 1, 3, 3]
        root.link = "/disk/2"
        assert (await view.describe("newest"))["target"] == "/disk/2", "a link may point elsewhere by and by"


@trio_test
async def test_who_has_listed_a_directory_need_not_ask_for_each_entry(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    root.members_["m"] = 1
    async with showing(trainer) as view:
        listed = {entry["name"]: entry for entry in await view.list("")}
        for name, entry in listed.items():
            assert await view.entry(name) == entry
        assert (await view.read("m")).data == b"1\n"
        assert not [question for question in trainer.asked if question.startswith("describe")]
        await trio.sleep(0.11)
        for name in listed:
            await view.entry(name)
        described = [question for question in trainer.asked if question.startswith("describe")]
        assert sorted(described) == ["describe artifacts", "describe m", "describe newest"], "what is declared stays"


@trio_test
async def test_an_entry_that_nobody_has_listed_is_asked_for(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        for _ in range(3):
            assert (await view.entry("metrics/train%2Floss"))["kind"] == "file"
            assert (await view.describe("metrics/train%2Floss"))["doc"] == "The metric train/loss."
        assert trainer.asked == {"describe metrics/train%2Floss": 1}
        with pytest.raises(NotFound):
            await view.entry("metrics/none")


@trio_test
async def test_a_listing_that_was_asked_for_before_a_bump_says_nothing_of_entries_after_it(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    async with showing(trainer) as view, trio.open_nursery() as nursery:
        trainer.delay = 0.15
        nursery.start_soon(view.list, "")
        await trio.sleep(0.1)
        trainer.generation += 1
        trainer.delay, root.link = 0.0, "/disk/2"
        await trio.sleep(0.06)
        assert (await view.entry("newest"))["target"] == "/disk/2"
