from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from midrun import web
from tests.web.conftest import Client

STATIC = Path(web.__file__).parent / "static"
OURS = [path.relative_to(STATIC).as_posix() for path in sorted(STATIC.glob("*.*"))]
# Two of them are bundles, with libraries within: what we wrote of those is their source.
BUNDLES = {"dashboard.js", "graph.js"}
WRITTEN = [STATIC / name for name in OURS if name not in BUNDLES] + sorted(
    (STATIC.parent / "dashboard/source").iterdir()
)
NAMESPACES = {
    "http://www.w3.org/2000/svg",
    "http://www.w3.org/1999/xhtml",
    "http://www.w3.org/1998/Math/MathML",
    "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd",
}
"""Names that are never asked for."""


def policy_of(answer: Any) -> dict[str, str]:
    return dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))


@pytest.mark.parametrize("page", ["/", "/docs"])
def test_a_page_runs_no_inline_script_and_asks_no_other_host(client: Client, page: str) -> None:
    answer = client.simulate_get(page)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = policy_of(answer)
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in policy["style-src"] or page == "/docs"
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|javascript:|style=", answer.text)


def test_the_front_page_writes_no_markup_and_shows_pictures_that_a_worker_drew(client: Client) -> None:
    policy = policy_of(client.simulate_get("/"))
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "midrun"
    assert policy["img-src"] == "'self' data: blob:"
    assert policy["worker-src"] == "'self'"
    assert not policy.keys() & {"frame-src", "object-src", "media-src", "font-src"}


def test_swagger_ui_writes_its_markup(client: Client) -> None:
    policy = policy_of(client.simulate_get("/docs"))
    assert policy["style-src"] == "'self' 'unsafe-inline'"
    assert policy["img-src"] == "'self' data:"
    assert not policy.keys() & {"require-trusted-types-for", "trusted-types", "worker-src"}


@pytest.mark.parametrize("name", OURS)
def test_only_the_worker_compiles_webassembly_and_it_asks_for_nothing(client: Client, name: str) -> None:
    policy = policy_of(client.simulate_get(f"/static/{name}"))
    assert policy.pop("default-src") == policy.pop("frame-ancestors") == "'none'"
    assert policy == ({"script-src": "'wasm-unsafe-eval'"} if name == "graph.js" else {})


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


@pytest.mark.parametrize("name", [name for name in OURS if not name.endswith(".txt")])
def test_our_own_files_name_no_other_host(name: str) -> None:
    assert set(re.findall(r"https?://[\w./]+", (STATIC / name).read_text())) <= NAMESPACES


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_what_we_wrote_never_writes_markup(path: Path) -> None:
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|srcdoc|document\.write|\beval\(|new Function"
    assert not re.search(markup, path.read_text(), re.IGNORECASE)


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
