import pickle

import pytest

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.spark.option_values import OptionValues
from spark_kafka_native.spark.options import OPTIONS, Scope


def test_names_are_case_insensitive_and_kafka_properties_go_apart():
    values = OptionValues.read(
        {"MinPartitions": "4", "Kafka.Bootstrap.Servers": "h:1", "kafkaConsumer.pollTimeoutMs": "7"},
        Scope.READ,
    )
    assert values.value("minpartitions") == 4
    assert values.kafka == {"bootstrap.servers": "h:1"}
    assert values.value("kafkaConsumer.pollTimeoutMs") == 7
    assert values.warnings == ()


def test_defaults_are_those_of_the_table():
    values = OptionValues.read({}, Scope.READ)
    assert values.value("failOnDataLoss") is True
    assert values.value("minPartitions") is None
    assert values.value("fetchOffset.retryIntervalMs") == 1000
    assert values.value("maxTriggerDelay") == 15 * 60_000


def test_an_unknown_name_is_told_with_the_nearest_one():
    values = OptionValues.read(
        {"startingOffset": "earliest", "group.id": "g", "x": "1", "path": "p"}, Scope.READ
    )
    assert values.warnings == (
        "Unknown option 'startingOffset' is ignored; did you mean 'startingOffsets'?",
        "Unknown option 'group.id' is ignored; a property of the Kafka client is written 'kafka.group.id'",
        "Unknown option 'x' is ignored",
    )


def test_an_option_of_another_place_is_told():
    values = OptionValues.read({"maxOffsetsPerTrigger": "1", "topic": "t"}, Scope.READ)
    assert values.warnings == (
        "maxOffsetsPerTrigger option ignored in batch queries",
        "topic option ignored in batch queries",
    )
    assert OptionValues.read({"subscribe": "t"}, Scope.WRITE).warnings == (
        "subscribe option ignored in writes",
    )


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("failOnDataLoss", "yes", 'For input string: "yes"'),
        ("minPartitions", "x", 'For input string: "x"'),
        ("minPartitions", "0", "minPartitions must be positive"),
        ("maxRecordsPerPartition", "-1", "maxrecordsperpartition must be positive"),
        ("minPartitions", "3000000000", "must be between"),
        ("startingOffsetsByTimestampStrategy", "first", "No value found for 'first'"),
        ("maxTriggerDelay", "soon", "is a time such as"),
        ("fetchOffset.numRetries", "-1", "must be between 0 and"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(name, text, why):
    values = OptionValues.read({name: text}, Scope.READ)
    with pytest.raises(ConfigError, match=why):
        values.value(name)


def test_values_survive_pickling():
    values = OptionValues.read({"subscribe": "t", "kafka.client.id": "c", "nope": ""}, Scope.READ)
    copy = pickle.loads(pickle.dumps(values))
    assert (copy.text("subscribe"), copy.kafka, copy.warnings) == ("t", values.kafka, values.warnings)


def test_every_option_is_declared_once_and_says_what_it_means():
    names = [option.name.lower() for option in OPTIONS]
    assert len(names) == len(set(names))
    assert all(option.sentence.endswith(".") for option in OPTIONS)
