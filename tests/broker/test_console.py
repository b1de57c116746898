import subprocess

import pytest

from spark_kafka_native.testing.console import ConsoleRecord, consume, produce

pytestmark = pytest.mark.broker


def test_what_java_wrote_java_reads(kafka, topic):
    kafka.create_topic(topic)
    given = [("a", "1"), (None, "é"), ("b", None), ("", ""), ("c", '{"x": 1,\u2028}')]
    produce(kafka.bootstrap_servers, topic, given, compression="zstd")
    records = consume(kafka.bootstrap_servers, topic, max_records=len(given))
    assert [(record.partition, record.offset) for record in records] == [(0, i) for i in range(len(given))]
    assert [(record.key, record.value) for record in records] == [
        tuple(None if part is None else part.encode() for part in pair) for pair in given
    ]
    assert {record.timestamp_type for record in records} == {"CreateTime"}
    assert all(record.timestamp_ms > 1_600_000_000_000 for record in records)
    assert {record.headers for record in records} == {None}


def test_headers_log_append_time_and_lines_in_values(kafka, topic):
    from confluent_kafka import Producer

    kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"two\nlines\t", headers=[("h", b"1"), ("h", b"2")])
    assert producer.flush(20) == 0
    (record,) = consume(kafka.bootstrap_servers, topic, max_records=1)
    assert record == ConsoleRecord(
        partition=0,
        offset=0,
        timestamp_type="LogAppendTime",
        timestamp_ms=record.timestamp_ms,
        headers=b"h:1,h:2",
        key=None,
        value=b"two\nlines\t",
    )


def test_an_empty_topic_is_read_to_its_end(kafka, topic):
    kafka.create_topic(topic)
    assert consume(kafka.bootstrap_servers, topic, timeout_ms=500) == []


def test_a_tool_that_fails_says_why():
    with pytest.raises(subprocess.CalledProcessError) as raised:
        consume("no-port-here", "t", timeout_ms=500)
    assert "no-port-here" in raised.value.__notes__[0]


def test_a_record_that_was_not_written_is_an_error():
    """The tool logs it, and ends with exit code 0."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        produce("127.0.0.1:1", "t", [("k", "v")], producer_properties={"max.block.ms": "300"})
    assert "Topic t not present in metadata after 300 ms" in raised.value.__notes__[0]


def test_a_topic_that_can_not_be_read_is_not_empty(kafka):
    """The tool logs it, and ends with exit code 0."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        consume(kafka.bootstrap_servers, "no name of a topic!")
    assert "InvalidTopicException" in raised.value.__notes__[0]
