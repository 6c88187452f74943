from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from midrun.web.calls import Route
from midrun.web.nodes import write
from midrun.web.openapi import document
from midrun.web.routes import ROUTES
from tests.web.conftest import Client
from tests.web.sample import Documented, Root, serving, shown


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
    controls = {f"/files/control/{name}" for name in ("pause", "refuse", "scale", "set_learning_rate")}
    assert set(served["paths"]) == {*rows, *controls}
    for path, item in served["paths"].items():
        assert set(item) == ({"get", "post"} if path in controls else {"get"})
        assert path in controls or item["get"]["summary"] == rows[path].summary
    identifiers = [operation["operationId"] for item in served["paths"].values() for operation in item.values()]
    assert len(identifiers) == len(set(identifiers))


def test_a_node_s_words_and_schema_come_from_the_tree(client: Client) -> None:
    operation = client.simulate_get("/openapi.json").json["paths"]["/run"]["get"]
    assert operation["description"] == "The run at its last safe point."
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema["properties"]["epoch"] == {"type": "integer"}
    assert "_nonfinite" in schema["properties"]


def test_a_node_that_is_not_there_yet_is_documented_without_a_schema() -> None:
    operation = document(ROUTES, {}, "")["paths"]["/run"]["get"]
    assert operation["responses"]["200"]["content"] == {"application/json": {"schema": {}}}


def test_definitions_inside_a_node_s_schema_are_found_from_the_document_s_root() -> None:
    rows = (Route("/control/scale", "Scale it", node="control/scale", post=write),)
    with shown(Root()) as site:
        described = site.ask(lambda: site.view.look("control/scale"))
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


def test_the_server_does_what_its_document_says(times: Callable[[int], int], tmp_path: Path) -> None:
    command = [
        "run",
        "--max-examples",
        str(times(300)),
        "--seed",
        "1",
        "--generation-database",
        "none",
    ]
    with serving(Documented()) as served:
        ran = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", *command, f"http://127.0.0.1:{served.port}/openapi.json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "No issues found" in ran.stdout, ran.stdout
