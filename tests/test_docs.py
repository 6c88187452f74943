"""What the documentation says is what the code declares."""

import re
from pathlib import Path

from midrun.config import OPTIONS
from midrun.hooks import HOOKS
from scripts import handbook

ROOT = Path(__file__).resolve().parent.parent


def test_tree_md_lists_every_path_that_a_real_run_has() -> None:
    assert handbook.PAGE.read_text() == handbook.page(), "docs/tree.md is out of date: run scripts/tree"


def test_commands_md_lists_every_kind_with_its_arguments() -> None:
    assert handbook.COMMANDS.read_text() == handbook.commands(), "docs/commands.md is out of date: run scripts/tree"


def test_the_readme_names_every_option() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [option for option in OPTIONS if f"`{option}`" not in readme] == []


def test_the_readme_names_every_hook() -> None:
    section = (ROOT / "README.md").read_text().partition("## Lightning hooks that you override\n\n")[2]
    paragraph = section.partition("\n\n")[0].replace("super", "")
    assert {*re.findall(r"`(\w+)`", paragraph)} == {*HOOKS}


def test_every_link_between_the_pages_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_script_in_the_page_on_the_spool_is_the_example() -> None:
    script = (ROOT / "examples/lower_on_plateau.sh").read_text()
    assert f"```sh\n{script}```" in (ROOT / "docs/spool.md").read_text()
    assert len(script.splitlines()) == 15
