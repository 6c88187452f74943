import enum
import json
import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midrun.fs.render import NONFINITE, jsonable, render

KEYS = st.one_of(st.text(max_size=5), st.sampled_from(["", "/", "~", "~1", "a/b", "0", NONFINITE]))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


class Colour(enum.IntEnum):
    RED = 3


class Odd:
    def __str__(self) -> str:
        return "an odd thing"

    def __float__(self) -> float:
        return 1.0


def strict(data: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert data.endswith(b"\n")
    return json.loads(data, parse_constant=refuse)


def at(document: Any, pointer: str) -> Any:
    """Follow a JSON pointer, as RFC 6901 says."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        document = document[int(key) if isinstance(document, list | tuple) else key]
    return document


def floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from (number for item in value.values() for number in floats(item))
    elif isinstance(value, list | tuple):
        yield from (number for item in value for number in floats(item))


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, b""),
        ("", b""),
        ("running", b"running\n"),
        ("running\n", b"running\n"),
        ("two\nlines", b"two\nlines\n"),
        ("Größe", "Größe\n".encode()),
        ("\ud800", b"\\ud800\n"),
        (b"\x00\xff", b"\x00\xff"),
        (True, b"true\n"),
        (False, b"false\n"),
        (0, b"0\n"),
        (-7, b"-7\n"),
        (10**30, b"1" + b"0" * 30 + b"\n"),
        (0.1, b"0.1\n"),
        (5e-324, b"5e-324\n"),
        (1.0, b"1.0\n"),
        (math.nan, b"nan\n"),
        (math.inf, b"inf\n"),
        (-math.inf, b"-inf\n"),
        (Colour.RED, b"3\n"),
        (np.float64(0.5), b"0.5\n"),
        (np.float32(0.5), b"0.5\n"),
        (np.int64(7), b"7\n"),
        (Fraction(1, 4), b"0.25\n"),
    ],
)
def test_a_plain_file_shows_one_value_and_a_newline(value: object, data: bytes) -> None:
    assert render("value", value) == data


@given(st.floats(allow_nan=False))
def test_a_float_is_shown_in_full(value: float) -> None:
    assert float(render("value", value)) == value


@pytest.mark.parametrize("value", [[], {}, (1,), {1}, object(), Odd(), np.zeros(2), 1j])
def test_a_plain_file_shows_nothing_but_one_value(value: object) -> None:
    with pytest.raises(TypeError, match=r"shows one value, .*, not an? .*: ") as caught:
        render("value", value)
    # What a .json file does not show, either, is not to be put into one.
    assert ("; name the file *.json" in str(caught.value)) == isinstance(value, dict)
    assert (", not an Odd: " in str(caught.value)) == isinstance(value, Odd)


@pytest.mark.parametrize("value", [None, 1, 0.5, "text", b"bytes", [1], (1, 2), True, {1}])
def test_a_document_is_one_object(value: object) -> None:
    with pytest.raises(TypeError, match=r"one object, not (a [^aeiou]|an [aeiou])\w+: .*; return a dict"):
        render("index.json", value)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_a_document_is_valid_for_a_strict_parser(value: dict[str, Any]) -> None:
    assert isinstance(strict(render("index.json", value)), dict)


@given(st.dictionaries(KEYS.filter(lambda key: key != NONFINITE), VALUES, max_size=4))
def test_each_number_that_json_lacks_is_null_and_marked(value: dict[str, Any]) -> None:
    document = strict(render("index.json", value))
    marks = document.pop(NONFINITE, {})
    for pointer, mark in marks.items():
        assert at(document, pointer) is None
        shown, real = float(mark.replace("Infinity", "inf")), at(value, pointer)
        assert shown == real or (math.isnan(shown) and math.isnan(real))
    assert len(marks) == sum(not math.isfinite(number) for number in floats(value))


def test_what_was_not_finite_can_be_read_off() -> None:
    value = {"loss": math.nan, "rates": [0.1, math.inf], "a/b~c": {"": -math.inf}, "x": np.float32("nan")}
    assert strict(render("index.json", value)) == {
        "loss": None,
        "rates": [0.1, None],
        "a/b~c": {"": None},
        "x": None,
        NONFINITE: {"/loss": "NaN", "/rates/1": "Infinity", "/a~1b~0c/": "-Infinity", "/x": "NaN"},
    }


def test_a_document_of_finite_numbers_has_no_mark() -> None:
    assert strict(render("index.json", {"loss": 0.5})) == {"loss": 0.5}


def test_what_is_not_json_becomes_text_or_a_number() -> None:
    value = {
        "path": Path("a/b"),
        "odd": Odd(),
        "complex": 1j,
        "bytes": b"\xffab",
        "enum": Colour.RED,
        "numpy": [np.float32(0.5), np.int64(7)],
        "fraction": Fraction(1, 4),
        "set": {3, 1, 2},
        "deque": deque([1]),
        "mapping": OrderedDict({1: "one", None: "none"}),
    }
    assert strict(render("index.json", value)) == {
        "path": "a/b",
        "odd": "an odd thing",
        "complex": "1j",
        "bytes": "\\xffab",
        "enum": 3,
        "numpy": [0.5, 7],
        "fraction": 0.25,
        "set": [1, 2, 3],
        "deque": [1],
        "mapping": {"1": "one", "None": "none"},
    }


def test_a_document_can_be_read_by_people() -> None:
    assert render("index.json", {"name": "Größe", "n": 1}) == '{\n  "name": "Größe",\n  "n": 1\n}\n'.encode()


def test_text_that_utf8_cannot_hold_is_escaped() -> None:
    assert strict(render("index.json", {"\ud800": "é\udfff"})) == {"\ud800": "é\udfff"}


@given(VALUES)
def test_any_value_can_be_had_in_json_types(value: object) -> None:
    assert json.loads(json.dumps(jsonable(value), allow_nan=False)) == jsonable(value)


def test_the_mark_takes_the_place_of_a_member_of_its_name_only_when_there_is_something_to_mark() -> None:
    assert strict(render("index.json", {NONFINITE: 1})) == {NONFINITE: 1}
    assert strict(render("index.json", {NONFINITE: 1, "x": math.inf})) == {NONFINITE: {"/x": "Infinity"}, "x": None}
