"""The files under conf/ say nothing that the program does not know."""

import json
from pathlib import Path

import pytest

from spark_kafka_native.cli.broker import _properties
from spark_kafka_native.kafka.config.client_config import ClientConfig
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.options.table import Scope
from spark_kafka_native.spark.write.write_options import ExactlyOnce, WriteOptions

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize("name", ["plaintext.json"])
def test_option_files_name_properties_of_the_client(name):
    options = json.loads((CONF / name).read_text())
    properties = {name.removeprefix("kafka."): value for name, value in options.items()}
    assert all(name.startswith("kafka.") for name in options)
    assert set(properties) <= ClientConfig.property_names()
    assert ClientConfig.from_properties(properties).bootstrap_servers


def test_the_exactly_once_options_are_taken_by_a_write():
    options = WriteOptions.parse(
        OptionValues.parse(json.loads((CONF / "exactly-once.json").read_text()), Scope.WRITE)
    )
    assert options.warnings == ()
    assert options.topic == "orders"
    assert options.exactly_once == ExactlyOnce(
        transactional_id_prefix="orders-job", is_prefix_given=True, transaction_timeout_ms=600_000
    )


def test_each_option_file_is_tested():
    assert {path.name for path in CONF.glob("*.json")} == {"plaintext.json", "exactly-once.json"}


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
