"""Forms: what may be written to a control file, and how what was written is read.

A form takes one JSON object, checked strictly: the text "false" is no boolean, 7.0 is no integer, an unknown member
is an error, and so is one given twice; only an integer where a float is due is converted. Where one argument says it
all, the form takes a bare value too, as a shell writes it: `echo 5e-4 > control/set_learning_rate`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from midrun.fs.faults import FieldError, Invalid
from midrun.fs.guesses import meant
from midrun.fs.write import check_length

if TYPE_CHECKING:
    from pydantic import BaseModel


class Form:
    """The form that a write must fill in: a pydantic model, and the argument that a bare value is for.

    A model may be a choice of models, told apart by one member (pydantic's discriminated union in a `RootModel`).
    pydantic is imported by the module that declares the model, never here: faces know forms without it.
    """

    def __init__(self, name: str, doc: str, arguments: type[BaseModel], bare: str | None = None) -> None:
        if bare is not None and bare not in arguments.model_fields:
            raise ValueError(f"{name}: a bare value is for '{bare}', which {arguments.__name__} does not have")
        self.name = name
        self.doc = doc
        self.arguments = arguments
        self.bare = bare

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the object that the form takes."""
        return self._schema

    @cached_property
    def _schema(self) -> dict[str, Any]:
        return self.arguments.model_json_schema()

    def takes(self) -> dict[str, Any]:
        """Return the JSON Schema of all that the form takes: the object, and the bare value where there is one."""
        schema = dict(self.schema())
        if self.bare is None:
            return schema
        bare = schema["properties"][self.bare]
        definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        # Where the bare value is text, whatever reads as other JSON is that text.
        return {**definitions, "anyOf": [schema, {} if "string" in self._bare_kinds() else bare]}

    def usage(self) -> str:
        """Return the text that tells a reader of the control file what to write into it."""
        choices = self.schema().get("discriminator", {})
        if choices:
            named = ", ".join(choices["mapping"])
            return f'{self.doc}\n\nWrite a JSON object whose member "{choices["propertyName"]}" is one of {named}.'
        properties = self.schema().get("properties", {})
        lines = [self.doc, "", "Write a JSON object with these members:" if properties else "It takes no arguments."]
        required = set(self.schema().get("required", ()))
        for member, schema in properties.items():
            kind = schema.get("type") or " or ".join(str(s.get("type", "…")) for s in schema.get("anyOf", ())) or "…"
            needed = "required" if member in required else f"default {json.dumps(schema.get('default'))}"
            lines.append(f"  {member}: {kind}, {needed}. {schema.get('description', '')}".rstrip())
        if self.bare is not None:
            lines.append(f"A bare value is {self.bare}.")
        return "\n".join(lines)

    def parse(self, data: bytes) -> BaseModel:
        """Return the arguments that `data` holds.

        Raises `Invalid` with each field that is wrong, `TooLarge` over 1 MiB.
        """
        from pydantic import ValidationError  # noqa: PLC0415 - faces use this module without pydantic

        check_length(self.name, len(data))
        document = self._document(data)
        try:
            arguments = self.arguments.model_validate_json(document, strict=True)
        except ValidationError as error:
            errors = [self._mistake(item) for item in error.errors(include_url=False, include_input=False)]
        else:
            errors = [
                FieldError(loc=["body", *loc], msg="Member is given more than once", type="repeated")
                for loc in _repeated(document)
            ]
            if not errors:
                return arguments
        raise Invalid(f"{self.name}: " + "; ".join(f"{_pointed(e['loc'])}{e['msg']}" for e in errors), errors)

    def _mistake(self, item: Mapping[str, Any]) -> FieldError:
        """Return one of pydantic's mistakes: of a choice of models it says, too, which was chosen."""
        loc, msg, type_ = item["loc"], item["msg"], item["type"]
        chosen_by = self.schema().get("discriminator", {}).get("propertyName")
        if chosen_by is not None:
            loc = loc[1:]
        if type_ == "union_tag_invalid":
            tag, tags = str(item["ctx"]["tag"]), self.schema()["discriminator"]["mapping"]
            loc, msg = (chosen_by,), f"there is no {chosen_by} {tag!r:.200}: {meant(tag, tags)}"
        elif type_ == "union_tag_not_found":
            loc, msg, type_ = (chosen_by,), "Field required", "missing"
        elif not loc and chosen_by is None and not self.schema().get("properties"):
            msg = "It takes no arguments: write an empty line, or {}"
        elif type_ == "extra_forbidden":
            known = self._members(item["loc"][:-1])
            msg = f"Unknown member; known here: {', '.join(known) or 'none'}"
        elif type_ == "bool_type":
            msg = "Input should be true or false"
        return FieldError(loc=["body", *loc], msg=msg, type=type_)

    def _members(self, place: Iterable[str | int]) -> list[str]:
        """Return the members that there may be at a place of the document, as pydantic names it."""
        schema = self.schema()
        for step in ("", *place):
            if "discriminator" in schema:
                schema = {"$ref": schema["discriminator"]["mapping"].get(step, "")} if step else schema
            elif step:
                schema = schema.get("properties", {}).get(step, {})
            if "$ref" in schema:
                schema = self.schema().get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
        return list(schema.get("properties", ()))

    def _document(self, data: bytes) -> bytes:
        """Return the JSON object that `data` means: itself, no arguments at all, or a bare value's object."""
        text = data.strip()
        if not text:
            return b"{}"
        if self.bare is None or text.startswith(b"{"):
            return text
        try:
            plain = text.decode()
        except UnicodeDecodeError:
            return text  # pydantic says what is wrong with it.
        try:
            value = json.loads(plain)
            if self._means_text(value):
                value = plain
            return json.dumps({self.bare: value}).encode()
        except (ValueError, RecursionError):
            return json.dumps({self.bare: plain}).encode()

    def _means_text(self, value: object) -> bool:
        """Whether what reads as the JSON value `value` is text: the argument takes text, and no such value."""
        kinds = self._bare_kinds()
        return "string" in kinds and _KINDS[type(value)] not in kinds

    def _bare_kinds(self) -> set[str]:
        """Return the JSON types of a bare value."""
        schema = self.schema()["properties"][self.bare]
        kinds = {str(kind.get("type")) for kind in (schema, *schema.get("anyOf", ()))}
        return kinds | {"integer"} if "number" in kinds else kinds


_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object, in the order written, repeated ones too."""


def _repeated(document: bytes) -> Iterator[list[str | int]]:
    """Iterate over the places of members that are given more than once: of those, JSON readers take one or another."""
    left: list[tuple[list[str | int], object]] = [
        ([], json.loads(document, object_pairs_hook=_Members, parse_int=str, parse_float=str))
    ]
    while left:
        loc, value = left.pop()
        if isinstance(value, _Members):
            names = Counter(name for name, _ in value)
            yield from ([*loc, name] for name, count in names.items() if count > 1)
            left.extend(([*loc, name], item) for name, item in value)
        elif isinstance(value, list):
            left.extend(([*loc, index], item) for index, item in enumerate(value))


def _pointed(loc: list[str | int]) -> str:
    return f"{'.'.join(map(str, loc[1:]))}: " if len(loc) > 1 else ""
