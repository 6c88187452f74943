from __future__ import annotations

import gc
import http.client
import json
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from midrun.fs.write import LONGEST_WRITE
from midrun.web import server
from midrun.web.gate import DEFAULTS, HEADERS
from tests.web.sample import Root, Served, serving, wait_until

ASK = b"GET /files/state/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LIVE = [
    b"GET /files/model/graph.dot HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /files/model/summary-live.txt HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
]
ESTABLISHED = "01"
"""In /proc/net/tcp."""


@pytest.fixture
def served(root: Root) -> Iterator[Served]:
    with serving(root) as served:
        yield served


@contextmanager
def connected(served: Served, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
        client.sendall(sent)
        yield client


class Answer:
    """One answer as it came over a socket."""

    def __init__(self, client: socket.socket, method: str = "GET") -> None:
        response = http.client.HTTPResponse(client, method=method)
        response.begin()
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()
        response.close()

    @property
    def detail(self) -> object:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)["detail"]


def ask(served: Served, sent: bytes, method: str = "GET") -> Answer:
    with connected(served, sent) as client:
        return Answer(client, method)


def is_over(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_serves_many_requests(served: Served) -> None:
    with connected(served) as client:
        for _ in range(5):
            client.sendall(ASK)
            answer = Answer(client)
            assert (answer.status, answer.body) == (200, b"running\n")
            assert "connection" not in answer.headers
            assert answer.headers["server"] == "midrun"


def test_requests_sent_at_once_are_answered_in_their_order(served: Served) -> None:
    requests = [b"/files/state/status", b"/nothing", b"/files/state/global-step", b"/files/state/status"]
    with connected(
        served, b"".join(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in requests)
    ) as client:
        received = client.makefile("rb")
        for expected in (b"running\n", None, b"7\n", b"running\n"):
            assert received.readline().startswith(b"HTTP/1.1 200" if expected else b"HTTP/1.1 404")
            length = 0
            while (line := received.readline()) != b"\r\n":
                if line.startswith(b"Content-Length:"):
                    length = int(line.partition(b":")[2])
            body = received.read(length)
            assert expected is None or body == expected
        received.close()


def test_head_sends_the_length_and_nothing_after_it(served: Served) -> None:
    with connected(served, ASK.replace(b"GET", b"HEAD") + ASK) as client:
        head = client.recv(1 << 16)
        while b"running" not in head:
            head += client.recv(1 << 16)
    first, _, rest = head.partition(b"\r\n\r\n")
    assert b"Content-Length: 8" in first
    assert rest.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        (b"/files/state/metrics/train%2Floss", 200, b"0.25\n"),
        (b"/files/state/metrics/train%252Floss", 200, b"0.25\n"),
        (b"/files/state/metrics/na%C3%AFve%20%E2%9C%93", 200, b"2.0\n"),
        ("/files/state/metrics/naïve%20✓".encode(), 200, b"2.0\n"),
        (b"/files/state/metrics/%2E%2E", 200, b"5.0\n"),
        (b"/files/state/metrics/..", 200, b"5.0\n"),
        (b"/files/state/metrics/nul%00", 200, b"10.0\n"),
        (b"/files/state/metrics/line%0D%0Afeed", 200, b"9.0\n"),
        (b"/files/state/metrics/%25", 200, b"7.0\n"),
        (b"/files/state/metrics/%2E%2E%2F%2E%2E%2Fetc%2Fpasswd", 200, b"8.0\n"),
        (b"http://127.0.0.1/files/state/status", 200, b"running\n"),
        (b"http://evil.example/files/state/status?#", 200, b"running\n"),
        (b"/files/state/status#x", 200, b"running\n"),
        (b"/files/state/\xff", 404, None),
        (b"/files/state/%FF", 404, None),
        (b"/files/../../../etc/passwd", 404, None),
        (b"/files/state/..%2f..%2f..%2fetc%2fpasswd", 404, None),
        (b"//files/state/status", 404, None),
        (b"/files//state/status", 404, None),
        (b"/static/..%2fface.py", 404, None),
        (b"/static/../face.py", 404, None),
        (b"/static/swagger%2fLICENSE", 404, None),
        (b"/static//etc/passwd", 404, None),
        (b"*", 404, None),
    ],
)
def test_a_name_is_decoded_once_and_never_leaves_the_tree(
    served: Served, target: bytes, status: int, body: bytes | None
) -> None:
    answer = ask(served, b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % target)
    assert answer.status == status
    if body is None:
        assert isinstance(answer.detail, str)
    else:
        assert answer.body == body


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /run\r\n\r\n", 400),
        (b"get /run HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /run HTTP/1.1\r\nHost localhost\r\n\r\n", 400),
        (b"GET /run HTTP/1.1\r\nHost: localhost\r\nA: b\nc\r\n\r\n", 400),
        (b"GET /run HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /run HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /run HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /run HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /run HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"BREW /run HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"WEBSOCKET /run HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /run HTTP/1.1\r\n\r\n", 400),
        (b"GET /run HTTP/1.0\r\n\r\n", 400),
        (b"GET /run HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /run HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /run HTTP/1.1\r\nHost: evil.example\r\n\r\n", 400),
    ],
)
def test_a_malformed_request_gets_an_error_in_json(served: Served, sent: bytes, status: int) -> None:
    answer = ask(served, sent)
    assert answer.status == status
    assert isinstance(answer.detail, str)
    assert answer.detail
    assert b"Traceback" not in answer.body
    assert answer.headers.items() >= {name.lower(): value for name, value in (HEADERS | DEFAULTS).items()}.items()
    assert ask(served, ASK).status == 200


