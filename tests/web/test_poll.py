from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import falcon
import falcon.testing
import pytest
import trio

from midrun.fs import names
from midrun.fs.later import Later
from midrun.fs.view import CURRENT_FOR
from midrun.web.app import make_app
from midrun.web.hosts import Hosts
from midrun.web.nodes import LIVE_READERS, href
from midrun.web.poll import MOST_NODES, POLLERS
from midrun.web.server import WORKERS
from midrun.web.site import Site
from tests.web.conftest import Client
from tests.web.sample import METRICS, Root, serving, shown, wait_until

DOCUMENTS = [
    "state/index.json",
    "state/metrics/index.json",
    "state/optimizers.json",
    "state/control-log.json",
    "commands/index.json",
    "holds/index.json",
    "artifacts/index.json",
    "artifacts/checkpoints.json",
]
STEP = "state/global-step"


def address(asked: Sequence[str], seen: str | None = None) -> str:
    """Return the query as a browser's URLSearchParams writes it."""
    return urlencode([*(("node", node) for node in asked), *([] if seen is None else [("seen", seen)])])


def poll(client: Client, asked: Sequence[str], seen: str | None = None) -> Any:
    answer = client.simulate_get("/poll", query_string=address(asked, seen))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json) == ["revision", "age", "nodes", "faults"]
    return answer.json


def changed(client: Client, asked: Sequence[str], seen: str) -> set[str]:
    """Return the nodes that are sent to a client that has seen a revision."""
    answer = poll(client, asked, seen)
    return {*answer["nodes"], *answer["faults"]}


def read(client: Client, path: str) -> bytes:
    answer = client.simulate_get(href(path))
    assert answer.status_code == 200
    return bytes(answer.content)


def test_a_poll_shows_each_node_as_its_own_address_does(client: Client) -> None:
    asked = [*DOCUMENTS, STEP, "state/stage", "state/metrics", "artifacts/checkpoints", "control/pause", "", "state/"]
    answer = poll(client, asked)
    assert list(answer["nodes"]) == asked
    assert answer["faults"] == {}
    assert answer["age"] == 0
    for node, found in answer["nodes"].items():
        alone = client.simulate_get(f"/files/{node}")
        assert found == (alone.json if alone.headers["content-type"] == "application/json" else alone.text), node


def test_a_document_is_sent_byte_for_byte(client: Client) -> None:
    for node in (*DOCUMENTS, "state/metrics", "control/errors.json"):
        answer = client.simulate_get("/poll", query_string=address([node]))
        assert f'"nodes": {{"{node}": '.encode() + read(client, node) + b'}, "faults": {}}' in answer.content


def test_numbers_that_json_lacks_are_marked_inside_their_document(client: Client) -> None:
    nodes = poll(client, ["state/index.json", "state/metrics/index.json"])["nodes"]
    assert nodes["state/index.json"]["_nonfinite"] == {"/metrics/odd": "Infinity"}
    assert nodes["state/index.json"]["metrics"]["odd"] is None
    assert nodes["state/metrics/index.json"]["_nonfinite"] == {"/not a number": "NaN"}


def test_only_what_has_changed_is_sent(client: Client, root: Root) -> None:
    asked = ["state/status", STEP, "state/nothing", "state/index.json"]
    first = poll(client, asked)["revision"]
    assert changed(client, asked, first) == set()
    root.state.step += 1
    wait_until(lambda: changed(client, asked, first) == {STEP})
    second = poll(client, asked, first)
    assert second["nodes"] == {STEP: "8\n"}
    assert second["revision"] != first
    assert changed(client, asked, second["revision"]) == set()
    root.state.step -= 1
    wait_until(lambda: poll(client, asked)["revision"] == first)


def test_a_node_that_comes_and_goes_is_sent_both_times(client: Client, root: Root) -> None:
    asked = ["commands/c2/command.json", "state/status"]
    there = poll(client, asked)["revision"]
    command = root.commands.listed.pop("c2")
    wait_until(lambda: changed(client, asked, there) == {asked[0]})
    gone = poll(client, asked, there)
    assert gone["nodes"] == {}
    assert gone["faults"][asked[0]]["status"] == 404
    assert changed(client, asked, gone["revision"]) == set(), "a fault that stays is told once"
    root.commands.listed["c2"] = command
    wait_until(lambda: changed(client, asked, gone["revision"]) == {asked[0]})
    assert poll(client, asked)["revision"] == there


