"""The dashboard's files are those that its source makes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from midrun import web

WEB = Path(web.__file__).resolve().parent
STATIC, DASHBOARD = WEB / "static", WEB / "dashboard"
MADE = ("dashboard.js", "dashboard.css", "graph.js")


def fingerprint() -> str:
    """Return what `scripts/dashboard` writes into each file that it makes."""
    source = sorted((DASHBOARD / "source").iterdir(), key=lambda path: path.name.encode())
    files = [DASHBOARD / "package.json", DASHBOARD / "tsconfig.json", *source]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.mark.parametrize("name", MADE)
def test_a_file_is_made_from_the_source_as_it_is(name: str) -> None:
    banner = (STATIC / name).read_text().partition("\n")[0]
    assert f"Source {fingerprint()}" in banner, f"{name} is older than web/dashboard/source: run scripts/dashboard"


def test_what_the_dashboard_is_made_of_comes_with_its_licences() -> None:
    licences = (STATIC / "THIRD-PARTY.txt").read_text()
    for name, version in json.loads((DASHBOARD / "package.json").read_text())["dependencies"].items():
        assert f"==== {name} {version} ====" in licences
    assert len(re.findall(r"Permission is hereby granted|Apache License|Eclipse Public License", licences)) >= 3


def test_every_dependency_has_one_version_and_none_is_asked_for_at_run_time() -> None:
    package = json.loads((DASHBOARD / "package.json").read_text())
    for version in {**package["dependencies"], **package["devDependencies"]}.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    for name in MADE:
        assert not re.search(r"\bimport\(|sourceMappingURL|importScripts", (STATIC / name).read_text())
