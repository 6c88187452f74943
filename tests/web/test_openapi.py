from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from midrun.fs.faults import TimedOut
from midrun.fs.tree import Leaf
from midrun.fs.verbs import Description
from midrun.web.calls import Route
from midrun.web.nodes import write
from midrun.web.openapi import document
from midrun.web.routes import ROUTES
from midrun.web.site import Site
from tests.web.conftest import Client
from tests.web.sample import Control, Documented, Root, serving, shown


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_documented_row_is_in_the_document_and_nothing_else(client: Client) -> None:
    served = client.simulate_get("/openapi.json").json
    assert served["openapi"].startswith("3.1")
    assert served["info"]["version"] == "1.2.3"
    rows = {route.path.replace(":path}", "}"): route for route in ROUTES if route.summary}
    controls = {f"/control/{name}" for name, node in Control() if isinstance(node, Leaf) and node.form is not None}
    assert "/control/commands" in controls
    assert set(served["paths"]) == {*rows, *controls}
    for path, item in served["paths"].items():
        route = rows.get(path)
        if route is None:
            assert set(item) == {"get", "post"}
            continue
        assert set(item) == {name for name, respond in (("get", route.get), ("post", route.post)) if respond}
        assert "get" not in item or item["get"]["summary"] == route.summary
    identifiers = [operation["operationId"] for item in served["paths"].values() for operation in item.values()]
    assert len(identifiers) == len(set(identifiers))


def test_a_node_s_words_and_schema_come_from_the_tree(client: Client) -> None:
    operation = client.simulate_get("/openapi.json").json["paths"]["/run"]["get"]
    assert operation["description"] == "The run at its last safe point."
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema["properties"]["epoch"] == {"type": "integer"}
    assert "_nonfinite" in schema["properties"]


