from __future__ import annotations

import json
import re

import pytest

from midrun.fs import view
from midrun.fs.later import Later
from midrun.fs.tree import file
from midrun.web.calls import KEY, RUN
from tests.web.conftest import Client
from tests.web.sample import Asking, Root

PAUSE = json.dumps({"kind": "pause", "args": {}})
WRITES = [
    ("/commands", "control", "commands", PAUSE),
    ("/control/commands", "control", "commands", PAUSE),
    ("/files/control/commands", "control", "commands", PAUSE),
    ("/holds", "control", "hold", '{"unit": {}}'),
    ("/checkpoints", "control", "checkpoint", ""),
    ("/snapshots", "control", "snapshot", "{}"),
    ("/commands/c1/cancel", "c1", "cancel", ""),
    ("/holds/h1/cancel", "h1", "cancel", ""),
    ("/holds/h1/release", "h1", "release", ""),
]


class Ended(Asking):
    """A command that is over."""

    @file("cancel")
    def cancel(self) -> str:
        """Nothing to give up."""
        return "over"


def asked(root: Root) -> dict[str, list[tuple[str, str | None]]]:
    """Return what has been written where."""
    places = {"control": root.control, **root.commands.listed, **root.holds.listed}
    return {name: place.asked for name, place in places.items() if place.asked}


@pytest.mark.parametrize(("address", "place", "name", "body"), WRITES)
def test_a_route_writes_its_node_under_the_client_s_key_each_time(
    client: Client, root: Root, address: str, place: str, name: str, body: str
) -> None:
    for _ in range(2):
        answer = client.simulate_post(address, body=body, headers={KEY: "my-key_1.a"})
        assert (answer.status_code, answer.json) == (200, {"id": "my-key_1.a"})
        assert answer.headers["idempotency-key"] == "my-key_1.a"
    assert asked(root) == {place: [(name, "my-key_1.a")] * 2}


def test_what_is_meant_for_another_run_is_neither_done_nor_shown_here(client: Client, root: Root) -> None:
    for ask, path in (
        (client.simulate_post, "/checkpoints"),
        (client.simulate_get, "/run"),
        (client.simulate_get, "/poll?node=x"),
    ):
        answer = ask(path, headers={RUN: "run-2"})
        assert answer.status_code == 409
        assert answer.json["detail"].startswith("this is the run 'run-1', and not 'run-2'")
    assert asked(root) == {}
    assert client.simulate_post("/checkpoints", headers={RUN: "run-1"}).status_code == 200
    assert client.simulate_get("/run", headers={RUN: "run-1"}).status_code == 200


def test_a_request_without_a_key_is_given_one_that_no_other_has(client: Client, root: Root) -> None:
    keys = [client.simulate_post("/checkpoints").headers["idempotency-key"] for _ in range(20)]
    assert asked(root)["control"] == [("checkpoint", key) for key in keys]
    assert len(set(keys)) == 20
    assert all(re.fullmatch("[0-9a-f]{16}", key) for key in keys)


@pytest.mark.parametrize("key", ["a", "0", "A-b_c.d", "x" * 128])
def test_a_key_is_letters_digits_and_a_few_signs(client: Client, key: str) -> None:
    assert client.simulate_post("/checkpoints", headers={KEY: key}).json == {"id": key}


@pytest.mark.parametrize("key", ["", " ", "-a", ".a", "_a", "a b", "a/b", '"a"', "a,b", "a\tb", "x" * 129, "é", "a;"])
def test_what_can_t_be_a_key_is_refused_and_nothing_is_written(client: Client, root: Root, key: str) -> None:
    answer = client.simulate_post("/checkpoints", headers={KEY: key})
    assert answer.status_code == 422
    (error,) = answer.json["detail"]
    assert error["loc"] == ["header", KEY]
    assert " can't be one: it has 1 to 128 letters, " in error["msg"]
    assert asked(root) == {}


def test_a_key_is_for_post_alone(client: Client) -> None:
    for answer in (client.simulate_get("/commands", headers={KEY: "!"}), client.simulate_options("/commands")):
        assert answer.status_code == 200
        assert "idempotency-key" not in answer.headers


@pytest.mark.parametrize(
    ("address", "body", "status"),
    [
        ("/commands", '{"kind": "nothing"}', 422),
        ("/checkpoints?x=1", "", 422),
        ("/control/refuse", "", 409),
        ("/control/nothing", "", 404),
        ("/control/errors.json", "", 405),
        ("/commands/c9/cancel", "", 404),
        ("/files/control/pause", " " * (1 << 20 | 1), 413),
    ],
)
def test_a_mistake_is_answered_under_its_key_too(client: Client, address: str, body: str, status: int) -> None:
    answer = client.simulate_post(address, body=body, headers={KEY: "k1"})
    assert answer.status_code == status
    assert set(answer.json) == {"detail"}
    assert answer.headers["idempotency-key"] == "k1"


