"""What the options of a write may reach on the driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from spark_kafka_native.kafka.errors import ConfigError
from spark_kafka_native.kafka.security.config_providers import ALLOWED_FILES
from spark_kafka_native.spark.options.option import Scope
from spark_kafka_native.spark.options.option_values import OptionValues
from spark_kafka_native.spark.write.write_options import WriteOptions
from spark_kafka_native.spark.write.write_task import RowColumns


def parse(summary_path: Path) -> WriteOptions:
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "summaryPath": str(summary_path)}
    return WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))


def test_a_summary_is_written_only_where_files_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    (allowed / "link").symlink_to(other)
    assert parse(other / "summary.json").summary_path == str(other / "summary.json")
    monkeypatch.setenv(ALLOWED_FILES, str(allowed))
    assert parse(allowed / "new" / "summary.json").summary_path is not None
    for path in (other / "summary.json", allowed / ".." / "x.json", allowed / "link" / "x.json"):
        with pytest.raises(ConfigError, match=r"summaryPath: .* is not among PYKAFKA_ALLOWED_FILES"):
            parse(path)


@pytest.mark.parametrize("path", ["", ".", "/", "..", "/tmp/.."])
def test_a_summary_without_a_file_name_is_refused_before_anything_is_written(path: str) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "summaryPath": path}
    with pytest.raises(ConfigError, match="summaryPath must be the path of a file, not '"):
        WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))


def parse_once(**options: str) -> WriteOptions:
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t"} | {
        name.replace("__", "."): text for name, text in options.items()
    }
    return WriteOptions.parse(OptionValues.parse(given, Scope.WRITE))


def test_keys_and_values_each_have_their_format() -> None:
    for given in (["key"], ["value"], ["key", "value"]):
        options = parse_once(**{f"{name}__format": "json" for name in given})
        assert [one.payload for one in options.formats] == given


def test_exactly_once_has_its_own_names_and_ten_minutes() -> None:
    assert parse_once().exactly_once is None
    assert parse_once(deliveryGuarantee="at-least-once").exactly_once is None
    once = parse_once(deliveryGuarantee="Exactly-Once").exactly_once
    assert once is not None
    assert (once.transactional_id_prefix, once.transaction_timeout_ms) == ("pykafka", 600_000)
    assert not once.is_prefix_given
    once = parse_once(
        deliveryGuarantee="exactly-once", transactionalIdPrefix="orders", transactionTimeout="90s"
    ).exactly_once
    assert once is not None
    assert (once.transactional_id_prefix, once.transaction_timeout_ms) == ("orders", 90_000)
    assert once.is_prefix_given


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deliveryGuarantee": "twice"}, "must be at-least-once or exactly-once"),
        ({"transactionalIdPrefix": "x"}, "no effect without deliveryGuarantee=exactly-once"),
        ({"transactionTimeout": "1m"}, "no effect without deliveryGuarantee=exactly-once"),
        ({"deliveryGuarantee": "exactly-once", "transactionTimeout": "10ms"}, "must be between 1000"),
        ({"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": " "}, "must not be empty"),
        (
            {"deliveryGuarantee": "exactly-once", "kafka__transaction__timeout__ms": "60000"},
            "from the option transactionTimeout",
        ),
        ({"transactionMarkerTopic": "m"}, "no effect without deliveryGuarantee=exactly-once"),
        ({"writeId": "nightly"}, "'writeId' has no effect without deliveryGuarantee=exactly-once"),
        *(
            ({"deliveryGuarantee": "exactly-once", "writeId": text}, "writeId must be 1 to 200 ASCII letters")
            for text in (" ", "a/b", "a b", "nächtlich", "x" * 201)
        ),
        (
            {"deliveryGuarantee": "exactly-once", "topic": "m", "transactionMarkerTopic": " m"},
            "must not be the topic that the rows go to",
        ),
        (
            {"deliveryGuarantee": "exactly-once", "topic": " m", "transactionMarkerTopic": "m"},
            "must not be the topic that the rows go to",
        ),
        (
            {"deliveryGuarantee": "exactly-once", "transactionMarkerTopic": " "},
            "transactionMarkerTopic must not be empty",
        ),
        ({"deliveryGuarantee": "exactly-once", "kafka__acks": "1"}, r"needs kafka\.acks=all"),
        ({"deliveryGuarantee": "exactly-once", "kafka__enable__idempotence": "false"}, "needs kafka"),
        ({"deliveryGuarantee": "exactly-once", "kafka__retries": "0"}, "kafka.retries=0"),
        (
            {"deliveryGuarantee": "exactly-once", "kafka__over__limit": "skip"},
            "can't be had with kafka.over.limit=skip",
        ),
        (
            {
                "deliveryGuarantee": "exactly-once",
                "kafka__over__limit": "dead_letter",
                "kafka__dead__letter__topic": "d",
            },
            "can't be had with kafka.over.limit=dead_letter",
        ),
        ({"kafka__over__limit": "dead_letter"}, "over.limit=dead_letter needs dead.letter.topic"),
        (
            {"deliveryGuarantee": "exactly-once", "asyncProgressTrackingEnabled": "TRUE"},
            "can't be had with asyncProgressTrackingEnabled",
        ),
    ],
)
def test_what_does_not_go_with_exactly_once(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_once(**options)


@pytest.mark.parametrize("name", ["createTopics.partitions", "createTopics.replicationFactor"])
def test_how_topics_are_created_is_said_only_where_they_are(name: str) -> None:
    given = {name.replace(".", "__"): "3"}
    for without in ({}, {"createTopics": "false"}):
        with pytest.raises(ConfigError, match=rf"'{name}' has no effect without createTopics=true"):
            parse_once(**given, **without)
    created = parse_once(**given, createTopics="true")
    expected = (3, None) if "partitions" in name else (None, 3)
    assert (created.create_partitions, created.create_replication_factor) == expected


def test_unknown_names_are_refused_where_that_is_wished() -> None:
    given = {"kafka__partitioner__ignore__keys": "true", "kafka__linger__ms": "1"}
    assert parse_once(**given, unknownOptions="error").warnings == ()
    with pytest.raises(
        ConfigError, match=r"unknownOptions=error: Unknown option 'topics'; did you mean 'topic'"
    ):
        parse_once(**given, topics="t", unknownOptions="error")


def test_names_of_javas_producer_without_a_meaning_here_are_not_unknown() -> None:
    given = {
        "kafka__partitioner__availability__timeout__ms": "50",
        "kafka__transaction__two__phase__commit__enable": "false",
    }
    assert parse_once(**given, unknownOptions="error").warnings == ()


@pytest.mark.parametrize("text", ["", " \n"])
@pytest.mark.parametrize("name", ["topic", "timestampColumn"])
def test_an_empty_name_is_refused(name: str, text: str) -> None:
    """As of a variable that is not set: rows went where their column says, back to where they were read."""
    with pytest.raises(ConfigError, match=f"Option '{name}' is empty. Without the option"):
        parse_once(**{name: text})
    options = parse_once(timestampColumn=" t ", topic=" a ")
    assert (options.topic, options.timestamp_column) == ("a", " t ")


def test_what_was_probably_meant_by_a_missing_topic_is_said() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
    hint = WriteOptions.parse(OptionValues.parse(given, Scope.WRITE)).topic_hint
    with pytest.raises(ConfigError, match=r"a topic. \('subscribe' was given: did you mean 'topic'\?\)"):
        RowColumns.check(StructType().add("value", "string"), None, topic_hint=hint)


def test_a_write_may_have_a_name() -> None:
    for text in ("nightly-2026-11-22", " 2026-11-22T10:00:00+01:00\n", "x" * 200, "orders_7.b"):
        once = parse_once(deliveryGuarantee="exactly-once", writeId=text).exactly_once
        assert once is not None
        assert once.write_id == text.strip()


@pytest.mark.parametrize(
    ("given", "linger_ms"),
    [
        ({}, 1_000),
        ({"kafka.delivery.timeout.ms": "400"}, 400),
        ({"kafka.linger.ms": "3"}, 3),
        ({"kafka.queue.buffering.max.ms": "4"}, 4),
    ],
)
def test_a_write_lingers_a_second_unless_it_is_told_or_has_no_time(
    given: dict[str, str], linger_ms: int
) -> None:
    options = {"kafka.bootstrap.servers": "a:1", "topic": "t"} | given
    assert WriteOptions.parse(OptionValues.parse(options, Scope.WRITE)).producer.linger_ms == linger_ms


@pytest.mark.parametrize(
    ("given", "partitioner"),
    [
        ({}, "murmur2"),
        ({"kafka__partitioner__ignore__keys": "false"}, "murmur2"),
        ({"kafka__partitioner__ignore__keys": " True"}, "sticky"),
        ({"kafka__partitioner__ignore__keys": "true", "kafka__partitioner__class": "crc32"}, "crc32"),
        (
            {"kafka__partitioner__class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"},
            "round_robin",
        ),
    ],
)
def test_a_key_chooses_the_partition_unless_it_is_to_be_ignored(
    given: dict[str, str], partitioner: str
) -> None:
    assert parse_once(**given).producer.partitioner == partitioner
