from __future__ import annotations

from typing import Any

import falcon
import pytest

from midrun.fs.later import Later
from midrun.web.app import make_app
from midrun.web.calls import Answer, Call, Route
from midrun.web.hosts import Hosts
from midrun.web.nodes import show, write
from midrun.web.routes import ROUTES
from midrun.web.site import Site
from tests.web.conftest import Client
from tests.web.sample import Root, wait_until

# The test client checks that WSGI is kept, and knows the methods of 2003.
ANY_METHOD = pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")

SHORT = [
    ("/run", "state/index.json"),
    ("/metrics", "state/metrics/index.json"),
    ("/optimizers", "state/optimizers.json"),
    ("/artifacts", "artifacts/index.json"),
    ("/commands", "commands/index.json"),
    ("/commands/c1", "commands/c1/command.json"),
    ("/holds", "holds/index.json"),
    ("/holds/h1", "holds/h1/hold.json"),
    ("/control/pause", "control/pause"),
    ("/control/errors.json", "control/errors.json"),
    ("/control-log", "state/control-log.json"),
    ("/checkpoints", "artifacts/checkpoints.json"),
    ("/snapshots", "artifacts/snapshots.json"),
    ("/telemetry/pipeline", "state/pipeline/summary.json"),
    ("/inspectors", "model/inspectors/index.json"),
    ("/debug/cuda-memory/snapshot", "debug/cuda-memory/snapshot.json"),
    ("/debug/cuda-memory/history", "debug/cuda-memory/history.json"),
]


@pytest.mark.parametrize(("route", "node"), SHORT)
def test_a_short_route_shows_a_node_s_very_bytes(client: Client, route: str, node: str) -> None:
    short, long = client.simulate_get(route), client.simulate_get(f"/files/{node}")
    assert short.status_code == 200
    assert short.content == long.content
    assert short.headers == long.headers


@pytest.mark.parametrize(
    ("query", "status", "answer"),
    [
        ("enabled=true", 200, {"enabled": True, "max_entries": 100_000}),
        ("enabled=false&max_entries=7", 200, {"enabled": False, "max_entries": 7}),
        ("enabled=yes", 422, ["query", "enabled"]),
        ("max_entries=7", 200, {"enabled": True, "max_entries": 7}),
        ("enabled=true&max_entries=7.5", 422, ["query", "max_entries"]),
        ("enabled=true&max_entries=many", 422, ["query", "max_entries"]),
    ],
)
def test_get_with_arguments_records_the_history_of_cuda_memory(
    client: Client, query: str, status: int, answer: Any
) -> None:
    found = client.simulate_get("/debug/cuda-memory/history", query_string=query)
    assert found.status_code == status
    assert (found.json if status == 200 else found.json["detail"][0]["loc"]) == answer


def test_health_says_which_run_this_is_and_whether_it_answers(client: Client) -> None:
    assert client.simulate_get("/health").json == {
        "status": "ok",
        "run_id": "run-1",
        "run_dir": "/data/run",
        "version": "1.2.3",
        "trainer_answers": True,
    }


def test_health_says_so_when_the_run_does_not_answer(client: Client, root: Root) -> None:
    root.state.stuck = Later()
    answer = client.simulate_get("/health")
    assert answer.status_code == 200
    assert answer.json["trainer_answers"] is False
    root.state.stuck.set_result({})
    root.state.stuck = None
    wait_until(lambda: client.simulate_get("/health").json["trainer_answers"])


def asks_for_nothing(route: Route) -> bool:
    """Return whether a request needs no more than the route's path."""
    return "{" not in route.path and not any(query.least for query in route.query)


@pytest.mark.parametrize("route", [route.path for route in ROUTES if asks_for_nothing(route)])
def test_head_is_get_without_the_body(client: Client, route: str) -> None:
    get, head = client.simulate_get(route), client.simulate_head(route)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers == get.headers
    assert head.headers["content-length"] == str(len(get.content))


@pytest.mark.parametrize("route", [route for route in ROUTES if "{" not in route.path], ids=lambda route: route.path)
def test_options_tells_the_methods(client: Client, route: Route) -> None:
    answer = client.simulate_options(route.path)
    assert answer.status_code == 200
    assert answer.headers["allow"] == ("GET, HEAD, POST" if route.post else "GET, HEAD")
    assert answer.headers["content-length"] == "0"


