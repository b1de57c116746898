"""Kafka's own word for things, read from the jars that the broker fixture needs anyway; none is kept here."""

from __future__ import annotations

import functools
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_native.testing.java import jars


@pytest.fixture(scope="session")
def kafka_clients_jar() -> Path:
    return next(jar for jar in jars() if jar.name.startswith("kafka-clients-"))


@pytest.fixture(scope="session")
def read_spec(kafka_clients_jar: Path) -> Callable[[str], dict[str, Any]]:
    """``read_spec("FetchRequest")``: the JSON of one message, without its comments."""

    @functools.cache
    def read(name: str) -> dict[str, Any]:
        with zipfile.ZipFile(kafka_clients_jar) as jar:
            text = jar.read(f"common/message/{name}.json").decode()
        spec: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        return spec

    return read
