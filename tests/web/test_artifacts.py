from __future__ import annotations

import gc
import http.client
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from midrun.fs.tree import Link
from midrun.web import disk, server
from midrun.web.artifacts import disposition
from midrun.web.disk import Part, open_beneath
from midrun.web.server import SHARE, WORKERS
from tests.web.conftest import Client
from tests.web.sample import Root, Served, serving, wait_until

BYTES = bytes(range(256)) * 4
LAST = "/artifacts/checkpoints/last.ckpt"
HUGE = 10 << 30


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of checkpoints, with what must not be sent beside it."""
    checkpoints = tmp_path / "artifacts" / "checkpoints"
    (checkpoints / "deep" / "er").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (checkpoints / "last.ckpt").write_bytes(BYTES)
    (checkpoints / "deep" / "er" / "one.ckpt").write_bytes(b"deep")
    (checkpoints / ".last.ckpt.tmp").write_bytes(b"half")
    (checkpoints / ".hidden").mkdir()
    (checkpoints / ".hidden" / "x").write_bytes(b"hidden")
    (checkpoints / "empty").write_bytes(b"")
    (checkpoints / "out").symlink_to(tmp_path)
    (checkpoints / "up").symlink_to("../..")
    (checkpoints / "in").symlink_to("deep")
    (checkpoints / "file").symlink_to("last.ckpt")
    (checkpoints / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(checkpoints / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(checkpoints / "socket"))
    return checkpoints


@pytest.fixture
def root(place: Path) -> Root:
    return Root(directory=str(place.parent))


@pytest.fixture
def served(root: Root) -> Iterator[Served]:
    with serving(root) as served:
        yield served


def descriptors() -> set[tuple[str, str]]:
    """Return what this process has open, by number."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add((entry.name, str(entry.readlink())))
    return found


@pytest.fixture
def closes() -> Iterator[None]:
    """Each descriptor that was opened for the test is closed after it."""
    gc.collect()
    before = descriptors()
    yield
    wait_until(lambda: descriptors() <= before)