def test_an_old_client_is_served_too(served: Served) -> None:
    with connected(served, b"GET /files/state/status HTTP/1.0\r\nHost: localhost\r\n\r\n") as client:
        assert Answer(client).body == b"running\n"
        assert is_over(client)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_one_mebibyte_is_refused_unread(served: Served, chunked: bool) -> None:
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (LONGEST_WRITE + 1)
    chunk = b"%x\r\n" % (LONGEST_WRITE + 1) if chunked else b""
    with connected(
        served, b"POST /files/control/pause HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n%b" % (length, chunk)
    ) as client:
        if chunked:
            client.sendall(b" " * (LONGEST_WRITE + 1))
        answer = Answer(client)
        assert answer.status == 413
        assert "1048577" in str(answer.detail)
        assert is_over(client)


def test_a_body_of_one_mebibyte_is_taken(served: Served) -> None:
    head = b"POST /files/control/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % LONGEST_WRITE
    answer = ask(served, head + b"{}".ljust(LONGEST_WRITE))
    assert (answer.status, answer.body) == (200, b'"held"\n')


def test_curl_s_usual_post_works(served: Served, root: Root) -> None:
    head = b"POST /files/control/set_learning_rate HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl\r\nAccept: */*\r\n"
    body = b"Content-Length: 5\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n5e-04"
    assert ask(served, head + body).status == 200
    assert root.control.rates == [5e-4]


def test_a_large_file_arrives_whole(served: Served) -> None:
    answer = ask(served, b"GET /files/model/big.txt HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.body == b"line\n" * 600_000


def test_a_hundred_slow_clients_hold_nobody_up(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connected(served, b"GET /run HTT"))
            stack.enter_context(connected(served))
        began = time.monotonic()
        assert ask(served, ASK).status == 200
        assert time.monotonic() - began < 5


def test_more_slow_clients_than_there_is_room_for_are_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RECEIVE_SECONDS", 1)
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(served, b"GET /run HTT")) for _ in range(server.CONNECTIONS)]
        assert ask(served, ASK).status == 200
        for client in slow:
            assert is_over(client)


def test_a_client_that_dribbles_its_request_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RECEIVE_SECONDS", 0.5)
    with connected(served) as client:
        client.settimeout(0.05)
        began = time.monotonic()
        over = False
        while not over:
            assert time.monotonic() - began < 10
            try:
                client.sendall(b"G")
                over = client.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                over = True


def test_a_connection_with_nothing_to_say_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.5)
    with connected(served, ASK) as client:
        assert Answer(client).status == 200
        assert is_over(client)


