from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import falcon
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from midrun.web.app import make_app
from midrun.web.calls import Route
from midrun.web.hosts import Hosts
from midrun.web.nodes import write
from midrun.web.openapi import document
from midrun.web.routes import ROUTES
from tests.web.conftest import Client
from tests.web.sample import Root, shown


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
    assert set(served["paths"]) == set(rows)
    for path, item in served["paths"].items():
        expected = {method for method in ("get", "post") if getattr(rows[path], method)}
        assert set(item) == expected
        for operation in item.values():
            assert operation["summary"] == rows[path].summary
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
    rows = (Route("/control/set_learning_rate", "Set it", node="control/set_learning_rate", post=write),)
    with shown(Root()) as site:
        described = site.ask(lambda: site.view.describe("control/set_learning_rate"))
    made = document(rows, {"control/set_learning_rate": described}, "1")
    body = made["paths"]["/control/set_learning_rate"]["post"]["requestBody"]
    assert body["required"]
    assert "#/components/schemas/ControlSetLearningRateArguments.Unit" in list(references(body))
    for reference in references(made):
        node = made
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
    assert "$defs" not in str(made)


def test_the_document_names_no_host(client: Client) -> None:
    assert re.findall(r"https?://", client.simulate_get("/openapi.json").text) == []


@pytest.fixture
def quick() -> Iterator[falcon.App[falcon.Request, falcon.Response]]:
    root = Root()
    root.model.at_once = True
    with shown(root) as site:
        yield make_app(site, Hosts.of_machine({}, "", ()))


@pytest.fixture
def document_of_the_app(quick: falcon.App[falcon.Request, falcon.Response]) -> Any:
    return schemathesis.openapi.from_wsgi("/openapi.json", quick)


schema = schemathesis.pytest.from_fixture("document_of_the_app")


@schema.parametrize()
@settings(
    max_examples=50,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
)
def test_the_app_does_what_its_document_says(case: schemathesis.Case) -> None:
    response = case.call_and_validate()
    assert response.status_code < 500