def get(served: Served, address: str, headers: dict[str, str] | None = None, method: str = "GET") -> Any:
    """Return the answer that a server gives, with its `body`."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    try:
        connection.request(method, address, headers=headers or {})
        answer: Any = connection.getresponse()
        answer.body = answer.read()
        return answer
    finally:
        connection.close()


def test_a_file_is_sent_whole_and_as_one_to_save(client: Client, place: Path) -> None:
    os.utime(place / "last.ckpt", (1e9, 1e9))
    answer = client.simulate_get(LAST)
    assert (answer.status_code, answer.content) == (200, BYTES)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-length"] == "1024"
    assert answer.headers["content-disposition"] == 'attachment; filename="last.ckpt"'
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["last-modified"] == formatdate(1e9, usegmt=True) == "Sun, 09 Sep 2001 01:46:40 GMT"


def test_head_tells_of_a_file_what_get_does(client: Client) -> None:
    get, head = client.simulate_get(LAST), client.simulate_head(LAST, headers={"Range": "bytes=0-1"})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers == get.headers


def test_a_file_in_a_directory_below_is_sent_too(client: Client) -> None:
    assert client.simulate_get("/artifacts/checkpoints/deep/er/one.ckpt").content == b"deep"


@pytest.mark.parametrize("link", ["checkpoints", "snapshots", "debug"])
def test_each_link_of_the_tree_leads_to_its_own_files(client: Client, place: Path, link: str) -> None:
    (place.parent / link).mkdir(exist_ok=True)
    (place.parent / link / "x").write_text(link)
    assert client.simulate_get(f"/artifacts/{link}/x").text == link


def test_an_empty_file_is_sent(client: Client, served: Served) -> None:
    assert client.simulate_get("/artifacts/checkpoints/empty").content == b""
    answer = get(served, "/artifacts/checkpoints/empty")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")


@pytest.mark.parametrize(
    "name", ["naïve ✓.ckpt", "a b", "50%", "what?#;=&+ \\", '"quoted"', "x" * 255, "é" * 127, "a;b", "it's", "~"]
)
def test_a_file_of_any_name_is_found_by_its_encoded_name_and_saved_under_it(
    client: Client, place: Path, name: str
) -> None:
    (place / name).write_text("found")
    answer = client.simulate_get("/artifacts/checkpoints/" + quote(name, safe=""))
    assert (answer.status_code, answer.text) == (200, "found")
    said = answer.headers["content-disposition"]
    assert said.isascii()
    assert said.endswith((f"filename*=UTF-8''{quote(name, safe='')}", f'attachment; filename="{name}"'))


@pytest.mark.parametrize(
    "name", ['a"; filename=evil', "a\r\nX-Evil: 1", "a\\", "a\0b", "\u202egnp.exe", "a%22b", "\x7f"]
)
def test_a_name_says_nothing_in_a_header_but_itself(name: str) -> None:
    said = disposition(name)
    assert said.isascii()
    assert said.isprintable()
    head, _, plain = said.partition('filename="')
    quoted, _, rest = plain.partition('"')
    assert head == "attachment; "
    assert not set(quoted) & set('"\\%\r\n')
    assert rest == f"; filename*=UTF-8''{quote(name, safe='')}"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "checkpoints",
        "checkpoints/",
        "checkpoints//last.ckpt",
        "checkpoints/nothing",
        "checkpoints/last.ckpt/",
        "checkpoints/last.ckpt/x",
        "checkpoints/deep",
        "checkpoints/deep/er/",
        "checkpoints/fifo",
        "checkpoints/socket",
        "checkpoints/.last.ckpt.tmp",
        "checkpoints/%2elast.ckpt.tmp",
        "checkpoints/.hidden/x",
        "checkpoints/../../secret",
        "checkpoints/..%2f..%2fsecret",
        "checkpoints/%2e%2e/%2e%2e/secret",
        "checkpoints/%252e%252e/secret",
        "checkpoints/./last.ckpt",
        "checkpoints/deep/../last.ckpt",
        "checkpoints/last.ckpt%00",
        "checkpoints/last.ckpt%00.png",
        "checkpoints%2Flast.ckpt",
        "checkpoints/%2Fetc%2Fpasswd",
        "checkpoints//etc/passwd",
        "checkpoints/%ff",
        "checkpoints/%",
        "checkpoints/..;/..;/secret",
        "checkpoints/" + "x" * 256,
        "checkpoints/" + "deep/" * 1000 + "x",
        "index.json",
        "index.json/x",
        "checkpoints.json/x",
        "nothing/x",
        "../state/status",
        "../control/pause",
        "..%2f..%2fsecret",
        "/etc/passwd",
    ],
)
@pytest.mark.usefixtures("closes")
def test_what_is_no_file_below_a_link_is_not_found_and_no_path_of_the_disk_is_told(
    client: Client, place: Path, path: str
) -> None:
    answer = client.simulate_get(f"/artifacts/{path}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"
    assert "directory" not in answer.json["detail"] or "no such file or directory" in answer.json["detail"]
    assert str(place.parent) not in answer.text
    assert "content-disposition" not in answer.headers


@pytest.mark.parametrize("path", ["file", "passwd", "in/er/one.ckpt", "out/secret", "up/secret", "deep/loop/x", "self"])
def test_a_symbolic_link_on_the_disk_is_never_followed(client: Client, place: Path, path: str) -> None:
    (place / "deep" / "loop").symlink_to(".")
    (place / "self").symlink_to("self")
    assert client.simulate_get(f"/artifacts/checkpoints/{path}").status_code == 404


def test_the_directory_that_the_tree_links_to_may_lie_behind_a_link_itself(client: Client, place: Path) -> None:
    place.rename(place.parent.parent / "large-disk")
    place.symlink_to(place.parent.parent / "large-disk")
    assert client.simulate_get(LAST).content == BYTES


@pytest.mark.parametrize("target", ["", "relative", "/nowhere/at/all", "/etc/passwd", "/proc/self/fd"])
def test_a_link_of_the_tree_that_leads_to_no_directory_of_files_has_none(
    client: Client, root: Root, target: str
) -> None:
    root.artifacts.checkpoints = Link(lambda: target)
    answer = client.simulate_get("/artifacts/checkpoints/0")
    assert answer.status_code == 404
    assert not target or target not in answer.json["detail"]


@pytest.mark.usefixtures("closes")
def test_a_link_swapped_in_while_a_file_is_opened_is_not_followed(place: Path) -> None:
    (place.parent.parent / "er").mkdir()
    (place.parent.parent / "er" / "one.ckpt").write_bytes(b"secret")
    stop, swaps, found = threading.Event(), 0, {b"deep": 0, b"secret": 0}

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            (place / "deep").rename(place / "real")
            (place / "deep").symlink_to(place.parent.parent)
            (place / "deep").unlink()
            (place / "real").rename(place / "deep")
            swaps += 1

    swapper = threading.Thread(target=swap)
    swapper.start()
    began = time.monotonic()
    try:
        while (spent := time.monotonic() - began) < 0.7 or (spent < 20 and (swaps <= 10 or found[b"deep"] <= 10)):
            try:
                file, _ = open_beneath(str(place), ["deep", "er", "one.ckpt"])
            except FileNotFoundError:
                continue
            found[file.read(10)] += 1
            file.close()
    finally:
        stop.set()
        swapper.join()
    assert swaps > 10
    assert found[b"deep"] > 10
    assert found[b"secret"] == 0


@pytest.mark.usefixtures("closes")
def test_a_pipe_that_takes_a_file_s_place_at_the_last_moment_is_not_waited_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = (place / "last.ckpt").stat()
    monkeypatch.setattr("midrun.web.disk.os.stat", lambda *_, **__: looked)
    with pytest.raises(FileNotFoundError):
        open_beneath(str(place), ["fifo"])


def test_a_file_that_can_t_be_opened_for_want_of_something_may_be_asked_for_again(
    client: Client, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files", str(place))

    monkeypatch.setattr("midrun.web.disk.os.open", fail)
    answer = client.simulate_get(LAST)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert str(place) not in answer.text


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=1000-", 1000, 1023),
        ("bytes=1000-9999999999999999999", 1000, 1023),
        ("bytes=0-", 0, 1023),
        ("bytes=-1", 1023, 1023),
        ("bytes=-5000", 0, 1023),
        ("BYTES=5-6", 5, 6),
    ],
)
@pytest.mark.usefixtures("closes")
def test_one_range_is_sent_alone(client: Client, asked: str, first: int, last: int) -> None:
    answer = client.simulate_get(LAST, headers={"Range": asked})
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes {first}-{last}/1024"
    assert answer.headers["content-length"] == str(last - first + 1)
    assert answer.content == BYTES[first : last + 1]


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-4",
        "bytes=a-b",
        "bytes=0-1,3-4",
        "lines=0-1",
        "bytes=0x1-2",
        "bytes=٣-",
    ],
)
def test_what_is_no_single_range_of_bytes_is_ignored(client: Client, asked: str) -> None:
    answer = client.simulate_get(LAST, headers={"Range": asked.encode().decode("latin-1")})
    assert (answer.status_code, answer.content) == (200, BYTES)
    assert "content-range" not in answer.headers


@pytest.mark.parametrize("asked", ["bytes=1024-", "bytes=9999-10000", "bytes=-0", "bytes=9999999999999999999-"])
@pytest.mark.usefixtures("closes")
def test_a_range_outside_the_file_gets_416_with_its_size(client: Client, asked: str) -> None:
    answer = client.simulate_get(LAST, headers={"Range": asked})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == "bytes */1024"
    assert "1024 bytes" in answer.json["detail"]
    empty = client.simulate_get("/artifacts/checkpoints/empty", headers={"Range": "bytes=0-"})
    assert (empty.status_code, empty.headers["content-range"]) == (416, "bytes */0")
    assert client.simulate_get("/artifacts/checkpoints/empty", headers={"Range": "bytes=-1"}).status_code == 200


def test_a_range_of_a_file_that_has_changed_is_not_sent_to_who_has_the_old_one(client: Client, place: Path) -> None:
    tag = client.simulate_get(LAST).headers["etag"]
    headers = {"Range": "bytes=0-3", "If-Range": tag}
    assert client.simulate_get(LAST, headers=headers).status_code == 206
    (place / "new").write_bytes(BYTES[::-1])
    (place / "new").rename(place / "last.ckpt")
    answer = client.simulate_get(LAST, headers=headers)
    assert (answer.status_code, answer.content) == (200, BYTES[::-1])
    assert answer.headers["etag"] != tag


@pytest.mark.parametrize("seconds", [-1e9, 0, 1e11])
def test_a_file_of_any_date_is_sent(client: Client, place: Path, seconds: float) -> None:
    os.utime(place / "last.ckpt", (seconds, seconds))
    assert client.simulate_get(LAST).headers["last-modified"].endswith(" GMT")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_file_is_only_read(client: Client, method: str, place: Path) -> None:
    answer = client.simulate_request(method, LAST)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    assert (place / "last.ckpt").read_bytes() == BYTES


def test_another_site_s_page_is_sent_no_file(client: Client) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.simulate_get(LAST, headers=headers).status_code == 403


def test_a_part_stays_as_long_as_it_was_and_says_when_it_can_t(place: Path) -> None:
    path = place / "last.ckpt"
    part, status = open_beneath(str(place), ["last.ckpt"])
    with path.open("ab") as file:
        file.write(b"more")
    assert part.read(10_000) == BYTES
    assert part.read(10_000) == b""
    os.truncate(path, 100)
    part.narrow(50, status.st_size)
    assert part.read(10_000) == BYTES[50:100], "what is there is sent"
    with pytest.raises(OSError, match="shorter"):
        part.read(1)
    part.close()
    part.close()


def test_a_part_is_closed_with_the_last_who_knows_it(place: Path) -> None:
    descriptor = os.open(place / "last.ckpt", os.O_RDONLY)
    Part(descriptor, 0, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def memory() -> int:
    """Return the most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.usefixtures("closes")
