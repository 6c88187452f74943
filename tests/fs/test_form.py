"""What may be written to a control file, and what is said of what may not."""

from __future__ import annotations

import enum
import json
import math
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel

from midrun.fs.faults import Fault, Invalid, TooLarge
from midrun.fs.form import Form
from midrun.fs.write import LONGEST_WRITE


class Colour(enum.StrEnum):
    RED = "red"


class When(BaseModel):
    model_config = ConfigDict(extra="forbid")
    epoch: int


class Everything(BaseModel):
    """One argument of each kind."""

    model_config = ConfigDict(extra="forbid")
    rate: float = 0.1
    finite: float = Field(0.0, allow_inf_nan=False)
    count: int = Field(0, description="How many.")
    on: bool = False
    label: str | None = None
    word: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    when: When | None = None
    names: list[str] = []
    anything: Any = None


class Needy(BaseModel):
    model_config = ConfigDict(extra="forbid")
    value: float
    other: int = 1


class Empty(BaseModel):
    model_config = ConfigDict(extra="forbid")


FORM = Form("everything", "Take everything.", Everything)
FORMS = [FORM, *(Form(name, "Take it.", Everything, bare=name) for name in Everything.model_fields)]
FORMS += [Form("needy", "Take it.", Needy, bare="value"), Form("empty", "Do it.", Empty)]


def bare(name: str, text: str | bytes) -> object:
    data = text if isinstance(text, bytes) else text.encode()
    return getattr(Form("form", "", Everything, bare=name).parse(data), name)


def parsed(form: Form, data: bytes) -> BaseModel | Fault:
    try:
        return form.parse(data)
    except Fault as fault:
        return fault


def errors(form: Form, data: bytes | str) -> list[tuple[list[str | int], str]]:
    with pytest.raises(Invalid) as caught:
        form.parse(data if isinstance(data, bytes) else data.encode())
    found = caught.value.errors
    assert found
    for error in found:
        assert set(error) == {"loc", "msg", "type"}
        assert error["loc"][0] == "body"
        assert error["msg"] in caught.value.message
    assert caught.value.detail == found
    return [(error["loc"], error["type"]) for error in found]


@pytest.mark.parametrize(
    ("document", "name", "value"),
    [
        ('{"rate": 0.5}', "rate", 0.5),
        ('{"rate": 1}', "rate", 1.0),
        ('{"count": 7}', "count", 7),
        ('{"on": true}', "on", True),
        ('{"label": "x"}', "label", "x"),
        ('{"label": null}', "label", None),
        ('{"colour": "red"}', "colour", Colour.RED),
        ('{"when": {"epoch": 3}}', "when", When(epoch=3)),
        (' \n{"names": ["a", "a"]}\n', "names", ["a", "a"]),
        ("{}", "rate", 0.1),
        ("", "rate", 0.1),
        ("\n", "rate", 0.1),
    ],
)
def test_a_json_object_fills_a_form(document: str, name: str, value: object) -> None:
    assert getattr(FORM.parse(document.encode()), name) == value


@pytest.mark.parametrize(
    ("document", "loc", "kind"),
    [
        ('{"on": "false"}', ["on"], "bool_type"),
        ('{"on": 0}', ["on"], "bool_type"),
        ('{"on": null}', ["on"], "bool_type"),
        ('{"count": 7.9}', ["count"], "int_type"),
        ('{"count": 7.0}', ["count"], "int_type"),
        ('{"count": "7"}', ["count"], "int_type"),
        ('{"count": true}', ["count"], "int_type"),
        ('{"rate": "0.5"}', ["rate"], "float_type"),
        ('{"rate": true}', ["rate"], "float_type"),
        ('{"finite": NaN}', ["finite"], "finite_number"),
        ('{"finite": Infinity}', ["finite"], "finite_number"),
        ('{"finite": 1e999}', ["finite"], "finite_number"),
        ('{"label": 5}', ["label"], "string_type"),
        ('{"word": "c"}', ["word"], "literal_error"),
        ('{"colour": "blue"}', ["colour"], "enum"),
        ('{"when": {"epoch": "3"}}', ["when", "epoch"], "int_type"),
        ('{"when": {"epoch": 3, "x": 1}}', ["when", "x"], "extra_forbidden"),
        ('{"names": ["a", 1]}', ["names", 1], "string_type"),
        ('{"unknown": 1}', ["unknown"], "extra_forbidden"),
        ('{"count": 1, "count": 2}', ["count"], "repeated"),
        ('{"count": 1, "\\u0063ount": 2}', ["count"], "repeated"),
        ('{"when": {"epoch": 3, "epoch": 3}}', ["when", "epoch"], "repeated"),
        ('{"anything": [0, {"a": 1, "a": 1}]}', ["anything", 1, "a"], "repeated"),
        ("{", [], "json_invalid"),
        ('{"count": 1}}', [], "json_invalid"),
        ('{"count": 1} {"count": 2}', [], "json_invalid"),
        ("{'count': 1}", [], "json_invalid"),
        pytest.param('{"anything": ' + "[" * 100_000, [], "json_invalid", id="deep"),
        pytest.param('{"anything": ' + "[" * 900 + "]" * 900 + "}", [], "json_invalid", id="deep-and-closed"),
        pytest.param('{"anything": ' + '{"a":' * 100_000, [], "json_invalid", id="deep-objects"),
        pytest.param('{"anything": ' + "1" * 5000 + "}", [], "json_invalid", id="long-number"),
        ('{"label": "\\ud800"}', [], "json_invalid"),
        ("[1]", [], "model_type"),
        ("1", [], "model_type"),
        ("null", [], "model_type"),
        ("word", [], "json_invalid"),
        ("\0", [], "json_invalid"),
    ],
)
def test_what_a_form_does_not_take_is_invalid_and_said_where(document: str, loc: list[str | int], kind: str) -> None:
    assert (["body", *loc], kind) in errors(FORM, document)


