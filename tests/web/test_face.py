from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web.sample import Root, ask_once, serving

ROOT = Path(__file__).parents[2]
LEAN = """
import socket, sys, threading, trio
from midrun.fs.face import Face
from midrun.fs.tree import Dir, file
from midrun.fs.view import View
from midrun.web.face import serve
from tests.local import Local

class State(Dir):
    @file("index.json")
    def index(self) -> dict[str, int]:
        return {"step": 1}

class Root(Dir):
    def __init__(self) -> None:
        self.state = State()

def ask(port, path):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET %b HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n" % path)
        answer = b""
        while data := client.recv(1 << 20):
            answer += data
    assert b" 200 OK" in answer.partition(b"\\r\\n")[0], answer[:200]

async def main():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    async with View(Local(Root())) as view, trio.open_nursery() as nursery:
        nursery.start_soon(serve, Face(view, {"listener": listener.detach()}))
        for path in (b"/", b"/docs", b"/static/swagger/swagger-ui-bundle.js", b"/openapi.json", b"/files?format=tree"):
            for _ in range(20):
                await trio.to_thread.run_sync(ask, port, path)
        nursery.cancel_scope.cancel()

trio.run(main)
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"torch", "lightning", "numpy", "pydantic", "pydantic_core"}))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


def test_a_face_is_lean() -> None:
    ran = subprocess.run([sys.executable, "-c", LEAN], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    heavy, kibibytes = ran.stdout.splitlines()
    assert heavy == "[]"
    assert int(kibibytes) < 45 * 1024


def test_it_says_when_it_serves_and_where(root: Root) -> None:
    with serving(root) as served:
        assert served.notices == [("running", {"port": served.port})]


@pytest.mark.parametrize(
    ("variable", "options", "words"),
    [
        ("203.0.113.9,train7", {}, ("MIDRUN_WHITELIST_IP", "'train7'", "IPv4", "IPv6")),
        ("", {"allowed_hosts": ["http://proxy"]}, ("rest_allowed_hosts", "'http://proxy'", "host name")),
    ],
)
def test_it_does_not_start_with_a_name_that_is_none_and_says_why(
    root: Root, monkeypatch: pytest.MonkeyPatch, variable: str, options: dict[str, object], words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("MIDRUN_WHITELIST_IP", variable)
    with serving(root, **options) as served:
        ((notice, detail),) = served.notices
        assert notice == "failed"
        assert all(word in detail["reason"] for word in words)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", served.port), timeout=5)


def test_the_names_it_answers_to_are_those_of_its_options_and_its_environment(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDRUN_WHITELIST_IP", "203.0.113.9,2001:db8::9")
    monkeypatch.setenv("SSH_CONNECTION", "203.0.113.5 51000 192.0.2.8 22")
    with serving(root, host="10.9.8.7", allowed_hosts=["proxy.example.org"]) as served:
        for host in ("localhost", "10.9.8.7:1", "203.0.113.9", "[2001:db8::9]", "192.0.2.8", "proxy.example.org"):
            assert ask_once(served, host) == 200, host
        for host in ("evil.example", "203.0.113.5", "10.9.8.8"):
            assert ask_once(served, host) == 400, host
