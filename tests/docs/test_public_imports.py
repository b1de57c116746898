"""What a user copies imports from public places only: a package of ours, and a name in its ``__all__``."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = {
    "spark_kafka_native",
    "spark_kafka_native.formats",
    "spark_kafka_native.kafka",
    "spark_kafka_native.testing",
}
INSIDE = {
    # Benchmarks of one layer: what they measure has no public name.
    "benchmarks/messages.py": "spark_kafka_native.kafka.protocol",
    "benchmarks/client.py": "spark_kafka_native.kafka.producer",
    "benchmarks/formats_avro.py": "spark_kafka_native.formats",
    "benchmarks/protobuf_columns.py": "spark_kafka_native.formats",
    "benchmarks/records.py": "spark_kafka_native.kafka.records",
    "benchmarks/scale.py": "spark_kafka_native",
    "benchmarks/worker_sockets.py": "spark_kafka_native.spark.worker_tuning",
    # It times the sink's requests, one by one.
    "benchmarks/harness/exactly_once.py": "spark_kafka_native",
    # The page documents the layer of messages and codecs as a tool of its own.
    "docs/client.md": "spark_kafka_native.kafka.protocol",
}
KERNEL = ("spark_kafka_native.kafka.records", "kernel")
"""Documented: whether the compiled kernel is in use."""


def python_of(path: Path) -> Iterator[str]:
    if path.suffix == ".py":
        yield path.read_text()
    elif path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield "\n".join(
            line for cell in code for line in cell.splitlines() if not line.startswith(("%", "!"))
        )
    else:
        yield from re.findall(r"^ *```python\n(.*?)^ *```$", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def imported(source: str) -> Iterator[tuple[str, str | None]]:
    """(module, name) of each import of ours; the name is None for ``import module``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            pairs: list[tuple[str, str | None]] = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            pairs = [(alias.name, None) for alias in node.names]
        else:
            continue
        yield from (pair for pair in pairs if pair[0].partition(".")[0] == "spark_kafka_native")


def is_public(module: str, name: str | None) -> bool:
    if (module, name) == KERNEL:
        return True
    if module not in PUBLIC:
        return False
    return name is None or name in importlib.import_module(module).__all__ or f"{module}.{name}" in PUBLIC


PATHS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "conf/*.md", "notebooks/*.ipynb", "benchmarks/**/*.py")
    for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_are_public(path: Path) -> None:
    inside = INSIDE.get(path.relative_to(ROOT).as_posix(), "nothing")
    found = [pair for source in python_of(path) for pair in imported(source)]
    hidden = [pair for pair in found if not is_public(*pair) and not f"{pair[0]}.".startswith(f"{inside}.")]
    assert not hidden


def test_the_check_sees_an_import_that_is_not_public() -> None:
    (pair,) = imported("from spark_kafka_native.kafka.records.decode import decode_record_set")
    assert not is_public(*pair)
    assert not is_public("spark_kafka_native.kafka", "NoSuchName")
    assert is_public("spark_kafka_native.kafka", "Admin")