@pytest.mark.parametrize("data", [b"\xff", b'{"label": "\xff"}', b"\xed\xa0\x80", b"{\xc3(}", "{}".encode("utf-16")])
def test_what_is_no_utf8_is_invalid(data: bytes) -> None:
    for form in FORMS:
        assert [kind for _, kind in errors(form, data)] == ["json_invalid"]


def test_each_wrong_member_is_named() -> None:
    assert errors(FORM, '{"count": 1.5, "on": 1, "x": 0}') == [
        (["body", "count"], "int_type"),
        (["body", "on"], "bool_type"),
        (["body", "x"], "extra_forbidden"),
    ]
    with pytest.raises(Invalid, match=r"^everything: count: .*; on: .*; x: "):
        FORM.parse(b'{"count": 1.5, "on": 1, "x": 0}')


def test_a_missing_member_is_named() -> None:
    form = Form("needy", "", Needy, bare="value")
    assert errors(form, "{}") == errors(form, "") == [(["body", "value"], "missing")]
    assert form.parse(b'{"value": 2}') == Needy(value=2.0)


def test_a_model_may_take_numbers_that_are_not_finite() -> None:
    rate = FORM.parse(b'{"rate": NaN}')
    assert isinstance(rate, Everything)
    assert math.isnan(rate.rate)


def test_no_arguments_are_taken_where_there_are_none() -> None:
    form = Form("empty", "Do it.", Empty)
    assert form.parse(b"") == form.parse(b"\n") == form.parse(b"{}") == Empty()
    assert errors(form, '{"x": 1}') == [(["body", "x"], "extra_forbidden")]
    assert errors(form, "now")


@pytest.mark.parametrize("size", [LONGEST_WRITE + 1, 4 * LONGEST_WRITE])
def test_more_than_a_mebibyte_is_too_large(size: int) -> None:
    for form in FORMS:
        with pytest.raises(TooLarge, match=f"at most {LONGEST_WRITE} bytes, not {size}"):
            form.parse(b" " * size)


def test_a_mebibyte_is_not() -> None:
    document = json.dumps({"label": "x" * (LONGEST_WRITE - 13)}).encode()
    assert len(document) == LONGEST_WRITE
    FORM.parse(document)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "5e-4", 5e-4),
        ("rate", "5e-4\n", 5e-4),
        ("rate", " 1 ", 1.0),
        ("rate", '{"rate": 2}', 2.0),
        ("count", "-3", -3),
        ("on", "true", True),
        ("label", "before-lr", "before-lr"),
        ("label", "before lr\n", "before lr"),
        ("label", '"quoted"', "quoted"),
        ("label", '"half', '"half'),
        ("label", "5", "5"),
        ("label", "5e-4", "5e-4"),
        ("label", "true", "true"),
        ("label", "[1]", "[1]"),
        ("label", "NaN", "NaN"),
        pytest.param("label", "1" * 5000, "1" * 5000, id="label-long-number"),
        pytest.param("label", "[" * 100_000, "[" * 100_000, id="label-deep"),
        ("label", "null", None),
        ("label", "Größe 🙂", "Größe 🙂"),
        ("label", "nul\0inside", "nul\0inside"),
        ("label", "", None),
        ("word", "b", "b"),
        ("colour", "red", Colour.RED),
        ("names", '["a"]', ["a"]),
        ("anything", "5", 5),
        ("anything", "five", "five"),
        ("rate", "", 0.1),
    ],
)
def test_a_bare_value_is_for_the_one_argument(name: str, text: str, value: object) -> None:
    assert bare(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("rate", "fast", "float_type"),
        ("rate", '"0.5"', "float_type"),
        ("rate", "[0.5]", "float_type"),
        pytest.param("rate", "[" * 100_000, "float_type", id="rate-deep"),
        pytest.param("rate", "1" * 5000, "float_type", id="rate-long-number"),
        ("finite", "NaN", "finite_number"),
        ("finite", "1e999", "finite_number"),
        ("finite", "nan", "float_type"),
        ("count", "7.0", "int_type"),
        ("on", "yes", "bool_type"),
        ("on", "1", "bool_type"),
        ("word", "c", "literal_error"),
        ("names", "a", "list_type"),
    ],
)
def test_a_bare_value_is_checked_as_strictly(name: str, text: str, kind: str) -> None:
    assert errors(Form("form", "", Everything, bare=name), text) == [(["body", name], kind)]


