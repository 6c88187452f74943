import enum
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict

import pytest

from midrun.fs.later import Later
from midrun.fs.schema import schema_of


class Inner(TypedDict):
    name: str


class Outer(TypedDict):
    inner: Inner
    rates: list[float]
    note: NotRequired[str | None]
    unit: Annotated[str, "What it is measured in."]


class Point(NamedTuple):
    x: int


class Word(enum.StrEnum):
    ON = "on"


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (bytes, {"type": "string"}),
        (None, {"type": "null"}),
        (type(None), {"type": "null"}),
        (float, {"type": ["number", "null"]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045 - as people write it
        (str | Later, {"type": "string"}),
        (int | str | Later, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, Any], {"type": "object", "additionalProperties": {}}),
        (dict, {"type": "object"}),
        (typing.Dict, {"type": "object"}),  # noqa: UP006 - as people write it
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (list, {"type": "array"}),
        (typing.List, {"type": "array"}),  # noqa: UP006 - as people write it
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, str], {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}),
        (tuple, {"type": "array"}),
        (tuple[()], {"type": "array"}),
        (Point, {"type": "array"}),
        (Word, {"type": "string"}),
        (Any, {}),
        (object, {}),
        (Callable[[], int], {}),
        (Later, {}),
    ],
)
def test_an_annotation_says_what_a_value_is(annotation: object, schema: dict[str, Any]) -> None:
    assert schema_of(annotation) == schema


def test_a_typed_dictionary_says_what_its_members_are() -> None:
    assert schema_of(Outer) == {
        "type": "object",
        "properties": {
            "inner": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
            "rates": {"type": "array", "items": {"type": ["number", "null"]}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "unit": {"type": "string", "description": "What it is measured in."},
        },
        "required": ["inner", "rates", "unit"],
    }
