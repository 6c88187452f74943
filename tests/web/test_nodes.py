from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from midrun.fs import names
from midrun.fs.render import render
from midrun.fs.tree import Dir, Leaf, Link
from midrun.fs.view import CURRENT_FOR
from midrun.web import nodes
from midrun.web.nodes import href
from midrun.web.site import Site
from tests.web.conftest import Client
from tests.web.sample import METRICS, Root, wait_until


def walk(directory: Dir, path: str = "") -> Iterator[tuple[str, Dir | Leaf | Link]]:
    for name, node in directory:
        below = f"{path}/{name}" if path else name
        yield below, node
        if isinstance(node, Dir):
            yield from walk(node, below)


def test_every_file_s_answer_is_its_very_bytes(client: Client, root: Root) -> None:
    seen = 0
    for path, node in walk(root):
        if not isinstance(node, Leaf) or node.live or path.startswith(("broken/", "model/busy")):
            continue
        expected = render(path.rpartition("/")[2], node.show())
        answer = client.simulate_get(href(path))
        assert answer.status_code == 200, path
        assert answer.content == expected, path
        assert answer.headers["content-length"] == str(len(expected))
        assert answer.headers["cache-control"] == "no-store"
        kind = "application/json" if path.endswith(".json") else "text/plain; charset=utf-8"
        assert answer.headers["content-type"] == kind
        assert "x-midrun-age" not in answer.headers
        seen += 1
    assert seen > 20


def test_every_node_s_href_leads_to_it(client: Client, root: Root) -> None:
    whole = client.simulate_get("/files", params={"format": "tree"}).json
    pending, paths = list(whole["entries"]), set()
    while pending:
        entry = pending.pop()
        pending += entry.get("entries", [])
        answer = client.simulate_request("OPTIONS", entry["href"])
        assert answer.status_code == 200, entry
        assert ("POST" in answer.headers["allow"]) is entry["writable"]
        paths.add(entry["href"])
    assert paths == {href(path) for path, _ in walk(root)}


def test_a_directory_is_a_list_of_its_entries(client: Client) -> None:
    for address in ("/files/artifacts", "/files/artifacts/", "/files/artifacts?format=list"):
        answer = client.simulate_get(address).json
        assert [entry["name"] for entry in answer["entries"][1:4]] == [
            *("checkpoints.json", "resumable.json", "snapshots.json"),
        ]
        assert answer | {"entries": [answer["entries"][0], answer["entries"][4]]} == {
            "path": "artifacts",
            "entries": [
                {
                    "name": "index.json",
                    "kind": "file",
                    "href": "/files/artifacts/index.json",
                    "live": False,
                    "writable": False,
                    "target": None,
                },
                {
                    "name": "checkpoints",
                    "kind": "link",
                    "href": "/files/artifacts/checkpoints",
                    "live": False,
                    "writable": False,
                    "target": "/data/run/artifacts/checkpoints",
                },
            ],
        }


@pytest.mark.parametrize("address", ["/files", "/files/"])
def test_the_root_is_a_directory_too(client: Client, address: str) -> None:
    answer = client.simulate_get(address).json
    assert answer["path"] == ""
    assert [entry["name"] for entry in answer["entries"]] == [
        "state",
        "model",
        "debug",
        "control",
        "commands",
        "holds",
        "artifacts",
        "history",
        "broken",
    ]


def test_a_tree_is_shown_whole_and_no_live_file_is_made_for_it(client: Client, root: Root) -> None:
    answer = client.simulate_get("/files", params={"format": "tree"}).json
    model = next(entry for entry in answer["entries"] if entry["name"] == "model")
    assert [(entry["name"], entry["live"]) for entry in model["entries"]] == [
        ("summary-live.txt", True),
        ("graph.dot", True),
        ("busy", False),
        ("big.txt", False),
        ("inspectors", False),
    ]
    assert root.model.pending.empty()


def test_a_tree_too_large_to_show_whole_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LARGEST_TREE", 10)
    answer = client.simulate_get("/files", params={"format": "tree"})
    assert answer.status_code == 409
    assert "more than 10 entries" in answer.json["detail"]