@pytest.mark.parametrize("headers", [{KEY: "k1"}, {}])
def test_a_write_that_is_not_answered_in_time_may_be_repeated_by_its_key(
    client: Client, root: Root, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    monkeypatch.setattr(view, "PATIENCE", 0.05)
    root.control.late = Later()
    answer = client.simulate_post("/checkpoints", headers=headers)
    assert answer.status_code == 504
    key = answer.headers["idempotency-key"]
    assert key == headers.get(KEY, key)
    assert set(answer.json) == {"detail", "id"}
    assert answer.json["id"] == key
    assert f"{KEY}: {key} is harmless" in answer.json["detail"]
    root.control.late.set_result("done")
    assert client.simulate_post("/checkpoints", headers={KEY: key}).json == "done"
    assert asked(root)["control"] == [("checkpoint", key)] * 2


def test_wrong_arguments_of_one_command_of_many_are_placed_as_they_were_sent(client: Client) -> None:
    answer = client.simulate_post("/commands", body='{"kind": "scale", "args": {"unit": {"scale": "x"}}}')
    assert answer.status_code == 422
    assert [error["loc"] for error in answer.json["detail"]] == [["body", "args", "unit", "scale"]]


@pytest.mark.parametrize(
    "address",
    [
        "/commands/c9",
        "/commands/",
        "/commands/%00",
        "/commands/..",
        "/commands/%2e%2e",
        "/commands/index.json",
        "/commands/c1%2Fcommand.json",
        "/commands/c1%2Fcancel",
        "/commands/c1/",
        "/commands//cancel",
        "/holds/h9",
        "/holds/",
        "/holds/h1/nothing",
        "/control/",
        "/control/nothing",
        "/control/pause/",
        "/control/..%2Fstate%2Fstatus",
        "/control/%2e%2e%2Fstate",
    ],
)
def test_a_name_that_no_node_has_is_not_found(client: Client, address: str) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "POST"):
        answer = client.simulate_request(method, address)
        if (answer.status_code, method) in {(405, "GET"), (405, "HEAD"), (405, "POST")}:
            continue  # The route takes another method.
        assert answer.status_code == 404, method
        assert method == "HEAD" or isinstance(answer.json["detail"], str)


@pytest.mark.parametrize(
    ("address", "methods"),
    [
        ("/commands/c1", "GET, HEAD, OPTIONS"),
        ("/commands/c1/cancel", "OPTIONS, POST"),
        ("/holds/h1/release", "OPTIONS, POST"),
        ("/control/pause", "GET, HEAD, OPTIONS, POST"),
        ("/control/errors.json", "GET, HEAD, OPTIONS"),
    ],
)
def test_options_tells_the_methods_of_the_node_that_a_name_leads_to(client: Client, address: str, methods: str) -> None:
    assert client.simulate_options(address).headers["allow"] == methods


@pytest.mark.parametrize(
    ("method", "address", "methods"),
    [
        ("GET", "/commands/c1/cancel", {"POST", "OPTIONS"}),
        ("POST", "/commands/c1", {"GET", "HEAD", "OPTIONS"}),
        ("POST", "/control/errors.json", {"GET", "HEAD", "OPTIONS"}),
        ("POST", "/control-log", {"GET", "HEAD", "OPTIONS"}),
        ("DELETE", "/commands", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("PUT", "/control/pause", {"GET", "HEAD", "POST", "OPTIONS"}),
    ],
)
def test_a_method_that_a_route_does_not_take_gets_405_with_those_it_takes(
    client: Client, method: str, address: str, methods: set[str]
) -> None:
    answer = client.simulate_request(method, address)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == methods
    assert isinstance(answer.json["detail"], str)


def test_a_node_that_can_no_longer_be_written_is_not_said_to_be_shown_by_a_route_that_shows_nothing(
    client: Client, root: Root
) -> None:
    root.commands.listed["c1"] = Ended()
    answer = client.simulate_post("/commands/c1/cancel")
    assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS")


def test_another_site_s_page_writes_nothing_by_the_new_routes(client: Client, root: Root) -> None:
    for address, _, _, body in WRITES:
        answer = client.simulate_post(address, body=body, headers={"Origin": "http://evil.example"})
        assert answer.status_code == 403
    assert asked(root) == {}
