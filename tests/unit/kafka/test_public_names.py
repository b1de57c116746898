"""The public names of the client: each can be imported, type checkers see each, and importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spark_kafka_native.kafka as kafka


@pytest.mark.parametrize("name", kafka.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(kafka, name).__name__ == name


def test_no_other_name_can_be_imported() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Consumr'"):
        _ = kafka.Consumr


def test_type_checkers_see_the_same_names_in_the_same_modules() -> None:
    tree = ast.parse(Path(kafka.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # without `as` a name is not exported to users
    }
    assert seen == kafka._MODULES


@pytest.mark.parametrize("name", ["ClientConfig", "Admin", "Connection", "GroupConfig"])
def test_importing_a_name_is_cheap_and_needs_no_spark(name: str) -> None:
    heavy = "{'numpy', 'pyarrow', 'pyspark'}"
    code = f"import sys; from spark_kafka_native.kafka import {name}; print({heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
