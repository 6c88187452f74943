"""Schemas: what the annotation of a live file says about its value, as JSON Schema (draft 2020-12)."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from midrun.fs.later import Later

_PLAIN: dict[object, str | list[str]] = {
    str: "string",
    int: "integer",
    float: ["number", "null"],
    bool: "boolean",
    bytes: "string",
    None: "null",
    type(None): "null",
}


def schema_of(annotation: object) -> dict[str, Any]:
    """Return the schema of the values that `annotation` describes; `{}`, which allows all, where it does not say.

    A value that comes `Later` has the type it will have. A float may be null in a document, since JSON has no word
    for NaN.
    """
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation]}
    if is_typeddict(annotation):
        return _typed(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        shown = [argument for argument in arguments if argument is not Later]
        return schema_of(shown[0]) if len(shown) == 1 else {"anyOf": [schema_of(argument) for argument in shown]}
    if origin is Literal:
        return {"enum": list(arguments)}
    kind = origin or annotation
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, str | bytes):
        return {"type": "string"}
    if issubclass(kind, Mapping):
        return {"type": "object", **({"additionalProperties": schema_of(arguments[1])} if arguments else {})}
    if kind is tuple and arguments[1:] != (...,):
        return {"type": "array", **({"prefixItems": [schema_of(item) for item in arguments]} if arguments else {})}
    if issubclass(kind, Sequence):
        return {"type": "array", **({"items": schema_of(arguments[0])} if arguments else {})}
    return {}


def _typed(annotation: Any) -> dict[str, Any]:  # noqa: ANN401 - a TypedDict class has no type of its own
    return {
        "type": "object",
        "properties": {key: _member(value) for key, value in get_type_hints(annotation, include_extras=True).items()},
        "required": sorted(annotation.__required_keys__),
    }


def _member(annotation: object) -> dict[str, Any]:
    """Return the schema of a dictionary's member: a text in `Annotated` is its description."""
    if get_origin(annotation) is NotRequired:
        return _member(get_args(annotation)[0])
    if get_origin(annotation) is Annotated:
        kind, description = get_args(annotation)
        return {**schema_of(kind), "description": description}
    return schema_of(annotation)
