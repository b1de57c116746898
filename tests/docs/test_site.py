"""The site has a place for every page, and pages link to files: a folder has no page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs/site/index.md"
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("conf/*.md"), *ROOT.glob("*.md")])
LISTED_BY_FOLDER = ("docs/internals", "docs/decisions")
"""Their listings are made when the site is built, and are in the index themselves."""


def in_the_index() -> set[str]:
    """The pages of the navigation, without the ends of their names."""
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", INDEX.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    return {line.rpartition("<")[2].rstrip(">") for line in lines}


def test_every_page_and_notebook_is_in_the_navigation() -> None:
    written = [*PAGES, *ROOT.glob("notebooks/*.ipynb")]
    missing = {path.relative_to(ROOT).with_suffix("").as_posix() for path in written} - in_the_index()
    assert not missing


def test_the_navigation_has_pages_that_exist() -> None:
    made = {"reference/index", *(f"{folder}/index" for folder in LISTED_BY_FOLDER)}
    gone = {
        page
        for page in in_the_index() - made
        if not any((ROOT / f"{page}{end}").is_file() for end in (".md", ".ipynb"))
    }
    assert not gone


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text())
    assert not [link for link in links if not (page.parent / link).is_file()]
