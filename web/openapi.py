"""The OpenAPI 3.1 document of the routes.

Paths, arguments and answers come from the table of routes; what a node shows and takes, and the words about it, come
from the tree, where they are declared beside the state they show.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from midrun.fs.faults import (
    Conflict,
    Fault,
    FieldError,
    Gone,
    NotFound,
    ReadOnly,
    Refused,
    TimedOut,
    TooLarge,
    Unavailable,
)
from midrun.fs.render import NONFINITE
from midrun.fs.schema import schema_of
from midrun.fs.verbs import Description
from midrun.web.calls import AGE, JSON, KEY, KEY_PATTERN, RUN, TEXT, Header, Query, Route
from midrun.web.nodes import Late, Shown

if TYPE_CHECKING:
    from midrun.web.site import Site

Schema = dict[str, Any]

_CONTROL = "control/"
_ASKED = 8
"""Entries asked for the node that a route with a name in braces shows, until one of them has it."""
LISTING: Mapping[str, Any] = {"$ref": "#/components/schemas/Listing"}

_ENTRIES: Schema = {"type": "array", "items": {"$ref": "#/components/schemas/Entry"}}
_ENTRY = schema_of(Shown)
_ENTRY["properties"]["entries"] = _ENTRIES
_SCHEMAS: Schema = {
    "Entry": _ENTRY,
    "Listing": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File names from the root, joined by /."},
            "entries": _ENTRIES,
        },
        "required": ["entries", "path"],
    },
    "Mistake": {
        "type": "object",
        "properties": {"detail": {"type": "string", "description": "What was wrong, and what to do."}},
        "required": ["detail"],
    },
    "Late": schema_of(Late),
    "WrongFields": {
        "type": "object",
        "properties": {"detail": {"type": "array", "items": schema_of(FieldError)}},
        "required": ["detail"],
    },
}


def _prose(*kinds: type[Fault]) -> str:
    """Return the statuses of these faults, with what each means."""
    return " ".join(f"{kind.status}: {inspect.getdoc(kind)}" for kind in kinds)


_GET_MISTAKES = {
    "4XX": "400: The Host header names another machine, or the request is malformed. 403: A page of another site "
    f"asked. {_prose(NotFound, Gone)} 409: The request is meant for another run.",
    "422": "A query argument is missing, unknown, given too often, too long or none of the words it may be.",
    "5XX": f"500: The node broke while it was shown. {_prose(Unavailable, TimedOut)}",
}
_POST_MISTAKES = {
    "4XX": f"{_GET_MISTAKES['4XX']} {_prose(ReadOnly, Conflict, Refused, TooLarge)} "
    "415: A browser sent something other than JSON.",
    "422": f"Wrong arguments, or a {KEY} that can't be one: each mistake is listed.",
    "504": f"{_prose(TimedOut).removeprefix('504: ')} To repeat the request with {KEY}: <id> is harmless.",
    "5XX": f"500: A bug in midrun. {_prose(Unavailable)}",
}
_AGE_ANSWERED = {
    AGE: {
        "description": "Seconds by which this is old, when the training process is too busy to answer.",
        "schema": {"type": "string", "pattern": r"^\d+\.\d{3}$"},
        "required": False,
    }
}
_KEY_SCHEMA = {"type": "string", "pattern": KEY_PATTERN}
_KEY_ASKED: Schema = {
    "name": KEY,
    "in": "header",
    "required": False,
    "description": "A name for this request: sent again with the same name, it is the same request and done once. "
    "Without one, it gets a new name.",
    "schema": _KEY_SCHEMA,
}
_RUN_ASKED: Schema = {
    "name": RUN,
    "in": "header",
    "required": False,
    "description": "The id of the run that is meant, percent-encoded. Another, which may have its port now, says 409.",
    "schema": {"type": "string"},
}
_KEY_ANSWERED = {KEY: {"description": "The name of this request.", "schema": _KEY_SCHEMA, "required": False}}


async def described(site: Site, routes: Iterable[Route]) -> dict[str, Description]:
    """Return what the tree says of the routes' nodes, by path; a node that is not there yet is left out.

    Where a path has a name in braces, one node speaks for all that it may be, as they are alike. Where that name is the
    last of the path, they are not: each that can be written is found under its own path.
    """
    paths = {path for route in routes if not _is_open(route) for path in (route.node, route.written) if path}
    found: dict[str, Description] = {}
    for path in sorted(paths):
        try:
            await _describe(site, path, found)
        except TimedOut:
            break  # A run that leaves one question without an answer would let us wait as long for each of the others.
        except Fault:
            continue
    return found


async def _describe(site: Site, path: str, found: dict[str, Description]) -> None:
    head, brace, rest = path.partition("{")
    if not brace:
        found[path] = await site.view.describe(path)
        return
    tail = rest.partition("}")[2]
    entries = await site.view.list(head.removesuffix("/"))
    if not tail:
        for name in (entry["name"] for entry in entries if entry["writable"]):
            found[head + name] = await site.view.describe(head + name)
        return
    for name in [entry["name"] for entry in entries if entry["kind"] == "dir"][:_ASKED]:
        with suppress(NotFound):
            found[path] = await site.view.describe(head + name + tail)
            return


def document(routes: Iterable[Route], described: Mapping[str, Description], version: str) -> Schema:
    """Return the document of the routes that have a summary."""
    schemas: Schema = dict(_SCHEMAS)
    paths: Schema = {}
    for route in filter(lambda route: route.summary, routes):
        for each in (route, *_each(route, described)):
            paths[_plain(each.path)] = _item(each, described, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "midrun",
            "version": version or "0",
            "description": "A live training run as a tree of files. Nearly every route shows or writes a node of it,"
            " and every node is under /files.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _each(route: Route, described: Mapping[str, Description]) -> Iterable[Route]:
    """Iterate over a route for each node that this one may lead to and that has words and arguments of its own."""
    head, brace, name = route.node.partition("{")
    if not brace or not head or _is_open(route) or not name.endswith("}"):
        return
    for path, node in described.items():
        if path.startswith(head) and node["writable"] and "{" not in path:
            address = route.path.replace("{" + name, quote(path.removeprefix(head), safe=""))
            yield replace(route, path=address, node=path, summary=f"{path}: what it takes, and writing it", shows=None)


def _item(route: Route, described: Mapping[str, Description], schemas: Schema) -> Schema:
    item: Schema = {}
    if route.get is not None:
        item["get"] = _get(route, described.get(route.node), schemas)
    if route.post is not None:
        item["post"] = _post(route, described.get(route.written), schemas)
    return item


def _get(route: Route, node: Description | None, schemas: Schema) -> Schema:
    if route.shows is not None:
        content = {kind: {"schema": dict(schema)} for kind, schema in route.shows.items()}
    else:
        content = _content(route, node, schemas)
    answer: Schema = {"description": "Shown.", "content": content, "headers": _AGE_ANSWERED}
    operation = _operation("get", route, route.node, node, {"200": answer, **_mistakes(_GET_MISTAKES), **route.answers})
    operation["parameters"] += [*map(_query_parameter, route.query), *map(_header_parameter, route.headers)]
    return operation


def _content(route: Route, node: Description | None, schemas: Schema) -> Schema:
    if not route.node.endswith(".json"):
        return {TEXT: {"schema": {"type": "string"}}}
    if node is not None:
        schema = _hoisted(node["schema"], _title(route.node), schemas)
    else:
        schema = {"type": "object"} if "{" in route.node else {}
    return {JSON: {"schema": _document_schema(schema)}}


def _post(route: Route, node: Description | None, schemas: Schema) -> Schema:
    takes = node["takes"] if node is not None else None
    schema = _hoisted(takes, f"{_title(route.written)}Arguments", schemas) if takes else _unknown(route)
    gives = _hoisted((node and node["gives"]) or {}, f"{_title(route.written)}Answer", schemas)
    answer: Schema = {
        "description": "Written; this came of it.",
        "content": {JSON: {"schema": _document_schema(gives)}},
    }
    responses = {
        status: {**answer, "headers": _KEY_ANSWERED}
        for status, answer in {"200": answer, **_mistakes(_POST_MISTAKES)}.items()
    }
    operation = _operation("post", route, route.written, node, responses)
    if route.writes and node is not None and node["doc"]:
        # The row's words are about what GET shows.
        operation["summary"] = node["doc"].partition("\n")[0].removesuffix(".")
    operation["parameters"] += [*map(_query_parameter, route.query), _KEY_ASKED]
    body = {"content": {JSON: {"schema": schema}}, "required": bool(takes) and not _takes_none(schema, schemas)}
    return {**operation, "requestBody": body}


def _unknown(route: Route) -> Schema:
    """Return the schema of arguments that are not known: an object, unless they may be those of any node."""
    return {} if _is_open(route) else {"type": "object"}


def _takes_none(schema: Schema, schemas: Schema) -> bool:
    """Return whether a schema of arguments allows an object without members, for which an empty body stands, too."""
    if "$ref" in schema:
        return _takes_none(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices:
        return any(_takes_none(choice, schemas) for choice in choices)
    return schema.get("type") == "object" and not schema.get("required")


def _operation(method: str, route: Route, path: str, node: Description | None, responses: Schema) -> Schema:
    return {
        "operationId": re.sub(r"\W+", "_", f"{method} {_plain(route.path)}").strip("_"),
        "tags": ["Control" if method == "post" or path.startswith(_CONTROL) else "Run"],
        "summary": route.summary,
        "description": node["doc"] if node is not None else "",
        "parameters": [*_path_parameters(route), _RUN_ASKED],
        "responses": responses,
    }


def _path_parameters(route: Route) -> list[Schema]:
    parameters: list[Schema] = []
    for name in re.findall(r"\{(\w+)\}", _plain(route.path)):
        doc = "File names joined by /." if _is_open(route) else "A file name, as the tree has it."
        schema = {"type": "string", "minLength": 1}
        parameters.append({"name": name, "in": "path", "required": True, "description": doc, "schema": schema})
    return parameters


def _header_parameter(header: Header) -> Schema:
    schema = {"type": "string"}
    return {"name": header.name, "in": "header", "required": False, "description": header.doc, "schema": schema}


def _query_parameter(query: Query) -> Schema:
    schema: Schema = {"type": "string"}
    if query.choices:
        schema |= {"enum": list(query.choices)} | ({"default": query.default} if query.default else {})
    if query.pattern:
        schema["pattern"] = f"^({query.pattern})$"
    if query.longest is not None:
        schema["maxLength"] = query.longest
    parameter = {"name": query.name, "in": "query", "required": query.least > 0, "description": query.doc}
    if query.most == 1:
        return {**parameter, "schema": schema}
    items = {"type": "array", "items": schema, "minItems": query.least, "maxItems": query.most}
    return {**parameter, "style": "form", "explode": True, "schema": items}


def _mistakes(statuses: Mapping[str, str]) -> Schema:
    bodies = {"422": "WrongFields", "504": "Late"}
    return {
        status: {
            "description": text,
            "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{bodies.get(status, 'Mistake')}"}}},
        }
        for status, text in statuses.items()
    }


def _document_schema(schema: Schema) -> Schema:
    """Return the schema of a document as it is rendered: it may list the numbers that are NaN or infinite."""
    if schema.get("type") != "object":
        return schema
    return {**schema, "properties": {**schema.get("properties", {}), NONFINITE: {"type": "object"}}}


def _hoisted(schema: Mapping[str, Any], owner: str, schemas: Schema) -> Schema:
    """Return `schema` with its definitions moved into `schemas`: in this document, `#` is the document's root."""
    definitions = schema.get("$defs", {})
    moved = {f"#/$defs/{name}": f"#/components/schemas/{owner}.{name}" for name in definitions}
    for name, definition in definitions.items():
        schemas[f"{owner}.{name}"] = _repointed(definition, moved)
    hoisted: Schema = _repointed({key: value for key, value in schema.items() if key != "$defs"}, moved)
    return hoisted


def _repointed(schema: Any, moved: Mapping[str, str]) -> Any:  # noqa: ANN401 - any part of a JSON Schema
    match schema:
        case dict():
            return {key: _repointed_member(key, value, moved) for key, value in schema.items()}
        case list():
            return [_repointed(item, moved) for item in schema]
    return schema


def _repointed_member(key: str, value: Any, moved: Mapping[str, str]) -> Any:  # noqa: ANN401 - as above
    match key, value:
        case "$ref", str():
            return moved.get(value, value)
        case "discriminator", {"mapping": dict(mapping)}:
            return {**value, "mapping": {name: moved.get(target, target) for name, target in mapping.items()}}
    return _repointed(value, moved)


def _title(path: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[\W_]+", path))


def _plain(path: str) -> str:
    return path.replace(":path}", "}")


def _is_open(route: Route) -> bool:
    """Return whether the route is for any path below its own."""
    return route.path.endswith(":path}")