@ANY_METHOD
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND"])
@pytest.mark.parametrize("route", ["/run", "/health", "/files", "/", "/docs", "/openapi.json", "/static/page.js"])
def test_another_method_gets_405_with_those_that_there_are(client: Client, method: str, route: str) -> None:
    answer = client.simulate_request(method, route)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    assert answer.json["detail"].startswith(f"{method} is none of the methods here")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_files_take_no_other_method_than_post(client: Client, method: str) -> None:
    answer = client.simulate_request(method, "/files/control/pause")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"


@pytest.mark.parametrize(
    "path", ["/nothing", "/run/", "/run/x", "/RUN", "/files%2Fstate", "/static", "/static/", "/.git"]
)
def test_an_unknown_route_gets_404_in_json(client: Client, path: str) -> None:
    answer = client.simulate_get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"
    assert isinstance(answer.json["detail"], str)


@pytest.mark.parametrize("route", ["/run", "/health", "/metrics", "/openapi.json", "/", "/docs", "/static/page.js"])
@pytest.mark.parametrize("query", ["x=1", "x", "format=tree", "=", "%ff=1"])
def test_a_query_argument_that_is_unknown_gets_422(client: Client, route: str, query: str) -> None:
    answer = client.simulate_get(route, query_string=query)
    assert answer.status_code == 422
    (error,) = answer.json["detail"]
    assert error["loc"][0] == "query"
    assert error["type"] == "extra_forbidden"
    assert error["msg"]


@pytest.mark.parametrize("route", ["/files", "/files/state", "/files/state/status"])
@pytest.mark.parametrize(
    "value", ["", "Tree", " tree", "tree ", "tree%20", "json", "%F0%9F%8C%B3", "%ff", "tree,list", "1"]
)
def test_a_bad_value_of_a_query_argument_gets_422(client: Client, route: str, value: str) -> None:
    answer = client.simulate_get(route, query_string=f"format={value}")
    assert answer.status_code == 422
    (error,) = answer.json["detail"]
    assert error["loc"] == ["query", "format"]
    assert error["type"] == "enum"
    assert error["msg"].startswith("expected list or tree, not ")


def test_every_wrong_query_argument_is_listed(client: Client) -> None:
    answer = client.simulate_get("/files", query_string="a=1&format=x&format=list&format=list&b")
    assert answer.status_code == 422
    assert [error["loc"][1] for error in answer.json["detail"]] == ["a", "format", "format", "format", "b"]
    many = "&".join(f"x{number}=1" for number in range(101))
    assert client.simulate_get("/files", query_string=many).status_code == 422


def test_post_takes_no_unknown_query_argument_either(client: Client, root: Root) -> None:
    assert client.simulate_post("/files/control/set_learning_rate?x=1", body="0.5").status_code == 422
    assert root.control.rates == []


def test_a_mistake_of_ours_is_logged_whole_and_told_in_short(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    def crash(site: Site, call: Call) -> Answer:
        raise ZeroDivisionError("a secret")

    client = Client(make_app(site, Hosts.of_machine({}, "", ()), [Route("/crash", get=crash)]))
    answer = client.simulate_get("/crash")
    assert answer.status_code == 500
    assert answer.json["detail"].startswith("a bug in midrun's REST server (ZeroDivisionError)")
    assert "secret" not in answer.text
    logged = capsys.readouterr().err
    assert "a secret" in logged
    assert "Traceback" in logged


def test_a_row_more_is_a_route_more(site: Site, root: Root) -> None:
    rows = (
        Route("/control/set_learning_rate", "Set it", node="control/set_learning_rate", post=write),
        Route("/metrics/{name}", "One metric", node="state/metrics/{name}", get=show),
    )
    client = Client(make_app(site, Hosts.of_machine({}, "", ()), rows))
    assert client.simulate_post("/control/set_learning_rate", body="0.5").json["value"] == 0.5
    assert client.simulate_get("/control/set_learning_rate").headers["allow"] == "POST, OPTIONS"
    assert client.simulate_get("/metrics/plain").content == b"1.5\n"
    assert client.simulate_get("/metrics/train%252Floss").content == b"0.25\n"
    assert client.simulate_get("/metrics/..%2Fstatus").status_code == 404
    assert root.control.rates == [0.5]


def test_a_face_that_closes_answers_so(app: falcon.App[falcon.Request, falcon.Response], site: Site) -> None:
    client = Client(app)
    site._loop.run_sync_soon(site.close)
    answer = client.simulate_get("/files/state")
    assert answer.status_code == 410
    assert "ended" in answer.json["detail"]


def test_the_table_has_each_route_once() -> None:
    paths = [route.path for route in ROUTES]
    assert len(paths) == len(set(paths))
    assert all(route.get or route.post for route in ROUTES)
