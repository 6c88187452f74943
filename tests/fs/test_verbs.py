"""The four verbs: a face can't tell a tree in its own process from one at the other end of a wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from midrun.fs.faults import (
    Conflict,
    Fault,
    Invalid,
    IsADirectory,
    NotADirectory,
    NotFound,
    ReadOnly,
    Refused,
    TooLarge,
)
from midrun.fs.names import escape
from midrun.fs.verbs import Verbs
from tests.fs.sample import BIG, Sample, until, verbs_over

ways = pytest.mark.parametrize("way", ["local", "wire"])


@ways
@trio_test
async def test_a_directory_is_listed(way: str) -> None:
    async with verbs_over(way, Sample()) as verbs:
        names = [entry["name"] for entry in await verbs.list("")]
        assert names[:3] == ["step", "nothing", "state.json"]
        assert names[-2:] == ["metrics", "artifacts"]
        entries = await verbs.list("metrics")
        names = ["index.json", "train%2Floss", "%2E%2E", "%ED%A0%80", escape("x" * 300)]
        assert [entry["name"] for entry in entries] == names
        assert [entry["fixed"] for entry in entries] == [True, False, False, False, False]


@ways
@trio_test
async def test_a_node_is_described(way: str) -> None:
    async with verbs_over(way, Sample()) as verbs:
        assert await verbs.describe("artifacts") == {
            "name": "artifacts",
            "path": "artifacts",
            "kind": "link",
            "live": False,
            "cached": True,
            "writable": False,
            "fixed": False,
            "target": "/disk/artifacts",
            "doc": "Large files.",
            "schema": {},
            "takes": None,
            "gives": None,
        }
        root = await verbs.describe("")
        assert (root["name"], root["path"], root["kind"], root["fixed"]) == ("", "", "dir", True)
        rate = await verbs.describe("rate")
        assert rate["writable"]
        assert rate["takes"] is not None
        document, bare = rate["takes"]["anyOf"]
        assert list(document["properties"]) == ["value"]
        assert bare["type"] == "number"


@ways
@trio_test
async def test_a_file_is_read(way: str) -> None:
    root = Sample()
    async with verbs_over(way, root) as verbs:
        assert await verbs.read("step") == b"7\n"
        assert await verbs.read("nothing") == b""
        assert await verbs.read("bytes") == bytes(range(256))
        assert b'"_nonfinite"' in await verbs.read("state.json")
        assert await verbs.read("slow") == b"slow\n"
        assert await verbs.read("metrics/train%2Floss") == b"0.25\n"
        assert await verbs.read("metrics/%ED%A0%80") == b"2.0\n"
        root.step = 8
        assert await verbs.read("step") == b"8\n"


@ways
@trio_test
async def test_a_big_file_is_read_whole(way: str) -> None:
    async with verbs_over(way, Sample()) as verbs:
        assert await verbs.read("big") == bytes(range(256)) * (BIG // 256)


@ways
@trio_test
async def test_a_big_write_arrives_whole(way: str) -> None:
    root = Sample()
    async with verbs_over(way, root) as verbs:
        assert (await verbs.write("rate", b'{"value": 1}' + b" " * 1_000_000))["value"] == 1.0
        with pytest.raises(TooLarge, match=f"not {BIG}"):
            await verbs.write("rate", b" " * BIG)
    assert root.stored == [1.0]


@ways
@trio_test
async def test_a_write_is_stored_and_its_result_returned(way: str) -> None:
    root = Sample()
    async with verbs_over(way, root) as verbs:
        assert await verbs.write("rate", b"0.5", check=True) is None
        assert root.stored == []
        assert await verbs.write("rate", b"0.5") == {"value": 0.5, "pair": [1, 2], "none": None}
        assert root.stored == [0.5]
        assert await verbs.write("rate", b"Infinity") == {"value": None, "pair": [1, 2], "none": None}


@ways
@pytest.mark.parametrize(
    ("path", "result", "seen"),
    [("live", "made", b"made\n"), ("awaited", 0.5, b"0.5\n"), ("promise", ("a", 1), ["a", 1])],
)
@trio_test
async def test_a_value_that_comes_later_is_waited_for(way: str, path: str, result: object, seen: object) -> None:
    root, outcomes = Sample(), []

    async def ask(verbs: Verbs) -> None:
        promised = path == "promise"
        outcomes.append(await (verbs.write(path, b'{"value": 1}') if promised else verbs.read(path)))

    async with verbs_over(way, root) as verbs, trio.open_nursery() as nursery:
        nursery.start_soon(ask, verbs)
        await until(lambda: root.shown[path])
        assert await verbs.read("step") == b"7\n"
        assert outcomes == []
        root.later.get().set_result(result)
    assert outcomes == [seen]


@ways
@trio_test
async def test_one_who_waits_hinders_nobody_and_answers_come_in_any_order(way: str) -> None:
    root, order = Sample(), []

    async def read(verbs: Verbs, number: int) -> None:
        order.append((number, await verbs.read("live")))

    async with verbs_over(way, root) as verbs, trio.open_nursery() as nursery:
        laters = []
        for number in range(5):
            nursery.start_soon(read, verbs, number)
            await until(lambda number=number: root.shown["live"] == number + 1)  # type: ignore[misc]
            laters.append(root.later.get())
        for number in (3, 0, 4, 2, 1):
            assert await verbs.read("step") == b"7\n"
            laters[number].set_result(str(number))
            await until(lambda number=number: order and order[-1][0] == number)  # type: ignore[misc]
    assert order == [(number, f"{number}\n".encode()) for number in (3, 0, 4, 2, 1)]


@ways
@trio_test
async def test_a_value_that_does_not_come_is_its_readers_fault(way: str) -> None:
    root, caught = Sample(), []

    async def read(verbs: Verbs) -> None:
        with pytest.raises(Fault) as fault:
            await verbs.read("live")
        caught.append((type(fault.value), fault.value.message))

    async with verbs_over(way, root) as verbs, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(read, verbs)
        await until(lambda: root.shown["live"] == 2)
        root.later.get().set_exception(Conflict("held"))
        root.later.get().set_result([1])
    wrong = (
        "'live' failed: TypeError: a plain file shows one value, which is text, bytes, a bool, a real number or None, "
        "not a list: [1]; return one, or a dict from a file named *.json"
    )
    assert sorted(caught, key=str) == [(Conflict, "held"), (Fault, wrong)]


FAULTS: list[tuple[Callable[[Verbs], Awaitable[Any]], type[Fault], str]] = [
    (lambda verbs: verbs.read("none"), NotFound, "'none': no such file or directory"),
    (lambda verbs: verbs.list("none"), NotFound, "'none': no such file or directory"),
    (lambda verbs: verbs.describe("a//b"), NotFound, "'a//b' is no path: a segment of it is empty, '.' or '..', or"),
    (lambda verbs: verbs.read("\udc80"), NotFound, "'\udc80': no such file or directory"),
    (lambda verbs: verbs.write("none", b""), NotFound, "'none': no such file or directory"),
    (lambda verbs: verbs.read("step/x"), NotADirectory, "'step/x': 'step' is a file, not a directory: read it"),
    (lambda verbs: verbs.list("step"), NotADirectory, "'step' is a file, not a directory: read it"),
    (lambda verbs: verbs.list("artifacts"), NotADirectory, "'artifacts' is a link, not a directory of this tree: open"),
    (lambda verbs: verbs.read("artifacts/x"), NotADirectory, "'artifacts/x': 'artifacts' is a link, not a directory"),
    (lambda verbs: verbs.read("metrics"), IsADirectory, "'metrics' is a directory: list it"),
    (lambda verbs: verbs.read("artifacts"), IsADirectory, "'artifacts' is a link"),
    (lambda verbs: verbs.read("broken"), Fault, "'broken' failed: ZeroDivisionError: by nought"),
    (lambda verbs: verbs.read("refused"), Refused, "never: \ud800 é"),
    (lambda verbs: verbs.write("step", b"1"), ReadOnly, "'step' shows a value and takes none: read it"),
    (lambda verbs: verbs.write("busy", b'{"value": 1}'), Conflict, "held"),
    (lambda verbs: verbs.write("rate", b'{"value": "1"}'), Invalid, "rate: value: Input should be a valid number"),
]


@ways
@pytest.mark.parametrize(("ask", "kind", "message"), FAULTS)
@trio_test
async def test_a_fault_is_the_same_at_both_ends(
    way: str, ask: Callable[[Verbs], Awaitable[Any]], kind: type[Fault], message: str
) -> None:
    async with verbs_over(way, Sample()) as verbs:
        with pytest.raises(Fault) as caught:
            await ask(verbs)
    assert type(caught.value) is kind
    assert caught.value.message.startswith(message)
    assert (caught.value.errno, caught.value.status) == (kind.errno, kind.status)


@ways
@trio_test
async def test_the_errors_of_a_fault_are_the_same_at_both_ends(way: str) -> None:
    async with verbs_over(way, Sample()) as verbs:
        with pytest.raises(Invalid) as caught:
            await verbs.write("picky", b'{"value": 1}')
        assert caught.value.errors == [{"loc": ["body", "value", 0], "msg": "not this one", "type": "picky"}]
        for check in (False, True):
            with pytest.raises(Invalid) as caught:
                await verbs.write("picky", b'{"x": 1}', check=check)
            assert caught.value.detail == [
                {"loc": ["body", "value"], "msg": "Field required", "type": "missing"},
                {"loc": ["body", "x"], "msg": "Unknown member; known here: value", "type": "extra_forbidden"},
            ]


@ways
@trio_test
async def test_who_leaves_takes_nobody_along(way: str) -> None:
    root = Sample()
    async with verbs_over(way, root) as verbs:
        with trio.move_on_after(10) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(verbs.read, "live")
                await until(lambda: root.shown["live"])
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught
        root.later.get().set_result("late")
        assert await verbs.read("step") == b"7\n"
