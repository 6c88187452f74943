from __future__ import annotations

import re
from pathlib import Path

import pytest

from midrun import web
from tests.web.conftest import Client

STATIC = Path(web.__file__).parent / "static"
OURS = [path.relative_to(STATIC).as_posix() for path in sorted(STATIC.glob("*.*"))]


@pytest.mark.parametrize("page", ["/", "/docs"])
def test_a_page_runs_no_inline_script_and_asks_no_other_host(client: Client, page: str) -> None:
    answer = client.simulate_get(page)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in policy["style-src"] or page == "/docs"
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|javascript:|style=", answer.text)


@pytest.mark.parametrize("page", ["/", "/docs"])
def test_all_that_a_page_is_made_of_is_there(client: Client, page: str) -> None:
    files = re.findall(r'(?:src|href)="(static/[^"]+)"', client.simulate_get(page).text)
    assert len(files) >= 3
    for file in files:
        answer = client.simulate_get(f"/{file}")
        assert answer.status_code == 200
        assert answer.content == (STATIC.parent / file).read_bytes()
        assert answer.headers["content-type"] in {
            "text/css; charset=utf-8",
            "text/javascript; charset=utf-8",
            "image/svg+xml",
        }


@pytest.mark.parametrize("name", OURS)
def test_our_own_files_name_no_other_host_and_never_write_markup(name: str) -> None:
    text = (STATIC / name).read_text()
    assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_what_is_not_ours_comes_with_its_licence_and_without_source_maps() -> None:
    assert {path.name for path in (STATIC / "swagger").iterdir()} == {
        "LICENSE",
        "NOTICE",
        "swagger-ui-bundle.js",
        "swagger-ui-bundle.js.LICENSE.txt",
        "swagger-ui.css",
    }
    assert sum(path.stat().st_size for path in STATIC.rglob("*")) < 3 << 20


@pytest.mark.parametrize(
    "name", ["", "/", ".", "..", "nothing", "swagger", "../face.py", "%2e%2e/face.py", "..%2fface.py"]
)
def test_only_these_files_are_there(client: Client, name: str) -> None:
    assert client.simulate_get(f"/static/{name}").status_code == 404