def test_what_a_post_gives_back_is_described_where_the_node_says_it(client: Client) -> None:
    paths = client.simulate_get("/openapi.json").json["paths"]
    given = paths["/control/scale"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert given == {"type": ["number", "null"]}


def test_a_route_that_writes_another_node_than_it_shows_has_words_and_arguments_of_both(client: Client) -> None:
    served = client.simulate_get("/openapi.json").json
    shows, writes = served["paths"]["/commands"]["get"], served["paths"]["/commands"]["post"]
    assert (shows["summary"], shows["description"]) == ("The commands given to the run", "All of it.")
    assert (writes["summary"], writes["description"]) == (
        "Give any command",
        "Give any command.\nIt is done by and by.",
    )
    shown = shows["responses"]["200"]["content"]["application/json"]["schema"]
    assert shown["additionalProperties"] == {"type": "array", "items": {"type": "string"}}
    schema = writes["requestBody"]["content"]["application/json"]["schema"]
    assert writes["requestBody"]["required"]
    assert {*schema["discriminator"]["mapping"].values()} == {choice["$ref"] for choice in schema["oneOf"]}
    for reference in schema["discriminator"]["mapping"].values():
        assert reference.removeprefix("#/components/schemas/") in served["components"]["schemas"]
    assert writes["tags"] == ["Control"]


def test_a_route_with_a_name_in_it_is_described_by_any_node_that_it_leads_to(client: Client) -> None:
    paths = client.simulate_get("/openapi.json").json["paths"]
    shows = paths["/commands/{id}"]["get"]
    assert shows["description"] == "The command, and what came of it."
    assert "state" in shows["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
    body = paths["/holds/{id}/release"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["additionalProperties"] is False
    assert not body["required"]


def test_a_route_that_leads_nowhere_yet_is_described_as_taking_and_showing_objects() -> None:
    paths = document(ROUTES, {}, "")["paths"]
    shown = paths["/commands/{id}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert shown["type"] == "object"
    taken = paths["/commands/{id}/cancel"]["post"]["requestBody"]
    assert taken == {"content": {"application/json": {"schema": {"type": "object"}}}, "required": False}


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/control/pause", False),
        ("/checkpoints", False),
        ("/holds", True),
        ("/control/set_learning_rate", True),
        ("/control/commands", True),
    ],
)
def test_a_body_may_be_left_out_where_nothing_in_it_is_required(client: Client, path: str, needed: bool) -> None:
    body = client.simulate_get("/openapi.json").json["paths"][path]["post"]["requestBody"]
    assert body["required"] is needed
    assert (client.simulate_post(path).status_code == 422) is needed


def test_every_post_takes_and_answers_a_key(client: Client) -> None:
    for item in client.simulate_get("/openapi.json").json["paths"].values():
        for method, operation in item.items():
            names = [parameter["name"] for parameter in operation["parameters"]]
            assert ("Idempotency-Key" in names) is (method == "post")
            if method == "post":
                assert all("Idempotency-Key" in answer["headers"] for answer in operation["responses"].values())
                late = operation["responses"]["504"]["content"]["application/json"]["schema"]
                assert late == {"$ref": "#/components/schemas/Late"}


def test_every_body_and_every_answer_in_the_document_has_a_valid_schema(client: Client) -> None:
    served = client.simulate_get("/openapi.json").json
    schemas = list(served["components"]["schemas"].values())
    for item in served["paths"].values():
        for operation in item.values():
            assert operation["summary"]
            bodies = [*operation["responses"].values(), *filter(None, [operation.get("requestBody")])]
            for body in bodies:
                assert body["content"]
                schemas += [content.get("schema", {}) for content in body["content"].values()]
            assert all(answer["description"] for answer in operation["responses"].values())
    for schema in schemas:
        jsonschema_rs.meta.validate(schema)
    for reference in references(served):
        node = served
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
    assert "#/$defs/" not in str(served)


def test_a_run_that_does_not_answer_holds_the_document_up_once(
    client: Client, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def describe(path: str) -> Description:
        asked.append(path)
        raise TimedOut("too busy")

    monkeypatch.setattr(site.view, "describe", describe)
    assert "/commands/{id}" in client.simulate_get("/openapi.json").json["paths"]
    assert len(asked) == 1


def test_a_node_that_is_not_there_yet_is_documented_without_a_schema() -> None:
    operation = document(ROUTES, {}, "")["paths"]["/run"]["get"]
    assert operation["responses"]["200"]["content"] == {"application/json": {"schema": {}}}


def test_definitions_inside_a_node_s_schema_are_found_from_the_document_s_root() -> None:
    rows = (Route("/control/scale", "Scale it", node="control/scale", post=write),)
    with shown(Root()) as site:
        described = site.ask(lambda: site.view.describe("control/scale"))
    made = document(rows, {"control/scale": described}, "1")
    body = made["paths"]["/control/scale"]["post"]["requestBody"]
    assert body["required"]
    assert "#/components/schemas/ControlScaleArguments.Unit" in list(references(body))
    for reference in references(made):
        node = made
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
    assert "$defs" not in str(made)


def test_the_document_names_no_host(client: Client) -> None:
    assert re.findall(r"https?://", client.simulate_get("/openapi.json").text) == []


NAMES = """
[parameters]
"header.Midrun-Run-Id" = "run-1"

[[operations]]
include-path-regex = "^/commands/"
parameters = { id = "c1" }

[[operations]]
include-path-regex = "^/holds/"
parameters = { id = "h1" }

[[operations]]
include-path-regex = "^/history$"
parameters = { name = "loss" }

[[operations]]
include-path-regex = "^/artifacts/"
parameters = { path = "checkpoints/last.ckpt" }
"""


def test_the_server_does_what_its_document_says(times: Callable[[int], int], tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(NAMES)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(bytes(range(256)))
    command = [
        "run",
        # What these two take depends on the node, which OpenAPI can't say; for each node there is a path of its own.
        "--exclude-operation-id",
        "post_files_path",
        "--exclude-operation-id",
        "post_control_name",
        "--max-examples",
        str(times(300)),
        "--seed",
        "1",
        "--generation-database",
        "none",
    ]
    with serving(Documented(str(tmp_path))) as served:
        ran = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", *command, f"http://127.0.0.1:{served.port}/openapi.json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "No issues found" in ran.stdout, ran.stdout
