"""What a face shows while the trainer is busy, stuck or gone. The clock is trio's mock: no test waits."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from midrun.fs.faults import Fault, Gone, NotFound, TimedOut
from midrun.fs.view import View
from tests.fs.busy import Changing, Trainer, showing, timed


@trio_test
async def test_when_no_answer_comes_in_200_ms_the_last_value_is_shown_with_its_age(
    clock: MockClock, root: Changing, trainer: Trainer
) -> None:
    async with showing(trainer) as view:
        first = await view.read("step")
        trainer.get_stuck()
        await trio.sleep(1)
        rendered, took = await timed(lambda: view.read("step"))
        assert took == 0.2
        assert (rendered.data, rendered.changed_ns) == (first.data, first.changed_ns)
        assert rendered.age == pytest.approx(1.2)
        assert view.at_hand("step") is None


@trio_test
async def test_an_answer_within_200_ms_is_waited_for(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    async with showing(trainer) as view:
        await view.read("step")
        await trio.sleep(1)
        root.step, trainer.delay = 8, 0.19
        rendered, took = await timed(lambda: view.read("step"))
        assert (rendered.data, rendered.age, took) == (b"8\n", 0.0, 0.19)


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
            assert (await view.describe(name))["name"] == name
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
        rendered = view.at_hand("step")
        assert rendered is not None, "an answer that comes late is kept all the same"
        assert (rendered.data, rendered.age) == (b"7\n", 0.0)
        await trio.sleep(1)
        trainer.delay = 0.1
        rendered, took = await timed(lambda: view.read("step"))
        assert (rendered.data, took) == (b"8\n", 0.1), "it waits for answers again"


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
            await view.describe("step")
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
                root.later.get().set_result(made)
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
            root.later.get().set_result("made")


@trio_test
async def test_what_has_gone_is_not_shown_as_old(clock: MockClock, root: Changing, trainer: Trainer) -> None:
    root.members_["m"] = 1
    async with showing(trainer) as view:
        await view.read("m")
        del root.members_["m"]
        assert (await view.read("m")).data == b"1\n", "for 100 ms it may"
        await trio.sleep(0.11)
        for ask in (view.read, view.describe):
            with pytest.raises(NotFound):
                await ask("m")
        root.members_["m"] = 2
        trainer.get_stuck()
        await trio.sleep(0.11)
        fault, took = await timed(lambda: view.read("m"))
        assert (type(fault), took) == (TimedOut, 5.0)


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