def test_an_answer_with_nothing_new_is_tiny(client: Client) -> None:
    seen = poll(client, DOCUMENTS)["revision"]
    answer = client.simulate_get("/poll", query_string=address(DOCUMENTS, seen))
    assert answer.json == {"revision": seen, "age": 0, "nodes": {}, "faults": {}}
    assert len(DOCUMENTS) == 8
    assert len(answer.content) < 150
    most = [f"state/metrics/m{number}" for number in range(MOST_NODES)]
    assert len(poll(client, most)["revision"]) < 600, "it fits an address"


def test_a_revision_of_anything_else_than_these_nodes_in_this_order_is_as_none(client: Client) -> None:
    asked = ["state/stage", "artifacts/snapshots.json", STEP]  # none of which changes
    revision = poll(client, asked)["revision"]
    others = [
        asked[::-1],
        asked[:2],
        asked[:1],
        [*asked, "state/status"],
        ["state/%73tage", *asked[1:]],
    ]
    for seen in (poll(client, other)["revision"] for other in others):
        assert changed(client, asked, seen) == set(asked)
    malformed = ["", "x", revision[:-1], revision + "x", revision.swapcase(), "é✓" * 12, "\0" * len(revision), "%ff"]
    for seen in malformed:
        assert changed(client, asked, seen) == set(asked), seen
    assert changed(client, asked, revision) == set()


def test_a_revision_of_another_run_is_as_none(client: Client, site: Site) -> None:
    revision = poll(client, DOCUMENTS)["revision"]
    for run in ({"id": "run-2", "dir": "/data/run"}, {"id": "run-1", "dir": "/data/other"}):
        site.run = run
        assert changed(client, DOCUMENTS, revision) == set(DOCUMENTS)
    site.run = {"id": "run-1", "dir": "/data/run"}
    assert changed(client, DOCUMENTS, revision) == set()


def test_a_server_that_starts_again_goes_on_from_its_predecessor_s_revision(client: Client) -> None:
    revision = poll(client, DOCUMENTS)["revision"]
    with shown(Root()) as later:
        successor = Client(make_app(later, Hosts.of_machine({}, "", ())))
        assert changed(successor, DOCUMENTS, revision) == set()


@pytest.mark.parametrize(
    ("node", "status"),
    [
        ("state/nothing", 404),
        ("nothing/at/all", 404),
        ("/state/status", 404),
        ("state//status", 404),
        ("state/status/", 404),
        ("../state/status", 404),
        ("state/%2e%2e/state/status", 404),
        ("state/status%00", 404),
        ("state/status\0", 404),
        ("state/%ff", 404),
        ("state/\ufffd", 404),
        ("state/status?format=tree", 404),
        ("state/status#top", 404),
        ("http://127.0.0.1/files/state/status", 404),
        ("artifacts/checkpoints/last.ckpt", 404),
        ("broken/fault", 500),
        ("broken/mistake", 500),
    ],
)
def test_a_node_that_can_t_be_shown_is_a_fault_beside_the_others(client: Client, node: str, status: int) -> None:
    answer = poll(client, ["state/status", node, "state/optimizers.json"])
    assert answer["nodes"] == {"state/status": "running\n", "state/optimizers.json": {"lr": [0.1, 0.01]}}
    assert list(answer["faults"]) == [node]
    assert answer["faults"][node]["status"] == status
    alone = client.simulate_get(f"/files/{quote(node, safe='/%')}")
    assert answer["faults"][node] == {"status": alone.status_code, "detail": alone.json["detail"]}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_of_any_name_is_found_by_the_end_of_its_address(client: Client, name: str) -> None:
    node = href(f"state/metrics/{names.escape(name)}").removeprefix("/files/")
    answer = poll(client, [node])
    assert answer["nodes"] == {node: f"{METRICS[name]}\n"}
    assert client.simulate_get(f"/files/{node}").text == answer["nodes"][node]


