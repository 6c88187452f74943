from __future__ import annotations

import pytest

from tests.web.conftest import Client

LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
OWN = "http://127.0.0.1:8090"
CONTROL = "/files/control/pause"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/run", {}),  # curl
        ("POST", CONTROL, {}),  # curl -X POST
        ("GET", "/run", {"Sec-Fetch-Site": "same-origin"}),  # our page
        ("POST", CONTROL, {"Sec-Fetch-Site": "same-origin", "Origin": OWN}),
        ("GET", "/run", {**LINK, "Sec-Fetch-Site": "none"}),  # the address bar
        ("GET", "/", LINK),  # a link in a chat
        ("HEAD", "/", LINK),
        ("GET", "/docs", LINK),
        ("POST", CONTROL, {"Origin": OWN}),  # http to another machine: browsers leave Sec-Fetch-* out
        ("POST", CONTROL, {"Origin": OWN.upper()}),
        ("POST", CONTROL, {"Origin": "https://127.0.0.1:8090"}),  # a proxy that speaks TLS and passes the Host on
        ("POST", CONTROL, {"Origin": "https://proxy.example.org"}),  # one that does not pass it on, but is allowed
    ],
)
def test_our_own_pages_links_to_pages_and_clients_that_are_no_browsers_are_let_in(
    client: Client, method: str, path: str, headers: dict[str, str]
) -> None:
    assert client.simulate_request(method, path, headers=headers).status_code == 200


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "Same-Origin"},
        {"Sec-Fetch-Site": ""},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:9000"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:9000"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "file://127.0.0.1:8090"},
        {"Origin": "127.0.0.1:8090"},
        {"Origin": "http://localhost:8090"},
        {"Origin": "http://proxy.example.org:9000"},
        {"Origin": "http://127.0.0.1:8090.evil.example"},
        {"Origin": "http://evil.example, http://127.0.0.1:8090"},
        LINK,
        {**LINK, "Sec-Fetch-Dest": "iframe"},
    ],
)
@pytest.mark.parametrize("path", ["/run", CONTROL])
def test_a_page_of_another_site_gets_403_whatever_it_asks(
    client: Client, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = client.simulate_request(method, path, headers=headers)
    assert answer.status_code == 403
    if method != "HEAD":
        assert answer.json["detail"].startswith("a page of another site asked")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {**LINK, "Sec-Fetch-Dest": "iframe"}),
        ("GET", "/", {**LINK, "Sec-Fetch-Mode": "no-cors"}),
        ("POST", "/", LINK),
        ("GET", "/openapi.json", LINK),
        (
            "GET",
            "/static/page.js",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
        ),
    ],
)
def test_only_a_link_to_a_page_may_come_from_another_site(
    client: Client, method: str, path: str, headers: dict[str, str]
) -> None:
    assert client.simulate_request(method, path, headers=headers).status_code == 403


def test_a_rebound_name_is_refused_by_its_host_before_anything_else(client: Client) -> None:
    headers = {"Host": "evil.example:8090", "Origin": "http://evil.example:8090", "Sec-Fetch-Site": "same-origin"}
    assert client.simulate_post(CONTROL, headers=headers).status_code == 400


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "application/json", None, "x"])
def test_a_client_that_is_no_browser_may_name_its_document_as_it_likes(client: Client, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = client.simulate_post("/files/control/set_learning_rate", body='{"value": 1}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("headers", [{"Origin": OWN}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Mode": "cors"}])
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("text/plain", 415),
        ("text/plain; application/json", 415),
        (None, 415),
    ],
)
def test_a_browser_s_document_is_json_or_it_is_refused(
    client: Client, headers: dict[str, str], kind: str | None, status: int
) -> None:
    sent = {**headers, **({"Content-Type": kind} if kind else {})}
    answer = client.simulate_post("/files/control/set_learning_rate", body='{"value": 1}', headers=sent)
    assert answer.status_code == status
    assert client.simulate_post(CONTROL, headers=headers).status_code == 200, "no body, no type"


@pytest.mark.parametrize("path", ["/run", "/files/state/status", "/nothing", "/", "/docs", "/static/page.js"])
def test_every_answer_tells_browsers_to_be_strict(client: Client, path: str) -> None:
    headers = client.simulate_get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
