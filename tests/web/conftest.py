"""Fixtures: a small run, and a client that asks its app without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import falcon
import pytest
from falcon import testing

from midrun.web.app import make_app
from midrun.web.hosts import Hosts
from midrun.web.site import Site
from tests.web.sample import Root, shown


class Client(testing.TestClient):
    """Asks as `curl http://127.0.0.1:8090` does."""

    def simulate_request(self, *args: Any, **kwargs: Any) -> Any:
        headers = {"Host": "127.0.0.1:8090", **(kwargs.pop("headers", None) or {})}
        return super().simulate_request(*args, headers=headers, **kwargs)


@pytest.fixture
def root() -> Root:
    return Root(broken=True)


@pytest.fixture
def site(root: Root) -> Iterator[Site]:
    with shown(root) as site:
        yield site


@pytest.fixture
def app(site: Site) -> falcon.App[falcon.Request, falcon.Response]:
    return make_app(site, Hosts.of_machine({}, "127.0.0.1", ["proxy.example.org"]))


@pytest.fixture
def client(app: falcon.App[falcon.Request, falcon.Response]) -> Client:
    return Client(app)