@pytest.mark.parametrize(
    ("sent", "node", "there"),
    [
        # What is asked for, as it is on the wire; its name in the answer; whether /files/ has a node of that name.
        ("state/metrics/train%252Floss", "state/metrics/train%2Floss", True),
        ("state/metrics/train%25252Floss", "state/metrics/train%252Floss", True),
        ("state%2Fmetrics%2Ftrain%252Floss", "state/metrics/train%2Floss", True),
        ("state/metrics/train%252floss", "state/metrics/train%2floss", True),
        ("state/metrics/train%2Floss", "state/metrics/train/loss", False),
        ("state/metrics/train%2525252Floss", "state/metrics/train%25252Floss", False),
        ("state/metrics/na%C3%AFve+%E2%9C%93", "state/metrics/naïve ✓", True),
        ("state/metrics/na%25C3%25AFve%2520%25E2%259C%2593", "state/metrics/na%C3%AFve%20%E2%9C%93", True),
        ("state/metrics/what%3F%23%3B%3D%26%2B%20%5C", "state/metrics/what?#;=&+ \\", True),
    ],
)
def test_a_name_is_decoded_as_an_argument_first_and_then_as_an_address(
    client: Client, sent: str, node: str, there: bool
) -> None:
    answer = client.simulate_get("/poll", query_string=f"node={sent}").json
    assert {*answer["nodes"], *answer["faults"]} == {node}
    assert (node in answer["nodes"]) is there
    alone = client.simulate_get(f"/files/{quote(node, safe='/%')}")
    assert (alone.status_code == 200) is there


def test_signs_that_nobody_encoded_are_utf_8(client: Client) -> None:
    wire = "node=state/metrics/naïve%20✓".encode().decode("latin-1")
    assert client.simulate_get("/poll", extras={"QUERY_STRING": wire}).json["nodes"] == {
        "state/metrics/naïve ✓": "2.0\n"
    }


def test_a_node_asked_for_twice_is_sent_once_and_under_each_of_its_spellings(client: Client) -> None:
    answer = client.simulate_get("/poll", query_string=address([STEP, STEP, "state/%67lobal-step"]))
    assert answer.text.count(f'"{STEP}"') == 1
    assert answer.json["nodes"] == {STEP: "7\n", "state/%67lobal-step": "7\n"}
    spelt = "state/optimizers%2Ejson"
    assert poll(client, [spelt])["nodes"][spelt] == {"lr": [0.1, 0.01]}, "a document, however it is asked for"


def test_a_live_file_is_refused_and_not_made(client: Client, root: Root) -> None:
    live = ["model/summary-live.txt", "model/graph.dot"]
    for _ in range(2):
        answer = poll(client, [*live, "state/status"])
        assert answer["nodes"] == {"state/status": "running\n"}
        for node in live:
            assert answer["faults"][node]["status"] == 409
            assert f"GET /files/{node}" in answer["faults"][node]["detail"]
    assert root.model.pending.empty()


def test_a_stuck_node_is_a_fault_when_its_time_is_up_and_the_others_are_there(
    client: Client, root: Root, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.view, "read", partial(site.view.read, patience=0.1))
    root.state.stuck = Later()
    answer = poll(client, ["state/index.json", "state/status", "model/busy"])
    assert answer["nodes"] == {"state/status": "running\n"}
    assert {node: fault["status"] for node, fault in answer["faults"].items()} == {
        "state/index.json": 504,
        "model/busy": 504,
    }
    assert "did not answer within 0.1 s" in answer["faults"]["model/busy"]["detail"]
    assert changed(client, ["state/index.json"], poll(client, ["state/index.json"])["revision"]) == set()
    root.state.stuck.set_result({})
    root.model.pending.get(timeout=10).set_result("made")