def test_a_link_is_shown_with_its_target(client: Client) -> None:
    assert client.simulate_get("/files/artifacts/checkpoints").json == {
        "path": "artifacts/checkpoints",
        "name": "checkpoints",
        "kind": "link",
        "href": "/files/artifacts/checkpoints",
        "live": False,
        "writable": False,
        "target": "/data/run/artifacts/checkpoints",
    }
    assert client.simulate_get("/files/artifacts/checkpoints/last.ckpt").status_code == 404


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_found_by_its_encoded_name_and_by_its_encoded_file_name(client: Client, name: str) -> None:
    expected = render("x", METRICS[name])
    file_name = names.escape(name)
    assert client.simulate_get("/files/state/metrics/" + quote(file_name, safe="")).content == expected
    if "/" in name or name in {".", ".."} or any(ord(character) < 32 for character in name):
        assert (
            client.simulate_get("/files/state/metrics/" + quote(name, safe="").replace(".", "%2E")).content == expected
        )


def test_a_slash_in_a_name_is_encoded_once_or_twice(client: Client) -> None:
    for address in ("train%2Floss", "train%252Floss", "train%2floss"):
        answer = client.simulate_get(f"/files/state/metrics/{address}")
        assert (answer.status_code, answer.content) == (200, b"0.25\n")
    assert client.simulate_get("/files/state/metrics/train/loss").status_code == 404
    assert client.simulate_get("/files/state/metrics/train%25252Floss").status_code == 404


@pytest.mark.parametrize(
    "address",
    [
        "/files/..",
        "/files/../files/state/status",
        "/files/state/../state/status",
        "/files/./state/status",
        "/files/%2e%2e/%2e%2e/etc/passwd",
        "/files/..%2f..%2fetc%2fpasswd",
        "/files/%252e%252e/etc/passwd",
        "/files//etc/passwd",
        "/files///state/status",
        "/files/state//status",
        "/files/state/status/",
        "/files/state/status//",
        "/files/state/metrics//",
        "/files/state%2Fstatus",
        "/files%2Fstate%2Fstatus",
        "/files/state/status%00",
        "/files/state/status%00.json",
        "/files/state/status%0d%0aX-Evil:%201",
        "/files/state/status%0a",
        "/files/state/%",
        "/files/state/%zz",
        "/files/state/%ff",
        "/files/state/%c3%28",
        "/files/state/%ed%a0%80",
        "/files/state/status;x=1",
        "/files/state/status%3Fformat=tree",
        "/files/state/" + "x" * 5000,
        "/files/" + "state/" * 500,
        "/files/~",
        "/files/C:%5Cwindows",
        "/files/nothing",
        "/filesx",
        "/Files",
    ],
)
def test_what_is_no_node_s_path_is_not_found(client: Client, address: str) -> None:
    for method in ("GET", "OPTIONS"):
        answer = client.simulate_request(method, address)
        assert answer.status_code == 404, method
        assert answer.headers["content-type"] == "application/json"
        assert isinstance(answer.json["detail"], str)
        assert "x-evil" not in answer.headers


def test_a_path_is_taken_from_a_whole_address_too(client: Client) -> None:
    answer = client.simulate_get(
        "/files/state/status", extras={"RAW_URI": "http://127.0.0.1:8090/files/state/status?#x"}
    )
    assert answer.content == b"running\n"


def test_a_control_file_takes_a_document_or_a_bare_value_and_answers_what_came_of_it(
    client: Client, root: Root
) -> None:
    for body in ('{"value": 0.5}', "0.5", " 0.5\n"):
        answer = client.simulate_post("/files/control/set_learning_rate", body=body)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.json == {"id": "c1", "value": 0.5}
    assert root.control.rates == [0.5, 0.5, 0.5]
    for blank in ("", "\n", " \t\r\n"):
        assert client.simulate_post("/files/control/pause", body=blank).json == "held", "as a shell writes nothing"
    assert b"Set the learning rate" in client.simulate_get("/files/control/set_learning_rate").content


