"""The OpenAPI 3.1 document of the routes.

Paths, arguments and answers come from the table of routes; what a node shows and takes, and the words about it, come
from the tree, where they are declared beside the state they show.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
from midrun.web.calls import JSON, TEXT, Query, Route
from midrun.web.nodes import Shown, href, show, write

if TYPE_CHECKING:
    from midrun.web.site import Site

Schema = dict[str, Any]

CONTROL = "control"
"""The directory of what can be written."""
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
    f"asked. {_prose(NotFound, Gone)}",
    "422": "A query argument is unknown or none of the words it may be.",
    "5XX": f"500: The node broke while it was shown. {_prose(Unavailable, TimedOut)}",
}
_POST_MISTAKES = {
    "4XX": f"{_GET_MISTAKES['4XX']} {_prose(ReadOnly, Conflict, Refused, TooLarge)} "
    "415: A browser sent something else than JSON.",
    "422": "Wrong arguments: each is listed.",
    "5XX": f"500: A mistake in midrun. {_prose(TimedOut)}",
}
_AGE = {
    "X-Midrun-Age": {
        "description": "Seconds by which this is old, when the training process is too busy to answer.",
        "schema": {"type": "string", "pattern": r"^\d+\.\d{3}$"},
        "required": False,
    }
}


async def described(site: Site, routes: Iterable[Route]) -> dict[str, Description]:
    """Return what the tree says of the routes' nodes and of its control files, by path.

    A node that is not there yet is left out.
    """
    paths = {route.node for route in routes if route.node and "{" not in route.node}
    found: dict[str, Description] = {}
    with suppress(Fault):
        paths |= {f"{CONTROL}/{entry['name']}" for entry in await site.view.list(CONTROL) if entry["writable"]}
    for path in sorted(paths):
        with suppress(Fault):
            found[path] = await site.view.look(path)
    return found


def document(routes: Iterable[Route], described: Mapping[str, Description], version: str) -> Schema:
    """Return the document of the routes that have a summary."""
    schemas: Schema = dict(_SCHEMAS)
    paths: Schema = {}
    for route in filter(lambda route: route.summary, routes):
        node = described.get(route.node)
        item: Schema = {}
        if route.get is not None:
            item["get"] = _get(route, node, schemas)
        if route.post is not None and "{" not in route.node:
            item["post"] = _post(route, node, schemas)
        paths[_plain(route.path)] = item
    for path, node in described.items():
        if node["writable"]:
            # `/files/{path}` takes POST for each of these; each takes arguments of its own.
            route = Route(href(path), f"{path}: what it takes, and writing it", node=path, get=show, post=write)
            paths[route.path] = {"get": _get(route, node, schemas), "post": _post(route, node, schemas)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "midrun",
            "version": version or "0",
            "description": "A live training run as a tree of files. Every route but /health shows a node."
            " Those that take something are written under /files.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _get(route: Route, node: Description | None, schemas: Schema) -> Schema:
    if route.shows is not None:
        content = {kind: {"schema": dict(schema)} for kind, schema in route.shows.items()}
    else:
        content = _content(route, node, schemas)
    answer: Schema = {"description": "Shown.", "content": content, "headers": _AGE}
    return _operation("get", route, node, {"200": answer, **_mistakes(_GET_MISTAKES)})


def _content(route: Route, node: Description | None, schemas: Schema) -> Schema:
    if not route.node.endswith(".json"):
        return {TEXT: {"schema": {"type": "string"}}}
    schema = {} if node is None else _hoisted(node["schema"], _title(route.node), schemas)
    return {JSON: {"schema": _document_schema(schema)}}


def _post(route: Route, node: Description | None, schemas: Schema) -> Schema:
    takes = (node["takes"] if node is not None else None) or {}
    schema = _hoisted(takes, f"{_title(route.node)}Arguments", schemas) if takes else {}
    answer: Schema = {"description": "Written; this came of it.", "content": {JSON: {"schema": {}}}}
    operation = _operation("post", route, node, {"200": answer, **_mistakes(_POST_MISTAKES)})
    body = {"content": {JSON: {"schema": schema}}, "required": bool(schema.get("required"))}
    return {**operation, "requestBody": body}


def _operation(method: str, route: Route, node: Description | None, responses: Schema) -> Schema:
    return {
        "operationId": re.sub(r"\W+", "_", f"{method} {_plain(route.path)}").strip("_"),
        "tags": ["Control" if route.node.startswith(f"{CONTROL}/") else "Run"],
        "summary": route.summary,
        "description": node["doc"] if node is not None else "",
        "parameters": [*_path_parameters(route), *map(_query_parameter, route.query)],
        "responses": responses,
    }


def _path_parameters(route: Route) -> list[Schema]:
    parameters: list[Schema] = []
    for name in re.findall(r"\{(\w+)\}", _plain(route.path)):
        doc = "File names joined by /, such as state/status." if name == "path" else ""
        schema = {"type": "string", "minLength": 1}
        parameters.append({"name": name, "in": "path", "required": True, "description": doc, "schema": schema})
    return parameters


def _query_parameter(query: Query) -> Schema:
    schema = {"type": "string", "enum": list(query.choices), "default": query.default}
    return {"name": query.name, "in": "query", "required": False, "description": query.doc, "schema": schema}


def _mistakes(statuses: Mapping[str, str]) -> Schema:
    bodies = {"422": "WrongFields"}
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
    return {key: _repointed(value, moved) for key, value in schema.items() if key != "$defs"}


def _repointed(schema: Any, moved: Mapping[str, str]) -> Any:  # noqa: ANN401 - any part of a JSON Schema
    match schema:
        case dict():
            return {
                key: moved.get(value, value) if key == "$ref" and isinstance(value, str) else _repointed(value, moved)
                for key, value in schema.items()
            }
        case list():
            return [_repointed(item, moved) for item in schema]
    return schema


def _title(path: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[\W_]+", path))


def _plain(path: str) -> str:
    return path.replace(":path}", "}")
