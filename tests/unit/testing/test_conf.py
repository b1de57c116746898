"""The files under conf/ say nothing that the program does not know."""

import json
from pathlib import Path

import pytest

from spark_kafka_native.cli.broker import _properties
from spark_kafka_native.kafka.config import ClientConfig

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.json")), ids=lambda path: path.name)
def test_option_files_name_properties_of_the_client(path):
    options = json.loads(path.read_text())
    properties = {name.removeprefix("kafka."): value for name, value in options.items()}
    assert all(name.startswith("kafka.") for name in options)
    assert set(properties) <= ClientConfig.property_names()
    assert ClientConfig.from_properties(properties).bootstrap_servers


@pytest.mark.broker
def test_broker_settings_are_taken():
    from spark_kafka_native.testing import EmbeddedKafka

    properties = _properties(CONF / "test-broker.properties", ["log.segment.bytes=2097152"])
    assert properties["log.segment.bytes"] == "2097152"
    with EmbeddedKafka(properties=properties) as kafka:
        assert kafka.broker(1).running


def test_every_file_is_described():
    described = (CONF / "README.md").read_text()
    for path in CONF.iterdir():
        assert f"`{path.name}`" in described or path.name == "README.md"