@pytest.mark.parametrize(
    "body", ["", " \n", "{}", '{"value": "0.5"}', '{"value": 0.5, "other": 1}', "{", "[]", "null", "\xff"]
)
def test_wrong_arguments_are_listed_and_change_nothing(client: Client, root: Root, body: str) -> None:
    answer = client.simulate_post("/files/control/set_learning_rate", body=body.encode("latin-1"))
    assert answer.status_code == 422
    assert answer.json["detail"]
    assert all(error["loc"][0] == "body" and error["msg"] and error["type"] for error in answer.json["detail"])
    assert root.control.rates == []


def test_a_refusal_of_the_run_is_a_conflict_with_its_reason(client: Client) -> None:
    answer = client.simulate_post("/files/control/refuse")
    assert (answer.status_code, answer.json) == (409, {"detail": "the run has stopped"})


@pytest.mark.parametrize(
    "address", ["/files/state/status", "/files/state", "/files/artifacts/checkpoints", "/files/state/"]
)
def test_what_is_read_only_does_not_take_post_and_says_what_it_takes(client: Client, address: str) -> None:
    answer = client.simulate_post(address, body="{}")
    assert answer.status_code in {404, 405} if address.endswith("/") else answer.status_code == 405
    if answer.status_code == 405:
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
        assert answer.json["detail"]


def test_a_node_that_breaks_tells_its_reason(client: Client) -> None:
    answer = client.simulate_get("/files/broken/fault")
    assert (answer.status_code, answer.json) == (500, {"detail": "the disk is gone"})
    answer = client.simulate_get("/files/broken/mistake")
    assert answer.status_code == 500
    assert "ZeroDivisionError" in answer.json["detail"]
    assert "Traceback" not in answer.text


def test_a_number_that_json_lacks_is_null_with_a_mark(client: Client) -> None:
    answer = client.simulate_get("/run").json
    assert answer["metrics"]["odd"] is None
    assert answer["_nonfinite"] == {"/metrics/odd": "Infinity"}
    assert math.isnan(METRICS["not a number"])
    assert client.simulate_get("/files/state/metrics/not%20a%20number").content == b"nan\n"


def test_a_value_of_a_run_that_does_not_answer_says_how_old_it_is(client: Client, root: Root) -> None:
    root.model.at_once = True
    assert "x-midrun-age" not in client.simulate_get("/files/model/busy").headers
    root.model.at_once = False
    time.sleep(CURRENT_FOR)  # for so long a value is current, whatever the run does
    answer = client.simulate_get("/files/model/busy")
    assert answer.content == b"made\n"
    assert float(answer.headers["x-midrun-age"]) >= CURRENT_FOR
    root.model.pending.get(timeout=10).set_result("made again")
    wait_until(lambda: client.simulate_get("/files/model/busy").content == b"made again\n")


def test_a_live_file_is_waited_for_and_a_third_reader_is_told_to_come_back(
    client: Client, root: Root, site: Site
) -> None:
    answers: list[Any] = []
    addresses = ("/files/model/summary-live.txt", "/files/model/graph.dot")
    readers = [
        threading.Thread(target=lambda address=address: answers.append(client.simulate_get(address)))
        for address in addresses
    ]
    for reader in readers:
        reader.start()
    wait_until(lambda: site.waiting == 2)
    third = client.simulate_get("/files/model/summary-live.txt")
    assert third.status_code == 503
    assert int(third.headers["retry-after"]) > 0
    assert client.simulate_get("/files/state/status").status_code == 200, "other files are not held up"
    for _ in addresses:
        root.model.pending.get(timeout=10).set_result("made")
    for reader in readers:
        reader.join(10)
    assert [answer.content for answer in answers] == [b"made\n", b"made\n"]
    wait_until(lambda: site.waiting == 0)


def test_a_live_reader_that_leaves_makes_room_for_another(client: Client, root: Root, site: Site) -> None:
    left = threading.Event()
    extras = {"waitress.client_disconnected": left.is_set}
    answers: list[Any] = []
    reader = threading.Thread(
        target=lambda: answers.append(client.simulate_get("/files/model/graph.dot", extras=extras))
    )
    reader.start()
    wait_until(lambda: site.waiting == 1)
    left.set()
    reader.join(10)
    assert site.waiting == 0
    assert answers[0].status_code == 410
    root.model.pending.get(timeout=10).set_result("made")
