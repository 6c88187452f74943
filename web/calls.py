"""Calls: what a route is, what it is asked and what it answers.

A route is one row of the table in `routes`. The app and the OpenAPI document are made from the same rows.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from midrun.fs.faults import FieldError, Invalid
from midrun.fs.render import render
from midrun.web.disk import Part
from midrun.web.site import Site

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
KEY = "Idempotency-Key"
"""The header that names a write, in the request and in the answer."""
KEY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


@dataclass(frozen=True)
class Query:
    """A query argument, which is one of a few words."""

    name: str
    doc: str
    choices: tuple[str, ...]
    default: str


@dataclass(frozen=True)
class Header:
    """A header that a request may have."""

    name: str
    doc: str


@dataclass(frozen=True)
class Call:
    """One request, as a route's answer is made from it."""

    node: str
    """Path of the node in the tree, or what else the route's `node` names."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Every query argument of the route, with its default where the request has none."""
    body: bytes = b""
    token: str = ""
    """What names this write: see `token`. Only POST has one."""
    header: Callable[[str], str | None] = lambda _: None
    """Returns the request's header of a name."""
    head: bool = False
    """Whether HEAD asks: what is open only for the body need not stay so."""
    left: Callable[[], bool] = lambda: False
    """Whether the client has gone in the meantime."""


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    body: bytes | Part
    content_type: str = JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Responder: TypeAlias = Callable[[Site, Call], Answer]


@dataclass(frozen=True)
class Route:
    """One row of the table."""

    path: str
    """Where it is: a URI template, `{name}` for one segment, `{name:path}` for all that follow."""
    summary: str = ""
    """What it does, in one line of the documentation. Without one it is a page and not documented."""
    node: str = ""
    """The node it shows or writes, with the template's names in braces."""
    writes: str = ""
    """The node that POST writes, where that is another one than GET shows."""
    get: Responder | None = None
    """Answers GET and HEAD."""
    post: Responder | None = None
    """Answers POST."""
    methods: Callable[[Site, Call], list[str]] | None = None
    """Returns the methods for OPTIONS, where they depend on the node."""
    query: tuple[Query, ...] = ()
    headers: tuple[Header, ...] = ()
    """Headers that GET heeds."""
    shows: Mapping[str, Mapping[str, Any]] | None = None
    """JSON Schemas of what GET shows, by content type; None where the node says it."""
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What GET answers, by status and as OpenAPI has it, where that is more than a node's 200."""

    @property
    def written(self) -> str:
        """The node that POST writes."""
        return self.writes or self.node


def token(given: str | None) -> str:
    """Return the name of a write, by which a run knows it if it comes again: the client's, else a new one.

    Raises `Invalid` for a name that can't be one.
    """
    if given is None:
        return secrets.token_hex(8)
    if re.fullmatch(KEY_PATTERN, given) is None:
        message = f"expected 1 to 128 letters, digits, '.', '_' or '-', a letter or digit first, not {given!a:.140}"
        raise Invalid(
            f"{KEY}: {message}", [FieldError(loc=["header", KEY], msg=message, type="string_pattern_mismatch")]
        )
    return given


def document(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return the answer that shows any JSON value, as nodes are shown: NaN is null with a mark."""
    body = render("answer.json", value) if isinstance(value, Mapping) else f"{json.dumps(value)}\n".encode()
    return Answer(body, JSON, status, headers or {})


def arguments(queries: Iterable[Query], text: str) -> dict[str, str]:
    """Return the arguments in a query string, checked.

    Raises `Invalid`, with each argument that is unknown, repeated or none of the words it may be.
    """
    known = {query.name: query for query in queries}
    values = {name: query.default for name, query in known.items()}
    errors: list[FieldError] = []
    seen: set[str] = set()
    for name, value in _pairs(text):
        query = known.get(name)
        if query is None:
            expected = f"expected {', '.join(known)}" if known else "this route takes none"
            errors.append(_wrong(name, f"unknown query argument: {expected}", "extra_forbidden"))
        elif name in seen:
            errors.append(_wrong(name, "given more than once", "repeated"))
        elif value not in query.choices:
            errors.append(_wrong(name, f"expected {' or '.join(query.choices)}, not {value!a:.100}", "enum"))
        else:
            values[name] = value
        seen.add(name)
    if errors:
        raise Invalid("; ".join(f"{error['loc'][-1]}: {error['msg']}" for error in errors), errors)
    return values


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise Invalid("query: too many", [_wrong("", "more than 100 query arguments", "too_long")]) from None


def _wrong(name: str, message: str, kind: str) -> FieldError:
    return FieldError(loc=["query", name], msg=message, type=kind)
