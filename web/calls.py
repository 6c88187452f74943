"""Calls: what a route is, what it is asked and what it answers.

A route is one row of the table in `routes`. The app and the OpenAPI document are made from the same rows.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from midrun.fs.faults import FieldError, Invalid
from midrun.fs.render import render
from midrun.fs.write import LEGAL_ID, LEGAL_ID_WORDS
from midrun.web.disk import Part
from midrun.web.site import Site

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
KEY = "Idempotency-Key"
"""The header that names a write, in the request and in the answer."""
RUN = "Midrun-Run-Id"
"""The header that says which run a request is meant for: a port that one run has left may be another's next."""
AGE = "X-Midrun-Age"
"""The header that says by how many seconds an answer is old; without it, it is current."""
NUMBER, COUNT = "0|[1-9][0-9]{0,17}", "[1-9][0-9]{0,17}"
"""Patterns of whole numbers: from 0 on, and from 1 on."""
KEY_PATTERN = f"^{LEGAL_ID.pattern}$"


@dataclass(frozen=True)
class Query:
    """A query argument: one of a few words, text of a pattern, or any text."""

    name: str
    doc: str
    choices: tuple[str, ...] = ()
    default: str = ""
    pattern: str = ""
    """What the whole text must match: a regular expression, in what Python's and JSON Schema's have in common."""
    expected: str = ""
    """The pattern in words."""
    longest: int | None = None
    """Characters in the longest text; None where only the length of a whole request is limited."""
    least: int = 0
    """How often it is given at least."""
    most: int = 1
    """How often it may be given. What may be given more than once is a list."""


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
    """Every query argument of the route that is no list, with its default where the request has none."""
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Every query argument that is a list, with its values in the order given."""
    body: bytes = b""
    key: str = ""
    """What names this write: see `key_of`. Only POST has one."""
    header: Callable[[str], str | None] = lambda _: None
    """Returns the request's header of a name."""
    head: bool = False
    """Whether HEAD asks: what is open only for the body need not stay so."""
    left: Callable[[], bool] = lambda: False
    """Whether the client has gone in the meantime."""


@dataclass(frozen=True)
class Answer:
    """What a route answers a call: body, content type, status and headers of the response."""

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


def key_of(given: str | None) -> str:
    """Return the key of a write, by which a run knows it if it comes again: the client's, else a new one.

    Raises `Invalid` for text that can't be one.
    """
    if given is None:
        return secrets.token_hex(8)
    if LEGAL_ID.fullmatch(given) is None:
        message = f"{given!a:.140} can't be one: {LEGAL_ID_WORDS}"
        raise Invalid(
            f"{KEY}: {message}", [FieldError(loc=["header", KEY], msg=message, type="string_pattern_mismatch")]
        )
    return given


def document(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return the answer that shows any JSON value, as nodes are shown: NaN is null with a mark."""
    body = render("answer.json", value) if isinstance(value, Mapping) else f"{json.dumps(value)}\n".encode()
    return Answer(body, JSON, status, headers or {})


def arguments(queries: Iterable[Query], text: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the arguments in a query string, checked: those that have one value, and those that are lists.

    Raises `Invalid`, with each argument that is missing, unknown, given too often, too long or none of the words it may
    be.
    """
    known = {query.name: query for query in queries}
    given: dict[str, list[str]] = {name: [] for name in known}
    errors: list[FieldError] = []
    for name, value in _pairs(text):
        if name in known:
            given[name].append(value)
            errors += _mistakes(known[name], value, len(given[name]))
        else:
            expected = f"expected {', '.join(known)}" if known else "this route takes none"
            errors.append(_wrong(name, f"unknown query argument: {expected}", "extra_forbidden"))
    for name, query in known.items():
        if len(given[name]) < query.least:
            message = f"given {len(given[name])} times, expected at least {query.least}: add it to the query"
            errors.append(_wrong(name, message, "missing"))
    if errors:
        raise Invalid("; ".join(f"{error['loc'][-1]}: {error['msg']}" for error in errors), errors)
    single = {name: (given[name] or [query.default])[0] for name, query in known.items() if query.most == 1}
    return single, {name: given[name] for name in known if name not in single}


def _mistakes(query: Query, value: str, count: int) -> list[FieldError]:
    """Return what is wrong with a value of an argument that has been given `count` times so far."""
    if count > query.most:
        often = "once" if query.most == 1 else f"{query.most} times"
        return [_wrong(query.name, f"given more than {often}: leave out {value!a:.100}", "repeated")]
    if query.choices and value not in query.choices:
        return [_wrong(query.name, f"expected {' or '.join(query.choices)}, not {value!a:.100}", "enum")]
    if query.pattern and not re.fullmatch(query.pattern, value):
        return [_wrong(query.name, f"expected {query.expected}, not {value!a:.100}", "string_pattern_mismatch")]
    if query.longest is not None and len(value) > query.longest:
        message = f"expected at most {query.longest} characters, not the {len(value)} of {value[:60]!a}…"
        return [_wrong(query.name, message, "string_too_long")]
    return []


def _pairs(text: str) -> list[tuple[str, str]]:
    # WSGI's strings are bytes read as Latin-1: what a client did not percent-encode is UTF-8, as what it did.
    sent = text.encode("latin-1").decode("utf-8", "replace")
    try:
        return parse_qsl(sent, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        message = "more than 100 query arguments: ask for less, in several requests"
        raise Invalid(f"query: {message}", [_wrong("", message, "too_long")]) from None


def _wrong(name: str, message: str, kind: str) -> FieldError:
    return FieldError(loc=["query", name], msg=message, type=kind)
