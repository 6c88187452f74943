"""Forms: what may be written to a control file, and how what was written is read.

A form takes one JSON object, checked strictly: the text "false" is no boolean, 7.0 is no integer, an unknown member
is an error; only an integer where a float is due is converted. Where one argument says it all, the form takes a bare
value too, as a shell writes it: `echo 5e-4 > control/set_learning_rate`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from midrun.fs.faults import FieldError, Invalid, TooLarge

if TYPE_CHECKING:
    from pydantic import BaseModel

LONGEST = 1 << 20
"""Bytes in the longest text that a form takes."""


class Form:
    """The form that a write must fill in: a pydantic model, and the argument that a bare value is for.

    pydantic is imported by the module that declares the model, never here: faces know forms without it.
    """

    def __init__(self, name: str, doc: str, arguments: type[BaseModel], bare: str | None = None) -> None:
        self.name = name
        self.doc = doc
        self.arguments = arguments
        self.bare = bare

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the object that the form takes."""
        return self.arguments.model_json_schema()

    def usage(self) -> str:
        """Return the text that tells a reader of the control file what to write into it."""
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

        if len(data) > LONGEST:
            message = f"{self.name} takes at most {LONGEST} bytes, not {len(data)}"
            raise TooLarge(message)
        try:
            return self.arguments.model_validate_json(self._document(data), strict=True)
        except ValidationError as error:
            errors = [
                FieldError(loc=["body", *item["loc"]], msg=item["msg"], type=item["type"])
                for item in error.errors(include_url=False, include_context=False, include_input=False)
            ]
        message = f"{self.name}: " + "; ".join(f"{_pointed(e['loc'])}{e['msg']}" for e in errors)
        raise Invalid(message, errors)

    def _document(self, data: bytes) -> bytes:
        """Return the JSON object that `data` means: itself, no arguments at all, or a bare value's object."""
        text = data.strip()
        if not text:
            return b"{}"
        if self.bare is None or text.startswith(b"{"):
            return text
        plain = text.decode("utf-8", "backslashreplace")
        try:
            value = json.loads(plain)
        except ValueError:
            value = plain
        if self._bare_is_text() and not isinstance(value, str):
            value = plain
        return json.dumps({self.bare: value}).encode()

    def _bare_is_text(self) -> bool:
        schema = self.schema()["properties"][self.bare]
        return any(kind.get("type") == "string" for kind in (schema, *schema.get("anyOf", ())))


def _pointed(loc: list[str | int]) -> str:
    return f"{'.'.join(map(str, loc[1:]))}: " if len(loc) > 1 else ""