def test_a_file_larger_than_memory_is_sent_bit_by_bit(root: Root, place: Path) -> None:
    with (place / "huge").open("wb") as file:
        file.truncate(HUGE)
    with serving(root) as served:
        get(served, LAST)
        before = memory()
        headers = {"Host": "127.0.0.1", "Range": f"bytes={HUGE - (64 << 20)}-"}
        answer = get(served, "/artifacts/checkpoints/huge", headers, "HEAD")
        assert answer.headers["content-length"] == str(HUGE)
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
            client.sendall(b"GET /artifacts/checkpoints/huge HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            got = 0
            while got < 256 << 20:
                got += len(client.recv(1 << 20))
        assert memory() - before < 464 << 20
        wait_until(lambda: not held(place / "huge"))


def held(path: Path) -> list[str]:
    """Return this process's descriptors of a file."""
    return [number for number, target in descriptors() if target == str(path)]


def big(place: Path, name: str = "big", size: int = 64 << 20) -> Path:
    with (place / name).open("wb") as file:
        file.truncate(size)
    return place / name


def stalled(served: Served, sent: bytes) -> socket.socket:
    """Return a client that has asked, and taken one byte of the answer."""
    client = socket.create_connection(("127.0.0.1", served.port), timeout=20)
    client.sendall(sent)
    assert client.recv(1)
    return client


def test_clients_that_take_nothing_of_a_file_leave_the_workers_to_others(root: Root, place: Path) -> None:
    big(place)
    ask = b"GET /artifacts/checkpoints/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serving(root) as served:
        # Half of them ask for more at once on the same connection: nobody waits until they have taken the file.
        clients = [stalled(served, ask * (1 + number % 2)) for number in range(3 * WORKERS)]
        try:
            for _ in range(3):
                began = time.monotonic()
                assert get(served, "/files/state/status").body == b"running\n"
                assert time.monotonic() - began < 2
            assert len(held(place / "big")) == len(clients)
        finally:
            for client in clients:
                client.close()
        wait_until(lambda: not held(place / "big"))


def test_clients_that_take_a_file_at_once_leave_room_for_others(root: Root, place: Path) -> None:
    big(place, size=HUGE)
    stop = threading.Event()

    def take(client: socket.socket) -> None:
        buffer = bytearray(4 << 20)
        while not stop.is_set() and client.recv_into(buffer):
            pass
        client.close()

    with serving(root) as served:
        ask = b"GET /artifacts/checkpoints/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        clients = []
        for _ in range(2):
            clients.append(socket.create_connection(("127.0.0.1", served.port), timeout=20))
            clients[-1].sendall(ask)
        takers = [threading.Thread(target=take, args=(client,)) for client in clients]
        for taker in takers:
            taker.start()
        try:
            for _ in range(10):
                began = time.monotonic()
                assert get(served, "/files/state/status").body == b"running\n"
                assert time.monotonic() - began < 5
        finally:
            stop.set()
            for taker in takers:
                taker.join()
        wait_until(lambda: not held(place / "big"))


def test_a_file_that_gets_shorter_while_it_is_sent_ends_the_connection_early(root: Root, place: Path) -> None:
    path = big(place)
    with serving(root) as served:
        client = stalled(served, b"GET /artifacts/checkpoints/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        os.truncate(path, 100)
        began, got = time.monotonic(), 0
        try:
            while data := client.recv(1 << 20):
                got += len(data)
        except ConnectionResetError:
            pass
        client.close()
        assert got < 64 << 20
        assert time.monotonic() - began < 5
        wait_until(lambda: not held(path))
        assert get(served, LAST).body == BYTES


def test_a_file_that_grows_while_it_is_sent_is_sent_as_it_was_found(root: Root, place: Path) -> None:
    path = big(place)
    with serving(root) as served:
        client = stalled(served, b"GET /artifacts/checkpoints/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with path.open("ab") as file:
            file.write(b"more" * 1000)
        received = bytearray(b"H")
        while data := client.recv(1 << 20):
            received += data
        client.close()
        head, _, body = received.partition(b"\r\n\r\n")
        assert f"Content-Length: {64 << 20}".encode() in head
        assert b"Connection: close" in head
        assert len(body) == 64 << 20


@pytest.mark.usefixtures("closes")
def test_every_file_is_closed_whatever_becomes_of_its_client(root: Root, place: Path) -> None:
    path = big(place)
    ask = b"GET /artifacts/checkpoints/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serving(root) as served:
        for address in (LAST, "/artifacts/checkpoints/empty", "/artifacts/checkpoints/fifo"):
            for method in ("GET", "HEAD"):
                get(served, address, {"Range": "bytes=9999-"}, method)
                get(served, address, {}, method)
        for _ in range(10):
            socket.create_connection(("127.0.0.1", served.port)).close()
            with socket.create_connection(("127.0.0.1", served.port), timeout=20) as client:
                client.sendall(ask)  # and gone
        wait_until(lambda: not held(path))
        left = stalled(served, ask)
        assert held(path)
    # The server has ended with a file half sent.
    assert not held(path)
    left.close()


def test_no_client_is_sent_more_at_once_than_its_share(
    served: Served, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(16 << 20)
    (place / "random").write_bytes(data)
    sent: list[int] = []
    flush = server._Channel._flush_some

    def note(channel: server._Channel, do_close: bool = True) -> bool:
        before = channel.total_outbufs_len
        flushed = flush(channel, do_close)
        sent.append(before - channel.total_outbufs_len)
        return flushed

    monkeypatch.setattr(server._Channel, "_flush_some", note)
    assert get(served, "/artifacts/checkpoints/random").body == data
    wait_until(lambda: sum(sent) > len(data))  # The last piece is noted after the client has it.
    assert max(sent) <= SHARE + disk._CHUNK
    assert get(served, "/files/model/big.txt").body == b"line\n" * 600_000
