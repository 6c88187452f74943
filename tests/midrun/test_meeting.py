"""All ranks meet at the same safe point or none does, however late each of them is and hears of it."""

from __future__ import annotations

import random
import threading
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from torch import distributed

from midrun import chair, channel, ranks
from midrun.chair import Chair
from midrun.channel import Channel
from midrun.command import STEP, Command
from midrun.commands import KINDS
from midrun.commands.kind import Shared, When
from midrun.meeting import Answer, Numbers, Uneven
from midrun.member import Member
from midrun.sigterm import Sigterm
from tests.processes import wait_for


class Loop:
    """A loop that has nothing but the numbers of its safe points, of several kinds of batch."""

    is_fitting = True
    told_to_end_by: str | None = None
    broken: str | None = None

    def __init__(self, accumulate: int = 1) -> None:
        self.step = self.batches_begun = self.epoch = 0
        self.batches_in_step = accumulate
        self.sigterm = Sigterm()


class Group:
    """The store of some ranks that are threads of this process."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.server = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # type: ignore[attr-defined]

    def rank(self, number: int) -> Any:
        def connect() -> Channel:
            client = distributed.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", self.server.port, None, False, timedelta(days=1), wait_for_workers=False
            )
            return Channel(client, "test")

        return SimpleNamespace(own={"rank": number}, others=range(1, self.world), connect=connect, channel=connect())


class Zero:
    """Rank zero: what it has done, with the safe point of each."""

    def __init__(self, group: Group, loop: Loop) -> None:
        self.loop = loop
        self.alerts: list[Any] = []
        self.log = SimpleNamespace(alert=lambda *said: self.alerts.append(said))
        self.pace = SimpleNamespace(steps_per_second=None)
        run: Any = self
        self.chair = Chair(run, group.rank(0))
        self.waiting: list[Command] = []
        self.done: list[tuple[str, int, str]] = []

    def reach(self, point: str) -> None:
        try:
            if self.chair.attend(point):
                for command in [*self.waiting]:
                    if command.is_due(point, self.loop.step, self.loop.epoch):
                        self.waiting.remove(command)
                        self.chair.do(command)
                        self.done.append((point, self.chair.numbers.of(point), command.id))
        finally:
            self.chair.leave(point)
        self.chair.plan(self.waiting, steps=True) if self.waiting else self.chair.call_off()


class Later:
    """A later rank, in a thread that hears of meetings."""

    def __init__(self, group: Group, loop: Loop, number: int, answer: Any = None) -> None:
        self.loop = loop
        self.numbers = Numbers(loop)  # type: ignore[arg-type]  # it has what these want
        self.done: list[tuple[str, int, str]] = []
        self.point = ""
        self.alerts: list[str] = []
        log: Any = SimpleNamespace(alert=self.alerts.append)
        any_loop: Any = loop
        self.member = Member(any_loop, self.numbers, group.rank(number), answer or self._answer, log)
        self.thread = threading.Thread(target=self.member.hear)
        self.thread.start()

    def _answer(self, told: dict[str, Any]) -> Answer:
        if told["word"] == "do":
            self.done.append((self.point, self.numbers.of(self.point), told["id"]))
            return {"result": {}}
        return {"result": None}

    def reach(self, point: str) -> None:
        self.point = point
        if self.member.is_awaited:
            self.member.reach(point)
        self.numbers.leave(point)

    def stop(self) -> None:
        self.member.stop()
        self.thread.join(5)
        assert not self.thread.is_alive()


class Nothing(Shared):
    """A kind that does nothing."""

    name = "nothing"
    points = (STEP, "train_batch_end")

    def do_here(self, here: Any, args: Any) -> dict[str, Any]:
        return {}


@pytest.fixture
def group() -> Group:
    return Group(3)


def command(when: Any = None, kind: Any = None) -> Command:
    made = kind or Nothing()
    return Command(made, made.Arguments(), when)


class Pack:
    """How far each rank is: none gets more than so many batches ahead of the last, as by what they exchange."""

    def __init__(self, world: int, apart: int = 30) -> None:
        self.at, self.apart, self.over = [0] * world, apart, threading.Event()

    def begin(self, rank: int, batch: int) -> None:
        self.at[rank] = batch
        while batch > min(self.at) + self.apart and not self.over.is_set():
            time.sleep(0.0005)


def train(
    rank: Zero | Later, steps: int = 10**6, draw: random.Random | None = None, pack: Pack | None = None, place: int = 0
) -> None:
    """Go through the safe points of so many batches, at any pace."""
    loop, draw = rank.loop, draw or random.Random(0)  # noqa: S311 - a repeatable pace, no secret
    for batch in range(1, steps + 1):
        if pack is not None:
            pack.begin(place, batch)
        loop.batches_begun = batch
        if draw.random() < 0.3:
            time.sleep(draw.random() * 0.004)
        if batch % loop.batches_in_step == 0:
            rank.reach(STEP)
            loop.step += 1
        if draw.random() < 0.1:
            time.sleep(draw.random() * 0.01)
        rank.reach("train_batch_end")
        if pack is not None and pack.over.is_set():
            return


def begin(later: list[Later], pack: Pack, seed: int) -> list[threading.Thread]:
    """Have later ranks train until the pack is over."""
    threads = [
        threading.Thread(target=train, args=(rank, 10**6, random.Random(seed * 10 + place), pack, place))  # noqa: S311
        for place, rank in enumerate(later, 1)
    ]
    for thread in threads:
        thread.start()
    return threads


def end(zero: Zero, later: list[Later], threads: list[threading.Thread], pack: Pack) -> None:
    """End all ranks; none of them may stand."""
    pack.over.set()
    zero.chair.close()
    for rank in later:
        rank.stop()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("seed", range(8))
def test_ranks_that_nothing_keeps_together_do_the_same_at_the_same_safe_points(group: Group, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a repeatable walk, no secret
    accumulate = draw.choice([1, 1, 3])
    zero = Zero(group, Loop(accumulate))
    later = [Later(group, Loop(accumulate), number) for number in (1, 2)]
    pack = Pack(3, draw.choice([1, 5, 30]))
    threads = begin(later, pack, seed)
    sent = batch = 0
    while sent < 20 or zero.waiting:
        batch += 1
        pack.begin(0, batch)
        if sent < 20 and draw.random() < 0.05:
            sent += 1
            zero.waiting.append(command())
            zero.chair.plan(zero.waiting, steps=True)
        zero.loop.batches_begun = batch
        if batch % accumulate == 0:
            zero.reach(STEP)
            zero.loop.step += 1
        time.sleep(draw.random() * 0.002)
        zero.reach("train_batch_end")
    end(zero, later, threads, pack)
    assert len(zero.done) == 20
    assert [rank.done for rank in later] == [zero.done] * 2


def test_what_a_meeting_has_left_in_the_store_is_gone_after_the_next(group: Group) -> None:
    zero, pack = Zero(group, Loop()), Pack(3)
    later = [Later(group, Loop(), number) for number in (1, 2)]
    threads = begin(later, pack, 0)
    keys: list[int] = []
    while len(keys) < 12:
        zero.loop.batches_begun += 1
        pack.begin(0, zero.loop.batches_begun)
        if not zero.waiting:
            keys.append(group.server.num_keys() - 3 * zero.chair._called)  # One that was called off leaves some words.
            zero.waiting.append(command())
        zero.reach(STEP)
        zero.loop.step += 1
        zero.reach("train_batch_end")
    end(zero, later, threads, pack)
    assert max(keys) < 30


def test_an_early_member_waits_longer_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chair, "GATHER", 0.2)
    monkeypatch.setattr(chair, "_SHARE", 1e9)  # It may be tried again at once.
    two = Group(2)
    zero, later = Zero(two, Loop()), Later(two, Loop(), 1)
    zero.waiting.append(command(When(safe_point="train_epoch_end")))
    zero.chair.plan(zero.waiting, steps=True)
    wait_for(lambda: later.member.is_awaited, "it has heard")
    thread = threading.Thread(target=train_epochs, args=(later, zero, 4))
    thread.start()
    for _ in range(4):
        time.sleep(0.5)  # What this rank alone does at the end of an epoch takes longer than others wait at first.
        zero.reach("train_epoch_end")
    thread.join(20)
    assert not thread.is_alive()
    assert len(zero.done) == 1
    assert later.done == zero.done
    assert "rank 0 came too late" in zero.alerts[0][0]
    later.stop()


def _has_begun(zero: Zero, epoch: int) -> bool:
    return zero.chair.numbers.of("train_epoch_end") >= epoch


def train_epochs(later: Later, zero: Zero, count: int) -> None:
    for number in range(count):
        wait_for(partial(_has_begun, zero, number), "rank zero's epoch begins")
        later.reach("train_epoch_end")


def test_a_member_that_waits_behind_a_passed_point_lets_rank_zero_go_on() -> None:
    two = Group(2)
    zero, later = Zero(two, Loop()), Later(two, Loop(), 1)
    zero.loop.batches_begun = later.loop.batches_begun = 1
    later.reach(STEP)
    later.loop.step = 1  # It goes on into what it waits in for rank zero, and hears of the call only there.
    zero.waiting.append(command())
    zero.chair._call(STEP, 0)
    began = time.monotonic()
    zero.reach(STEP)
    assert time.monotonic() - began < chair.GATHER / 2
    assert zero.done == []
    zero.chair.close()
    later.stop()


@pytest.mark.parametrize("told", ["rank zero", "a later rank"])
def test_sigterm_in_a_meeting_is_taken_by_all_ranks_when_it_ends(told: str) -> None:
    two = Group(2)
    zero, later = Zero(two, Loop()), Later(two, Loop(), 1)
    acted: list[str] = []
    for rank, name in ((zero, "rank zero"), (later, "a later rank")):
        rank.loop.sigterm._inner = lambda *_, name=name: acted.append(name)
    zero.waiting.append(command())
    zero.chair.plan(zero.waiting, steps=True)
    wait_for(lambda: later.member.is_awaited, "it has heard")
    thread = threading.Thread(target=train, args=(later, 3))
    thread.start()
    zero.loop.step = zero.loop.batches_begun = 1
    assert zero.chair.attend(STEP)
    (zero if told == "rank zero" else later).loop.sigterm._handle(15, None)
    assert acted == []
    if told == "a later rank":
        later.loop.told_to_end_by = "SIGTERM"
        wait_for(lambda: zero.chair.keep_watch() == "SIGTERM on rank 1", "rank zero knows")
    zero.chair.leave(STEP)
    thread.join(20)
    assert not thread.is_alive()
    assert sorted(acted) == ["a later rank", "rank zero"]
    later.stop()


def test_a_second_attempt_takes_nothing_of_the_first_for_its_own(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(prefix: str) -> Channel:
        client = distributed.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", group.server.port, None, False, timedelta(days=1), wait_for_workers=False
        )
        return Channel(client, prefix)

    monkeypatch.setattr(channel, "connect", connect)
    monkeypatch.setattr(channel, "is_open", lambda: True)
    prefixes: set[str] = set()
    for directory in ("/first", "/second"):
        monkeypatch.setattr(ranks, "_numbers", iter([0, 0]))
        zero, one = (ranks.Ranks(trainer(number)) for number in (0, 1))
        zero.directory = directory
        assert one.directory is None
        zero.welcome()
        assert one.directory == directory
        assert one.channel.get("said") is None
        zero.channel.put("said", directory)
        assert one.channel.get("said") == directory
        prefixes.add(one._prefix)
    assert len(prefixes) == 2


def trainer(rank: int) -> Any:
    strategy = SimpleNamespace(root_device="cpu")
    return SimpleNamespace(global_rank=rank, local_rank=rank, node_rank=0, world_size=2, strategy=strategy)


def test_where_a_rank_does_not_come_the_others_go_on_and_are_not_called_again_at_once(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chair, "GATHER", 0.3)
    zero, first, second = Zero(group, Loop()), Later(group, Loop(), 1), Later(group, Loop(), 2)
    zero.waiting.append(command())
    zero.chair.plan(zero.waiting, steps=True)
    wait_for(lambda: first.member.is_awaited, "it has heard")
    thread = threading.Thread(target=train, args=(first, 50))
    thread.start()
    train(zero, 50)
    thread.join(20)
    assert not thread.is_alive()
    assert zero.done == first.done == []
    assert len(zero.alerts) == 1
    assert "rank 2 did not come to" in zero.alerts[0][0]
    first.stop()
    second.stop()


def test_a_rank_that_has_ended_is_not_waited_for(group: Group) -> None:
    zero, first, second = Zero(group, Loop()), Later(group, Loop(), 1), Later(group, Loop(), 2)
    zero.waiting.append(command())
    zero.chair.plan(zero.waiting, steps=True)
    wait_for(lambda: first.member.is_awaited and second.member.is_awaited, "they have heard")
    first.stop()
    second.stop()
    began = time.monotonic()
    train(zero, 10)
    assert time.monotonic() - began < chair.GATHER / 2
    assert zero.done == []


@pytest.mark.parametrize("word", ["admit", "do"])
def test_what_fails_on_one_rank_fails_and_the_rank_is_named(group: Group, word: str) -> None:
    def fail(told: dict[str, Any]) -> Answer:
        return {"error": "no such thing"} if told["word"] == word else {"result": {}}

    zero = Zero(group, Loop())
    later = [Later(group, Loop(), 1, fail), Later(group, Loop(), 2)]
    zero.waiting.append(command())
    zero.chair.plan(zero.waiting, steps=True)
    wait_for(lambda: all(rank.member.is_awaited for rank in later), "they have heard")
    threads = [threading.Thread(target=train, args=(rank, 9)) for rank in later]
    for thread in threads:
        thread.start()
    done = "" if word == "admit" else "; done on ranks 0, 2"
    with pytest.raises(Uneven, match=f"^rank 1: no such thing{done}$"):
        train(zero, 9)
    zero.chair.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert later[1].done == ([] if word == "admit" else [(STEP, 1, later[1].done[0][2])])
    for rank in later:
        rank.stop()


def test_every_kind_that_all_ranks_do_says_what_a_later_one_does() -> None:
    stands = {"hold", "pause"}
    for name, kind in KINDS.items():
        assert kind.on_every_rank == (isinstance(kind, Shared) or name in stands), name
