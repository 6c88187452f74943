from __future__ import annotations

import socket
import threading

import pytest

from midrun.web.hosts import Hosts
from tests.web.conftest import Client

ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - a name here, not an address to bind
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


def of_machine(
    environ: dict[str, str] | None = None, rest_host: str = "127.0.0.1", allowed: tuple[str, ...] = ()
) -> Hosts:
    return Hosts.of_machine(environ or {}, rest_host, allowed)


@pytest.mark.parametrize(
    "header",
    [
        "localhost",
        "LocalHost:8090",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1:65535",
        "[::1]",
        "[::1]:8090",
        "[0:0:0:0:0:0:0:1]:8090",
        socket.gethostname(),
        f"{socket.gethostname().upper()}:8090",
    ],
)
def test_this_machine_s_names_are_accepted_with_any_port(header: str) -> None:
    assert of_machine().admits(header)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "evil.example",
        "evil.example:8090",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example#localhost",
        "evil.example@localhost",
        "localhost@evil.example",
        "user:pass@localhost",
        "localhost:99x",
        "localhost:",
        "localhost:123456",
        "localhost, evil.example",
        "localhost localhost",
        "localhost\t",
        "localhost\n",
        "::1",
        "[::1",
        "[::2]",
        "[::ffff:127.0.0.1]",
        "127.0.0.2",
        "127.1",
        "0x7f000001",
        "2130706433",
        ALL_INTERFACES,
        "[::]",
        "*",
        "lоcalhost",  # noqa: RUF001 - a Cyrillic o, on purpose
    ],
)
def test_every_other_name_is_refused(header: str | None) -> None:
    assert not of_machine().admits(header)


@pytest.mark.parametrize(
    ("rest_host", "header"),
    [("10.1.2.3", "10.1.2.3:8090"), ("train7", "TRAIN7"), ("2001:db8::7", "[2001:db8:0::7]:8090"), ("::1", "[::1]")],
)
def test_rest_host_is_accepted(rest_host: str, header: str) -> None:
    assert of_machine(rest_host=rest_host).admits(header)


@pytest.mark.parametrize("rest_host", [ALL_INTERFACES, "::", "0:0:0:0:0:0:0:0", "[::]"])
def test_rest_host_is_no_name_when_it_means_every_interface(rest_host: str) -> None:
    hosts = of_machine(rest_host=rest_host)
    assert not hosts.admits(ALL_INTERFACES)
    assert not hosts.admits("[::]")
    assert hosts.admits("127.0.0.1")


def test_the_fully_qualified_name_is_accepted_once_it_is_known_and_nothing_waits_for_it() -> None:
    known = threading.Event()

    def look_up() -> str:
        known.wait(30)
        return "train7.cluster.example."

    hosts = of_machine()
    thread = hosts.learn(look_up)
    assert not hosts.admits("train7.cluster.example:8090")
    known.set()
    thread.join(10)
    assert hosts.admits("train7.cluster.example:8090")


@pytest.mark.parametrize(
    ("connection", "header", "accepted"),
    [
        ("203.0.113.5 51000 192.0.2.8 22", "192.0.2.8:8090", True),
        ("203.0.113.5 51000 192.0.2.8 22", "203.0.113.5", False),
        ("2001:db8::1 51000 2001:db8::8 22", "[2001:db8::8]:8090", True),
        ("fe80::1%eth0 51000 fe80::8%eth0 22", "[fe80::8]:8090", True),
        ("", "192.0.2.8", False),
        ("192.0.2.8", "192.0.2.8", False),
    ],
)
def test_the_server_address_of_ssh_connection_is_accepted(connection: str, header: str, accepted: bool) -> None:
    assert of_machine({"SSH_CONNECTION": connection}).admits(header) is accepted


@pytest.mark.parametrize(
    "value", ["203.0.113.9,2001:db8::9", " 203.0.113.9 , 2001:db8::9 ", "203.0.113.9,2001:db8::9,"]
)
def test_addresses_of_the_whitelist_are_accepted(value: str) -> None:
    hosts = of_machine({"MIDRUN_WHITELIST_IP": value})
    assert hosts.admits("203.0.113.9:8090")
    assert hosts.admits("[2001:db8::9]:8090")
    assert not hosts.admits("203.0.113.10")


@pytest.mark.parametrize("value", ["", " ", ","])
def test_an_empty_whitelist_adds_nothing(value: str) -> None:
    assert of_machine({"MIDRUN_WHITELIST_IP": value}).admits("localhost")


@pytest.mark.parametrize(
    "entry",
    ["train7", "203.0.113.999", "203.0.113.9/24", "[2001:db8::9]", "203.0.113.9:8090", "203.0.113.9 10.0.0.1", "*"],
)
def test_a_whitelist_entry_that_is_no_address_is_quoted_and_explained(entry: str) -> None:
    with pytest.raises(ValueError, match="MIDRUN_WHITELIST_IP has the entry") as caught:
        of_machine({"MIDRUN_WHITELIST_IP": f"10.0.0.1,{entry}"})
    assert repr(entry) in str(caught.value)
    assert "203.0.113.9,2001:db8::9" in str(caught.value)


@pytest.mark.parametrize(
    ("allowed", "header"),
    [
        ("Proxy.Example.org", "proxy.example.org"),
        ("proxy.example.org:8443", "proxy.example.org:8443"),
        ("2001:db8::5", "[2001:db8::5]"),
        ("[2001:db8::5]", "[2001:db8::5]:80"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_names_of_rest_allowed_hosts_are_accepted(allowed: str, header: str) -> None:
    hosts = of_machine(allowed=(allowed,))
    assert hosts.admits(header)
    assert hosts.admits("localhost")


@pytest.mark.parametrize(
    "entry", ["", "http://proxy.example.org", "proxy.example.org/midrun", "*", "bücher.example", "a b"]
)
def test_an_allowed_host_that_is_no_name_is_quoted_and_explained(entry: str) -> None:
    with pytest.raises(ValueError, match="rest_allowed_hosts has the entry") as caught:
        of_machine(allowed=(entry,))
    assert ascii(entry) in str(caught.value)


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "path", ["/", "/docs", "/run", "/files/state/status", "/openapi.json", "/nothing", "/static/page.js"]
)
def test_the_host_is_checked_for_every_method_and_path(client: Client, method: str, path: str) -> None:
    answer = client.simulate_request(method, path, headers={"Host": "evil.example:8090"})
    assert answer.status_code == 400
    if method != "HEAD":
        assert answer.json["detail"].startswith("Invalid host header: 'evil.example:8090'")
    assert client.simulate_request(method, path).status_code != 400


def test_a_hostile_host_header_is_quoted_harmlessly(client: Client) -> None:
    header = "<script>alert(1)</script>" + "x" * 10_000
    answer = client.simulate_get("/", headers={"Host": header})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.content) < 400