def test_an_answer_that_nobody_takes_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.5)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect(("127.0.0.1", served.port))
        client.sendall(b"GET /files/model/big.txt HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        assert client.recv(10) == b"HTTP/1.1 2"
        wait_until(lambda: not sockets_of(served))


def sockets_of(served: Served) -> int:
    """Return how many connections the server's side has open."""
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(line[1].endswith(f":{served.port:04X}") and line[3] == ESTABLISHED for line in lines)


def test_a_process_with_many_open_files_serves_on(root: Root) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened: list[int] = []
    try:
        with open(os.devnull) as null:  # noqa: PTH123
            opened = [os.dup(null.fileno()) for _ in range(1100)]
        with serving(root) as served:
            for _ in range(3):
                assert ask(served, ASK).status == 200
    finally:
        for number in opened:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_live_readers_hold_up_nobody_else_and_make_room_when_they_leave(served: Served, root: Root) -> None:
    with ExitStack() as stack:
        for sent in LIVE:
            stack.enter_context(connected(served, sent))
        wait_until(lambda: root.model.pending.qsize() == 2)
        took = []
        for _ in range(9):
            began = time.monotonic()
            assert ask(served, b"POST /files/control/pause HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 200
            assert ask(served, LIVE[0]).status == 503
            took.append(time.monotonic() - began)
        assert sorted(took)[4] < 0.25
    # Both have left without an answer.
    wait_until(lambda: waits(served, LIVE[0]))
    for _ in LIVE:
        root.model.pending.get(timeout=10).set_result("made")


def waits(served: Served, sent: bytes) -> bool:
    """Return whether there is no answer yet after a moment."""
    with connected(served, sent) as client:
        return not select.select([client], [], [], 0.1)[0]


def stop_seconds(hold: Callable[[ExitStack, Served], Callable[[], None]]) -> float:
    """Return how long a stop takes while clients hold on: the best of three, for the machine has other work too.

    `hold` makes the clients, and returns what they have to see afterwards.
    """
    took = []
    for _ in range(3):
        with ExitStack() as clients, ExitStack() as stack:
            served = stack.enter_context(serving(Root()))
            see = hold(clients, served)
            began = time.monotonic()
            stack.close()
            took.append(time.monotonic() - began)
            with socket.socket() as successor:
                successor.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                successor.bind(("127.0.0.1", served.port))
                successor.listen()
            see()
    return min(took)


def test_stop_is_prompt_with_clients_that_hold_their_connections() -> None:
    def hold(clients: ExitStack, served: Served) -> Callable[[], None]:
        idle, half, silent = (clients.enter_context(connected(served, sent)) for sent in (ASK, b"GET / HT", b""))
        assert Answer(idle).status == 200

        def see() -> None:
            assert all(map(is_over, (idle, half, silent)))

        return see

    assert stop_seconds(hold) < 0.25


def test_stop_is_prompt_with_readers_of_live_files_and_they_get_an_answer() -> None:
    def hold(clients: ExitStack, served: Served) -> Callable[[], None]:
        readers = [clients.enter_context(connected(served, sent)) for sent in LIVE]
        wait_until(lambda: served.root.model.pending.qsize() == 2)

        def see() -> None:
            for reader in readers:
                assert Answer(reader).status == 410
                assert is_over(reader)

        return see

    assert stop_seconds(hold) < 0.25


def test_stop_is_prompt_with_a_reader_that_takes_nothing() -> None:
    def hold(clients: ExitStack, served: Served) -> Callable[[], None]:
        reader = clients.enter_context(
            connected(served, b"GET /files/model/big.txt HTTP/1.1\r\nHost: localhost\r\n\r\n")
        )
        assert reader.recv(10) == b"HTTP/1.1 2"
        return lambda: None

    assert stop_seconds(hold) < 0.25


def test_starting_and_stopping_leaves_no_file_descriptor_and_no_thread(root: Root, times: Callable[[int], int]) -> None:
    def cycle() -> None:
        with ExitStack() as stack:
            served = stack.enter_context(serving(root))
            client = stack.enter_context(connected(served, ASK))
            assert Answer(client).status == 200

    cycle()
    gc.collect()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(times(300)):
        cycle()
    gc.collect()
    wait_until(lambda: threading.active_count() <= threads)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)  # noqa: PTH208
