"""Copies the pages to where Sphinx builds the site from, and writes those that are made from code.

python docs/site/stage.py FOLDER
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE",
    "conf",
    "docs",
    "notebooks",
)
"""In the folders that they have in the repository, so that their links hold."""
PACKAGES = {
    "spark_kafka_native": "The package",
    "spark_kafka_native.kafka": "The client",
    "spark_kafka_native.formats": "Formats",
    "spark_kafka_native.testing": "Brokers for tests",
}


def listing(title: str, names: list[str]) -> str:
    """A page with links to those that it names."""
    return f"# {title}\n\n```{{toctree}}\n:maxdepth: 1\n\n" + "\n".join(names) + "\n```\n"


def reference(package: str, title: str) -> str:
    """The page about the public names of ``package``, by the file that defines them."""
    module = importlib.import_module(package)
    by_home = defaultdict(list)
    for name in module.__all__:
        home = getattr(getattr(module, name), "__module__", package)
        home = home if isinstance(home, str) and home.startswith(package) else package
        by_home[home.removeprefix(package).strip(".").rpartition(".")[0]].append(name)
    lines = [f"# {title}: `{package}`", "", *(module.__doc__ or "").strip().splitlines(), ""]
    for home, names in sorted(by_home.items()):
        lines += (
            [f"## {home.replace('.', ', ').replace('_', ' ') or 'The rest'}", ""] if len(by_home) > 1 else []
        )
        for name in sorted(names):
            lines += ["```{eval-rst}", *directive(package, name, getattr(module, name)), "```", ""]
    return "\n".join(lines)


def directive(package: str, name: str, thing: object) -> Iterator[str]:
    """Sphinx's directive that shows the docstrings of a public name."""
    if isinstance(thing, type):
        yield f".. autoclass:: {package}.{name}"
        yield "   :members:"
        if not issubclass(thing, BaseException):
            yield "   :inherited-members: object, tuple, int, str, Enum, IntEnum, StrEnum, Protocol, Generic"
        yield "   :show-inheritance:"
    elif callable(thing):
        yield f".. autofunction:: {package}.{name}"
    else:
        yield f".. py:data:: {package}.{name}"
        yield f"   :type: {type(thing).__name__}"


def main() -> None:
    """Fill the folder anew."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, folder / name, ignore=shutil.ignore_patterns("site", ".ipynb_checkpoints")
            )
        else:
            shutil.copy(source, folder / name)
    shutil.copy(Path(__file__).with_name("index.md"), folder / "index.md")
    for place, title in (("internals", "Internals"), ("decisions", "Decisions")):
        pages = sorted(path.stem for path in (folder / "docs" / place).glob("*.md"))
        (folder / "docs" / place / "index.md").write_text(listing(title, pages))
    (folder / "reference").mkdir()
    (folder / "reference" / "index.md").write_text(listing("API", list(PACKAGES)))
    for package, title in PACKAGES.items():
        (folder / "reference" / f"{package}.md").write_text(reference(package, title))


if __name__ == "__main__":
    main()
