"""How the three packages are laid out, built and kept apart."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import midrun

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"fs": "midrun.fs", "web": "midrun.web", "midrun": "midrun"}
WASM = Path("web/static/graph.js")
"""Graphviz, compiled: as text it is as good as random."""
FACES = ("midrun.fs.mount", "midrun.web.face")


def git_files() -> list[Path]:
    """List the files that are in git or would be added to it, links as themselves."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = sorted(set(listed.stdout.split("\0")) - {""})
    return [Path(name) for name in names if os.path.lexists(ROOT / name)]


def code_of(folder: str) -> list[Path]:
    return [path for path in git_files() if path.parts[0] == folder and path.suffix == ".py"]


def module_name(path: Path) -> str:
    inner = path.relative_to(path.parts[0]).with_suffix("").parts
    return ".".join([PACKAGES[path.parts[0]], *inner]).removesuffix(".__init__")


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imports_of(path: Path) -> Iterator[str]:
    """Give every module that a file imports anywhere, with `from a import b` as both a and a.b."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports here are absolute: from midrun.fs.tree import ..."
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_from(folder: str) -> Iterator[tuple[Path, str]]:
    paths = code_of(folder)
    assert paths, f"there is no code in {folder}/"
    return ((path, imported) for path in paths for imported in imports_of(path))


def ours_outside(folder: str, *allowed: str) -> list[tuple[Path, str]]:
    return [
        (path, imported)
        for path, imported in imports_from(folder)
        # `from midrun import fs` gives midrun too, which alone is no dependency on the training side.
        if is_in(imported, "midrun") and imported != "midrun" and not any(is_in(imported, name) for name in allowed)
    ]


def test_fs_imports_nothing_of_ours() -> None:
    assert ours_outside("fs", "midrun.fs") == []


def test_web_imports_only_fs() -> None:
    assert ours_outside("web", "midrun.fs", "midrun.web") == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_nothing_imports_a_face(folder: str) -> None:
    faces_imported = [
        (path, imported)
        for path, imported in imports_from(folder)
        for face in FACES
        if is_in(imported, face) and not is_in(module_name(path), face)
    ]
    assert faces_imported == [], "faces are processes: start them by module name"


@pytest.mark.parametrize("folder", ["fs", "web"])
def test_fs_and_web_know_nothing_of_training(folder: str) -> None:
    heavy = ("torch", "lightning", "pytorch_lightning", "numpy")
    assert [
        (path, imported) for path, imported in imports_from(folder) if any(is_in(imported, name) for name in heavy)
    ] == []


@pytest.mark.parametrize("folder", ["fs", "web"])
def test_importing_a_folder_under_its_short_name_says_what_to_import_instead(folder: str) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode != 0
    assert f"ImportError: this directory is the package 'midrun.{folder}'" in outcome.stderr
    assert f"write 'import midrun.{folder}'" in outcome.stderr


def test_importing_midrun_loads_neither_torch_nor_lightning(tmp_path: Path) -> None:
    program = (
        "import sys, midrun, midrun.fs, midrun.web\n"
        "heavy = {'torch', 'lightning', 'pytorch_lightning', 'numpy', 'pyfuse3'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {sorted(heavy)}' if heavy else 0)"
    )
    for place in (ROOT, tmp_path):
        outcome = subprocess.run(
            [sys.executable, "-c", program], cwd=place, capture_output=True, text=True, check=False
        )
        assert outcome.returncode == 0, outcome.stderr


def test_the_version_has_one_source() -> None:
    assert midrun.__version__ == importlib.metadata.version("midrun")


def in_the_wheel(path: Path) -> str:
    """Name the place in a wheel for a file of the repository."""
    package = PACKAGES[path.parts[0]].replace(".", "/")
    return f"{package}/{path.relative_to(path.parts[0])}"


def checkout(folder: Path) -> Path:
    """Copy what is in git to a folder, so that builds leave nothing in the repository and find nothing there."""
    for path in git_files():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_symlink():
            target.symlink_to((ROOT / path).readlink())
        else:
            target.write_bytes((ROOT / path).read_bytes())
    return folder


def build_wheel(source: Path, to: Path) -> set[str]:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", to, source],
        check=True,
        capture_output=True,
    )
    (wheel,) = to.glob("midrun-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def build_sdist(source: Path, to: Path) -> Path:
    program = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, to], cwd=source, check=True, capture_output=True)
    (archive,) = to.glob("midrun-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(to, filter="data")
    return to / archive.name.removesuffix(".tar.gz")


def test_wheels_hold_exactly_the_files_of_the_three_folders(tmp_path: Path) -> None:
    expected = {
        in_the_wheel(path)
        for path in git_files()
        # What the dashboard is made from is for who changes it; what is made of it is in web/static/.
        if path.parts[0] in PACKAGES and path.parts[:2] != ("web", "dashboard") and not (ROOT / path).is_symlink()
    }
    source = checkout(tmp_path / "source")
    unpacked = build_sdist(source, tmp_path)
    for kind, built_from in {"checkout": source, "sdist": unpacked}.items():
        names = build_wheel(built_from, tmp_path / kind)
        metadata = {name for name in names if ".dist-info/" in name}
        assert names - metadata == expected, f"built from the {kind}: see packages and package-data in pyproject.toml"
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in metadata)


def test_the_links_lead_to_the_folders_beside_them() -> None:
    links = {path.as_posix(): (ROOT / path).readlink().as_posix() for path in git_files() if (ROOT / path).is_symlink()}
    assert links == {"midrun/fs": "../fs", "midrun/web": "../web"}


def test_mypy_sees_through_the_links(tmp_path: Path) -> None:
    # Two errors are planted: one in fs, one in code that uses midrun.fs.
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for folder in PACKAGES:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "midrun/fs").symlink_to("../fs")
    (tmp_path / "midrun/web").symlink_to("../web")
    (tmp_path / "fs/canary.py").write_text('def answer() -> int:\n    return "42"\n')
    (tmp_path / "midrun/user.py").write_text("from midrun.fs.canary import answer\n\ntext: str = answer()\n")
    outcome = subprocess.run(
        [sys.executable, "-m", "mypy", "midrun"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found = re.findall(r"^(\S+):(\d+): error: .*\[(.*)\]$", outcome.stdout, re.MULTILINE)
    assert sorted(found) == [
        ("midrun/fs/canary.py", "2", "return-value"),
        ("midrun/user.py", "3", "assignment"),
    ], outcome.stdout + outcome.stderr


def test_no_file_names_a_registry_or_a_path_of_some_machine() -> None:
    telltale = re.compile(
        r"pypi\.org|pythonhosted\.org|npmjs\.org|debian\.org|download\.pytorch\.org"
        r"|(?<![\w./~$)}\]>*-])/(?:work/|root/|opt/|home/(?!you/))"
    )
    named = []
    for path in git_files():
        if (ROOT / path).is_symlink():
            continue
        content = (ROOT / path).read_bytes()
        if b"\0" in content or path == WASM:
            continue
        lines = content.decode().splitlines()
        named += [f"{path}:{number}" for number, line in enumerate(lines, 1) if telltale.search(line)]
    assert named == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_every_module_fits_in_one_reading(folder: str) -> None:
    lengths = {path.as_posix(): len((ROOT / path).read_text().splitlines()) for path in code_of(folder)}
    assert {path: length for path, length in lengths.items() if length >= 450} == {}, "split it by noun"