def test_all_nodes_are_waited_for_at_once(client: Client, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [f"state/metrics/{name}" for name in ("plain", "train%252Floss", "what%3F%23%3B=&+%20%5C")]
    waiting: set[str] = set()
    all_wait = trio.Event()
    read = site.view.read

    async def meet(path: str) -> Any:
        waiting.add(path)
        if len(waiting) == len(asked):
            all_wait.set()
        with trio.move_on_after(10):
            await all_wait.wait()
        return await read(path)

    monkeypatch.setattr(site.view, "read", meet)
    assert set(poll(client, asked)["nodes"]) == set(asked)
    assert all_wait.is_set()


def test_what_is_at_hand_is_shown_without_a_hop(client: Client, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.view, "_now", lambda: 0.0)  # so that all which is kept stays current
    first = poll(client, DOCUMENTS)

    def ask(question: object) -> object:
        raise AssertionError("it was at hand")

    monkeypatch.setattr(site, "ask", ask)
    assert poll(client, DOCUMENTS) == first


def test_the_age_is_that_of_the_oldest_node_and_no_change(
    client: Client, root: Root, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(site.view, "_now", lambda: now)
    root.model.at_once = True
    asked = ["state/status", "model/busy"]
    first = poll(client, asked)
    root.model.at_once = False
    now += CURRENT_FOR + 2.5
    late = poll(client, asked, first["revision"])
    assert (late["age"], late["nodes"], late["revision"]) == (2.6, {}, first["revision"])
    root.model.pending.get(timeout=10).set_result("made")
    wait_until(lambda: poll(client, asked)["age"] == 0)


@pytest.mark.parametrize(
    ("query", "place", "kind"),
    [
        ("", "node", "missing"),
        ("seen=x", "node", "missing"),
        ("&".join(f"node=n{number}" for number in range(MOST_NODES + 1)), "node", "repeated"),
        ("node=state&seen=a&seen=a", "seen", "repeated"),
        (f"node=state&seen={'x' * 1025}", "seen", "string_too_long"),
        ("node=state&format=list", "format", "extra_forbidden"),
        ("node=state&nodes=state", "nodes", "extra_forbidden"),
        ("node=x&" * 101, "", "too_long"),
    ],
)
def test_what_is_no_poll_gets_422_with_its_place(client: Client, query: str, place: str, kind: str) -> None:
    answer = client.simulate_get("/poll", query_string=query)
    assert answer.status_code == 422
    (error,) = answer.json["detail"]
    assert error["loc"] == ["query", place]
    assert error["type"] == kind
    assert error["msg"]


def test_as_many_nodes_as_may_be_are_polled(client: Client) -> None:
    asked = [f"state/metrics/m{number}" for number in range(MOST_NODES)]
    assert set(poll(client, asked)["faults"]) == set(asked)


def test_head_is_get_without_the_body(client: Client) -> None:
    query = address(["state/index.json", "state/nothing"])
    get, head = (ask("/poll", query_string=query) for ask in (client.simulate_get, client.simulate_head))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers == get.headers
    assert head.headers["content-length"] == str(len(get.content))
    assert client.simulate_head("/poll").status_code == 422


def test_a_face_that_closes_answers_so(app: falcon.App[falcon.Request, falcon.Response], site: Site) -> None:
    site._loop.run_sync_soon(site.close)
    assert Client(app).simulate_get("/poll", query_string=address(DOCUMENTS)).status_code == 410


def test_the_document_tells_what_a_poll_takes(client: Client) -> None:
    operation = client.simulate_get("/openapi.json").json["paths"]["/poll"]["get"]
    node, seen = (one for one in operation["parameters"] if one["in"] == "query")
    assert (node["name"], node["required"], node["explode"]) == ("node", True, True)
    assert node["schema"]["type"] == "array"
    assert (node["schema"]["minItems"], node["schema"]["maxItems"]) == (1, MOST_NODES)
    assert (seen["name"], seen["required"], seen["schema"]) == ("seen", False, {"type": "string", "maxLength": 1024})
    shown = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert set(shown["properties"]) == set(shown["required"]) == {"revision", "age", "nodes", "faults"}


def test_a_poll_goes_through_a_real_server() -> None:
    with serving(Root()) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        try:
            connection.request("GET", f"/poll?{address([*DOCUMENTS, 'state/metrics/train%2Floss'])}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
    assert len(answer["nodes"]) == 9


def test_only_so_many_polls_wait_at_once_that_workers_are_left_for_others(
    client: Client, root: Root, site: Site
) -> None:
    assert POLLERS + LIVE_READERS < WORKERS
    root.state.stuck = Later()
    query = address(["state/index.json"])
    answers: list[falcon.testing.Result] = []
    ask = partial(client.simulate_get, "/poll", query_string=query)
    pollers = [threading.Thread(target=lambda: answers.append(ask())) for _ in range(POLLERS)]
    for poller in pollers:
        poller.start()
    wait_until(lambda: site.polling == POLLERS)
    one_more = ask()
    assert one_more.status_code == 503
    assert one_more.json == {"detail": f"the run is slow to answer, and {POLLERS} polls wait for it: try again"}
    assert int(one_more.headers["retry-after"]) > 0
    assert client.simulate_get("/files/state/status").status_code == 200, "other requests are not held up"
    root.state.stuck.set_result({})
    for poller in pollers:
        poller.join(10)
    assert [answer.status_code for answer in answers] == [200] * POLLERS
    assert site.polling == 0
    assert ask().status_code == 200