class Either(BaseModel):
    value: float | bool | str


@pytest.mark.parametrize(("text", "value"), [("5", 5.0), ("true", True), ("0.5", 0.5), ("on", "on"), ("null", "null")])
def test_a_bare_value_that_may_be_text_is_text_only_when_it_is_nothing_else(text: str, value: object) -> None:
    parsed = Form("either", "", Either, bare="value").parse(text.encode())
    assert parsed == Either.model_construct(value=value)


def test_a_bare_value_must_be_for_an_argument_that_is_there() -> None:
    with pytest.raises(ValueError, match=r"'missing', which Empty does not have"):
        Form("empty", "", Empty, bare="missing")


@given(
    st.one_of(
        st.binary(max_size=40),
        st.text(max_size=20).map(str.encode),
        st.lists(st.sampled_from([*'{}[]":,\\-+.eE019ntf \n', "rate", "on", "null", "true", "NaN", "\\u"]), max_size=12)
        .map("".join)
        .map(str.encode),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(st.sampled_from([*Everything.model_fields, "value", "epoch", "x"]), inner, max_size=3),
            ),
            max_leaves=6,
        )
        .map(json.dumps)
        .map(str.encode),
    )
)
@example(b'{"rate": 1, "rate": 2}')
def test_arbitrary_bytes_fill_a_form_or_are_a_fault(data: bytes) -> None:
    for form in FORMS:
        outcome = parsed(form, data)
        assert outcome.errors if isinstance(outcome, Invalid) else isinstance(outcome, form.arguments)


def test_usage_says_what_to_write() -> None:
    usage = Form("everything", "Take everything.", Everything, bare="rate").usage()
    assert usage.startswith("Take everything.\n\nWrite a JSON object with these members:\n")
    assert "  count: integer, default 0. How many.\n" in usage
    assert "  label: string or null, default null.\n" in usage
    assert usage.endswith("A bare value is rate.")
    assert "  value: number, required." in Form("needy", "", Needy).usage()
    assert Form("empty", "Do it.", Empty).usage() == "Do it.\n\nIt takes no arguments."


def test_the_schema_is_the_models() -> None:
    assert FORM.schema() == FORM.takes() == Everything.model_json_schema()


def test_what_a_form_takes_is_the_object_or_the_bare_value() -> None:
    schema = Needy.model_json_schema()
    assert Form("needy", "", Needy, bare="value").takes() == {"anyOf": [schema, {"title": "Value", "type": "number"}]}
    assert Form("everything", "", Everything, bare="label").takes()["anyOf"][1] == {}, "whatever it is, it is a label"


def test_what_a_form_takes_has_its_definitions_where_they_are_looked_for() -> None:
    takes = Form("everything", "", Everything, bare="when").takes()
    assert set(takes["$defs"]) == {"Colour", "When"}
    assert "$defs" not in takes["anyOf"][0]
    assert takes["anyOf"][1]["anyOf"][0] == {"$ref": "#/$defs/When"}
    assert "$defs" in Form("everything", "", Everything, bare="when").schema()


class Walk(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["walk"]
    args: Needy


class Rest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["rest"]


class WalkOrRest(RootModel[Annotated[Walk | Rest, Field(discriminator="kind")]]):
    """A choice of models."""


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ('{"kind": "walk", "args": {"value": "x"}}', [(["body", "args", "value"], "float_type")]),
        ('{"kind": "walk"}', [(["body", "args"], "missing")]),
        ('{"kind": "rest", "args": {}}', [(["body", "args"], "extra_forbidden")]),
        ('{"kind": "run"}', [(["body", "kind"], "union_tag_invalid")]),
        ('{"kind": 5}', [(["body", "kind"], "union_tag_invalid")]),
        ("{}", [(["body", "kind"], "missing")]),
        ("[]", [(["body"], "dict_type")]),
        ('{"kind"', [(["body"], "json_invalid")]),
    ],
)
def test_a_mistake_in_a_choice_of_models_is_where_it_is_in_the_document(
    text: str, errors: list[tuple[list[str], str]]
) -> None:
    form = Form("either", "Do either.", WalkOrRest)
    with pytest.raises(Invalid) as caught:
        form.parse(text.encode())
    assert caught.value.errors is not None
    assert [(error["loc"], error["type"]) for error in caught.value.errors] == errors
    if errors[0][1] == "union_tag_invalid":
        assert "it is one of rest, walk" in caught.value.message
