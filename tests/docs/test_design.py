"""The design pages are true where a machine can check it: paths, names, links, layers and lengths."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "spark_kafka_native"
DESIGN = ROOT / "docs/DESIGN.md"
INTERNALS = sorted((ROOT / "docs/internals").glob("*.md"))
DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
NAMED = [DESIGN, *INTERNALS, *DECISIONS, ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
SITE = ROOT / "docs/site"
"""Its front page is copied to the top before Sphinx checks the links of all pages."""
LINKING = sorted({*NAMED, *(page for page in (ROOT / "docs").rglob("*.md") if page.parent != SITE)})

IN_PACKAGE = ("kafka", "spark", "cli", "testing", "formats", "registry")
BESIDE_IT = ("tests", "benchmarks", "notebooks", "conf")
_PATH = re.compile(
    rf"(?<![\w./-])(?:spark_kafka_native/)?(?:{'|'.join(IN_PACKAGE + BESIDE_IT)})/[\w./*-]*[\w*/]"
)
_NAME = re.compile(r"`([A-Za-z_][\w.]*?)(?:\(\))?`")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
_STEP = re.compile(r"^\| \d+ \| `([\w.]+)` \| `([\w/.]+)` \|", flags=re.MULTILINE)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def is_there(named: str) -> bool:
    path = named.removeprefix("spark_kafka_native/")
    root = PACKAGE if path.split("/")[0] in IN_PACKAGE else ROOT
    return any(root.glob(path.rstrip("/"))) or (root / path).exists()


@cache
def words_of_the_sources() -> frozenset[str]:
    """Every word of the package, the tests and the configuration: a name on a page is one of them."""
    folders = (PACKAGE, ROOT / "tests", ROOT / "benchmarks")
    files = [path for folder in folders for path in folder.rglob("*.*") if path.suffix in (".py", ".c", ".h")]
    files += [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "docs/options.md"]
    return frozenset(
        word for path in files if path != Path(__file__) for word in re.findall(r"\w+", path.read_text())
    )


def is_a_name_of_ours(name: str) -> bool:
    """CamelCase, snake_case and constants; plain words may be anything."""
    last = name.rpartition(".")[2]
    return "_" in last.strip("_") or bool(re.search(r"[a-z][A-Z]|^[A-Z][a-z]+[A-Z]?[a-z]*$", last))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {f"#{heading}" for heading in plain}


@pytest.mark.parametrize("page", LINKING, ids=page_id)
def test_every_path_on_the_page_exists(page: Path) -> None:
    gone = sorted({path for path in _PATH.findall(page.read_text()) if not is_there(path)})
    assert not gone, f"{page_id(page)} names files that are gone"


@pytest.mark.parametrize("page", [DESIGN, *INTERNALS, *DECISIONS], ids=page_id)
def test_every_name_on_the_page_is_in_the_sources(page: Path) -> None:
    names = {name for name in _NAME.findall(page.read_text()) if is_a_name_of_ours(name)}
    gone = sorted(name for name in names if name.rpartition(".")[2] not in words_of_the_sources())
    assert not gone, f"{page_id(page)} uses names that are gone"


@pytest.mark.parametrize(("name", "path"), _STEP.findall(DESIGN.read_text()))
def test_every_step_of_a_records_way_is_in_the_file_that_the_page_says(name: str, path: str) -> None:
    source = (PACKAGE / path).read_text()
    for part in name.split("."):
        assert re.search(rf"^\s*(?:async )?(?:class|def) {part}\b", source, flags=re.MULTILINE), part


@pytest.mark.parametrize("page", LINKING, ids=page_id)
def test_links_between_pages_resolve(page: Path) -> None:
    for path, anchor in _LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page_id(page)} links to {path}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page_id(page)} links to {path}{anchor}"


def test_the_layers_on_the_page_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = next(one["layers"] for one in contracts if one["name"].startswith("layers: everything"))
    block = re.search(r"^```text\n(cli > .*?)^```$", DESIGN.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert block is not None
    shown = [" ".join(layer.split()) for layer in block[1].split(">")]
    assert shown == [layer.replace("spark_kafka_native.", "") for layer in checked]


def test_every_page_has_its_place_in_the_overview() -> None:
    linked = {path for path, _ in _LINK.findall(DESIGN.read_text())}
    missing = [
        page for page in (*INTERNALS, *DECISIONS) if page.relative_to(DESIGN.parent).as_posix() not in linked
    ]
    assert not missing


@pytest.mark.parametrize(
    ("page", "most"),
    [(DESIGN, 2500), *((page, 1500) for page in INTERNALS), *((page, 300) for page in DECISIONS)],
    ids=lambda given: page_id(given) if isinstance(given, Path) else str(given),
)
def test_a_page_stays_readable_in_one_go(page: Path, most: int) -> None:
    assert len(page.read_text().split()) <= most
