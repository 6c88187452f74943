"""The points of a run, as charts and scripts ask for them."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from midrun.fs.curves import Name
from midrun.fs.segments import Segment
from midrun.web import history
from tests.web.conftest import Client
from tests.web.sample import Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(directory=str(tmp_path))


def points(client: Client, **query: str) -> list[dict[int, float]]:
    answer = client.simulate_get("/history", params=query)
    assert answer.status_code == 200, answer.json
    return [dict(zip(attempt["steps"], attempt["values"], strict=True)) for attempt in answer.json["attempts"]]


def test_without_a_name_it_is_said_what_there_is(client: Client) -> None:
    assert client.simulate_get("/history").json == {"names": {"loss": {"rows": 14, "segments": ["0001", "0002"]}}}


def test_the_points_of_a_name_are_those_of_every_session(client: Client) -> None:
    found = client.simulate_get("/history", params={"name": "loss"}).json
    assert (found["name"], found["rows"], found["exact"]) == ("loss", 14, True)
    first, second = found["attempts"]
    assert (first["segment"], first["function"], first["started"]) == ("0001", "fit", 1000.0)
    assert first["steps"] == list(range(10))
    assert first["times"] == [1000.0 + step for step in range(10)]
    assert second["values"] == [6 + step / 8 for step in range(6, 10)]


def test_a_range_a_number_of_points_and_the_last_of_duplicates_may_be_asked_for(client: Client) -> None:
    assert points(client, name="loss", **{"from": "2", "to": "3"}) == [{2: 0.25, 3: 0.375}]
    assert points(client, name="loss", **{"from": "0", "to": "0"}) == [{0: 0.0}]
    assert points(client, name="loss", **{"from": "9", "to": "2"}) == []
    last = points(client, name="loss", duplicates="last")
    assert [list(attempt) for attempt in last] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    few = client.simulate_get("/history", params={"name": "loss", "points": "2"}).json
    assert not few["exact"]
    assert [attempt["steps"] for attempt in few["attempts"]] == [[0, 9], [6, 9]]


def test_nan_and_infinity_are_said_as_in_every_document(client: Client, tmp_path: Path) -> None:
    odd = Segment(tmp_path / "history", "fit", 1000.0, 0)
    odd.append(("odd",), [1, 2, 3], [1.0, 2.0, 3.0], [[math.nan], [-math.inf], [1.5]])
    odd.flush()
    found = client.simulate_get("/history", params={"name": "odd"}).json
    assert found["attempts"][0]["values"] == [None, None, 1.5]
    assert found["_nonfinite"] == {"/attempts/0/values/0": "NaN", "/attempts/0/values/1": "-Infinity"}


@pytest.mark.parametrize("name", ["train/loss", "größe", "a&b=c", "100%", " ", "../secret"])
def test_a_name_may_have_anything_in_it(client: Client, tmp_path: Path, name: str) -> None:
    odd = Segment(tmp_path / "history", "fit", 1000.0, 0)
    odd.append((name,), [1], [1.0], [[2.0]])
    odd.flush()
    assert points(client, name=name) == [{1: 2.0}]


def test_an_unknown_name_is_404_with_the_one_that_was_meant(client: Client) -> None:
    answer = client.simulate_get("/history", params={"name": "los"})
    assert answer.status_code == 404
    assert answer.json == {"detail": "there is no history of 'los': did you mean 'loss'?"}
    answer = client.simulate_get("/history", params={"name": "entropy"})
    assert answer.json == {"detail": "there is no history of 'entropy': without a name it is said what there is"}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"from": "-1"}, "expected a whole number from 0 on, not '-1'"),
        ({"to": "1e3"}, "expected a whole number from 0 on, not '1e3'"),
        ({"points": "0"}, "expected a whole number from 1 to 99999, not '0'"),
        ({"points": "100000"}, "expected a whole number from 1 to 99999, not '100000'"),
        ({"duplicates": "first"}, "expected both or last, not 'first'"),
        ({"since": "1"}, "unknown query argument: expected name, from, to, points, duplicates"),
    ],
)
def test_what_is_asked_wrongly_is_422(client: Client, query: dict[str, str], message: str) -> None:
    answer = client.simulate_get("/history", params={"name": "loss", **query})
    assert answer.status_code == 422
    assert [error["msg"] for error in answer.json["detail"]] == [message]
    assert answer.json["detail"][0]["loc"] == ["query", *query]


def test_a_run_whose_history_is_gone_has_none(client: Client, tmp_path: Path) -> None:
    (tmp_path / "history").rename(tmp_path / "aside")
    assert client.simulate_get("/history").json == {"names": {}}
    assert client.simulate_get("/history", params={"name": "loss"}).status_code == 404


def test_a_file_of_it_that_is_damaged_is_503_and_a_part_of_a_row_is_no_row(client: Client, tmp_path: Path) -> None:
    [file] = (tmp_path / "history" / "0002").glob("*.rows")
    with file.open("ab") as rows:
        rows.write(b"\x01\x02")
    assert client.simulate_get("/history", params={"name": "loss"}).json["rows"] == 14
    file.unlink()
    file.mkdir()
    answer = client.simulate_get("/history", params={"name": "loss"})
    assert answer.status_code == 503
    assert "the history can't be read now" in answer.json["detail"]


def test_a_disk_that_does_not_answer_leaves_workers_for_all_else(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def stuck(_: Path) -> dict[str, Name]:
        assert answers.wait(20)
        return {}

    monkeypatch.setattr(history, "names_in", stuck)
    monkeypatch.setattr(history, "_PATIENCE", 0.2)
    with ThreadPoolExecutor(8) as workers:
        asked = [workers.submit(client.simulate_get, "/history") for _ in range(8)]
        done, _ = wait(asked, timeout=20, return_when=FIRST_COMPLETED)
        time.sleep(0.5)
        refused = [one.result() for one in asked if one.done()]
        answers.set()
    assert len(done) <= len(refused) == 4
    assert {answer.status_code for answer in refused} == {503}
    assert "the disk does not answer" in refused[0].json["detail"]
    assert [one.result().status_code for one in asked].count(200) == 4
