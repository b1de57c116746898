"""The client's front door: every public name is there, and opening it is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spark_kafka_native.kafka as kafka


@pytest.mark.parametrize("name", kafka.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(kafka, name).__name__ == name


def test_nothing_else_is_promised() -> None:
    assert set(kafka.__all__) == set(kafka._MODULES)
    with pytest.raises(AttributeError, match="no attribute 'Consumr'"):
        _ = kafka.Consumr


@pytest.mark.parametrize("name", ["ClientConfig", "Admin", "Connection", "GroupConfig"])
def test_the_door_is_light_and_knows_no_spark(name: str) -> None:
    heavy = "{'numpy', 'pyarrow', 'pyspark'}"
    code = f"import sys; from spark_kafka_native.kafka import {name}; print({heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
